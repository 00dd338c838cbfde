package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// noKey checks that no way of printing v shows the key.
func noKey(t *testing.T, v any) {
	t.Helper()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%10v"} {
		if got := fmt.Sprintf(verb, v); strings.Contains(got, key) || strings.Contains(got, fmt.Sprintf("%x", key)) {
			t.Errorf("%s of a %T shows the key: %s", verb, v, got)
		}
	}
}

// asks asks for permits in every way.
func asks(ctx context.Context, l *throttle.Limiter, key string, n int) map[string]error {
	_, try := l.TryAcquire(ctx, key, n)
	_, redeem := l.Policy().Redeem(ctx, throttle.Request{Key: key, Cost: n, Job: "a"})
	_, book := l.Policy().Book(ctx, throttle.Request{Key: key, Cost: n, Job: "a"})
	return map[string]error{
		"TryAcquire": try, "Redeem": redeem, "Book": book,
		"Acquire": l.Acquire(ctx, key, n), "Acquire within a second": acquireWithin(ctx, l, key, n, time.Second),
	}
}

// What exceeds the limit in force is refused at once; which limit that is only
// Redis knows.
func TestCostAboveTheLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for op, err := range asks(t.Context(), s.limiter("sms", throttle.Sliding(3, time.Minute)), key, 4) {
		if !errors.Is(err, throttle.ErrExceedsLimit) {
			t.Errorf("%s of 4 = %v, want %v", op, err, throttle.ErrExceedsLimit)
		}
		noKey(t, err)
	}
	if got := redistest.Keys(t, s.raw, "hw:*"); len(got) > 0 {
		t.Errorf("keys = %v, want none", got)
	}
}

func TestErrorsOfWhatCanNeverSucceed(t *testing.T) {
	t.Parallel()
	// Nobody listens there: a refusal costs no round trip.
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	l := newLimiter(t, rdb, "sms", throttle.Sliding(3, time.Minute), throttle.Config{})
	for name, tt := range map[string]struct {
		key  string
		n    int
		want error
	}{
		"0":        {key, 0, throttle.ErrInvalidCost},
		"-5":       {key, -5, throttle.ErrInvalidCost},
		"no key":   {"", 1, throttle.ErrInvalidKey},
		"long key": {strings.Repeat(key, 100), 1, throttle.ErrInvalidKey},
	} {
		for op, err := range asks(t.Context(), l, tt.key, tt.n) {
			if !errors.Is(err, tt.want) || errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("%s: %s = %v, want %v", name, op, err, tt.want)
			}
			noKey(t, err)
		}
	}
	for _, job := range []string{"", strings.Repeat("j", throttle.JobMax+1)} {
		if _, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: job}); !errors.Is(err, throttle.ErrInvalidJob) {
			t.Errorf("Redeem with a job of %d bytes = %v, want %v", len(job), err, throttle.ErrInvalidJob)
		}
	}
	if _, err := l.Peek(t.Context(), key, throttle.PeekMax+1); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("Peek(%d) = %v, want %v", throttle.PeekMax+1, err, throttle.ErrInvalidConfig)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("over")
	cancel(cause)
	if err := l.Acquire(ended, key, 1); !errors.Is(err, cause) {
		t.Errorf("Acquire with an ended context = %v, want %v", err, cause)
	}
}

func TestErrorsCarryTheirData(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	_, err := l.TryAcquire(t.Context(), key, 2)
	if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); !ok || e.Rule != "sms" || e.Cost != 2 || e.Limit != l.Limit() {
		t.Errorf("TryAcquire(2) = %#v, want an ExceedsLimitError with its data", err)
	}

	s.want(s.try(l, 1), true, 0)
	s.at(20 * time.Second)
	d := s.try(l, 1)
	e, ok := errors.AsType[*throttle.ThrottledError](d.Err())
	if !ok || !errors.Is(d.Err(), throttle.ErrThrottled) || e.RetryAfter != 40*time.Second || !e.At.Equal(start.Add(time.Minute)) {
		t.Errorf("Err() = %#v, want a ThrottledError of 40s", d.Err())
	}
	if got, want := d.Err().Error(), `throttle: rule "sms" refuses for 40s`; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}

	late, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a", MaxWait: 39 * time.Second})
	te, ok := errors.AsType[*throttle.TooLateError](err)
	if !ok || !errors.Is(err, throttle.ErrTooLate) || te.Wait != 40*time.Second || te.MaxWait != 39*time.Second {
		t.Errorf("Redeem = %#v, want a TooLateError of 40s", err)
	}
	for _, v := range []any{d, &d, d.Request, &d.Request, late, err, d.Err(), []throttle.Decision{d}, struct{ D throttle.Decision }{d}} {
		noKey(t, v)
	}
}

