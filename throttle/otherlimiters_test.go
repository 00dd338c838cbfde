package throttle_test

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// The limiters that users of this package often know are Redisson's RRateLimiter, Guava's
// RateLimiter, and counters and token buckets in Lua. TestCallsOfOtherLimiters makes a user's calls of
// each, on a real Redis whose clock the test sets. Each step says what theirs answers and what
// ours does. Where the two differ it says why, and a difference without a reason fails.
//
// Theirs is what the script or the library answers inside: Redisson's tryAcquire shows only the
// boolean of it. Redisson has most calls a second time as asynchronous ones, for which Go has goroutines.
func TestCallsOfOtherLimiters(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(*scene){
		"RRateLimiter, one SMS a minute":    redissonSMS,
		"RRateLimiter, its algorithm":       redissonAnalysed,
		"RRateLimiter, its API":             redissonAPI,
		"Redis and Lua, the counter":        luaCounter,
		"Redis and Lua, the token bucket":   luaBucket,
		"Guava, SmoothBursty":               guavaBursty,
		"Guava, SmoothWarmingUp":            guavaWarmingUp,
		"Guava, distributed":                guavaDistributed,
		"Guava, distributed, under a crowd": guavaCrowd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(newScene(t))
		})
	}
}

// callTold is one call of another limiter, and the same call of ours.
type callTold struct {
	at     string        // the server's clock; "" is where the last call ended
	call   string        // of the other limiter
	do     func() string // the same with ours
	theirs string
	ours   string // "" is the same
	why    string // they differ
}

func (s *scene) tell(steps []callTold) {
	s.Helper()
	for i, st := range steps {
		if st.at != "" {
			s.at(s.timeOfDay(st.at).Sub(start))
		}
		clock, got, want := s.now.Format("15:04:05.999"), st.do(), st.ours
		if want == "" {
			want = st.theirs
		}
		if got != want {
			s.Errorf("step %d, %s %s = %q, want %q", i, clock, st.call, got, want)
		}
		if (want != st.theirs) != (st.why != "") {
			s.Errorf("step %d, %s %s: theirs %q, ours %q, because %q", i, clock, st.call, st.theirs, want, st.why)
		}
		s.Logf("%-12s  %-34s  theirs: %-24s  ours: %-24s  %s", clock, st.call, st.theirs, got, st.why)
	}
}

// timeOfDay reads a time of the first day.
func (s *scene) timeOfDay(text string) time.Time {
	s.Helper()
	t, err := time.Parse("15:04:05", text)
	if err != nil {
		s.Fatal(err)
	}
	return start.Truncate(24 * time.Hour).Add(t.Sub(t.Truncate(24 * time.Hour)))
}

// caller makes calls for one key, and says in words what it was answered.
type caller struct {
	s   *scene
	l   *throttle.Limiter
	key string
}

func (c caller) try(n int) func() string {
	return func() string {
		d, err := c.l.TryAcquire(c.s.Context(), c.key, n)
		switch {
		case err != nil:
			return inWords(err)
		case d.Granted:
			return "granted"
		}
		return "refused, wait " + d.At.Sub(d.Now).String()
	}
}

// within asks with a time-out that the permits may take, and does not wait.
func (c caller) within(n int, d time.Duration) func() string {
	return func() string {
		began := time.Now()
		err := acquireWithin(c.s.Context(), c.l, c.key, n, d)
		if time.Since(began) >= d {
			return "after the time-out: " + inWords(err)
		}
		return inWords(err)
	}
}

// block calls a limiter that makes it wait, moves the clock to `until`, and says
// how the call ended.
func (c caller) block(n int, until string) func() string {
	return func() string {
		ended, before := make(chan error, 1), c.waiting()
		go func() { ended <- acquireWithin(c.s.Context(), c.l, c.key, n, time.Hour) }()
		waitFor(c.s.T, "the caller in line", func() bool { return c.waiting() > before })
		c.s.at(c.s.timeOfDay(until).Sub(start))
		return inWords(<-ended)
	}
}

func (c caller) waiting() int {
	st, err := c.l.Peek(c.s.Context(), c.key, 0)
	if err != nil {
		c.s.Error(err)
	}
	return st.Waiting
}

