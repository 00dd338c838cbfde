package throttle_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

const storedKey = "hw:limit:sms"

// wantInForce checks by which limit a limiter decides.
func wantInForce(t *testing.T, l *throttle.Limiter, want throttle.Limit) {
	t.Helper()
	if got, err := throttle.LimitInForce(t.Context(), l); err != nil || got != want {
		t.Errorf("LimitInForce = %v, %v, want %v", got, err, want)
	}
}

func TestStoredLimitGoesBeforeTheOneInCode(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	code, raised, lowered := throttle.Sliding(1, time.Minute), throttle.Sliding(3, time.Minute), throttle.Sliding(2, time.Minute)
	l := s.limiter("sms", code)
	if got := l.LimitStatus(t.Context()); got.Stored || got.Limit != code || got.Err != nil {
		t.Errorf("LimitStatus = %+v, want %v, not stored", got, code)
	}
	s.want(s.try(l, 1), true, 0)
	s.want(s.try(l, 1), false, time.Minute)

	// what is raised counts what was spent before
	if err := setLimit(t.Context(), l, raised); err != nil {
		t.Fatal(err)
	}
	wantInForce(t, l, raised)
	if got := l.LimitStatus(t.Context()); got.Limit != raised || !got.Stored || got.Err != nil {
		t.Errorf("LimitStatus = %+v, want %v, stored", got, raised)
	}
	s.at(10 * time.Second)
	s.want(s.try(l, 1), true, 10*time.Second)
	s.want(s.try(l, 1), true, 10*time.Second)
	s.want(s.try(l, 1), false, time.Minute)

	// 3 are spent where 2 are allowed: the first that leaves makes no room
	if err := setLimit(t.Context(), l, lowered); err != nil {
		t.Fatal(err)
	}
	s.at(time.Minute)
	s.want(s.try(l, 1), false, 70*time.Second)

	if done, err := l.SetLimit(t.Context(), raised, throttle.SetLimitOptions{IfUnset: true}); done || err != nil {
		t.Errorf("SetLimit(IfUnset) = %v, %v with a stored limit, want false", done, err)
	}
	wantInForce(t, l, lowered)
	if ttl := s.raw.TTL(t.Context(), storedKey).Val(); ttl != -1 {
		t.Errorf("the stored limit ends in %v, want never: an operator set it", ttl)
	}
	for range 2 {
		if err := l.UnsetLimit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantInForce(t, l, code)
	if ttl := s.raw.TTL(t.Context(), storedKey).Val(); ttl <= 0 {
		t.Errorf("what is left of it ends in %v, want a life", ttl)
	}
	if done, err := l.SetLimit(t.Context(), raised, throttle.SetLimitOptions{IfUnset: true}); !done || err != nil {
		t.Errorf("SetLimit(IfUnset) = %v, %v without a stored limit, want true", done, err)
	}
	wantInForce(t, l, raised)
}

func TestStoredLimitThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	for limit, options := range map[throttle.Limit]throttle.SetLimitOptions{
		throttle.Sliding(0, time.Minute): {}, {}: {IfUnset: true}, throttle.Sliding(1, 0): {For: time.Minute},
	} {
		if _, err := l.SetLimit(t.Context(), limit, options); !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("SetLimit(%v, %+v) = %v, want %v", limit, options, err, throttle.ErrInvalidLimit)
		}
	}
	if _, err := l.SetLimit(t.Context(), throttle.Sliding(1, time.Hour), throttle.SetLimitOptions{For: time.Millisecond}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("SetLimit for 1ms = %v, want %v", err, throttle.ErrInvalidConfig)
	}
	if keys := redistest.Keys(t, s.raw, "hw:*"); len(keys) > 0 {
		t.Errorf("keys = %v, want none", keys)
	}
}

