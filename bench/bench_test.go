package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/redisserver"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		figures []float64
		want    float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		given := slices.Clone(c.figures)
		if got := median(given); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.figures, got, c.want)
		}
		if !slices.Equal(given, c.figures) {
			t.Errorf("median sorted its argument: %v, was %v", given, c.figures)
		}
	}
}

// The ratio is that of the medians, its extremes are those of the rounds.
func TestAgainst(t *testing.T) {
	t.Parallel()
	r := against("acquires", "/s", higher, "other", []float64{10, 30, 20}, []float64{10, 10, 40})
	if r.Ours != 20 || r.Theirs != 10 || r.Ratio != 2 || r.Low != 0.5 || r.High != 3 {
		t.Errorf("against = %+v, want 20 to 10, 2 (0.5 to 3)", r)
	}
	if r.Holds != nil || r.verdict() != "" {
		t.Errorf("a row without a target holds: %q", r.verdict())
	}
	if yes, no := r.holding("≥ 2 x", true), r.holding("≥ 3 x", false); yes.verdict() != "yes" || no.verdict() != "no" {
		t.Errorf("verdicts = %q, %q, want yes, no", yes.verdict(), no.verdict())
	}
}

func TestInterleave(t *testing.T) {
	t.Parallel()
	b := &bench{rounds: 3}
	var order strings.Builder
	contender := func(name string, first float64) func() (float64, error) {
		return func() (float64, error) {
			order.WriteString(name)
			first++
			return first, nil
		}
	}
	figures, err := b.interleave(contender("a", 0), contender("b", 10))
	if err != nil || order.String() != "ababab" {
		t.Fatalf("order = %q, %v, want ababab", order.String(), err)
	}
	if !slices.Equal(figures[0], []float64{1, 2, 3}) || !slices.Equal(figures[1], []float64{11, 12, 13}) {
		t.Errorf("figures = %v", figures)
	}
	failed := errors.New("failed")
	if _, err := b.interleave(func() (float64, error) { return 0, failed }); !errors.Is(err, failed) {
		t.Errorf("interleave = %v, want %v", err, failed)
	}
}

// What a section opened is closed, last first, also when it fails; its error
// names it, and the others run.
func TestSectionsAreClosed(t *testing.T) {
	var closed []string
	failed := errors.New("failed")
	open := func(fails error) func(context.Context, *bench) error {
		return func(_ context.Context, b *bench) error {
			for _, name := range []string{"server", "client"} {
				b.onEnd(func() error { closed = append(closed, name); return nil })
			}
			b.say("%d is said", 1)
			b.row(alone("a thing", "bytes", lower, []float64{1}))
			return fails
		}
	}
	before := sections
	defer func() { sections = before }()
	sections = []section{{"one", "One", open(failed)}, {"two", "Two", open(nil)}, {"else", "Else", open(nil)}}
	var out bytes.Buffer
	b := &bench{rounds: 1, out: &out}
	dir := t.TempDir()
	err := b.runAll(t.Context(), regexp.MustCompile("one|two"), dir)
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "one: ") {
		t.Errorf("runAll = %v, want the error of one", err)
	}
	if want := []string{"client", "server", "client", "server"}; !slices.Equal(closed, want) {
		t.Errorf("closed %v, want %v", closed, want)
	}
	if len(b.parts) != 2 || b.parts[1].name != "two" || len(b.parts[1].rows) != 1 || len(b.parts[1].remarks) != 1 {
		t.Errorf("parts = %+v, want one and two", b.parts)
	}
	if files := names(t, dir); len(files) > 0 {
		t.Errorf("a run that failed wrote %v", files)
	}
	if err := (&bench{out: &out}).runAll(t.Context(), regexp.MustCompile("nothing"), ""); err == nil {
		t.Error("a name that no section has was accepted")
	}
}

// TestShort runs the cheap sections as `go run . -short` does.
func TestShort(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures for some seconds")
	}
	for _, s := range sections {
		if s.name != "server" && s.name != "memory" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			var out bytes.Buffer
			b := &bench{short: true, rounds: 1, out: &out}
			err := b.runSection(t.Context(), s)
			if errors.Is(err, redisserver.ErrNoServer) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			for _, r := range b.part().rows {
				if r.Ours <= 0 || r.What == "" || r.Unit == "" || r.Rival != "" && r.Ratio != r.Ours/r.Theirs {
					t.Errorf("row %+v makes no sense", r)
				}
			}
			if len(b.part().rows) == 0 || b.redis == "" {
				t.Errorf("%d rows on Redis %q", len(b.part().rows), b.redis)
			}
		})
	}
}