// acquire goes when its turn comes: the clock moves there.
func (c caller) acquire(n int) func() string { return c.acquireWithin(n, time.Hour) }

func (c caller) acquireWithin(n int, d time.Duration) func() string {
	return func() string {
		began := c.s.now
		v, err := c.l.Policy().Reserve(c.s.Context(), throttle.Request{Key: c.key, Cost: n, MaxWait: cmp.Or(d, -1)})
		if err != nil {
			return inWords(err)
		}
		if at := v.At(); at.After(began) {
			c.s.at(at.Sub(start))
		}
		if got, err := v.Take(c.s.Context()); err != nil || !got.Granted {
			c.s.Errorf("Take = %v, %v at its instant, want a grant", got, err)
		}
		return "waited " + v.At().Sub(began).Round(10*ms).String()
	}
}

// line puts a job in line, or finds it there.
func (c caller) line(job string) func() string {
	return func() string {
		d, err := c.l.Policy().Redeem(c.s.Context(), throttle.Request{Key: c.key, Cost: 1, Job: job})
		if err != nil || d.Granted {
			return inWords(err)
		}
		return "refused, wait " + d.At.Sub(d.Now).String()
	}
}

func (c caller) available() string {
	n, err := c.l.Available(c.s.Context(), c.key)
	if err != nil {
		return inWords(err)
	}
	return fmt.Sprint(n, " available")
}

func (c caller) config() string {
	limit, err := throttle.LimitInForce(c.s.Context(), c.l)
	if err != nil {
		return inWords(err)
	}
	return fmt.Sprint(limit.Permits(), " per ", limit.Window())
}

func (c caller) trySet(n int, per time.Duration) func() string {
	return func() string {
		done, err := c.l.SetLimit(c.s.Context(), throttle.Sliding(n, per), throttle.SetLimitOptions{IfUnset: true})
		if err != nil {
			return inWords(err)
		}
		return fmt.Sprint(done)
	}
}

func (c caller) set(limit throttle.Limit) func() string {
	return func() string {
		if err := setLimit(c.s.Context(), c.l, limit); err != nil {
			return inWords(err)
		}
		return "set"
	}
}

// life is how long Redis remembers what was spent, by its own clock.
func (c caller) life() string {
	return "gone in " + c.s.life(c.l.Ledger(c.key)).Round(10*time.Second).String()
}

func inWords(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, throttle.ErrTooLate):
		return "no, at once"
	case errors.Is(err, throttle.ErrExceedsLimit):
		return "an error"
	}
	return err.Error()
}

const (
	exactInstant = "they add 3 ms to be sure, we tell the instant itself"
	tellsWhen    = "we tell when, so that nobody has to poll"
	spentIsSpent = "what was spent stays spent under the new rate"
)

// One SMS a minute per phone.
func redissonSMS(s *scene) {
	l := s.limiter("sms", throttle.Sliding(3, time.Hour)) // until one is stored
	phone, other := caller{s, l, "13612345678"}, caller{s, l, "13700000000"}
	s.tell([]callTold{
		{at: "08:00:00", call: "tryAcquire() without a rate", do: other.try(1), theirs: "an error", ours: "granted",
			why: "the limit in code counts until one is stored"},
		{call: "trySetRate(OVERALL, 1, 60 s)", do: phone.trySet(1, time.Minute), theirs: "true"},
		{call: "getConfig()", do: phone.config, theirs: "1 per 1m0s"},
		{call: "availablePermits()", do: phone.available, theirs: "1 available"},
		{call: "tryAcquire()", do: phone.try(1), theirs: "granted"},
		{call: "availablePermits()", do: phone.available, theirs: "0 available"},
		{at: "08:00:30", call: "tryAcquire()", do: phone.try(1), theirs: "refused, wait 30.003s", ours: "refused, wait 30s", why: exactInstant},
		{at: "08:01:01", call: "tryAcquire()", do: phone.try(1), theirs: "granted"},

		{at: "09:00:00", call: "tryAcquire()", do: phone.try(1), theirs: "granted"},
		{at: "09:00:05", call: "tryAcquire()", do: phone.try(1), theirs: "refused, wait 55.003s", ours: "refused, wait 55s", why: exactInstant},
		{call: "tryAcquire(2)", do: phone.try(2), theirs: "an error"},
		{call: "acquire(2)", do: phone.within(2, time.Hour), theirs: "an error"},
		{call: "the state in Redis", do: phone.life, theirs: "stays for ever", ours: "gone in 1m0s",
			why: "each script gives what it writes a life"},
	})
}

