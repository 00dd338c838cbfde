package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// keptFrom keeps scripts on a rule's keys from Redis while it is on, as an outage does.
type keptFrom struct {
	rule  string
	on    atomic.Bool
	tried atomic.Int32 // also while it is off
	fails func() error // what comes instead of an answer; nil for an outage
}

func (*keptFrom) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*keptFrom) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (k *keptFrom) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !redistest.IsScript(cmd) || !strings.Contains(fmt.Sprint(cmd.Args()), k.rule) {
			return next(ctx, cmd)
		}
		k.tried.Add(1)
		if !k.on.Load() {
			return next(ctx, cmd)
		}
		err := error(&net.OpError{Op: "read", Err: errors.New("nobody answers")})
		if k.fails != nil {
			err = k.fails()
		}
		cmd.SetErr(err)
		return err
	}
}

// during answers a request whose handler begins an outage.
func (k *keptFrom) during(t *testing.T, m *httplimit.Middleware) {
	t.Helper()
	h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { k.on.Store(true) }))
	if w := get(t.Context(), h, "/"); w.Code != http.StatusOK {
		t.Fatalf("the first request got %d", w.Code)
	}
}

// triedIn is how often it is tried in so long a time of the bubble.
func (k *keptFrom) triedIn(d time.Duration) int32 {
	before := k.tried.Load()
	time.Sleep(d)
	return k.tried.Load() - before
}

// refusal is an error that Redis answers.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// Redis is away for half a minute while a handler ends. When Redis is back, its slot is free and its permit comes back, long
// before the lease would have ended.
func TestVirtualGivingBackIsRepeatedUntilRedisAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		away := &keptFrom{rule: ":r"}
		rdb.AddHook(away)
		rate, slots := limiter(t, rdb, "rate", "sliding 1/1h", throttle.Config{}), limiter(t, rdb, "room", "concurrent 1 lease 1h", throttle.Config{})
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop(), Refund: func(int) bool { return true }},
			httplimit.Rule{Limiter: rate, Key: httplimit.Same("all")}, httplimit.Rule{Limiter: slots, Key: httplimit.Same("all")})
		away.during(t, m)
		time.Sleep(30 * time.Second) // of the bubble
		away.on.Store(false)
		time.Sleep(3 * time.Second)
		if w := get(t.Context(), m.Handler(ok), "/"); w.Code != http.StatusOK {
			t.Errorf("the next request got %d after Redis was back, want %d", w.Code, http.StatusOK)
		}
		away.on.Store(true)
		if away.triedIn(time.Minute) != 0 {
			t.Error("what was given back is tried still")
		}
	})
}

// A lease that has ended by itself is not released any more.
func TestVirtualGivingBackEndsWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		away := &keptFrom{rule: ":room"}
		rdb.AddHook(away)
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop()},
			httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 1 lease 10m", throttle.Config{}), Key: httplimit.Same("all")})
		away.during(t, m)
		time.Sleep(9 * time.Minute)
		if away.triedIn(30*time.Second) == 0 {
			t.Error("no release is tried any more while the lease stands")
		}
		time.Sleep(time.Minute)
		if away.triedIn(time.Minute) != 0 {
			t.Error("a lease that has ended is released still")
		}
	})
}

// A key's own limit may be far longer than that of its rule. Redis is away for longer than the rule's.
func TestVirtualGivingBackGoesByTheLimitOfTheKey(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][2]string{
		"permits": {"sliding 1/1m", "sliding 1/1h"},
		"a lease": {"concurrent 1 lease 1m", "concurrent 1 lease 1h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				own, err := throttle.ParseLimit(rules[1])
				if err != nil {
					t.Fatal(err)
				}
				rdb, _ := redistest.Mini(t)
				away := &keptFrom{rule: ":r"}
				rdb.AddHook(away)
				ofKey := throttle.Config{LimitOf: func(context.Context, string, time.Time) (throttle.Limit, time.Time, error) {
					return own, time.Time{}, nil
				}}
				m := newLimit(t, httplimit.Config{Logger: zap.NewNop(), Refund: func(int) bool { return true }},
					httplimit.Rule{Limiter: limiter(t, rdb, "rule", rules[0], ofKey), Key: httplimit.Same("all")},
					httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 1 lease 1m", throttle.Config{}), Key: httplimit.Same("all")})
				away.during(t, m)
				time.Sleep(10 * time.Minute)
				away.on.Store(false)
				time.Sleep(3 * time.Second)
				if w := get(t.Context(), m.Handler(ok), "/"); w.Code != http.StatusOK {
					t.Errorf("the next request got %d after Redis was back, want %d", w.Code, http.StatusOK)
				}
			})
		})
	}
}

