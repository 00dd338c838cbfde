package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// showProgress shows progress for d of a bubble's time and returns what was written.
func showProgress(t *testing.T, width func() int, d time.Duration) string {
	t.Helper()
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := NewProgress(&out, func() Snapshot {
			done := int(time.Since(start) / time.Second)
			return Snapshot{Total: 24, Sent: done, Waiting: 24 - done}
		})
		p.width = width
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		p.Run(ctx)
	})
	return out.String()
}

func TestProgressPlain(t *testing.T) {
	t.Parallel()
	want := `sent 5 of 24, waiting 19, failed 0
sent 10 of 24, waiting 14, failed 0
sent 12 of 24, waiting 12, failed 0
`
	if diff := cmp.Diff(want, showProgress(t, nil, 12*sec)); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestProgressLive(t *testing.T) {
	t.Parallel()
	got := showProgress(t, func() int { return 80 }, 2100*time.Millisecond)
	if n := strings.Count(got, eraseLine); n != 12 { // at once, ten times in 2 s, at the end
		t.Errorf("%d redraws, want 12", n)
	}
	if strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "sent 2 of 24, waiting 22, failed 0\n") {
		t.Errorf("output = %q, want one line that stays", got)
	}
	narrow := showProgress(t, func() int { return 10 }, 100*time.Millisecond)
	if want := eraseLine + "[--------" + eraseLine + "[--------\n"; narrow != want {
		t.Errorf("output = %q, want %q", narrow, want)
	}
}

// TestProgressLine wants a line of the caller's own at its own pace, none as long as it is
// empty, and none that says what the last one said.
func TestProgressLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		start := time.Now()
		p := NewProgressLine(&out, time.Second, func(live bool) string {
			if s := time.Since(start) / time.Second; s > 1 {
				return fmt.Sprintf("%d s, live %t", s, live)
			}
			return ""
		})
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		p.Run(ctx)
		if want := "2 s, live false\n3 s, live false\n"; out.String() != want {
			t.Errorf("output = %q, want %q", &out, want)
		}
	})
}

func TestProgressWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		width func() int
		want  string
	}{
		{nil, "a log line\n"},
		{func() int { return 80 }, eraseLine + "a log line\n"},
	} {
		var out strings.Builder
		p := &Progress{out: &out, width: tt.width}
		if n, err := p.Write([]byte("a log line\n")); n != 11 || err != nil {
			t.Errorf("Write = %d, %v, want 11, nil", n, err)
		}
		if out.String() != tt.want {
			t.Errorf("output = %q, want %q", out.String(), tt.want)
		}
	}
}

func TestProgressOnAFile(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if p := NewProgress(f, func() Snapshot { return Snapshot{} }); p.width != nil {
		t.Error("a file is taken for a terminal")
	}
}

func TestSnapshotLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    Snapshot
		want string
	}{
		{Snapshot{}, "sent 0 of 0, waiting 0, failed 0"},
		{Snapshot{Total: 24, Sent: 12, Failed: 1, Waiting: 11, NextIn: 47100 * time.Millisecond}, "sent 12 of 24, waiting 11, failed 1, next in 48s"},
		{Snapshot{Total: -1, Sent: 2, Waiting: 3}, "sent 2, waiting 3, failed 0"},
		{Snapshot{Total: 1, Waiting: 1, NextIn: 1}, "sent 0 of 1, waiting 1, failed 0, next in 1s"},
	} {
		if got := tt.s.line(); got != tt.want {
			t.Errorf("line = %q, want %q", got, tt.want)
		}
	}
}

func TestSnapshotBar(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    Snapshot
		want string
	}{
		{Snapshot{}, ""},
		{Snapshot{Total: -1, Sent: 3}, ""},
		{Snapshot{Total: 24}, "[------------------------] "},
		{Snapshot{Total: 48, Sent: 11, Failed: 1}, "[######------------------] "},
		{Snapshot{Total: 2, Sent: 3}, "[########################] "}, // others' messages are sent too
	} {
		if got := tt.s.bar(); got != tt.want {
			t.Errorf("bar of %+v = %q, want %q", tt.s, got, tt.want)
		}
	}
}