// A log of the window, not a token bucket; and a delay, so that one can block.
func redissonAnalysed(s *scene) {
	two := caller{s, s.limiter("two", throttle.Sliding(2, time.Minute)), key}
	three := caller{s, s.limiter("three", throttle.Sliding(3, time.Minute)), key}
	one := caller{s, s.limiter("one", throttle.Sliding(1, time.Minute)), key}
	daily := caller{s, s.limiter("daily", throttle.Calendar(1, throttle.Day, "Asia/Shanghai")), key}
	s.tell([]callTold{
		// each permit comes back a minute after it went, not at a steady rate
		{at: "08:00:00", call: "tryAcquire() of 2 a minute", do: two.try(1), theirs: "granted"},
		{call: "tryAcquire() of 3 a minute", do: three.try(1), theirs: "granted"},
		{at: "08:00:40", call: "tryAcquire() of 2 a minute", do: two.try(1), theirs: "granted"},
		{call: "tryAcquire() of 3 a minute", do: three.try(1), theirs: "granted"},
		{at: "08:00:59", call: "tryAcquire() of 2 a minute", do: two.try(1), theirs: "refused, wait 1.003s", ours: "refused, wait 1s", why: exactInstant},
		{call: "tryAcquire(3) of 3 a minute", do: three.try(3), theirs: "refused, wait 1.003s", ours: "refused, wait 41s",
			why: "they wait for the first permit only, and ask again"},
		{at: "08:01:01", call: "tryAcquire() of 2 a minute", do: two.try(1), theirs: "granted"},
		{call: "tryAcquire() again", do: two.try(1), theirs: "refused, wait 39.003s", ours: "refused, wait 39s", why: exactInstant},

		// the delay makes the blocking call possible, and its end foreseeable
		{at: "09:00:00", call: "acquire() of 1 a minute", do: one.try(1), theirs: "granted"},
		{at: "09:00:30", call: "tryAcquire(10 s)", do: one.within(1, 10*time.Second), theirs: "no, after 10 s", ours: "no, at once",
			why: "the rest of the time-out is shorter than the wait"},
		{call: "tryAcquire(1 h)", do: one.block(1, "09:01:01"), theirs: "granted"},
		{call: "a first caller that waits", do: one.line("first"), theirs: "refused, wait 1m0.003s", ours: "refused, wait 1m0s", why: exactInstant},
		{call: "a second caller that waits", do: one.line("second"), theirs: "refused, wait 1m0.003s", ours: "refused, wait 2m0s",
			why: "each has a place of its own, and they wake together"},

		// another rate, and windows of the calendar
		{call: "trySetRate(OVERALL, 5, 60 s)", do: one.trySet(5, time.Minute), theirs: "false", ours: "true",
			why: "nothing was stored, the limit was in code"},
		{call: "trySetRate(OVERALL, 6, 60 s)", do: one.trySet(6, time.Minute), theirs: "false"},
		{at: "15:59:00", call: "one a day, 23:59 in Shanghai", do: daily.try(1), theirs: "granted"},
		{at: "16:00:00", call: "the day after, 0:00", do: daily.try(1), theirs: "refused, wait 23h59m0.003s", ours: "granted",
			why: "a calendar's day is not any 24 hours"},
	})
}

