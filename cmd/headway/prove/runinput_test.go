package prove

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/redistest"
)

// TestInputFaults wants them all with their lines, and nothing in Redis.
func TestInputFaults(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := newProgram(t, "-redis", urlOf(srv), "-input", "-")
	p.env.stdin = strings.NewReader("to,text\n+12025550117,hello\n12025550118,hello\n+12025550119,\n+12025550117,\"hello\n")
	r := p.run(t.Context())
	r.want(t, exitUsage)
	want := `input: 3 faults
  line 3: to 120…0118 does not start with +
  line 4: text is empty
  line 5: broken quoting: a " too many or too few in a quoted field
`
	if diff := cmp.Diff(want, r.stderr); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
	if r.stdout != "" {
		t.Errorf("stdout = %q, want none", r.stdout)
	}
	checkEmpty(t, srv)

	p.env.stdin = strings.NewReader("phone,text\n+12025550117,hello\n")
	p.args = append(p.args, "-skip-invalid")
	r = p.run(t.Context())
	r.want(t, exitUsage) // nothing is left to send
	checkEmpty(t, srv)
}

func TestAllInputFaultsArePrinted(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-input", "-")
	p.env.stdin = strings.NewReader("to,text\n" + strings.Repeat("+1,hello\n", 200))
	r := p.run(t.Context())
	r.want(t, exitUsage)
	if n := strings.Count(r.stderr, "\n"); n != 201 || !strings.Contains(r.stderr, "  line 201: ") {
		t.Errorf("%d lines, want 201, the last of line 201", n)
	}
}

func TestSkipInvalid(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-skip-invalid", "-limit", "1/200ms")
	p.env.stdin = strings.NewReader("to,text\n+12025550117,hello\n12025550118,hello\n+12025550117,hello\n")
	r := p.run(t.Context())
	r.want(t, exitOK)
	if r.report.Sent != 2 || !strings.Contains(r.stderr, "input: 1 fault, skipped\n  line 3: to 120…0118 does not start with +") {
		t.Errorf("sent %d, want 2 and a report of line 3:\n%s", r.report.Sent, r.stderr)
	}
	if gap := *r.report.MinGapMs; gap < 200 {
		t.Errorf("smallest gap %v ms, want 200", gap)
	}
	checkKeys(t, srv)
}

func TestOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for i, want := range []struct {
		sent int
		says string
	}{
		{6, "6 messages enqueued, 0 already there\n"},
		{0, "0 messages enqueued, 6 already there\n"},
	} {
		p := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-once", "-limit", "1/200ms")
		p.env.stdin = strings.NewReader(csvOf(5, 2) + "+12025550000,hello 0\n") // two of a kind are two
		r := p.run(t.Context())
		r.want(t, exitOK)
		if r.report.Sent != want.sent || !strings.Contains(r.stderr, want.says) {
			t.Errorf("run %d: sent %d, want %d, and %q in:\n%s", i+1, r.report.Sent, want.sent, want.says, r.stderr)
		}
	}
}
