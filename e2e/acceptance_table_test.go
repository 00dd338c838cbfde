//go:build accept

package e2e

import (
	"fmt"
	"io"
	"testing"
	"text/tabwriter"
	"time"
)

// table collects the figures of the acceptance tests.
type table struct {
	rows []row
}

type row struct {
	name, figure, bound, verdict string
}

// want adds a criterion. One that does not hold fails the test.
func (tab *table) want(t *testing.T, ok bool, name, figure, bound string) {
	t.Helper()
	verdict := "ok"
	if !ok {
		verdict = "FAILS"
		t.Errorf("%s: %s, want %s", name, figure, bound)
	}
	tab.rows = append(tab.rows, row{name, figure, bound, verdict})
}

// none adds a criterion that is met when there are no faults.
func (tab *table) none(t *testing.T, name string, faults []string) {
	t.Helper()
	if len(faults) > 0 {
		t.Logf("%s: %s", name, few(faults))
	}
	tab.want(t, len(faults) == 0, name, fmt.Sprint(len(faults)), "0")
}

// faults adds what no test may see.
func (tab *table) faults(t *testing.T, s *stage) {
	t.Helper()
	for what, faults := range s.faults() {
		tab.none(t, what, faults)
	}
}

// most and least add a criterion on a number.
func (tab *table) most(t *testing.T, name string, figure, bound float64) {
	t.Helper()
	tab.want(t, figure <= bound, name, number(figure), "≤ "+number(bound))
}

func (tab *table) least(t *testing.T, name string, figure, bound float64) {
	t.Helper()
	tab.want(t, figure >= bound, name, number(figure), "≥ "+number(bound))
}

// within adds a criterion on a duration.
func (tab *table) within(t *testing.T, name string, figure, bound time.Duration) {
	t.Helper()
	tab.want(t, figure <= bound, name, figure.Round(10*time.Microsecond).String(), "≤ "+bound.String())
}

// note adds a figure that has no bound.
func (tab *table) note(name, format string, a ...any) {
	tab.rows = append(tab.rows, row{name: name, figure: fmt.Sprintf(format, a...)})
}

// head begins a group of rows.
func (tab *table) head(name string) { tab.rows = append(tab.rows, row{name: "", figure: name}) }

func (tab *table) print(w io.Writer) {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out)
	for _, r := range tab.rows {
		if r.name == "" {
			fmt.Fprintf(out, "\n%s\n", r.figure)
			continue
		}
		fmt.Fprintf(out, "  %s\t%s\t%s\t%s\n", r.name, r.figure, r.bound, r.verdict)
	}
	out.Flush()
}

func number(f float64) string {
	switch {
	case f == float64(int64(f)):
		return fmt.Sprintf("%.0f", f)
	case f < 10:
		return fmt.Sprintf("%.3f", f)
	}
	return fmt.Sprintf("%.1f", f)
}