// Its other calls: setRate, the two types, expiry.
func redissonAPI(s *scene) {
	limit := throttle.Sliding(2, time.Minute)
	process := func(client string) caller {
		return caller{s, newLimiter(s.T, s.rdb, "own", limit, throttle.Config{PerClient: true, Client: client}), key}
	}
	a, b := process("a"), process("b")
	all, elsewhere := caller{s, s.limiter("all", limit), key}, caller{s, s.limiter("all", limit), key}
	lent := caller{s, s.limiter("lent", limit), key}
	s.tell([]callTold{
		{at: "08:00:00", call: "OVERALL: acquire(2) here", do: all.try(2), theirs: "granted"},
		{call: "OVERALL: acquire() elsewhere", do: elsewhere.try(1), theirs: "refused, wait 1m0.003s", ours: "refused, wait 1m0s", why: exactInstant},
		{call: "PER_CLIENT: acquire(2) in a", do: a.try(2), theirs: "granted"},
		{call: "PER_CLIENT: acquire(2) in b", do: b.try(2), theirs: "granted"},
		{call: "PER_CLIENT: acquire() in a", do: a.try(1), theirs: "refused, wait 1m0.003s", ours: "refused, wait 1m0s", why: exactInstant},
		{call: "PER_CLIENT: the state of a that died", do: a.life, theirs: "stays for ever", ours: "gone in 1m0s",
			why: "each script gives what it writes a life"},

		// two are out when the rate changes
		{at: "08:00:10", call: "setRate(OVERALL, 1, 60 s)", do: all.set(throttle.Sliding(1, time.Minute)), theirs: "set"},
		{call: "availablePermits()", do: all.available, theirs: "1 available", ours: "0 available", why: spentIsSpent},
		{call: "tryAcquire()", do: all.try(1), theirs: "granted", ours: "refused, wait 50s", why: spentIsSpent},
		{call: "setRate(OVERALL, 3, 60 s)", do: all.set(throttle.Sliding(3, time.Minute)), theirs: "set"},
		{call: "availablePermits()", do: all.available, theirs: "3 available", ours: "1 available", why: spentIsSpent},
		{call: "getConfig()", do: all.config, theirs: "3 per 1m0s"},

		// a rate that is set for an hour, and the hour is over
		{call: "setRate(OVERALL, 1, 60 s), expire(1 h)", do: func() string { return s.lend(lent.l) }, theirs: "gone in 1h0m0s"},
		{call: "getConfig()", do: lent.config, theirs: "1 per 1m0s"},
		{at: "09:00:10", call: "tryAcquire(2)", do: caller{s, s.limiter("lent", limit), key}.afterLife("hw:limit:lent", 2), theirs: "an error", ours: "granted",
			why: "the limit in code counts again"},
	})
}

// lend stores a limit for an hour and says for how long Redis keeps it.
func (s *scene) lend(l *throttle.Limiter) string {
	if _, err := l.SetLimit(s.Context(), throttle.Sliding(1, time.Minute), throttle.SetLimitOptions{For: time.Hour}); err != nil {
		return inWords(err)
	}
	return "gone in " + s.life("hw:limit:"+l.Rule()).Round(time.Minute).String()
}

// afterLife asks after a key's life, which the server's own clock ends, is over.
func (c caller) afterLife(name string, n int) func() string {
	return func() string {
		if got, err := c.s.raw.Del(c.s.Context(), name).Result(); err != nil || got != 1 {
			c.s.Errorf("Del = %d, %v, want the key", got, err)
		}
		return c.try(n)()
	}
}

// INCR, and an expiry that the first hit sets: ten an hour for an IP and an
// endpoint. Twice as many fit around the window's edge; a sliding window holds.
func luaCounter(s *scene) {
	const who = "192.0.2.7 /login"
	counter := caller{s, s.limiter("counter", throttle.Fixed(10, time.Hour)), who}
	sliding := caller{s, s.limiter("sliding", throttle.Sliding(10, time.Hour)), who}
	s.tell([]callTold{
		{at: "08:00:00", call: "1 call", do: counter.try(1), theirs: "granted"},
		{call: "1 call, sliding", do: sliding.try(1), theirs: "granted"},
		{at: "08:59:59", call: "9 calls", do: counter.try(9), theirs: "granted"},
		{call: "9 calls, sliding", do: sliding.try(9), theirs: "granted"},
		{call: "call 11", do: counter.try(1), theirs: "refused", ours: "refused, wait 1s", why: tellsWhen},
		{at: "09:00:00", call: "10 calls a second later, now 19", do: counter.try(10), theirs: "granted"},
		{call: "10 calls a second later, sliding", do: sliding.try(10), theirs: "granted", ours: "refused, wait 59m59s",
			why: "any hour holds ten"},
		{call: "1 call, sliding", do: sliding.try(1), theirs: "granted"},
		{call: "1 more, sliding", do: sliding.try(1), theirs: "refused", ours: "refused, wait 59m59s", why: tellsWhen},
		{call: "the counter in Redis", do: counter.life, theirs: "gone in 1h0m0s"},
	})
}

