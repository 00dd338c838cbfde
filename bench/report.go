package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
)

// line is a row as text.
func (r row) line() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s %s", r.What, number(r.Ours), r.Unit)
	if r.Rival != "" {
		fmt.Fprintf(&s, ", %s %s, ratio %s", r.Rival, number(r.Theirs), r.ratio())
	}
	if r.Target != "" {
		fmt.Fprintf(&s, ", target %s: %s", r.Target, r.verdict())
	}
	return s.String()
}

// ratio is ours/theirs with its extremes over the rounds.
func (r row) ratio() string {
	if r.Rival == "" {
		return ""
	}
	mid, low, high := ratio(r.Ratio), ratio(r.Low), ratio(r.High)
	if low == mid && high == mid {
		return mid
	}
	return mid + " (" + low + " to " + high + ")"
}

// verdict says whether the target holds.
func (r row) verdict() string {
	switch {
	case r.Holds == nil:
		return ""
	case *r.Holds:
		return "yes"
	default:
		return "no"
	}
}

func ratio(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// number prints three digits, or all of those before the point, in groups.
func number(x float64) string {
	digits := 0
	switch a := math.Abs(x); {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "-"
	case a == math.Trunc(a):
	case a < 10:
		digits = 2
	case a < 100:
		digits = 1
	}
	return grouped(strconv.FormatFloat(x, 'f', digits, 64))
}

// grouped puts commas into a number of four digits and more.
func grouped(digits string) string {
	whole, rest, _ := strings.Cut(digits, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		rest = "." + rest
	}
	return sign + whole + rest
}

// infoField returns one field of a reply to INFO, "" when it has none.
func infoField(info, field string) string {
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
			return value
		}
	}
	return ""
}

// heads of the table.
var heads = []string{"what", "Headway", "rival", "its figure", "ratio (lowest to highest)", "target", "holds"}

// cells of a row, one for each head.
func (r row) cells() []string {
	theirs := ""
	if r.Rival != "" {
		theirs = number(r.Theirs) + " " + r.Unit
	}
	return []string{r.What, number(r.Ours) + " " + r.Unit, r.Rival, theirs, r.ratio(), r.Target, r.verdict()}
}

// targets are the rows that have one.
func (b *bench) targets() []row {
	var rows []row
	for _, p := range b.parts {
		for _, r := range p.rows {
			if r.Target != "" {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// printTable prints everything that was measured.
func (b *bench) printTable() {
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(heads, "\t"))
	for _, p := range b.parts {
		for _, r := range p.rows {
			fmt.Fprintln(w, strings.Join(r.cells(), "\t"))
		}
	}
	_ = w.Flush() // as a failed Println: there is nobody to tell
}
