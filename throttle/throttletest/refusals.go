package throttletest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/headwayq/headway/throttle"
)

// refusalCases: what can't be is refused at once, typed, and leaves nothing.
func refusalCases() []scenario {
	three := throttle.Sliding(3, time.Hour)
	job, long := request("a", 1), request(strings.Repeat("j", throttle.JobMax+1), 1)
	with := func(key string, cost int) throttle.Request {
		return throttle.Request{Key: key, Cost: cost, Job: job.Job}
	}
	refused := func(name string, want error, r throttle.Request) scenario {
		return scenario{name: "refusals/" + name, limit: three, play: func(s *testbed) {
			refusedBy(s, r, want, r.Job == job.Job)
			s.waiting(0)
			s.try(3, 0)
		}}
	}
	return []scenario{
		refused("cost above the limit", throttle.ErrExceedsLimit, with(key, 4)),
		refused("cost of nothing", throttle.ErrInvalidCost, with(key, 0)),
		refused("cost below nothing", throttle.ErrInvalidCost, with(key, -1)),
		refused("no key", throttle.ErrInvalidKey, with("", 1)),
		refused("long key", throttle.ErrInvalidKey, with(strings.Repeat(key, throttle.KeyMax), 1)),
		refused("no job", throttle.ErrInvalidJob, throttle.Request{Key: key, Cost: 1}),
		refused("long job", throttle.ErrInvalidJob, long),
		{name: "refusals/AcquireWithin fails at once", limit: throttle.Sliding(1, time.Hour), play: failsTooLate},
	}
}

// refusedBy asks in every way; calls without a job only if it is not the job
// that is wrong.
func refusedBy(s *testbed, r throttle.Request, want error, all bool) {
	s.Helper()
	calls := map[string]func(context.Context) error{
		"Book":   func(ctx context.Context) error { _, err := s.l.Book(ctx, r); return err },
		"Redeem": func(ctx context.Context) error { _, err := s.l.Redeem(ctx, r); return err },
	}
	if all {
		calls["TryAcquire"] = func(ctx context.Context) error { _, err := s.l.TryAcquire(ctx, r.Key, r.Cost); return err }
		calls["Acquire"] = func(ctx context.Context) error { return s.l.Acquire(ctx, r.Key, r.Cost) }
		calls["AcquireWithin"] = func(ctx context.Context) error { return s.l.AcquireWithin(ctx, r.Key, r.Cost, time.Hour) }
		calls["TimeUntil"] = func(ctx context.Context) error { _, err := s.l.TimeUntil(ctx, r.Key, r.Cost); return err }
	}
	if errors.Is(want, throttle.ErrInvalidKey) {
		calls["Available"] = func(ctx context.Context) error { _, err := s.l.Available(ctx, r.Key); return err }
		calls["Peek"] = func(ctx context.Context) error { _, err := s.l.Peek(ctx, r.Key, 1); return err }
		calls["Reset"] = func(ctx context.Context) error { _, err := s.l.Reset(ctx, r.Key); return err }
	}
	for name, call := range calls {
		err := s.promptly(name, call)
		if !errors.Is(err, want) {
			s.Errorf("%s = %v, want %v", name, err, want)
			continue
		}
		if r.Key != "" && strings.Contains(err.Error(), r.Key) {
			s.Errorf("%s: the error shows the key, which may be personal data", name)
		}
		if e, ok := errors.AsType[*throttle.ExceedsLimitError](err); errors.Is(want, throttle.ErrExceedsLimit) && (!ok || e.Cost != r.Cost) {
			s.Errorf("%s = %#v, want an ExceedsLimitError of cost %d", name, err, r.Cost)
		}
	}
}

func failsTooLate(s *testbed) {
	within := func(d time.Duration) error {
		return s.promptly("AcquireWithin", func(ctx context.Context) error { return s.l.AcquireWithin(ctx, key, 1, d) })
	}
	if err := within(0); err != nil {
		s.Errorf("AcquireWithin(0) = %v, want the permit that is there", err)
	}
	deadline := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
		defer cancel()
		return s.l.Acquire(ctx, key, 1)
	}
	redeem := func(context.Context) error {
		r := request("a", 1)
		r.MaxWait = time.Second
		_, err := s.l.Redeem(s.Context(), r)
		return err
	}
	for name, err := range map[string]error{
		"AcquireWithin(-1s)": within(-time.Second), "AcquireWithin(0)": within(0), "AcquireWithin(30m)": within(30 * time.Minute),
		"Acquire with a deadline": s.promptly("Acquire", deadline), "Redeem with MaxWait": s.promptly("Redeem", redeem),
	} {
		late, ok := errors.AsType[*throttle.TooLateError](err)
		if !errors.Is(err, throttle.ErrTooLate) || !ok || !s.sameWait(late.Wait, time.Hour) {
			s.Errorf("%s = %#v, want a TooLateError that tells %v", name, err, time.Hour)
		}
	}
	s.waiting(0)
	s.free(0)
}
