package throttle_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// closeKey closes the key of the tests, and checks until when.
func (s *scene) closeKey(l *throttle.Limiter, d, want time.Duration) {
	s.Helper()
	until, err := l.CloseKey(s.Context(), key, d)
	if err != nil || until.Sub(start) != want {
		s.Errorf("CloseKey(%v) = %v, %v, want until %v", d, until.Sub(start), err, want)
	}
}

// What is booked on a key that is closed moves behind, keeps its order, and goes
// at the limit's pace from then on. Other keys go on.
func TestClosedKey(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.want(s.try(l, 1), true, 0)
	for i, job := range []string{"a", "b", "c"} {
		s.want(s.job(l, job, 1), false, time.Duration(i+1)*time.Minute)
	}
	s.at(10 * time.Second)
	s.closeKey(l, 10*time.Minute, 10*time.Minute+10*time.Second)
	s.closeKey(l, time.Minute, 10*time.Minute+10*time.Second) // the last to end counts
	const until = 10*time.Minute + 10*time.Second
	if d, err := l.TryAcquire(t.Context(), "another", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire of another key = %v, %v, want a grant", d, err)
	}
	state, err := l.Peek(t.Context(), key, 3)
	if err != nil || state.Closed.Sub(start) != until || state.Available != 0 || state.Waiting != 3 {
		t.Errorf("Peek = %+v, %v, want 3 waiting and closed until %v", state, err, until)
	}
	for i, w := range state.Booked {
		if want := until + time.Duration(i)*time.Minute; w.At.Sub(start) != want {
			t.Errorf("Peek: %q at %v, want %v", w.Job, w.At.Sub(start), want)
		}
	}
	s.want(s.try(l, 1), false, until+3*time.Minute)
	for i, job := range []string{"a", "b", "c", "d"} { // each comes when it was told
		s.at(time.Duration(i+1) * time.Minute)
		s.want(s.job(l, job, 1), false, until+time.Duration(i)*time.Minute)
	}
	s.at(until - ms)
	s.want(s.job(l, "b", 1), false, until+time.Minute)
	for i, job := range []string{"a", "b", "c", "d"} {
		s.at(until + time.Duration(i)*time.Minute)
		s.want(s.job(l, job, 1), true, until+time.Duration(i)*time.Minute)
	}
	if state, err := l.Peek(t.Context(), key, 0); err != nil || !state.Closed.IsZero() {
		t.Errorf("Peek = %+v, %v, want it open", state, err)
	}
}

// A key that is free is shut all the same, for those who try and those who wait.
func TestClosedKeyThatIsFree(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, l := range []*throttle.Limiter{
		s.limiter("sliding", throttle.Sliding(3, time.Minute)), s.limiter("fixed", throttle.Fixed(3, time.Minute)),
		s.limiter("bucket", throttle.Bucket(3, time.Minute, 3)), s.limiter("slots", throttle.Concurrent(3, time.Minute)),
	} {
		s.at(0)
		s.closeKey(l, time.Hour, time.Hour)
		s.want(s.try(l, 1), false, time.Hour)
		for _, job := range []string{"a", "b", "c"} {
			s.want(s.job(l, job, 1), false, time.Hour)
		}
		s.at(time.Hour)
		for _, job := range []string{"a", "b", "c"} {
			s.want(s.job(l, job, 1), true, time.Hour)
		}
	}
}

// Opened before its time the key goes on at once, and who is next is told.
func TestOpenKey(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	s.closeKey(l, time.Hour, time.Hour)
	s.want(s.job(l, "a", 1), false, time.Hour)
	s.want(s.job(l, "b", 1), false, time.Hour+time.Minute)
	s.at(time.Minute)
	turns, err := l.OpenKey(t.Context(), key)
	if turn := soleTurn(t, turns); err != nil || turn.Job != "a" || turn.Wait != 0 {
		t.Errorf("OpenKey = %+v, %v, want a to come now", turns, err)
	}
	s.want(s.job(l, "b", 1), false, 2*time.Minute)
	s.want(s.job(l, "a", 1), true, time.Minute)
	if turns, err := l.OpenKey(t.Context(), key); err != nil || len(turns) != 0 {
		t.Errorf("OpenKey of an open key = %+v, %v, want nobody", turns, err)
	}
	if turns, err := l.OpenKey(t.Context(), "unknown"); err != nil || len(turns) != 0 {
		t.Errorf("OpenKey of an unknown key = %+v, %v, want nobody", turns, err)
	}
}