// What Redis refuses for good it would refuse again. What it can't do at the moment it can do soon, or when an operator has mended it.
func TestVirtualGivingBackEndsWithARefusal(t *testing.T) {
	t.Parallel()
	never := refusal("WRONGTYPE Operation against a key holding the wrong kind of value")
	cantSave := refusal("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.")
	for name, tt := range map[string]struct {
		first, then error
		again       bool // it is tried
		lines       int  // in the log, besides that of the first
	}{
		"refused":        {first: never, then: never},
		"refused later":  {first: io.EOF, then: never, lines: 1},
		"can't save":     {first: cantSave, again: true},
		"no password":    {first: io.EOF, then: refusal("NOAUTH Authentication required."), again: true},
		"no right":       {first: refusal("NOPERM this user has no permissions to run the 'fcall' command"), again: true},
		"not ready":      {first: refusal("LOADING Redis is loading the dataset in memory"), again: true},
		"still no reply": {first: io.EOF, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				var later atomic.Bool
				away := &keptFrom{rule: ":room", fails: func() error {
					if later.Load() {
						return tt.then
					}
					return tt.first
				}}
				rdb.AddHook(away)
				core, lines := observer.New(zap.WarnLevel)
				m := newLimit(t, httplimit.Config{Logger: zap.New(core)},
					httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 9 lease 10m", throttle.Config{}), Key: httplimit.Same("all")})
				away.during(t, m)
				away.on.Store(false)
				away.during(t, m)
				later.Store(tt.then != nil)
				lines.TakeAll()
				time.Sleep(time.Second)
				if again := away.triedIn(time.Minute) > 0; again != tt.again {
					t.Errorf("it is tried again: %v, want %v", again, tt.again)
				}
				if lines.Len() != tt.lines {
					t.Errorf("%d lines in the log, want %d: %v", lines.Len(), tt.lines, lines.All())
				}
				time.Sleep(10 * time.Minute) // for the rest to be dropped
			})
		})
	}
}

// A request holds two slots. Redis refuses to end one for good, and does not answer about the other, which is ended later.
func TestVirtualGivingBackOfTwoSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		never := &keptFrom{rule: ":broken", fails: func() error {
			return refusal("WRONGTYPE Operation against a key holding the wrong kind of value")
		}}
		away := &keptFrom{rule: ":room"}
		rdb.AddHook(never)
		rdb.AddHook(away)
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop()},
			httplimit.Rule{Limiter: limiter(t, rdb, "broken", "concurrent 2 lease 1h", throttle.Config{}), Key: httplimit.Same("all")},
			httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 1 lease 1h", throttle.Config{}), Key: httplimit.Same("all")})
		h := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			never.on.Store(true)
			away.on.Store(true)
		}))
		if w := get(t.Context(), h, "/"); w.Code != http.StatusOK {
			t.Fatalf("the first request got %d", w.Code)
		}
		never.on.Store(false)
		away.on.Store(false)
		time.Sleep(3 * time.Second)
		if w := get(t.Context(), m.Handler(ok), "/"); w.Code != http.StatusOK {
			t.Errorf("the next request got %d, want the slot of the first", w.Code)
		}
	})
}

// Nothing is left running when the user has closed the client.
func TestVirtualGivingBackEndsWithTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, server := redistest.Mini(t)
		rdb := newClient(t, redistest.MiniOptions(server))
		away := &keptFrom{rule: ":room"}
		rdb.AddHook(away)
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop()},
			httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 1 lease 10m", throttle.Config{}), Key: httplimit.Same("all")})
		away.during(t, m)
		if err := rdb.Close(); err != nil {
			t.Fatal(err)
		}
		away.on.Store(false)
		time.Sleep(time.Second)
		if away.triedIn(time.Minute) != 0 {
			t.Error("a release is tried still on a client that is closed")
		}
	})
}

// A hook of the client that panics ends the giving back of this request, and neither the process nor that of other requests.
func TestVirtualGivingBackOutlivesAPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		var panics atomic.Bool
		away := &keptFrom{rule: ":room", fails: func() error {
			if panics.CompareAndSwap(true, false) {
				panic("a hook")
			}
			return io.EOF
		}}
		rdb.AddHook(away)
		m := newLimit(t, httplimit.Config{Logger: zap.NewNop()},
			httplimit.Rule{Limiter: limiter(t, rdb, "room", "concurrent 2 lease 1h", throttle.Config{}), Key: httplimit.Same("all")})
		away.during(t, m)
		away.on.Store(false)
		away.during(t, m)
		panics.Store(true)
		time.Sleep(10 * time.Second)
		if panics.Load() {
			t.Fatal("nothing panicked")
		}
		away.on.Store(false)
		time.Sleep(3 * time.Second)
		if w := get(t.Context(), m.Handler(ok), "/"); w.Code != http.StatusOK {
			t.Errorf("the next request got %d, want the slot of the other one", w.Code)
		}
	})
}
