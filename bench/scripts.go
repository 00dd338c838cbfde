package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// longest is what a script may take: nobody else is served meanwhile.
const longest = 1_000 // microseconds

// scripts measures single calls on a key that has much behind it: permits that
// have all left the window, a long line, a large cost.
func scripts(ctx context.Context, b *bench) error {
	_, rdb, err := b.server()
	if err != nil {
		return err
	}
	s := &scriptRun{b: b, rdb: rdb, window: time.Minute, permits: 100_000, waiting: 10_000, cost: 10_000, times: 21}
	if b.short {
		s.window, s.permits, s.waiting, s.cost, s.times = 2*time.Second, 2_000, 500, 500, 3
	}
	if s.limiter, err = throttle.New(rdb, "sms", throttle.Sliding(s.permits, s.window), throttle.Config{}); err != nil {
		return err
	}
	if s.lone, err = throttle.New(rdb, "lone", throttle.Sliding(1, time.Hour), throttle.Config{}); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{s.prepare, s.costly, s.inLine, s.expired} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	b.say("Server time of the one script of a call (INFO commandstats), the median of %d. What is in Redis was written by calls of one permit "+
		"and of one booking, "+
		"and is put back as it was before each call (DUMP and RESTORE, with a life long enough to be there when all permits have left the window).", s.times)
	return nil
}

// scriptRun is the section while it runs.
type scriptRun struct {
	b                            *bench
	rdb                          *redis.Client
	limiter                      *throttle.Limiter // whose window was full
	lone                         *throttle.Limiter // in whose line all wait
	window                       time.Duration
	permits, waiting, cost       int
	times                        int
	full, fullAndWaiting, inWait map[string]string // keys of the states, by DUMP
	free                         time.Time         // all permits have left the window
}

// prepare fills the window by calls of one permit, and books jobs of which the
// first is a costly one.
func (s *scriptRun) prepare(ctx context.Context) error {
	if _, err := drive(ctx, 64, s.window, int64(s.permits), func(ctx context.Context, _ int64) error {
		d, err := s.limiter.TryAcquire(ctx, phone(0), 1)
		if err == nil && !d.Granted {
			err = fmt.Errorf("refused within the limit")
		}
		return err
	}); err != nil {
		return err
	}
	left, err := s.limiter.Available(ctx, phone(0))
	if err != nil {
		return err
	}
	if left > 0 { // too slow a machine
		return fmt.Errorf("%d of %d permits are left after %v, want none", left, s.permits, s.window)
	}
	if s.full, err = s.dump(ctx); err != nil {
		return err
	}
	if err := s.book(ctx, s.limiter, s.cost); err != nil {
		return err
	}
	s.free = time.Now().Add(s.window + 100*time.Millisecond)
	s.fullAndWaiting, err = s.dump(ctx)
	return err
}

// book books jobs 0, 1 ..., of which the first has a cost.
func (s *scriptRun) book(ctx context.Context, l *throttle.Limiter, cost int) error {
	if _, err := l.Policy().Book(ctx, throttle.Request{Key: phone(0), Cost: cost, Job: job(0)}); err != nil {
		return err
	}
	_, err := drive(ctx, 64, time.Minute, int64(s.waiting-1), func(ctx context.Context, i int64) error {
		_, err := l.Policy().Book(ctx, throttle.Request{Key: phone(0), Cost: 1, Job: job(i + 1)})
		return err
	})
	return err
}

func job(i int64) string { return fmt.Sprintf("job-%d", i) }

// costly takes many permits at once, and gives them back.
func (s *scriptRun) costly(ctx context.Context) error {
	taken := throttle.Decision{}
	take := func() (err error) {
		taken, err = s.limiter.TryAcquire(ctx, phone(0), s.cost)
		if err == nil && !taken.Granted {
			err = fmt.Errorf("refused on a fresh key")
		}
		return err
	}
	n := number(float64(s.cost))
	if err := s.measure(ctx, "acquire "+n+" permits of a fresh key", nil, nil, take); err != nil {
		return err
	}
	return s.measure(ctx, "give "+n+" permits back", nil, take, func() error {
		_, err := s.limiter.Policy().Refund(ctx, taken.Request)
		return err
	})
}