// What is stored is never needed, and ends by itself.
func TestStoredLimitEndsByItself(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	code, closed := throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour)
	l := newLimiter(t, rdb, "sms", code, throttle.Config{})
	if _, err := l.SetLimit(t.Context(), closed, throttle.SetLimitOptions{For: throttle.LimitTTLMin}); err != nil {
		t.Fatal(err)
	}
	wantInForce(t, l, closed)
	var seen []throttle.Limit
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for limit, err := range l.WatchLimit(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, limit); limit == code {
			break
		}
	}
	if !slices.Equal(seen, []throttle.Limit{closed, code}) {
		t.Errorf("in force were %v, want %v, then %v", seen, closed, code)
	}
	wantInForce(t, l, code)
}

// bare is a client that is no key of a map.
type bare struct {
	redis.UniversalClient
	_ []string
}

func TestLimitsInForceOfAnyClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	limit := throttle.Sliding(1, time.Minute)
	l := newLimiter(t, bare{UniversalClient: rdb}, "sms", limit, throttle.Config{})
	for _, got := range throttle.ForWorkers.LimitStatuses(t.Context(), []*throttle.Limiter{l, newLimiter(t, rdb, "sms", limit, throttle.Config{})}) {
		if got.Limit != limit || got.Err != nil {
			t.Errorf("LimitStatuses = %+v, want %v", got, limit)
		}
	}
}

// A clock that goes back makes no older version of a newer one.
func TestStoredLimitVersionsIncrease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	last := ""
	for i, at := range []time.Duration{0, time.Second, -time.Hour, -time.Hour, 0} {
		s.at(at)
		var err error
		if i == 2 {
			err = l.UnsetLimit(t.Context())
		} else {
			err = setLimit(t.Context(), l, throttle.Sliding(i+1, time.Second))
		}
		if err != nil {
			t.Fatal(err)
		}
		version := s.raw.Get(t.Context(), storedKey).Val()[:16]
		if version <= last {
			t.Errorf("version %d is %s after %s", i, version, last)
		}
		last = version
	}
}

// A job that waits for more than a lowered limit holds leaves the line.
func TestJobAboveALoweredLimitLeavesTheLine(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(3, time.Minute))
	s.want(s.try(l, 3), true, 0)
	s.want(s.job(l, "large", 3), false, time.Minute)
	s.want(s.job(l, "small", 1), false, 2*time.Minute)
	grant := throttle.Request{Key: key, Cost: 3, Token: 7, Job: "g"}
	other := s.limiter("other", throttle.Sliding(3, time.Minute))
	if _, err := other.Policy().Redeem(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	for _, lim := range []*throttle.Limiter{l, other} {
		if err := setLimit(t.Context(), lim, throttle.Sliding(2, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "large", Costs: []int{3}}
	if got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0]; !errors.Is(got.Err, throttle.ErrExceedsLimit) {
		t.Errorf("Refresh = %+v, want %v", got, throttle.ErrExceedsLimit)
	}
	_, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 3, Job: "large"})
	if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); !ok || e.Limit != throttle.Sliding(2, time.Minute) {
		t.Errorf("Redeem = %v, want an ExceedsLimitError", err)
	}
	s.want(s.job(l, "small", 1), false, time.Minute)
	// what was spent under the higher limit can be given back
	if _, err := other.Policy().Refund(t.Context(), grant); err != nil {
		t.Errorf("Refund = %v", err)
	}
	s.want(s.try(other, 2), true, 0)
}

