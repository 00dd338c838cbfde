package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// A release that Redis did not answer leaves the lease standing. The next call of the same release ends
// it, and one after that ends nobody else's.
func TestHeldLeaseIsReleasedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		l := newLimiter(t, miniClient(t, m), "slots", throttle.Concurrent(1, time.Hour), throttle.Config{})
		p := l.Policy()
		grant := func(want bool) throttle.Decision {
			t.Helper()
			d, err := l.TryAcquire(t.Context(), key, 1)
			if err != nil || d.Granted != want {
				t.Fatalf("TryAcquire = %v, %v, want granted: %v", d, err, want)
			}
			return d
		}
		d := grant(true)
		held, release := p.Hold(t.Context(), d)
		m.SetError("ERR an outage")
		if _, err := release(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("release = %v, want %v", err, throttle.ErrUnavailable)
		}
		if cause := context.Cause(held); !errors.Is(cause, context.Canceled) {
			t.Errorf("the context ends with %v, want %v", cause, context.Canceled)
		}
		m.SetError("")
		grant(false) // the lease stands
		if _, err := release(t.Context()); err != nil {
			t.Fatalf("release again = %v", err)
		}
		other := grant(true)
		if promoted, err := release(t.Context()); err != nil || promoted != nil {
			t.Errorf("release after its success = %v, %v, want nothing", promoted, err)
		}
		if _, err := p.Release(t.Context(), d); err != nil { // as a pool repeats a release whose answer was lost
			t.Error(err)
		}
		grant(false)
		if err := p.Renew(t.Context(), []throttle.Decision{other})[0]; err != nil {
			t.Errorf("another's lease can't be renewed any more: %v", err)
		}
	})
}

// Redis refuses for good to end one of two leases, and does not answer about the other: the error says that another call may help,
// whichever comes first.
func TestReleaseSaysThatAnotherCallMayHelp(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]map[string]error{
		"the first":  {":a": io.EOF, ":b": wrongType},
		"the second": {":a": wrongType, ":b": io.EOF},
		"neither":    {":a": wrongType, ":b": wrongType},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, m := redistest.Mini(t)
				rdb := miniClient(t, m)
				a := newLimiter(t, rdb, "a", throttle.Concurrent(1, time.Hour), throttle.Config{})
				b := newLimiter(t, rdb, "b", throttle.Concurrent(1, time.Hour), throttle.Config{})
				p, err := throttle.NewPolicy(a, b)
				if err != nil {
					t.Fatal(err)
				}
				d, err := p.TryAcquire(t.Context(), throttle.Request{Key: "all", Cost: 1, More: []throttle.KeyCost{{Key: "all", Cost: 1}}})
				if err != nil {
					t.Fatal(err)
				}
				rdb.AddHook(answered(answers))
				_, err = p.Release(t.Context(), d)
				if got, want := throttle.ForWorkers.MayPass(err), name != "neither"; got != want {
					t.Errorf("MayPass(%v) = %v, want %v", err, got, want)
				}
			})
		})
	}
}

var wrongType = redisAnswer("WRONGTYPE Operation against a key holding the wrong kind of value")

// redisAnswer is an error that Redis answers.
type redisAnswer string

func (a redisAnswer) Error() string { return string(a) }
func (redisAnswer) RedisError()     {}

// answered is a hook that answers scripts by a text that they contain.
type answered map[string]error

func (answered) DialHook(next redis.DialHook) redis.DialHook { return next }

func (answered) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a answered) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		for text, err := range a {
			if redistest.IsScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()), text) {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// The servers of a request are those that have its keys. Nobody is asked for them: not even where the client knows none yet.
func TestServersOfARequest(t *testing.T) {
	t.Parallel()
	cluster := func(slots func(context.Context) ([]redis.ClusterSlot, error)) *redis.ClusterClient {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: slots, Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("a server is asked")
			return nil, io.EOF
		}})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	two := cluster(func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{
			{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: "a:1"}}},
			{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "b:1"}}},
		}, nil
	})
	none := cluster(func(context.Context) ([]redis.ClusterSlot, error) { return nil, io.EOF })
	one := redis.NewClient(&redis.Options{Addr: "a:1"})
	t.Cleanup(func() { _ = one.Close() })
	for _, tc := range []struct {
		rdb  redis.UniversalClient
		keys [2]string
		want string
	}{
		{two, [2]string{"bar", "bar"}, "a:1"},     // slot 5061
		{two, [2]string{"foo", "foo"}, "b:1"},     // slot 12182
		{two, [2]string{"foo", "bar"}, "a:1 b:1"}, // in one order
		{none, [2]string{"foo", "bar"}, ""},
		{one, [2]string{"foo", "bar"}, ""},
	} {
		p, err := throttle.NewPolicy(newLimiter(t, tc.rdb, "a", throttle.Sliding(1, time.Hour), throttle.Config{}),
			newLimiter(t, tc.rdb, "b", throttle.Sliding(1, time.Hour), throttle.Config{}))
		if err != nil {
			t.Fatal(err)
		}
		r := throttle.Request{Key: tc.keys[0], Cost: 1, More: []throttle.KeyCost{{Key: tc.keys[1], Cost: 1}}}
		if got := throttle.ForWorkers.Servers(p, r); got != tc.want {
			t.Errorf("Servers of %v = %q, want %q", tc.keys, got, tc.want)
		}
	}
}
