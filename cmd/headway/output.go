package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// answer is what a command answers: it is marshalled as it is, or written as a table.
type answer interface{ table(t *table) }

// output is how answers are printed.
type output struct {
	format   string
	noColour bool
	colour   bool
	clear    bool
}

// rows is an answer that can be written as CSV too.
type rows interface{ csv(w *csv.Writer) error }

// csvToo marks a command whose answer is rows.
const csvToo = "csv"

func (o *output) check(w io.Writer, csvToo bool) error {
	switch {
	case o.format == "table", o.format == "json", o.format == "csv" && csvToo:
	case csvToo:
		return fmt.Errorf("--output is %q, want table, json or csv", o.format)
	default:
		return fmt.Errorf("--output is %q, want table or json", o.format)
	}
	f, file := w.(*os.File)
	terminal := file && term.IsTerminal(int(f.Fd()))
	o.colour, o.clear = terminal && !o.noColour, terminal && o.format == "table"
	return nil
}

func (o *output) print(w io.Writer, a answer, again bool) error {
	if r, ok := a.(rows); ok && o.format == "csv" {
		return r.csv(csv.NewWriter(w))
	}
	var text string
	if o.format == "json" {
		out, err := json.MarshalIndent(a, "", "  ")
		if err != nil {
			return err
		}
		text = string(out) + "\n"
	} else {
		t := &table{colour: o.colour}
		a.table(t)
		text = t.String()
	}
	if again && o.clear {
		text = "\x1b[H\x1b[2J" + text
	}
	_, err := io.WriteString(w, text)
	return err
}

// table is text in columns. Rows that follow each other have their columns below each other.
type table struct {
	b      strings.Builder
	rows   [][]string
	colour bool
}

// line is text of its own.
func (t *table) line(format string, a ...any) {
	t.flush()
	fmt.Fprintf(&t.b, format+"\n", a...)
}

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		switch v := c.(type) {
		case string:
			row[i] = v
		case int:
			row[i] = strconv.Itoa(v)
		default:
			row[i] = fmt.Sprint(v)
		}
	}
	t.rows = append(t.rows, row)
}

// bad and good mark a word with a colour, on a terminal.
func (t *table) bad(s string) string  { return t.paint("31", s) }
func (t *table) good(s string) string { return t.paint("32", s) }
func (t *table) warn(s string) string { return t.paint("33", s) }

func (t *table) paint(code, s string) string {
	if !t.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// width is that of a text without colours.
func width(s string) int {
	n := utf8.RuneCountInString(s)
	for rest := s; ; {
		_, after, found := strings.Cut(rest, "\x1b[")
		if !found {
			return n
		}
		code, after, _ := strings.Cut(after, "m")
		n -= len(code) + 3
		rest = after
	}
}

func (t *table) flush() {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(c))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(c + strings.Repeat(" ", widths[i]-width(c)+2))
		}
		t.b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	t.rows = nil
}

// String is the whole text.
func (t *table) String() string {
	t.flush()
	return t.b.String()
}

// when is an instant as seen from now.
func when(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	d := at.Sub(now)
	rounded := d.Round(time.Millisecond)
	if d.Abs() >= 10*time.Second {
		rounded = d.Round(time.Second)
	}
	text := at.UTC().Format("2006-01-02 15:04:05.000Z")
	if d < 0 {
		return fmt.Sprintf("%s (%v ago)", text, -rounded)
	}
	return fmt.Sprintf("%s (in %v)", text, rounded)
}

func yes(b bool, text string) string {
	if b {
		return text
	}
	return ""
}