// Another limiter hears of a change within a second; callers that block there
// go at once when the limit rose.
func TestChangeReachesBlockedCallers(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Hour), func(t *testing.T, limiter func() *throttle.Limiter, _ *redis.Client) {
		l, operator := limiter(), limiter()
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		const callers = 20
		got := make(chan error, callers)
		for range callers {
			go func() { got <- l.Acquire(t.Context(), key, 1) }()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		began := time.Now()
		if err := setLimit(t.Context(), operator, throttle.Sliding(100, time.Second)); err != nil {
			t.Fatal(err)
		}
		for range callers {
			if err := <-got; err != nil {
				t.Errorf("Acquire = %v", err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the last went %v after the change, want a second at most", took)
		}
		// and who wants more than a lowered limit holds hears it
		for range 100 - callers {
			if _, err := operator.TryAcquire(t.Context(), key, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := setLimit(t.Context(), operator, throttle.Sliding(100, time.Hour)); err != nil {
			t.Fatal(err)
		}
		go func() { got <- operator.Acquire(t.Context(), key, 90) }()
		synctest.Wait() // it is in the line
		if err := setLimit(t.Context(), operator, throttle.Sliding(50, time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := <-got; !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("Acquire(90) under a limit of 50 = %v, want %v", err, throttle.ErrExceedsLimit)
		}
	})
}

// waitFor polls until cond holds.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(20 * time.Second)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A second after a limit was lowered nobody admits by the old one: several
// limiters take what they get, the grants are counted.
func TestLoweredLimitHoldsEverywhere(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	const crew = 4
	var mu sync.Mutex
	var grants []time.Time
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range crew {
		l := newLimiter(t, srv.Client(t), "sms", throttle.Sliding(10, 200*time.Millisecond), throttle.Config{InlineWait: throttle.InlineWaitNone})
		wg.Go(func() {
			for ctx.Err() == nil {
				if d, err := l.TryAcquire(ctx, key, 1); err == nil && d.Granted {
					mu.Lock()
					grants = append(grants, d.At)
					mu.Unlock()
				}
			}
		})
	}
	waitFor(t, "grants under the old limit", func() bool { mu.Lock(); defer mu.Unlock(); return len(grants) >= 30 })
	rdb := srv.Client(t)
	operator := newLimiter(t, rdb, "sms", throttle.Sliding(10, 200*time.Millisecond), throttle.Config{})
	if err := setLimit(t.Context(), operator, throttle.Sliding(1, 200*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	changed := rdb.Time(t.Context()).Val()
	waitFor(t, "ten grants from a second after the change on", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(grants) > 10 && grants[len(grants)-10].Sub(changed) > time.Second
	})
	cancel()
	wg.Wait()
	slices.SortFunc(grants, time.Time.Compare)
	for i, at := range grants {
		if at.Sub(changed) < time.Second {
			continue
		}
		if gap := at.Sub(grants[i-1]); gap < 200*time.Millisecond {
			t.Errorf("a grant %v after the change is %v after the one before it, want 200ms", at.Sub(changed), gap)
		}
	}
}

// While Redis is away a limiter decides by what it knows for a second at most;
// its answer to more than that is the error.
func TestLimitInForceWhileRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	rdb, proxy := redistest.Behind(t, redistest.Start(t), func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	limit := throttle.Sliding(5, time.Minute)
	l := newLimiter(t, rdb, "sms", limit, throttle.Config{})
	set := time.Now() // what is remembered is as old as the call
	if err := setLimit(t.Context(), l, limit); err != nil {
		t.Fatal(err)
	}
	proxy.Refuse(true)
	if got, err := throttle.LimitInForce(t.Context(), l); got != limit || err != nil {
		t.Errorf("LimitInForce = %v, %v, want %v from memory", got, err, limit)
	}
	var err error
	waitFor(t, "an error", func() bool { _, err = throttle.LimitInForce(t.Context(), l); return err != nil })
	if took := time.Since(set); !errors.Is(err, throttle.ErrUnavailable) || took < time.Second {
		t.Errorf("LimitInForce = %v after %v, want %v after a second", err, took, throttle.ErrUnavailable)
	}
	proxy.Refuse(false)
	waitFor(t, "the limit again", func() bool {
		got, err := throttle.LimitInForce(t.Context(), l)
		return err == nil && got == limit
	})
}

// Callers that ask at the same time share one look, and none is needed for
// half a second.
func TestReadsOfTheLimitAreShared(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	var looks gets
	rdb.AddHook(&looks)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				if _, err := throttle.LimitInForce(t.Context(), l); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := looks.Load(); n > 1+int64(time.Since(began)/(500*time.Millisecond)) {
		t.Errorf("%d looks in %v, want one in half a second", n, time.Since(began))
	}
}

// A limit that is known costs no allocation. Not in parallel: others allocate.
func TestKnownLimitCostsNoAllocation(t *testing.T) {
	l := newLimiter(t, redistest.Client(t), "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	wantInForce(t, l, throttle.Sliding(1, time.Minute))
	if n := testing.AllocsPerRun(100, func() { _, _ = throttle.LimitInForce(context.Background(), l) }); n != 0 {
		t.Errorf("%v allocations when the limit is known, want none", n)
	}
}

// What this version can't read is refused, by every call that decides, and can
// be replaced.
func TestStoredLimitThatCannotBeReadRefuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	code := throttle.Sliding(1, time.Minute)
	for _, value := range []string{"17 quantum 3/1s", "1/60s", "0 1/60s", "x", ""} {
		if err := rdb.Set(t.Context(), storedKey, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		l := newLimiter(t, rdb, "sms", code, throttle.Config{})
		place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}
		all := asks(t.Context(), l, key, 1)
		all["Refresh"] = throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{place})[0].Err
		_, all["Peek"] = l.Peek(t.Context(), key, 1)
		_, all["Reset"] = l.Reset(t.Context(), key)
		all["LimitStatus"] = l.LimitStatus(t.Context()).Err
		for op, err := range all {
			if !errors.Is(err, throttle.ErrStoredLimit) || !strings.Contains(err.Error(), `"sms"`) || errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("%q is stored: %s = %v, want %v of the rule", value, op, err, throttle.ErrStoredLimit)
			}
		}
		if keys := redistest.Keys(t, rdb, "hw:*"); len(keys) != 1 {
			t.Errorf("%q is stored: keys = %v, want that alone", value, keys)
		}
		_, left := throttle.ForWorkers.CancelBooking(t.Context(), place)
		_, given := l.Policy().Refund(t.Context(), throttle.Request{Key: key, Cost: 1, Token: 7})
		if left != nil || given != nil {
			t.Errorf("%q is stored: Leave = %v, Refund = %v, want nil", value, left, given)
		}
		for _, k := range redistest.Keys(t, rdb, "*") {
			rdb.Del(t.Context(), k)
		}
		if err := setLimit(t.Context(), l, code); err != nil {
			t.Fatal(err)
		}
		wantInForce(t, l, code)
	}
}

// Who blocks when the limit becomes one that can't be read leaves no place, and
// what was granted before can be given back.
func TestNoPlaceUnderALimitThatCannotBeRead(t *testing.T) {
	t.Parallel()
	bubble(t, throttle.Sliding(1, time.Hour), func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
		l := limiter()
		first, err := l.TryAcquire(t.Context(), key, 1)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error)
		go func() { result <- l.Acquire(t.Context(), key, 1) }()
		synctest.Wait()
		rdb.Set(t.Context(), storedKey, "1 nonsense", 0)
		if err := <-result; !errors.Is(err, throttle.ErrStoredLimit) {
			t.Errorf("Acquire = %v, want %v", err, throttle.ErrStoredLimit)
		}
		if _, err := l.Policy().Refund(t.Context(), first.Request); err != nil {
			t.Errorf("Refund = %v, want nil", err)
		}
		rdb.Del(t.Context(), storedKey)
		time.Sleep(time.Second)
		if s, err := l.Peek(t.Context(), key, 5); err != nil || s.Waiting != 0 || s.Available != 1 {
			t.Errorf("Peek = %+v, %v, want nobody waiting and 1 available", s, err)
		}
	})
}

// A call that comes after a while is one round trip, and so is the first of a limiter: Redis looks
// with it whether the limit still holds.
func TestRareCallIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, rdb *redis.Client) {
		long := throttle.Sliding(100, time.Hour)
		warm := newLimiter(t, rdb, "other", long, throttle.Config{})
		if _, err := warm.TryAcquire(t.Context(), key, 1); err != nil { // it loads the script
			t.Fatal(err)
		}
		sent := &roundTrips{}
		rdb.AddHook(sent)
		ask := func(l *throttle.Limiter, what string) {
			before := sent.n
			if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
				t.Errorf("%s: %+v, %v, want a grant", what, d, err)
			}
			if n := sent.n - before; n != 1 {
				t.Errorf("%s: %d round trips, want 1", what, n)
			}
		}
		l := newLimiter(t, rdb, "sms", long, throttle.Config{})
		ask(l, "the first call of a limiter")
		ask(l, "the next one")
		ask(newLimiter(t, rdb, "sms", long, throttle.Config{}), "a limiter for one call")
		time.Sleep(600 * time.Millisecond)
		ask(l, "after a while")
		if err := setLimit(t.Context(), warm, throttle.Sliding(50, time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond)
		ask(warm, "by a stored limit")

		other := newLimiter(t, rdb, "tenant", long, throttle.Config{})
		two := newPolicy(t, newLimiter(t, rdb, "phone", long, throttle.Config{}), newLimiter(t, rdb, "tenant", long, throttle.Config{}))
		if err := setLimit(t.Context(), other, throttle.Sliding(1, time.Hour)); err != nil {
			t.Fatal(err)
		}
		for i, trips := range []int{3, 1} { // what the second rule did not know takes a look, and another decision
			before := sent.n
			d, err := two.TryAcquire(t.Context(), throttle.Request{Key: key, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}})
			if err != nil || d.Granted != (i == 0) || sent.n-before != trips {
				t.Errorf("call %d of two rules: %+v, %v in %d round trips, want granted %v in %d", i+1, d, err, sent.n-before, i == 0, trips)
			}
			time.Sleep(600 * time.Millisecond)
		}
	}
	t.Run("functions", func(t *testing.T) {
		t.Parallel()
		check(t, redistest.Start(t).Client(t)) // on a Cluster the stored limit is in another hash slot
	})
	t.Run("scripts", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			rdb, _ := redistest.Mini(t)
			check(t, rdb)
		})
	})
}

