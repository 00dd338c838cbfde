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
	p.Rules[0].Limit, p.Rules[0].Cost = limit, MustJSONCost("$.n")
	return p
}

// enqueueCost enqueues a task of a cost with a client of its own, which knows no
// limit from before.
func enqueueCost(t *testing.T, rdb redis.UniversalClient, prefix string, p Policy, cost int) error {
	t.Helper()
	client, err := NewClient(rdb, ClientConfig{Policies: []Policy{p}, Throttle: throttle.Config{Prefix: prefix}})
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
		l, err := throttle.New(rdb, p.Rules[0].Name, p.Rules[0].Limit, throttle.Config{Prefix: prefix})
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
		if _, err := l.SetLimit(t.Context(), throttle.Bucket(3, time.Minute, 5), throttle.SetLimitOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := enqueueCost(t, rdb, prefix, p, 5); err != nil {
			t.Errorf("a cost that the stored limit allows: %v", err)
		}
		refused("more stored", 6, "bucket 3/1m burst 5")
		if err := rdb.Set(t.Context(), prefix+":limit:"+p.Rules[0].Name, "99 quantum 1/1s", 0).Err(); err != nil {
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
	if _, err := NewClient(rdb, ClientConfig{Throttle: throttle.Config{Prefix: "asynq"}}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("error %v, want %v", err, throttle.ErrInvalidConfig)
	}
}

// Each rule holds its own cost against its own limit, and what is stored for one
// says nothing about another.
func TestCostUnderEachRule(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	p := priced(throttle.Sliding(3, time.Minute))
	p.Rules = append(p.Rules,
		Rule{Name: "daytime", Gate: recipientGate(t), Zone: utcZone},
		Rule{Name: "provider", Limit: throttle.Sliding(5, time.Minute), Constant: "acme", Cost: MustJSONCost("$.n")})
	refusedBy := func(cost int, rule string) {
		t.Helper()
		err := enqueueCost(t, rdb, "hw", p, cost)
		de, ok := errors.AsType[*DemandError](err)
		if rule == "" && err != nil || rule != "" && (!ok || de.Rule != rule || !errors.Is(err, ErrBadCost)) {
			t.Errorf("a cost of %d: %v, want a refusal by %q", cost, err, rule)
		}
	}
	refusedBy(3, "")
	refusedBy(4, "sms-per-phone")
	for i, permits := range map[int]int{0: 9, 2: 6} {
		l, err := throttle.New(rdb, p.Rules[i].Name, p.Rules[i].Limit, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.SetLimit(t.Context(), throttle.Sliding(permits, time.Minute), throttle.SetLimitOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	refusedBy(6, "")
	refusedBy(7, "provider")
	refusedBy(10, "sms-per-phone")
}

// Two task types that share a rule have one limiter: what one heard about the
// limit in force, the other goes by too.
func TestOneLimiterPerRule(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	a, b := priced(throttle.Sliding(3, time.Minute)), priced(throttle.Sliding(3, time.Minute))
	b.Type = "sms:code"
	client := newClient(t, rdb, a, b)
	one, other := client.policies[a.Type].limits.Rules()[0], client.policies[b.Type].limits.Rules()[0]
	if one == nil || one != other {
		t.Errorf("the policies have the limiters %p and %p, want one", one, other)
	}
}

// What a caller does with its slice of rules afterwards changes nothing.
func TestClientKeepsItsRules(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	p := smsPolicy()
	client := newClient(t, rdb, p)
	p.Rules[0].Key = MustJSONKey("$.other")
	if _, err := client.Enqueue(t.Context(), NewTask(p.Type, []byte(`{"to":"a"}`))); err != nil {
		t.Errorf("Enqueue: %v, want the key of the rule as it was", err)
	}
}