// inLine asks where many wait and nobody can go.
func (s *scriptRun) inLine(ctx context.Context) error {
	if err := s.rdb.FlushAll(ctx).Err(); err != nil {
		return err
	}
	if _, err := s.lone.TryAcquire(ctx, phone(0), 1); err != nil {
		return err
	}
	if err := s.book(ctx, s.lone, 1); err != nil {
		return err
	}
	var err error
	if s.inWait, err = s.dump(ctx); err != nil {
		return err
	}
	line := number(float64(s.waiting)) + " bookings in the line: "
	newcomer := throttle.Request{Key: phone(0), Cost: 1, Job: "newcomer"}
	middle := throttle.Request{Key: phone(0), Cost: 1, Job: job(int64(s.waiting / 2))}
	for _, c := range []struct {
		what string
		call func() error
	}{
		{"book one more", func() error { _, err := s.lone.Policy().Book(ctx, newcomer); return err }},
		{"ask for one in the middle", func() error { _, err := s.lone.Policy().Redeem(ctx, middle); return err }},
		{"cancel one in the middle", func() error { _, err := s.lone.Policy().Cancel(ctx, middle); return err }},
		{"close the key", func() error { _, err := s.lone.CloseKey(ctx, phone(0), time.Hour); return err }},
	} {
		if err := s.measure(ctx, line+c.what, s.inWait, nil, c.call); err != nil {
			return err
		}
	}
	return nil
}

// expired asks where a full window has passed.
func (s *scriptRun) expired(ctx context.Context) error {
	select {
	case <-time.After(time.Until(s.free)):
	case <-ctx.Done():
		return ctx.Err()
	}
	take := func(cost int) func() error {
		return func() error {
			d, err := s.limiter.TryAcquire(ctx, phone(0), cost)
			if err == nil && !d.Granted {
				err = fmt.Errorf("refused after the window has passed")
			}
			return err
		}
	}
	n := number(float64(s.permits)) + " expired permits: "
	if err := s.measure(ctx, n+"acquire 1", s.full, nil, take(1)); err != nil {
		return err
	}
	if err := s.measure(ctx, n+"acquire "+number(float64(s.cost)), s.full, nil, take(s.cost)); err != nil {
		return err
	}
	what := fmt.Sprintf("%sthe first of %s bookings takes its %s", n, number(float64(s.waiting)), number(float64(s.cost)))
	return s.measure(ctx, what, s.fullAndWaiting, nil, func() error {
		d, err := s.limiter.Policy().Redeem(ctx, throttle.Request{Key: phone(0), Cost: s.cost, Job: job(0)})
		if err == nil && !d.Granted {
			err = fmt.Errorf("the first in the line is not granted")
		}
		return err
	})
}

// measure adds a row of what the script of a call took, from the same state each
// time.
func (s *scriptRun) measure(ctx context.Context, what string, state map[string]string, before, call func() error) error {
	var figures []float64
	for range s.times + 1 { // the first one loads the script, and does not count
		if err := s.restore(ctx, state); err != nil {
			return err
		}
		if before != nil {
			if err := before(); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		if err := s.rdb.ConfigResetStat(ctx).Err(); err != nil {
			return err
		}
		if err := call(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		stats, err := commandStats(ctx, s.rdb)
		if err != nil {
			return err
		}
		figures = append(figures, stats["fcall"].us+stats["evalsha"].us+stats["eval"].us)
	}
	us := median(figures[1:])
	s.b.row(alone(what, "µs", lower, figures[1:]).holding("≤ 1,000 µs", us <= longest))
	return nil
}

// dump is all that is in Redis.
func (s *scriptRun) dump(ctx context.Context) (map[string]string, error) {
	keys, err := s.rdb.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	state := make(map[string]string)
	for _, key := range keys {
		if state[key], err = s.rdb.Dump(ctx, key).Result(); err != nil {
			return nil, err
		}
	}
	return state, nil
}

// restore puts back what was there, and nothing else.
func (s *scriptRun) restore(ctx context.Context, state map[string]string) error {
	if err := s.rdb.FlushDB(ctx).Err(); err != nil {
		return err
	}
	for key, value := range state {
		if err := s.rdb.Restore(ctx, key, time.Hour, value).Err(); err != nil {
			return err
		}
	}
	return nil
}
