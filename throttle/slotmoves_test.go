package throttle_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// slotCall is a call that a user makes, on a key of its own. Before it is made the key has a grant, and a ledger and tokens in Redis.
type slotCall struct {
	limit throttle.Limit
	taken int  // permits of the grant
	line  bool // a job waits behind the grant: then there is a line, too, and with it each key of which a call may be
	call  func(ctx context.Context, l *throttle.Limiter, key string, before throttle.Decision) error
	left  int // permits that are free when the call has been made once
}

const withAllKeys = "Refund, and a job waits"

func slotCalls() map[string]slotCall {
	refund := func(ctx context.Context, l *throttle.Limiter, _ string, before throttle.Decision) error {
		_, err := l.Policy().Refund(ctx, before.Request)
		return err
	}
	release := func(ctx context.Context, l *throttle.Limiter, _ string, before throttle.Decision) error {
		_, err := l.Policy().Release(ctx, before)
		return err
	}
	return map[string]slotCall{
		"TryAcquire": {throttle.Sliding(2, time.Hour), 1, false, func(ctx context.Context, l *throttle.Limiter, key string, _ throttle.Decision) error {
			d, err := l.TryAcquire(ctx, key, 1)
			if err == nil && !d.Granted {
				return errors.New("refused, although a permit is free")
			}
			return err
		}, 0},
		"Acquire": {throttle.Sliding(2, time.Hour), 1, false, func(ctx context.Context, l *throttle.Limiter, key string, _ throttle.Decision) error {
			return l.Acquire(ctx, key, 1)
		}, 0},
		"Refund":    {throttle.Sliding(2, time.Hour), 2, false, refund, 2},
		withAllKeys: {throttle.Sliding(2, time.Hour), 2, true, refund, 0}, // both permits are the job's
		"Release":   {throttle.Concurrent(2, time.Hour), 1, false, release, 2},
	}
}

// While the slot of a key moves to another node of a Cluster, or nobody serves it, a call succeeds or fails with ErrUnavailable.
// No error shows a redirect, and each says that the call may be made again. Afterwards it succeeds, and has been counted once.
func TestWhileASlotMoves(t *testing.T) {
	t.Parallel()
	// what stays are the ledgers
	for _, fault := range redistest.SlotFaults(func(key string) bool { return !strings.Contains(key, ":tokens") && !strings.Contains(key, ":line") }) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			whileASlotMoves(t, fault)
		})
	}
}

func whileASlotMoves(t *testing.T, fault redistest.SlotFault) {
	t.Helper()
	shared, cluster := redistest.StartMovable(t, 2)
	rdb := fault.Client(t, shared)
	calls := slotCalls()
	limiters, before := map[string]*throttle.Limiter{}, map[string]throttle.Decision{}
	for key, c := range calls {
		l := newLimiter(t, rdb, "sms", c.limit, throttle.Config{Prefix: "hw" + key[:3]})
		d, err := l.TryAcquire(t.Context(), key, 1)
		if err == nil {
			_, err = l.Policy().Refund(t.Context(), d.Request) // its token is remembered
		}
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire(%q) = %v, %v, want it granted", key, d, err)
		}
		d, err = l.TryAcquire(t.Context(), key, c.taken)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire(%q) = %v, %v, want it granted", key, d, err)
		}
		if c.line {
			if d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: c.taken, Job: "job"}); err != nil || d.Granted {
				t.Fatalf("Redeem(%q) = %v, %v, want a place", key, d, err)
			}
		}
		limiters[key], before[key] = l, d
	}
	var leave []func() error
	for key, l := range limiters {
		leave = append(leave, fault.Enter(t, cluster, l.Ledger(key)))
	}

	type outcome struct {
		err  error
		took time.Duration
	}
	began := time.Now()
	var mu sync.Mutex
	outcomes := map[string]outcome{}
	var wg sync.WaitGroup
	for key, c := range calls {
		wg.Go(func() {
			err := c.call(t.Context(), limiters[key], key, before[key])
			mu.Lock()
			defer mu.Unlock()
			outcomes[key] = outcome{err, time.Since(began)}
		})
	}
	switch {
	case fault.Long:
		wg.Wait()
	case !fault.Over:
		time.Sleep(100 * time.Millisecond) // the fault lasts
	}
	for _, leave := range leave {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
	}
	lasted := time.Since(began)
	wg.Wait()

	for key, c := range calls {
		l, o := limiters[key], outcomes[key]
		t.Logf("%s: %v after %v, the fault was over after %v", key, o.err, o.took.Round(time.Millisecond), lasted.Round(time.Millisecond))
		waits := fault.Moving && lasted < 500*time.Millisecond // a call waits for two seconds, see luascripts.WhileSlotMoves
		if o.err != nil && (waits || fault.Over || key == withAllKeys && fault.AllThere) {
			t.Errorf("%s = %v, want it done", key, o.err)
		}
		if err := o.err; err != nil {
			if !errors.Is(err, throttle.ErrUnavailable) || !throttle.ForWorkers.MayPass(err) || redistest.RawRedirect.MatchString(err.Error()) {
				t.Errorf("%s = %v, want %v that may pass, and no redirect", key, err, throttle.ErrUnavailable)
			}
			eventually(t, key+" succeeds", func() bool {
				err = c.call(t.Context(), l, key, before[key])
				return err == nil
			})
		}
		if got, err := l.Available(t.Context(), key); err != nil || got != c.left {
			t.Errorf("%s: %d permits are free, %v, want %d", key, got, err, c.left)
		}
	}
}
