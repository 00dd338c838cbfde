package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A call empties one of its keys while their slot moves to another node of a Cluster, and all of them are where they were. Redis ends a
// script that touches such a key again. Whether it does or not, the call does all that it should, and it has been counted once.
func TestCallThatEmptiesAKeyWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	shared, cluster := redistest.StartMovable(t, 2)
	acquire := func(l *throttle.Limiter, key string, n int) (throttle.Decision, error) {
		d, err := l.TryAcquire(t.Context(), key, n)
		if err == nil && !d.Granted {
			err = errors.New("refused")
		}
		return d, err
	}
	for name, c := range map[string]struct {
		limit   throttle.Limit
		prepare func(l *throttle.Limiter, key string) (call func(context.Context) error, err error)
		left    int // permits that are free at the end
	}{
		"the only job of a line is granted": {throttle.Sliding(3, time.Hour), func(l *throttle.Limiter, key string) (func(context.Context) error, error) {
			job := throttle.Request{Key: key, Cost: 2, Job: "job"}
			_, err := acquire(l, key, 1)
			d, err2 := acquire(l, key, 2)
			_, err3 := l.Policy().Redeem(t.Context(), job)
			_, err4 := l.Policy().Refund(t.Context(), d.Request)
			return func(ctx context.Context) error {
				d, err := l.Policy().Redeem(ctx, job)
				if err == nil && !d.Granted {
					err = fmt.Errorf("it waits: %v", d)
				}
				return err
			}, errors.Join(err, err2, err3, err4)
		}, 0},
		"the only token is withdrawn": {throttle.Fixed(2, time.Hour), func(l *throttle.Limiter, key string) (func(context.Context) error, error) {
			d, err := acquire(l, key, 1)
			_, err2 := acquire(l, key, 1)
			job := throttle.Request{Key: key, Cost: 1, Job: "job"}
			_, err3 := l.Policy().Redeem(t.Context(), job) // so that all keys are there
			return func(ctx context.Context) error {
				_, err := l.Policy().Refund(ctx, d.Request)
				again := throttle.Request{Key: key, Cost: 1, Job: "other", Token: d.Token}
				if _, got := l.Policy().Redeem(ctx, again); err == nil && !errors.Is(got, throttle.ErrWithdrawn) {
					err = fmt.Errorf("its token gets another answer than %w: %w", throttle.ErrWithdrawn, got)
				}
				if d, got := l.Policy().Redeem(ctx, job); err == nil && (got != nil || !d.Granted) {
					err = fmt.Errorf("the job gets %v, %w", d, got)
				}
				return err
			}, errors.Join(err, err2, err3)
		}, 0},
		"the only lease is released": {throttle.Concurrent(1, time.Hour), func(l *throttle.Limiter, key string) (func(context.Context) error, error) {
			d, err := acquire(l, key, 1)
			job := throttle.Request{Key: key, Cost: 1, Job: "job"}
			_, err2 := l.Policy().Redeem(t.Context(), job)
			return func(ctx context.Context) error {
				_, err := l.Policy().Release(ctx, d)
				if d, got := l.Policy().Redeem(ctx, job); err == nil && (got != nil || !d.Granted) {
					err = fmt.Errorf("the job gets %v, %w", d, got)
				}
				return err
			}, errors.Join(err, err2)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			key := name[len("the only "):][:5]
			l := newLimiter(t, shared, "sms", c.limit, throttle.Config{})
			call, err := c.prepare(l, key)
			if err != nil {
				t.Fatal(err)
			}
			leave := redistest.BeginMove(t, cluster, l.Ledger(key))
			called := make(chan error, 1)
			go func() { called <- call(t.Context()) }()
			time.Sleep(100 * time.Millisecond) // the move lasts
			if err := leave(); err != nil {
				t.Fatal(err)
			}
			if err := <-called; err != nil {
				t.Error(err)
			}
			if got, err := l.Available(t.Context(), key); err != nil || got != c.left {
				t.Errorf("%d permits are free, %v, want %d", got, err, c.left)
			}
		})
	}
}
