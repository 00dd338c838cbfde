package prove

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"

	"github.com/headwayq/headway/internal/e2e"
)

// TestInterrupted ends a run by Ctrl-C; -role work and a second run with -once go on.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	for _, again := range [][]string{
		{"-role", "work", "-drain"},
		{"-input", "-", "-once"},
	} {
		t.Run(again[1], func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var arrived atomic.Int64
			url := gatewayOf(t, func(e2e.Message, int) int {
				if arrived.Add(1) == 3 {
					interrupt() // in the middle of a POST, which still counts
				}
				return http.StatusOK
			})
			const n = 6
			first := newProgram(t, "-redis", urlOf(srv), "-input", "-", "-gateway", url, "-limit", "1/500ms", "-once")
			first.env.stdin = strings.NewReader(csvOf(n, 1))
			r := first.run(ctx)
			r.want(t, exitOK)
			sent := r.report.Sent
			if sent != 3 {
				t.Errorf("sent %d before the interrupt, want 3", sent)
			}
			if want := fmt.Sprintf("interrupted: %s left in Redis, -role work goes on\n", e2e.Count(n-sent, "message")); !strings.Contains(r.stderr, want) {
				t.Errorf("stderr has no %q:\n%s", want, r.stderr)
			}
			if !strings.Contains(r.stdout, "breaches") {
				t.Errorf("no summary:\n%s", r.stdout)
			}

			second := newProgram(t, append(again, "-redis", urlOf(srv), "-gateway", url, "-limit", "1/500ms")...)
			second.env.stdin = strings.NewReader(csvOf(n, 1))
			r = second.run(t.Context())
			r.want(t, exitOK)
			if r.report.Sent != n-sent {
				t.Errorf("sent %d and then %d, want %d in all", sent, r.report.Sent, n)
			}
		})
	}
}

// TestInterruptedWhileEnqueueing is a failure: the input is not in Redis.
func TestInterruptedWhileEnqueueing(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	p := newProgram(t, "-redis", urlOf(srv), "-role", "enqueue")
	r := p.run(ctx)
	r.want(t, exitRun)
}

// TestWithoutDrain works until it is told to end, on a queue that stays empty.
func TestWithoutDrain(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-role", "all", "-drain=false"}, {"-role", "work"}} {
		srv := redistest.Start(t)
		p := newProgram(t, append(args, "-redis", urlOf(srv), "-limit", "100/1s")...)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		start := time.Now()
		r := p.run(ctx)
		cancel()
		r.want(t, exitOK)
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("%v: ended by itself after %v", args, took)
		}
	}
}

func TestInterruptedEmbedded(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	const n, left = 24, 12 // of the messages of the example all but the first to each phone wait
	var arrived atomic.Int64
	url := gatewayOf(t, func(e2e.Message, int) int {
		if arrived.Add(1) == n-left {
			time.AfterFunc(time.Second, interrupt) // by then the rest is enqueued
		}
		return http.StatusOK
	})
	r := newProgram(t, "-gateway", url).run(ctx)
	r.want(t, exitOK)
	if want := fmt.Sprintf("interrupted: %d messages not sent, and lost with the embedded Redis\n", left); !strings.Contains(r.stderr, want) {
		t.Errorf("stderr has no %q:\n%s", want, r.stderr)
	}
}