// State of a newer schema is refused by every call, and left alone.
func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	ledger, newer := "hw:{"+key+"}:sms", "2"+strings.Repeat("x", 40)
	if err := s.raw.Set(t.Context(), ledger, newer, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: 7}
	_, try := l.TryAcquire(t.Context(), key, 1)
	_, redeem := l.Policy().Redeem(t.Context(), r)
	_, book := l.Policy().Book(t.Context(), r)
	_, cancel := l.Policy().Cancel(t.Context(), r)
	_, refund := l.Policy().Refund(t.Context(), r)
	_, back := throttle.ForWorkers.Return(t.Context(), l.Policy(), r)
	_, reset := l.Reset(t.Context(), key)
	_, peek := l.Peek(t.Context(), key, 1)
	place := throttle.BookingRef{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "a", Costs: []int{1}}
	_, leave := throttle.ForWorkers.CancelBooking(t.Context(), place)
	for op, err := range map[string]error{
		"TryAcquire": try, "Redeem": redeem, "Book": book, "Cancel": cancel, "Refund": refund, "Return": back, "Reset": reset,
		"Peek": peek, "Leave": leave, "Acquire": l.Acquire(t.Context(), key, 1),
		"Refresh": throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0].Err,
	} {
		if !errors.Is(err, throttle.ErrSchema) {
			t.Errorf("%s = %v, want %v", op, err, throttle.ErrSchema)
		}
		noKey(t, err)
	}
	if got := s.raw.Get(t.Context(), ledger).Val(); got != newer {
		t.Errorf("the ledger is %q, want it unchanged", got)
	}
	if got := redistest.Keys(t, s.raw, "hw:*"); len(got) != 1 {
		t.Errorf("keys = %v, want the ledger alone", got)
	}
}

// When Redis is away, that is what the error says, and a context that ended
// can be told apart; no type of the client's gets through.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	rdb, proxy := redistest.Behind(t, redistest.Start(t), func(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 })
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	proxy.Refuse(true)
	_, err := l.TryAcquire(t.Context(), key, 1)
	if !errors.Is(err, throttle.ErrUnavailable) || !strings.HasPrefix(err.Error(), "throttle: acquire: redis: ") || errors.Is(err, context.Canceled) {
		t.Errorf("TryAcquire = %#v, want %v of the call that decides", err, throttle.ErrUnavailable)
	}
	if throttle.ForWorkers.Answered(err) {
		t.Errorf("Answered(%v) = true, want false", err)
	}
	if err := l.Acquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Acquire = %v, want %v", err, throttle.ErrUnavailable)
	}
	noKey(t, err)
	proxy.Refuse(false)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.TryAcquire(ended, key, 1)
	if errors.Is(err, throttle.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("TryAcquire with an ended context = %v, want %v", err, context.Canceled)
	}
	// Another program's value under our key: the server's words, without the key.
	if err := rdb.LPush(t.Context(), "hw:{"+key+"}:sms", "x").Err(); err != nil {
		t.Fatal(err)
	}
	_, err = l.TryAcquire(t.Context(), key, 1)
	if redisErr, ok := errors.AsType[redis.Error](err); ok || !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("TryAcquire = %v (%v), want %v and no error of the client's", err, redisErr, throttle.ErrUnavailable)
	}
	if !throttle.ForWorkers.Answered(err) {
		t.Errorf("Answered(%v) = false, want true", err)
	}
	noKey(t, err)
}

