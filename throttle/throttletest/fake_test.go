package throttletest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/throttletest"
)

const key = "+49 170 1234567"

var perMinute = throttle.Sliding(1, time.Minute)

func granted(t *testing.T, l *throttle.Limiter, want bool) throttle.Decision {
	t.Helper()
	d, err := l.TryAcquire(t.Context(), key, 1)
	if err != nil || d.Granted != want {
		t.Errorf("TryAcquire = %v, %v, want granted = %v", d, err, want)
	}
	return d
}

func TestFakeClock(t *testing.T) {
	t.Parallel()
	f := throttletest.New(t)
	sms, begin := f.Limiter("sms", perMinute, throttle.Config{}), f.Now()
	granted(t, sms, true)
	f.Advance(time.Minute - time.Microsecond)
	if d := granted(t, sms, false); d.At.Sub(d.Now) != time.Microsecond || !d.Now.Equal(f.Now()) {
		t.Errorf("%v, want it a microsecond after %v", d, f.Now())
	}
	f.Set(begin.Add(time.Minute))
	granted(t, sms, true)
	f.Set(begin.AddDate(1, 0, 0))
	granted(t, sms, true)
}

// Who blocks is woken by the clock, however far away its instant is.
func TestFakeClockWakesWhoBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		booked := make(chan struct{}, 10)
		f := throttletest.New(t)
		l := f.Limiter("sms", throttle.Sliding(1, 24*time.Hour), throttle.Config{Observer: event.Observer{
			Deferred: func(context.Context, event.Deferred) { booked <- struct{}{} },
		}})
		granted(t, l, true)
		done := make(chan error, 1)
		go func() { done <- l.Acquire(t.Context(), key, 1) }()
		<-booked
		begin := time.Now()
		f.Advance(24 * time.Hour)
		if err := <-done; err != nil || time.Since(begin) > 0 {
			t.Errorf("Acquire = %v after %v, want nil at once", err, time.Since(begin))
		}
	})
}

// Limiters of a name count together, on one clock; others do not.
func TestFakeIsShared(t *testing.T) {
	t.Parallel()
	f := throttletest.New(t)
	a, b := f.Limiter("sms", perMinute, throttle.Config{}), f.Limiter("sms", perMinute, throttle.Config{})
	elsewhere := f.Limiter("sms", perMinute, throttle.Config{Prefix: "elsewhere"})
	granted(t, a, true)
	granted(t, b, false)
	granted(t, elsewhere, true)
	if _, err := a.SetLimit(t.Context(), throttle.Sliding(2, time.Minute), throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	granted(t, b, true)
	granted(t, elsewhere, false)
	granted(t, throttletest.New(t).Limiter("sms", perMinute, throttle.Config{}), true)
}

func TestFakeLimitForAWhile(t *testing.T) {
	t.Parallel()
	f := throttletest.New(t)
	l := f.Limiter("sms", perMinute, throttle.Config{})
	if _, err := l.SetLimit(t.Context(), throttle.Sliding(2, time.Minute), throttle.SetLimitOptions{For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Duration]int{time.Hour - time.Second: 2, time.Hour: 1} {
		f.Set(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC).Add(at))
		if limit, err := throttle.ForWorkers.LimitOfKey(t.Context(), l, "k"); err != nil || limit.Permits() != want {
			t.Errorf("LimitOfKey after %v = %v, %v, want %d permits", at, limit, err, want)
		}
	}
}

func TestFakeFails(t *testing.T) {
	t.Parallel()
	f := throttletest.New(t)
	l := f.Limiter("sms", perMinute, throttle.Config{})
	place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}
	for name, fail := range map[string]func(){"Away": f.Away, "FailWith": func() { f.FailWith(errors.New("cable cut")) }} {
		fail()
		_, try := l.TryAcquire(t.Context(), key, 1)
		_, redeem := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"})
		_, cancel := l.Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"})
		_, peek := l.Peek(t.Context(), key, 1)
		_, reset := l.Reset(t.Context(), key)
		_, set := l.SetLimit(t.Context(), perMinute, throttle.SetLimitOptions{})
		for call, err := range map[string]error{
			"TryAcquire": try, "Redeem": redeem, "Cancel": cancel, "Peek": peek, "Reset": reset, "Acquire": l.Acquire(t.Context(), key, 1),
			"SetLimit": set, "Refresh": throttle.ForWorkers.Refresh(t.Context(), nil, []throttle.BookingRef{place})[0].Err,
		} {
			if !errors.Is(err, throttle.ErrUnavailable) || throttle.ForWorkers.Answered(err) {
				t.Errorf("%s: %s = %v, want %v", name, call, err, throttle.ErrUnavailable)
			}
			if name == "FailWith" && !strings.Contains(err.Error(), "cable cut") {
				t.Errorf("%s = %v, want the reason in it", call, err)
			}
		}
	}
	f.Back()
	granted(t, l, true) // nothing took effect
	granted(t, l, false)
}

