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

// newerSchema is a ledger that a newer version has written: no call succeeds any more.
const newerSchema = "2xxxxxxxxxxxxxxxxxx"

// counted counts the scripts on a ledger, and can hold their answers back, or have Redis refuse them.
type counted struct {
	redis.UniversalClient
	ledger  string
	calls   atomic.Int32
	held    atomic.Pointer[chan struct{}]
	refuses atomic.Pointer[redisAnswer]
}

// redisAnswer is an error that Redis answers.
type redisAnswer string

func (a redisAnswer) Error() string { return string(a) }
func (redisAnswer) RedisError()     {}

const cantSave = redisAnswer("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.")

// refuse has Redis refuse the scripts.
func (c *counted) refuse(a redisAnswer) { c.refuses.Store(&a) }

func (c *counted) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	ours := len(keys) > 0 && strings.HasPrefix(keys[0], c.ledger)
	if refused := c.refuses.Load(); ours && refused != nil {
		c.calls.Add(1)
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(*refused)
		return cmd
	}
	cmd := c.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if ours {
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

// A refund that can't be made, until an operator mends something, is
// tried again beside the others and not before them.
func TestRefundThatCantBeMadeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := &counted{UniversalClient: r.rdb, ledger: "hw:{bad}:r"}
	a, l := r.withdrawals(c)
	bad, good := r.take(l, "bad"), r.take(l, "good")
	c.refuse(cantSave)
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
	c.refuses.Store(nil)
	r.eventually("the bad one made", func() bool { return r.peek(l, "bad").Available == 1 })
}

// What Redis refuses for good is not given back again.
func TestVirtualRefundThatIsRefusedForGoodEnds(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*rig, *counted){
		"a newer schema":      func(r *rig, _ *counted) { r.rdb.Set(r.Context(), "hw:{bad}:r", newerSchema, time.Hour) },
		"an unknown argument": func(_ *rig, c *counted) { c.refuse("ERR wrong number of arguments for this command") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clients, _ := mini(t, 1)
				r := rigOn(t, nil, clients[0])
				c := &counted{UniversalClient: r.rdb, ledger: "hw:{bad}:r"}
				a, l := r.withdrawals(c)
				bad := r.take(l, "bad")
				refuse(r, c)
				a.WithdrawLater(l, bad.Request)
				time.Sleep(10 * time.Second) // of the bubble
				tried := c.calls.Load()
				time.Sleep(time.Minute)
				if c.calls.Load() != tried {
					t.Error("it is tried still")
				}
				a.Close()
			})
		})
	}
}

// A key's own lease may be far longer than that of its rule. The call was lost, so nobody knows by which limit it was charged.
func TestVirtualRefundGoesByTheLimitOfTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 1)
		r := rigOn(t, nil, clients[0])
		c := &counted{UniversalClient: r.rdb, ledger: "hw:{+1}:own"}
		a, _ := r.withdrawals(c)
		l, err := throttle.New(c, "own", throttle.Concurrent(1, time.Second), throttle.Config{
			LimitOf: func(context.Context, string, time.Time) (throttle.Limit, time.Time, error) {
				return throttle.Concurrent(1, time.Hour), time.Time{}, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		d := r.take(l, "+1")
		c.refuse(cantSave)
		a.WithdrawLater(l, throttle.Request{Key: "+1", Cost: 1, Token: d.Token})
		time.Sleep(10 * time.Minute) // of the bubble
		c.refuses.Store(nil)
		time.Sleep(2 * time.Second)
		if got := r.peek(l, "+1").Available; got != 1 {
			t.Errorf("Available = %d after ten minutes, want the refund made", got)
		}
		a.Close()
	})
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
	c.refuse(cantSave)
	began := c.calls.Load()
	a.WithdrawLater(l, grants[0].Request)
	r.eventually("the first tried", func() bool { return c.calls.Load() > began })
	held := make(chan struct{})
	c.held.Store(&held)
	c.refuses.Store(nil)
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
		r := rigOn(t, nil, clients[0])
		c := &counted{UniversalClient: r.rdb, ledger: "hw:{+1}:stored"}
		a, _ := r.withdrawals(c)
		l, err := throttle.New(c, "stored", throttle.Sliding(1, time.Second), throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.SetLimit(t.Context(), throttle.Sliding(1, time.Hour), throttle.SetLimitOptions{}); err != nil {
			t.Fatal(err)
		}
		d := r.take(l, "+1")
		c.refuse(cantSave)
		a.WithdrawLater(l, d.Request)
		time.Sleep(10 * time.Minute) // of the bubble
		c.refuses.Store(nil)
		time.Sleep(time.Second)
		if got := r.peek(l, "+1").Available; got != 1 {
			t.Errorf("Available = %d after ten minutes, want the refund made", got)
		}
		a.Close()
	})
}