// A bucket of 10 that gains 5 each minute at once, for a user and an endpoint.
func luaBucket(s *scene) {
	bucket := caller{s, s.limiter("bucket", throttle.SteppedBucket(5, time.Minute, 10)), "user 17 /login"}
	s.tell([]callTold{
		{at: "08:00:00", call: "it starts full: 10", do: bucket.try(10), theirs: "granted"},
		{call: "its life is the time to full", do: bucket.life, theirs: "gone in 2m0s"},
		{at: "08:00:59", call: "no interval is over: 1", do: bucket.try(1), theirs: "refused", ours: "refused, wait 1s", why: tellsWhen},
		{at: "08:01:42", call: "one is: 6", do: bucket.try(6), theirs: "refused", ours: "refused, wait 18s", why: tellsWhen},
		{call: "a refusal cost nothing: 5", do: bucket.try(5), theirs: "granted"},
		{at: "08:02:00", call: "the 42 s were kept: 5", do: bucket.try(5), theirs: "granted"},
		{call: "nothing is borrowed: 1", do: bucket.try(1), theirs: "refused", ours: "refused, wait 1m0s", why: tellsWhen},
		{call: "more than it ever holds: 11", do: bucket.try(11), theirs: "refused", ours: "an error", why: "it can never succeed"},
		{at: "09:00:00", call: "idle for long, just full: 10", do: bucket.try(10), theirs: "granted"},
		{call: "1", do: bucket.try(1), theirs: "refused", ours: "refused, wait 1m0s", why: tellsWhen},
	})
}

// RateLimiter.create(rate): the next call pays. Its acquire returns the time
// waited; ours tells it before ([throttle.Reservation.Delay]), and blocks in
// Acquire.
func guavaBursty(s *scene) {
	at := func(rule string, n int) caller {
		return caller{s, s.limiter(rule, throttle.Smooth(n, time.Second, n)), key}
	}
	one, five, changed, timed := at("one", 1), at("five", 5), at("changed", 1), at("timed", 1)
	s.tell([]callTold{
		{at: "08:00:00", call: "create(1), acquire(1)", do: one.acquire(1), theirs: "waited 0s"},
		{call: "acquire(2)", do: one.acquire(2), theirs: "waited 1s"},
		{call: "acquire(3)", do: one.acquire(3), theirs: "waited 2s"},
		{call: "acquire(4)", do: one.acquire(4), theirs: "waited 3s"},
		{call: "acquire(5)", do: one.acquire(5), theirs: "waited 4s"},

		// a second of silence is stored, and no more
		{at: "08:01:00", call: "create(5), acquire(1)", do: five.acquire(1), theirs: "waited 0s"},
		{at: "08:01:10", call: "acquire(1)", do: five.acquire(1), theirs: "waited 0s"},
		{call: "acquire(1)", do: five.acquire(1), theirs: "waited 0s"},
		{call: "acquire(3)", do: five.acquire(3), theirs: "waited 0s"},
		{call: "acquire(1)", do: five.acquire(1), theirs: "waited 0s"},
		{call: "acquire(1)", do: five.acquire(1), theirs: "waited 200ms"},
		{at: "08:01:20", call: "acquire(5000), the next one pays", do: five.acquire(5000), theirs: "waited 0s"},
		{call: "tryAcquire(1, 998 s)", do: five.acquireWithin(1, 998*time.Second), theirs: "no, at once"},

		// the first call after setRate still pays at the old rate
		{at: "08:02:00", call: "create(1), acquire(1)", do: changed.acquire(1), theirs: "waited 0s"},
		{call: "acquire(1)", do: changed.acquire(1), theirs: "waited 1s"},
		{call: "setRate(2)", do: changed.set(throttle.Smooth(2, time.Second, 2)), theirs: "set"},
		{call: "acquire(1)", do: changed.acquire(1), theirs: "waited 1s"},
		{call: "acquire(2)", do: changed.acquire(2), theirs: "waited 500ms"},
		{call: "acquire(4)", do: changed.acquire(4), theirs: "waited 1s"},
		{call: "acquire(1)", do: changed.acquire(1), theirs: "waited 2s"},

		// whether a time-out can be met is decided at once, and n does not matter
		{at: "08:03:00", call: "create(1), tryAcquire(5, 0 s)", do: timed.acquireWithin(5, 0), theirs: "waited 0s"},
		{call: "tryAcquire(1, 4.9 s)", do: timed.acquireWithin(1, 4900*ms), theirs: "no, at once"},
		{call: "tryAcquire(3, 5 s)", do: timed.acquireWithin(3, 5*time.Second), theirs: "waited 5s"},
		{call: "tryAcquire(1, 1 h), blocking", do: timed.block(1, "08:03:08"), theirs: "granted"},
	})
}