// What goes on without Redis goes on without the fake, by its clock, and comes
// back to it at once.
func TestFakeIsReplacedWhileItIsAway(t *testing.T) {
	t.Parallel()
	f := throttletest.New(t)
	open := f.Limiter("open", perMinute, throttle.Config{OnUnavailable: throttle.FailOpen})
	local := f.Limiter("local", perMinute, throttle.Config{OnUnavailable: throttle.FailLocal})
	f.Away()
	for range 3 {
		if d := granted(t, open, true); d.Fallback != throttle.FailOpen {
			t.Errorf("%v, want it granted by FailOpen", d)
		}
	}
	granted(t, local, true)
	f.Advance(59 * time.Second)
	if d := granted(t, local, false); d.Fallback != throttle.FailLocal || d.At.Sub(d.Now) != time.Second {
		t.Errorf("%v after %v, want it refused for a second", d, d.At.Sub(d.Now))
	}
	f.Back()
	for _, l := range []*throttle.Limiter{open, local} {
		if d := granted(t, l, true); d.Fallback != throttle.FailClosed {
			t.Errorf("%v, want it granted by the fake", d)
		}
	}
}

// An observer hears once that Redis is away, however many calls fail, and once that it is back.
func TestObserverHearsOfAnOutageOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []throttle.FailureMode{throttle.FailClosed, throttle.FailOpen} {
		f, told := throttletest.New(t), []string{}
		l := f.Limiter("sms", throttle.Sliding(9, time.Minute), throttle.Config{OnUnavailable: mode, Observer: event.Observer{
			RedisAway: func(_ context.Context, e event.RedisAway) { told = append(told, fmt.Sprint("away: ", e.Err != nil)) },
			RedisBack: func(_ context.Context, e event.RedisBack) { told = append(told, fmt.Sprint("back: ", e.For > 0)) },
		}})
		for range 2 {
			granted(t, l, true)
			f.Away()
			_, _ = l.TryAcquire(t.Context(), key, 1)
			_, _ = l.TryAcquire(t.Context(), key, 1)
			f.Back()
			granted(t, l, true)
		}
		if want := []string{"away: true", "back: true", "away: true", "back: true"}; !slices.Equal(told, want) {
			t.Errorf("%v: told %q, want %q", mode, told, want)
		}
	}
}

func TestFakeRemembersDecisions(t *testing.T) {
	t.Parallel()
	f, told := throttletest.New(t), 0
	l := f.Limiter("sms", perMinute, throttle.Config{Observer: event.All(func(context.Context, event.Event) { told++ })})
	granted(t, l, true)
	granted(t, l, false)
	_, exceeds := l.TryAcquire(t.Context(), key, 2)
	got := f.Decisions()
	if len(got) != 3 || told != 3 {
		t.Fatalf("%d decisions and %d told, want 3", len(got), told)
	}
	for i, want := range []bool{true, false, false} {
		if d := got[i].Decision; d.Granted != want || d.Key != key || d.Rule != "sms" {
			t.Errorf("decision %d = %v, want granted = %v", i, d, want)
		}
	}
	if !errors.Is(got[2].Err, exceeds) || !errors.Is(exceeds, throttle.ErrExceedsLimit) {
		t.Errorf("decision 2 = %v, want %v", got[2].Err, exceeds)
	}
	if text := fmt.Sprintf("%v %+v", got, got); strings.Contains(text, key) {
		t.Errorf("decisions print with their key: %s", text)
	}
}

// recorder is a test that may end.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatal(args ...any) {
	r.fatal = fmt.Sprint(args...)
	runtime.Goexit()
}

func TestFakeRefusesWhatNewRefuses(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { throttletest.New(r).Limiter("a b", throttle.Limit{}, throttle.Config{}) })
	wg.Wait()
	for _, want := range []error{throttle.ErrInvalidLimit, throttle.ErrInvalidConfig} {
		if !strings.Contains(r.fatal, want.Error()) {
			t.Errorf("Fatal(%q), want %v in it", r.fatal, want)
		}
	}
}
