package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
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
	for i, arg := range a {
		switch v := arg.(type) {
		case string:
			a[i] = shown(v)
		case error:
			a[i] = shown(v.Error())
		}
	}
	fmt.Fprintf(&t.b, format+"\n", a...)
}

func (t *table) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		switch v := c.(type) {
		case int:
			row[i] = strconv.Itoa(v)
		default:
			row[i] = shown(fmt.Sprint(v))
		}
	}
	t.rows = append(t.rows, row)
}

// counted is a number with what so many are or do.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// bad and good mark a word with a colour, on a terminal.
func (t *table) bad(s string) string  { return t.paint("31", s) }
func (t *table) good(s string) string { return t.paint("32", s) }
func (t *table) warn(s string) string { return t.paint("33", s) }

func (t *table) paint(code, s string) string {
	if !t.colour {
		return s
	}
	return paintMark + code + "m" + s + paintMark + "0m"
}

// paintMark stands before a colour until the text around it is shown. It is random, so no text from
// elsewhere has it.
var paintMark = fmt.Sprintf("\x00%016x", rand.Uint64()) //nolint:gosec // nothing depends on it but colours

// shown is text with its colours, which does nothing else to a terminal.
func shown(s string) string {
	parts := strings.Split(s, paintMark)
	for i, part := range parts {
		code, rest := "", part
		if i > 0 {
			code, rest, _ = strings.Cut(part, "m")
			code = "\x1b[" + code + "m"
		}
		parts[i] = code + visible(rest)
	}
	return strings.Join(parts, "")
}

// visible is text with all that is not printed as Go writes it, such as \x1b or \u202e.
func visible(s string) string {
	var b strings.Builder
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		if unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b.WriteRune(r)
		} else {
			quoted := strconv.Quote(s[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[size:]
	}
	return b.String()
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