// A context that has ended before the call is no fault of Redis: the error is its cause,
// and nothing is asked.
func TestEndedContextGivesItsCause(t *testing.T) {
	t.Parallel()
	raw := redistest.Client(t)
	for name, l := range map[string]*throttle.Limiter{
		"closed": newLimiter(t, raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{}),
		"open":   newLimiter(t, raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen}),
		"shadow": newLimiter(t, raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Shadow: true}),
	} {
		enough := errors.New("the user has closed the page")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(enough)
		p, r := l.Policy(), throttle.Request{Key: key, Cost: 1, Job: "a"}
		for call, do := range map[string]func() error{
			"TryAcquire":        func() error { _, err := l.TryAcquire(ctx, key, 1); return err },
			"Policy.TryAcquire": func() error { _, err := p.TryAcquire(ctx, r); return err },
			"Acquire":           func() error { return l.Acquire(ctx, key, 1) },
			"Reserve":           func() error { _, err := l.Reserve(ctx, key, 1); return err },
			"Book":              func() error { _, err := p.Book(ctx, r); return err },
			"Redeem":            func() error { _, err := p.Redeem(ctx, r); return err },
		} {
			if err := do(); err != enough { //nolint:errorlint // the very cause
				t.Errorf("%s: %s = %v, want %v", name, call, err, enough)
			}
		}
		for call, do := range map[string]func() error{ // what they did is not known to those who made them
			"Peek":     func() error { _, err := l.Peek(ctx, key, 1); return err },
			"Refund":   func() error { _, err := p.Refund(ctx, r); return err },
			"SetLimit": func() error { return l.UnsetLimit(ctx) },
			"BookMany": func() error {
				return throttle.ForWorkers.BookMany(ctx, raw, []throttle.BookRequest{{Policy: p, Request: r}, {Policy: p, Request: r}})[1].Err
			},
		} {
			err := do()
			if name == "shadow" && call == "BookMany" && err == nil {
				continue // it books nothing
			}
			if !errors.Is(err, enough) || !errors.Is(err, context.Canceled) || !errors.Is(err, throttle.ErrUnavailable) || strings.Contains(err.Error(), "redis") {
				t.Errorf("%s: %s = %v, want %v for %v, and no word of Redis", name, call, err, throttle.ErrUnavailable, enough)
			}
		}
	}
	if keys := redistest.Keys(t, raw, "hw:*"); len(keys) != 0 {
		t.Errorf("keys = %v, want none", keys)
	}
}

// A context that ends while Redis is asked is told with its cause: what the call did is
// not known.
func TestContextThatEndsMeanwhileGivesItsCause(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, proxy := redistest.Behind(t, s, func(o *redis.Options) { o.ContextTimeoutEnabled, o.MaxRetries = true, -1 })
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if in := l.LimitStatus(t.Context()); in.Err != nil {
		t.Fatal(in.Err)
	}
	enough := errors.New("the user has closed the page")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*ms, enough)
	defer cancel()
	proxy.Delay(100 * ms)
	_, err := l.TryAcquire(ctx, key, 1)
	if !errors.Is(err, enough) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, throttle.ErrUnavailable) || strings.Contains(err.Error(), "redis") {
		t.Errorf("TryAcquire = %v, want %v for %v, and no word of Redis", err, throttle.ErrUnavailable, enough)
	}
}

// What is nil is named where it is given, and not met later.
func TestNilIsNamed(t *testing.T) {
	t.Parallel()
	l, err := throttle.NewLocal("sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		rules []*throttle.Limiter
		want  string
	}{
		{[]*throttle.Limiter{nil}, "rule 1 of 1 of the policy is nil"},
		{[]*throttle.Limiter{l, nil}, "rule 2 of 2 of the policy is nil"},
	} {
		if _, err := throttle.NewPolicy(tt.rules...); !errors.Is(err, throttle.ErrInvalidConfig) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("NewPolicy of %d rules = %v, want %v that says %q", len(tt.rules), err, throttle.ErrInvalidConfig, tt.want)
		}
	}
	for name, rdb := range map[string]redis.UniversalClient{"none": nil, "a nil Client": (*redis.Client)(nil), "a nil ClusterClient": (*redis.ClusterClient)(nil)} {
		func() {
			defer func() {
				if got := recover(); got != "throttle: nil Redis client" {
					t.Errorf("New on %s panics with %v, want what is nil", name, got)
				}
			}()
			_, _ = throttle.New(rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
		}()
	}
}