// RateLimiter.create(2, 4 s): the rate climbs, and falls while nobody comes.
func guavaWarmingUp(s *scene) {
	l := caller{s, s.limiter("warm", throttle.WarmUp(2, time.Second, 4*time.Second, 3)), key}
	var steps []callTold
	for _, at := range []string{"08:00:00", "08:01:00"} {
		for _, wait := range []string{"0s", "1.38s", "1.13s", "880ms", "630ms", "500ms", "500ms", "500ms"} {
			steps = append(steps, callTold{at: at, call: "acquire()", do: l.acquire(1), theirs: "waited " + wait})
			at = ""
		}
	}
	s.tell(steps)
}

// The same with its state in Redis: two processes, and the server's clock. Theirs
// holds a distributed lock for each call; a call of ours is one script.
func guavaDistributed(s *scene) {
	limit := throttle.Smooth(1, time.Second, 1)
	a, b := caller{s, s.limiter("api", limit), key}, caller{s, s.limiter("api", limit), key}
	other := caller{s, a.l, "another"}
	serverTime := func() string {
		d, err := a.l.TryAcquire(s.Context(), "clock", 1)
		if err != nil {
			return inWords(err)
		}
		return d.Now.UTC().Format(time.TimeOnly)
	}
	s.tell([]callTold{
		{at: "08:00:00", call: "a: acquire(3)", do: a.acquire(3), theirs: "waited 0s"},
		{call: "b: tryAcquire(1, 2.9 s)", do: b.acquireWithin(1, 2900*ms), theirs: "no, at once"},
		{call: "b: acquire(1)", do: b.acquire(1), theirs: "waited 3s"},
		{call: "a: acquire(1)", do: a.acquire(1), theirs: "waited 1s"},
		{call: "a: acquire(1) of another key", do: other.acquire(1), theirs: "waited 0s"},
		{call: "which clock", do: serverTime, theirs: "08:00:04"},
		{call: "a: setRate(2)", do: a.set(throttle.Smooth(2, time.Second, 2)), theirs: "set"},
		{call: "b keeps in memory", do: func() string { // for how long: TestChangeReachesBlockedCallers
			waitFor(s.T, "the new limit in b", func() bool { return b.config() == "2 per 1s" })
			return "the limit, for a second"
		}, theirs: "a limiter per key, for 5 min", ours: "the limit, for a second", why: "a limiter serves any number of keys and holds none"},
	})
}

// Many callers of two processes at one moment: nobody gets the instant of another.
func guavaCrowd(s *scene) {
	limit := throttle.Smooth(1, time.Second, 1)
	processes := []*throttle.Limiter{s.limiter("api", limit), s.limiter("api", limit)}
	const callers = 20
	var mu sync.Mutex
	told := make(map[time.Duration]bool)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			v, err := processes[i%2].Reserve(s.Context(), key, 1)
			if err != nil {
				s.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			told[v.At().Sub(start)] = true
		})
	}
	wg.Wait()
	for i := range callers {
		if at := time.Duration(i) * time.Second; !told[at] {
			s.Errorf("nobody was told %v, all were told %v", at, told)
		}
	}
}
