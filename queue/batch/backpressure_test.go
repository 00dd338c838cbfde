package batch

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/batchscripts"
)

// A window of 1600: while 100 of those that came due have not ended no more are booked,
// as long as some end each second; otherwise twice as many may be late.
func TestLag(t *testing.T) {
	t.Parallel()
	const window = 1600
	now := time.Now()
	l := backpressure{}
	book := func(n int, at time.Time) {
		for range n {
			l.booked(at)
		}
	}
	want := func(what string, unfinished int, after time.Duration, room int) {
		t.Helper()
		now = now.Add(after)
		if got := l.room(unfinished, window, now); got != room {
			t.Errorf("%s: room for %d, want %d", what, got, room)
		}
	}
	want("nothing is booked", 0, 0, window)
	book(300, now.Add(time.Minute))
	book(300, now)
	want("nothing has ended: there are no pools", 600, 0, window)
	want("200 are late", 500, 0, 0)
	want("some end", 480, time.Second, 0)
	want("40 are late", 340, time.Second, 60)
	want("200 are late", 300+200, 0, 0)
	want("none has ended yet", 500, 900*time.Millisecond, 0)
	want("none has ended for a second", 500, 100*time.Millisecond, 200)
	want("as many", 500, 0, 200)
	want("few are late: as many may be", 310, 0, 390)
	want("few have been for a while: half as many", 310, calmFor, 190)
	want("and again: the share holds", 310, calmFor, 90)
	want("a minute later those ahead are due", 310, time.Minute, 0)
}

// Who takes a batch over does not know what the other had booked: that is due by its own
// first instant.
func TestLagOfWhoTakesOver(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := backpressure{before: 500}
	if got := l.room(400, 1600, now); got != 100 {
		t.Errorf("room for %d, want 100: none of those is known to be late", got)
	}
	l.booked(now.Add(time.Second))
	if got := l.room(400, 1600, now); got != 100 {
		t.Errorf("room for %d, want 100: its own is not due either", got)
	}
	if got := l.room(400, 1600, now.Add(time.Second)); got != 0 {
		t.Errorf("room for %d, want none: all are late", got)
	}
}

// Tasks that fail and wait for asynq to try them again are late, and hold up nobody: the
// rate is used up, for what is ahead never runs out.
func TestLagOfTasksThatFail(t *testing.T) {
	t.Parallel()
	const step, lasts = 20 * time.Millisecond, 200 * time.Second
	for _, c := range []struct {
		rate, window, each int // one in so many fails
		backoff            time.Duration
	}{
		{2000, 10_000, 20, 8 * time.Second},
		{2000, 10_000, 50, time.Hour},
		{100, 2000, 20, 15 * time.Second},
		{20, 1200, 3, 10 * time.Second},
	} {
		type job struct {
			at    time.Time
			fails bool
		}
		var l backpressure
		var ahead []job
		var failed []time.Time // until when each backs off
		booked, unfinished, ran := 0, 0, 0
		began := time.Now()
		next := began
		for now := began; now.Before(began.Add(lasts)); now = now.Add(step) {
			for ; len(ahead) > 0 && !ahead[0].at.After(now); ahead = ahead[1:] {
				if ran++; ahead[0].fails {
					failed = append(failed, now.Add(c.backoff))
				} else {
					unfinished--
				}
			}
			for ; len(failed) > 0 && !failed[0].After(now); failed = failed[1:] {
				unfinished--
			}
			for {
				n := min(c.window-unfinished, batchscripts.ElementsMax, l.room(unfinished, c.window, now))
				if n <= 0 {
					break
				}
				if next.Before(now) {
					next = now
				}
				for range n {
					booked++
					ahead = append(ahead, job{next, booked%c.each == 0})
					l.booked(next)
					next = next.Add(time.Second / time.Duration(c.rate))
				}
				unfinished += n
			}
		}
		if all := c.rate * int(lasts/time.Second); ran < all*99/100 {
			t.Errorf("%+v: %d of %d ran", c, ran, all)
		}
	}
}