// Redis has compared the limits also when the answer is that the permits come too late: the next
// call does not look again.
func TestRefusalIsALook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Hour), throttle.Config{})
		if err := l.Acquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
		last := &lastScript{}
		rdb.AddHook(last)
		time.Sleep(2 * time.Second)
		for i, keys := range []int{5, 3} { // the ledger's three, and the stored limit and the closing
			if err := acquireWithin(t.Context(), l, key, 1, time.Second); !errors.Is(err, throttle.ErrTooLate) {
				t.Errorf("Acquire = %v, want %v", err, throttle.ErrTooLate)
			}
			if last.keys != keys {
				t.Errorf("call %d has %d keys, want %d", i+1, last.keys, keys)
			}
		}
	})
}

// lastScript is how many keys the last script had.
type lastScript struct {
	calls
	keys int
}

func (s *lastScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			s.keys = cmd.Args()[2].(int)
		}
		return next(ctx, cmd)
	}
}

// What another process changes counts for the next call of one that has not looked for long.
func TestRareCallGoesByWhatChanged(t *testing.T) {
	t.Parallel()
	code := throttle.Sliding(2, time.Hour)
	for name, tt := range map[string]struct {
		before  throttle.Limit // stored when the process looks last; zero for none
		change  func(ctx context.Context, other *throttle.Limiter, rdb *redis.Client) error
		cost    int
		granted bool
		err     error
	}{
		"nothing": {granted: true},
		"lowered": {change: func(ctx context.Context, other *throttle.Limiter, _ *redis.Client) error {
			return setLimit(ctx, other, throttle.Sliding(1, time.Hour))
		}},
		"raised": {cost: 4, granted: true, change: func(ctx context.Context, other *throttle.Limiter, _ *redis.Client) error {
			return setLimit(ctx, other, throttle.Sliding(5, time.Hour))
		}},
		"taken away": {before: throttle.Sliding(1, time.Hour), granted: true, change: func(ctx context.Context, other *throttle.Limiter, _ *redis.Client) error {
			return other.UnsetLimit(ctx)
		}},
		"gone": {before: throttle.Sliding(1, time.Hour), granted: true, change: func(ctx context.Context, _ *throttle.Limiter, rdb *redis.Client) error {
			return rdb.Del(ctx, storedKey).Err()
		}},
		"closed": {change: func(ctx context.Context, other *throttle.Limiter, _ *redis.Client) error {
			_, err := other.CloseRule(ctx, time.Hour)
			return err
		}},
		"closed and opened": {granted: true, change: func(ctx context.Context, other *throttle.Limiter, _ *redis.Client) error {
			_, err := other.CloseRule(ctx, time.Hour)
			return errors.Join(err, other.OpenRule(ctx))
		}},
		"unreadable": {err: throttle.ErrStoredLimit, change: func(ctx context.Context, _ *throttle.Limiter, rdb *redis.Client) error {
			return rdb.Set(ctx, storedKey, "0 1/60s", 0).Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, code, func(t *testing.T, limiter func() *throttle.Limiter, rdb *redis.Client) {
				l, other := limiter(), limiter()
				if tt.before != (throttle.Limit{}) {
					if err := setLimit(t.Context(), other, tt.before); err != nil {
						t.Fatal(err)
					}
				}
				if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
					t.Fatalf("TryAcquire = %+v, %v, want a grant", d, err)
				}
				time.Sleep(10 * time.Second)
				if tt.change != nil {
					if err := tt.change(t.Context(), other, rdb); err != nil {
						t.Fatal(err)
					}
				}
				d, err := l.TryAcquire(t.Context(), key, max(1, tt.cost))
				if d.Granted != tt.granted || !errors.Is(err, tt.err) {
					t.Errorf("TryAcquire = %+v, %v, want granted %v, error %v", d, err, tt.granted, tt.err)
				}
			})
		})
	}
}