// A closing is kept in Redis: another process, a reset, or a ledger that is gone
// change nothing about it.
func TestClosingSurvives(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limit := throttle.Sliding(1, time.Minute)
	l := s.limiter("sms", limit)
	s.want(s.try(l, 1), true, 0)
	s.closeKey(l, 3*time.Hour, 3*time.Hour)
	rule, err := s.limiter("mail", limit).CloseRule(t.Context(), 3*time.Hour)
	if err != nil || rule.Sub(start) != 3*time.Hour {
		t.Errorf("CloseRule = %v, %v, want until 3h", rule, err)
	}
	if _, err := l.Reset(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	s.at(2 * time.Hour)
	if got := s.life(l.Ledger(key) + ":line"); got < 3*time.Hour-time.Minute {
		t.Errorf("the closing of the key lives for %v, want 3h", got)
	}
	for _, name := range []string{"sms", "mail"} {
		again := s.limiter(name, limit)
		s.want(s.try(again, 1), false, 3*time.Hour)
		s.at(3 * time.Hour)
		s.want(s.try(again, 1), true, 3*time.Hour)
		s.at(2 * time.Hour)
	}
	for _, k := range redistest.Keys(t, s.raw, "hw:*") {
		s.life(k)
	}
}

// All keys of a rule are closed with it; keys that are closed by themselves stay
// so when the rule is opened.
func TestClosedRule(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l, other := s.limiter("sms", throttle.Sliding(1, time.Minute)), s.limiter("mail", throttle.Sliding(1, time.Minute))
	s.want(s.job(l, "a", 1), true, 0)
	s.want(s.job(l, "b", 1), false, time.Minute)
	for _, d := range []time.Duration{10 * time.Minute, time.Minute} { // the last to end counts
		if until, err := l.CloseRule(t.Context(), d); err != nil || until.Sub(start) != 10*time.Minute {
			t.Errorf("CloseRule(%v) = %v, %v, want until 10m", d, until.Sub(start), err)
		}
	}
	s.closeKey(l, 5*time.Minute, 5*time.Minute)
	if d, err := l.TryAcquire(t.Context(), "another", 1); err != nil || d.Granted || d.At.Sub(start) != 10*time.Minute {
		t.Errorf("TryAcquire of another key = %v, %v, want it closed for 10m", d, err)
	}
	s.want(s.try(other, 1), true, 0)
	s.at(time.Minute)
	s.want(s.job(l, "b", 1), false, 10*time.Minute)
	s.want(s.job(l, "c", 1), false, 11*time.Minute)
	in := throttle.ForWorkers.LimitStatuses(t.Context(), []*throttle.Limiter{l, other})
	if in[0].Closed.Sub(start) != 10*time.Minute || !in[1].Closed.IsZero() {
		t.Errorf("LimitStatuses = %+v, want the first closed until 10m", in)
	}
	if err := l.OpenRule(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d, err := l.TryAcquire(t.Context(), "another", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire of another key = %v, %v, want a grant", d, err)
	}
	s.want(s.job(l, "b", 1), false, 5*time.Minute)
	s.at(5 * time.Minute)
	s.want(s.job(l, "b", 1), true, 5*time.Minute)
	s.want(s.job(l, "c", 1), false, 6*time.Minute)
}

// A rule of a policy that is closed refuses for it, and the others are not spent.
func TestClosedRuleOfAPolicy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(9, time.Minute))
	provider := p.Rules()[1]
	if _, err := provider.CloseRule(t.Context(), 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	s.by(s.redeem(p, jobRequest(2, "A", "a")), "provider", 5*time.Minute)
	s.by(s.redeem(p, jobRequest(2, "A", "behind")), "phone", 6*time.Minute)
	s.by(s.redeem(p, jobRequest(2, "B", "b")), "provider", 5*time.Minute)
	s.available(p, jobRequest(2, "C", ""), 1, 0)
	s.at(time.Minute)
	if err := provider.OpenRule(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(s.redeem(p, jobRequest(2, "A", "a")), true, time.Minute)
	s.want(s.redeem(p, jobRequest(2, "B", "b")), true, time.Minute)
	s.by(s.redeem(p, jobRequest(2, "A", "behind")), "phone", 2*time.Minute)
}

// A closing does not touch the limit that is stored, nor the other way round.
func TestClosedRuleKeepsItsLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	if _, err := l.CloseRule(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	stored := throttle.Sliding(2, time.Minute)
	if err := setLimit(t.Context(), l, stored); err != nil {
		t.Fatal(err)
	}
	s.want(s.try(l, 1), false, time.Hour)
	if err := l.OpenRule(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantInForce(t, l, stored)
	s.want(s.try(l, 2), true, 0)
	if _, err := l.CloseRule(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := l.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.want(s.try(s.limiter("sms", throttle.Sliding(1, time.Minute)), 1), false, time.Hour)
}

// A closing of the rule bites at once where it is made and within a second in
// another process, and so does its end: who blocks there goes on.
func TestVirtualClosedRuleReachesOthers(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1000, time.Second), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		l, operator := limiter(), limiter()
		if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v", d, err)
		}
		time.Sleep(499 * ms) // what it knows is as old as it gets
		if _, err := operator.CloseRule(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		if d, err := operator.TryAcquire(t.Context(), key, 1); err != nil || d.Granted {
			t.Errorf("TryAcquire where it was closed = %v, %v, want no grant", d, err)
		}
		time.Sleep(time.Second)
		if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || d.Granted {
			t.Errorf("TryAcquire a second later = %v, %v, want no grant", d, err)
		}
		got := make(chan error)
		go func() { got <- l.Acquire(t.Context(), key, 1) }()
		synctest.Wait()
		time.Sleep(10 * time.Minute)
		began := time.Now()
		if err := operator.OpenRule(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil || time.Since(began) > time.Second {
			t.Errorf("Acquire = %v %v after the rule was opened, want nil within a second", err, time.Since(began))
		}
	})
}

// On a real server too; the limiter looks by itself.
func TestClosedRuleBitesOnARealServer(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	limit := throttle.Sliding(1_000_000, time.Minute)
	l, operator := newLimiter(t, srv.Client(t), "sms", limit, throttle.Config{}), newLimiter(t, srv.Client(t), "sms", limit, throttle.Config{})
	granted := func() bool {
		d, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		return d.Granted
	}
	if !granted() {
		t.Fatal("TryAcquire is refused, want a grant")
	}
	if _, err := operator.CloseRule(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	closed := time.Now()
	var last time.Time // that an attempt began which was granted
	waitFor(t, "a refusal", func() bool {
		began := time.Now()
		if granted() {
			last = began
			return false
		}
		return true
	})
	if late := last.Sub(closed); late > time.Second {
		t.Errorf("granted %v after the rule was closed, want a second at most", late)
	}
	if err := operator.OpenRule(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a grant", granted)
}

func TestClosingFaults(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(1, time.Minute))
	l := p.Rules()[0]
	r := jobRequest(2, key, "a")
	for _, d := range []time.Duration{-1, 0, time.Millisecond - 1, throttle.CloseMax + 1} {
		_, keyErr := l.CloseKey(t.Context(), key, d)
		_, ruleErr := l.CloseRule(t.Context(), d)
		_, offErr := throttle.ForWorkers.Postpone(t.Context(), p, "phone", r, d)
		for op, err := range map[string]error{"CloseKey": keyErr, "CloseRule": ruleErr, "Postpone": offErr} {
			if !errors.Is(err, throttle.ErrInvalidConfig) {
				t.Errorf("%s for %v = %v, want %v", op, d, err, throttle.ErrInvalidConfig)
			}
		}
	}
	_, unknown := throttle.ForWorkers.Postpone(t.Context(), p, "mail", r, time.Minute)
	_, noKey := l.CloseKey(t.Context(), "", time.Minute)
	_, openNoKey := l.OpenKey(t.Context(), "")
	nameless := r
	nameless.Job = ""
	_, noJob := throttle.ForWorkers.Postpone(t.Context(), p, "phone", nameless, time.Minute)
	for _, tt := range []struct{ got, want error }{
		{unknown, throttle.ErrInvalidConfig}, {noKey, throttle.ErrInvalidKey}, {openNoKey, throttle.ErrInvalidKey}, {noJob, throttle.ErrInvalidJob},
	} {
		if !errors.Is(tt.got, tt.want) {
			t.Errorf("error = %v, want %v", tt.got, tt.want)
		}
	}
	if keys := redistest.Keys(t, s.raw, "hw:*"); len(keys) != 0 {
		t.Errorf("keys = %q, want none", keys)
	}
}

// To open a key leaves its rule closed, and lets everybody look: a pool then plans
// anew what waits.
func TestOpenKeyIsHeard(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	version := func() int64 {
		t.Helper()
		f := throttle.ForWorkers.LimitStatuses(t.Context(), []*throttle.Limiter{l})[0]
		if f.Err != nil {
			t.Fatal(f.Err)
		}
		return f.Version
	}
	if _, err := l.CloseKey(t.Context(), key, time.Hour); err != nil {
		t.Fatal(err)
	}
	before := version()
	if _, err := l.OpenKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if after := version(); after <= before {
		t.Errorf("version %d after the key was opened, want above %d", after, before)
	}
	until, err := l.CloseRule(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.OpenKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if state, err := l.Peek(t.Context(), key, 0); err != nil || !state.Closed.Equal(until) {
		t.Errorf("Peek = %+v, %v, want the rule closed until %v", state, err, until)
	}
}
