package main

import (
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// ask is a call: when at the earliest, for how many, and what it waits. The
// next one comes after it has gone.
type ask struct {
	at   time.Duration
	cost int
	wait time.Duration
}

// worked are the worked numbers of docs/algorithms.md, computed by hand.
var worked = []struct {
	limit string
	begin time.Time
	asks  []ask
}{
	{"sliding 1/1m", eight, []ask{{0, 1, 0}, {30 * time.Second, 1, 30 * time.Second}}},
	{"fixed 10/1h", eight, []ask{{0, 1, 0}, {59 * time.Minute, 9, 0}, {59 * time.Minute, 10, time.Minute}}},
	{"calendar 10/day Asia/Shanghai", noonInShanghai(), []ask{{0, 10, 0}, {12*time.Hour - time.Minute, 1, time.Minute}}},
	{"bucket 10/1s burst 3", eight, []ask{{0, 3, 0}, {99 * ms, 1, ms}}},
	{"bucket 10/1s burst 10 step", eight, []ask{{0, 10, 0}, {999 * ms, 10, ms}}},
	{"gcra 10/1s burst 1", eight, []ask{{0, 1, 0}, {30 * ms, 1, 70 * ms}}},
	{"leaky 10/1s", eight, []ask{{100 * ms, 5, 0}, {200 * ms, 1, 400 * ms}}},
	{"smooth 1/1s burst 1", eight, []ask{
		{0, 1, 0}, {0, 2, time.Second}, {0, 3, 2 * time.Second}, {0, 4, 3 * time.Second}, {0, 5, 4 * time.Second}}},
	{"warmup 2/1s over 4s cold 3", eight, []ask{
		{0, 1, 0}, {0, 1, 1375 * ms}, {0, 1, 1125 * ms}, {0, 1, 875 * ms}, {0, 1, 625 * ms}, {0, 1, 500 * ms}, {0, 1, 500 * ms}}},
}

var eight = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

// noonInShanghai is one soon: a script knows the days around the local clock.
func noonInShanghai() time.Time {
	const day = 24 * time.Hour
	return time.Now().UTC().Truncate(day).Add(day + 4*time.Hour)
}

func TestWorkedNumbers(t *testing.T) {
	t.Parallel()
	page := read(t, "algorithms.md")
	rdb := redistest.NewTimedForLong(redistest.Start(t).Client(t), eight)
	for _, w := range worked {
		limit, err := throttle.ParseLimit(w.limit)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page, "\n`"+w.limit+"`: ") {
			t.Errorf("algorithms.md has no worked number of `%s`", w.limit)
		}
		l, err := throttle.New(rdb, "worked", limit, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		now := w.begin
		for _, a := range w.asks {
			now = later(now, w.begin.Add(a.at))
			d := try(t, rdb, l, now, a.cost)
			if got := d.At.Sub(now); got != a.wait {
				t.Errorf("%s: %d permits at %v wait %v, want %v", limit, a.cost, now.Sub(w.begin), got, a.wait)
			}
			now = d.At
			if !d.Granted && !try(t, rdb, l, now, a.cost).Granted {
				t.Errorf("%s: %d permits do not go when they were told, at %v", limit, a.cost, now.Sub(w.begin))
			}
		}
	}
}

func try(t *testing.T, rdb redistest.Timed, l *throttle.Limiter, now time.Time, cost int) throttle.Decision {
	t.Helper()
	rdb.SetTime(now)
	d, err := l.TryAcquire(t.Context(), l.Limit().String(), cost)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
