package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// newerSchema is a ledger that a newer version has written: no call succeeds.
const newerSchema = "2xxxxxxxxxxxxxxxxxx"

// counted counts the scripts on a ledger, and can hold their answers back.
type counted struct {
	redis.UniversalClient
	ledger string
	calls  atomic.Int32
	held   atomic.Pointer[chan struct{}]
}

func (c *counted) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if len(keys) > 0 && strings.HasPrefix(keys[0], c.ledger) {
		c.calls.Add(1)
		if held := c.held.Load(); held != nil {
			<-*held
		}
	}
	return cmd
}

// withdrawals is an adapter without a server, and a rule of one permit an hour.
func (r *rig) withdrawals(rdb redis.UniversalClient) (*worker.Adapter, *throttle.Limiter) {
	r.Helper()
	a, err := worker.NewAdapter(r.rdb, worker.Config{Logger: r.log})
	if err != nil {
		r.Fatal(err)
	}
	if err := a.Start(r.Context()); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(a.Close)
	l, err := throttle.New(rdb, "r", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		r.Fatal(err)
	}
	return a, l
}

// A refund that can't be made, as long as another version owns its ledger, is
// tried again beside the others and not before them.
func TestRefundThatCantBeMadeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := &counted{UniversalClient: r.rdb, ledger: "hw:{bad}:r"}
	a, l := r.withdrawals(c)
	bad, good := r.take(l, "bad"), r.take(l, "good")
	r.rdb.Set(t.Context(), "hw:{bad}:r", newerSchema, time.Hour)
	began := c.calls.Load()
	a.WithdrawLater(l, bad.Request)
	r.eventually("the bad one tried", func() bool { return c.calls.Load() > began })
	start := time.Now()
	a.WithdrawLater(l, good.Request)
	r.eventually("the good one made", func() bool { return r.peek(l, "good").Available == 1 })
	if took := time.Since(start); took > time.Second {
		t.Errorf("a refund took %v behind one that can't be made, want no time", took)
	}
	tried := c.calls.Load()
	r.eventually("the bad one tried again", func() bool { return c.calls.Load() > tried })
}

// A refund at a server that does not answer, as one node of a Cluster, holds up none at another server.
func TestRefundThatIsNotAnsweredHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, l := r.withdrawals(r.rdb)
	good := r.take(l, "good")
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("nobody listens")}
	}})
	t.Cleanup(func() { _ = away.Close() })
	bad, err := throttle.New(away, "r", throttle.Sliding(1, time.Hour), throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a.WithdrawLater(bad, throttle.Request{Key: "bad", Cost: 1, Token: throttle.NewToken()})
	a.WithdrawLater(l, good.Request)
	r.eventually("the good one made", func() bool { return r.peek(l, "good").Available == 1 })
}

// What could not be refunded so far, and what nobody has tried yet, is refunded
// at the end.
func TestPendingRefundsAreMadeAtClose(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := &counted{UniversalClient: r.rdb, ledger: "hw:{tried}:r"}
	a, l := r.withdrawals(c)
	keys := []string{"tried"}
	for i := range 10 {
		keys = append(keys, fmt.Sprint("waits", i))
	}
	var grants []throttle.Decision
	for _, key := range keys {
		grants = append(grants, r.take(l, key))
	}
	r.rdb.Rename(t.Context(), "hw:{tried}:r", "aside")
	r.rdb.Set(t.Context(), "hw:{tried}:r", newerSchema, time.Hour)
	held, began := make(chan struct{}), c.calls.Load()
	c.held.Store(&held)
	a.WithdrawLater(l, grants[0].Request)
	r.eventually("the first tried", func() bool { return c.calls.Load() > began })
	r.rdb.Rename(t.Context(), "aside", "hw:{tried}:r")
	for _, d := range grants[1:] {
		a.WithdrawLater(l, d.Request)
	}
	time.AfterFunc(100*ms, func() { close(held) }) // while Close waits
	a.Close()
	for _, key := range keys {
		if s := r.peek(l, key); s.Available != 1 {
			t.Errorf("%s: Available = %d after Close, want 1", key, s.Available)
		}
	}
}

// What was charged under a stored limit of an hour is not given up after the
// minutes that the limit in code would count.
func TestVirtualRefundIsTriedAsLongAsTheGrantCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 1)
		rdb := clients[0]
		r := rigOn(t, nil, rdb)
		a, _ := r.withdrawals(rdb)
		l := r.limiter("stored", throttle.Sliding(1, time.Second))
		if _, err := l.SetLimit(t.Context(), throttle.Sliding(1, time.Hour), throttle.SetLimitOptions{}); err != nil {
			t.Fatal(err)
		}
		d := r.take(l, "+1")
		rdb.Rename(t.Context(), l.Ledger("+1"), "aside")
		rdb.Set(t.Context(), l.Ledger("+1"), newerSchema, time.Hour)
		a.WithdrawLater(l, d.Request)
		time.Sleep(10 * time.Minute) // of the bubble
		rdb.Rename(t.Context(), "aside", l.Ledger("+1"))
		time.Sleep(time.Second)
		if got := r.peek(l, "+1").Available; got != 1 {
			t.Errorf("Available = %d after ten minutes, want the refund made", got)
		}
		a.Close()
	})
}