// gets counts the looks at stored limits.
type gets struct{ atomic.Int64 }

func (g *gets) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gets) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (g *gets) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "get" && strings.HasPrefix(cmd.String(), "get hw:limit:") {
				g.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// watch sends what a watch yields until ctx ends; the channel is closed then.
func watch(ctx context.Context, l *throttle.Limiter) <-chan throttle.Limit {
	seen := make(chan throttle.Limit)
	go func() {
		defer close(seen)
		for limit, err := range l.WatchLimit(ctx) {
			if err != nil {
				limit = throttle.Limit{}
			}
			select {
			case seen <- limit:
			case <-ctx.Done():
			}
		}
	}()
	return seen
}

func wantNext(t *testing.T, seen <-chan throttle.Limit, want throttle.Limit) {
	t.Helper()
	const within = 5 * time.Second
	select {
	case got := <-seen:
		if got != want {
			t.Errorf("seen %v, want %v", got, want)
		}
	case <-time.After(within):
		t.Errorf("nothing seen in %v, want %v", within, want)
	}
}

func TestWatchLimit(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	code, other := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute)
	operator := newLimiter(t, srv.Client(t), "sms", code, throttle.Config{})
	rdb := srv.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen := watch(ctx, newLimiter(t, rdb, "sms", code, throttle.Config{}))
	wantNext(t, seen, code)
	if err := setLimit(t.Context(), operator, other); err != nil {
		t.Fatal(err)
	}
	wantNext(t, seen, other)
	// one that can't be read is told once, and the watch goes on
	rdb.Set(t.Context(), storedKey, "99 nonsense", 0)
	wantNext(t, seen, throttle.Limit{})
	if err := operator.UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantNext(t, seen, code)
	cancel()
	select {
	case _, open := <-seen:
		if open {
			t.Error("it yields after its context ended")
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on after its context ended")
	}
}

// A subscriber whose messages are lost, with its connection, looks for itself.
func TestWatchLimitWithoutMessages(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	code, other := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute)
	rdb := srv.Client(t)
	seen := watch(t.Context(), newLimiter(t, deaf{rdb}, "sms", code, throttle.Config{}))
	wantNext(t, seen, code)
	if err := setLimit(t.Context(), newLimiter(t, rdb, "sms", code, throttle.Config{}), other); err != nil {
		t.Fatal(err)
	}
	wantNext(t, seen, other)
}

// deaf listens to another channel than it is told.
type deaf struct{ redis.UniversalClient }

func (c deaf) Subscribe(ctx context.Context, _ ...string) *redis.PubSub {
	return c.UniversalClient.Subscribe(ctx, "another")
}
