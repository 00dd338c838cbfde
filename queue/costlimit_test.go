package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// priced costs what the payload says.
func priced(limit throttle.Limit) Policy {
	p := smsPolicy()
	p.Limit, p.Cost = limit, MustJSONCost("$.n")
	return p
}

// enqueueCost enqueues a task of a cost with a client of its own, which knows no
// limit from before.
func enqueueCost(t *testing.T, rdb redis.UniversalClient, prefix string, p Policy, cost int) error {
	t.Helper()
	client, err := NewClientIn(rdb, prefix, p)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Enqueue(t.Context(), NewTask(p.Type, fmt.Appendf(nil, `{"to":"a","n":%d}`, cost)))
	return err
}

// What a limit holds is not always what it lets through per window.
func TestCostUnderEachKind(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	for _, text := range []string{
		"3/1m", "fixed 3/1m", "calendar 3/day", "bucket 3/1m burst 7", "bucket 3/1m burst 7 step", "gcra 3/1m", "leaky 3/1m", "smooth 3/1m burst 2",
		"warmup 2/1s over 4s",
	} {
		limit, err := throttle.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		p := priced(limit)
		if err := enqueueCost(t, rdb, "hw", p, limit.MaxCost()); err != nil {
			t.Errorf("%s: a cost of %d: %v", text, limit.MaxCost(), err)
		}
		if err := enqueueCost(t, rdb, "hw", p, limit.MaxCost()+1); !errors.Is(err, ErrBadCost) {
			t.Errorf("%s: a cost of %d: %v, want %v", text, limit.MaxCost()+1, err, ErrBadCost)
		}
	}
}

// A limit that is stored goes before the one in code for a client too.
func TestCostThatAStoredLimitAllows(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"hw", "mine"} {
		rdb, _ := redistest.Mini(t)
		p := priced(throttle.Sliding(3, time.Minute))
		l, err := throttle.New(rdb, p.Rule, p.Limit, throttle.Config{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		refused := func(when string, cost int, limit string) {
			t.Helper()
			err := enqueueCost(t, rdb, prefix, p, cost)
			if _, ok := errors.AsType[*DemandError](err); !ok || !strings.Contains(err.Error(), "above the limit "+limit) {
				t.Errorf("%s, a cost of %d: %v, want a DemandError that names %s", when, cost, err, limit)
			}
		}
		refused("nothing stored", 4, "sliding 3/1m")
		if err := l.SetLimit(t.Context(), throttle.Bucket(3, time.Minute, 5)); err != nil {
			t.Fatal(err)
		}
		if err := enqueueCost(t, rdb, prefix, p, 5); err != nil {
			t.Errorf("a cost that the stored limit allows: %v", err)
		}
		refused("more stored", 6, "bucket 3/1m burst 5")
		if err := rdb.Set(t.Context(), prefix+":limit:"+p.Rule, "99 quantum 1/1s", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := enqueueCost(t, rdb, prefix, p, 6); err != nil {
			t.Errorf("under a stored limit that can't be read: %v, want it to wait in the pool", err)
		}
	}
}

// Whether a cost is too high is not known while Redis is away: a producer must
// not drop the task for it.
func TestCostWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("nobody listens")
	}})
	defer rdb.Close()
	err := enqueueCost(t, rdb, "hw", priced(throttle.Sliding(3, time.Minute)), 4)
	if !errors.Is(err, throttle.ErrUnavailable) || errors.Is(err, ErrBadCost) {
		t.Errorf("error %v, want %v alone", err, throttle.ErrUnavailable)
	}
}

func TestClientRefusesABadPrefix(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	if _, err := NewClientIn(rdb, "asynq"); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("error %v, want %v", err, throttle.ErrInvalidConfig)
	}
}
