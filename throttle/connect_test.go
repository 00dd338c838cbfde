package throttle_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Every way in which a connection can fail is told as [throttle.ErrUnavailable] with its
// cause, by every call, and as nothing else. go-redis gives the commands of a pipeline no
// error when the server refuses the handshake, so an empty reply must not be taken for
// what is stored.
func TestErrorOfConnecting(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	secured := redistest.Start(t, redistest.Own()) // it gets a password
	if err := secured.Client(t).ConfigSet(t.Context(), "requirepass", "correct horse").Err(); err != nil {
		t.Fatal(err)
	}
	for name, way := range map[string]struct {
		change func(t *testing.T, o *redis.Options)
		says   string // in the error
	}{
		"refused": {func(t *testing.T, o *redis.Options) {
			p := redistest.NewProxy(t, s.Addr())
			p.Close()
			o.Addr = p.Addr()
		}, "refused"},
		"no password":    {func(_ *testing.T, o *redis.Options) { o.Addr = secured.Addr() }, "NOAUTH"},
		"wrong password": {func(_ *testing.T, o *redis.Options) { o.Addr, o.Password = secured.Addr(), "wrong" }, "WRONGPASS"},
		"wrong user": {func(_ *testing.T, o *redis.Options) {
			o.Addr, o.Username, o.Password = secured.Addr(), "nobody", "wrong"
		}, "WRONGPASS"},
		"wrong database": {func(_ *testing.T, o *redis.Options) { o.DB = 99_999 }, "DB index is out of range"},
		"TLS to a plain port": {func(_ *testing.T, o *redis.Options) {
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "localhost"}
			o.DialTimeout = 50 * ms // a plain Redis waits for the end of what it takes for a line
		}, ""},
		"unknown host": {func(_ *testing.T, o *redis.Options) { o.Addr = "redis.invalid:6379" }, "redis.invalid"},
		"cut during the handshake": {func(t *testing.T, o *redis.Options) {
			o.Addr, o.Password = hangsUp(t), "correct horse"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connect := func() *redis.Client {
				o := s.ClientOptions()
				o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
				way.change(t, o)
				rdb := redis.NewClient(o)
				t.Cleanup(func() { _ = rdb.Close() })
				return rdb
			}
			rdb := connect()
			l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
			slots := newLimiter(t, rdb, "slots", throttle.Concurrent(1, time.Minute), throttle.Config{})
			for call, err := range errorsOfEveryCall(t, rdb, l, slots) {
				if !errors.Is(err, throttle.ErrUnavailable) || errors.Is(err, throttle.ErrStoredLimit) || !strings.Contains(err.Error(), way.says) {
					t.Errorf("%s = %v, want %v that says %q", call, err, throttle.ErrUnavailable, way.says)
				}
				if strings.Contains(err.Error(), "horse") {
					t.Errorf("%s tells a password: %v", call, err)
				}
			}
			open := newLimiter(t, connect(), "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailOpen})
			local := newLimiter(t, connect(), "sms", throttle.Sliding(1, time.Minute), throttle.Config{OnUnavailable: throttle.FailLocal})
			mustTry(t, open, true, throttle.FailOpen)
			mustTry(t, open, true, throttle.FailOpen)
			mustTry(t, local, true, throttle.FailLocal)
			mustTry(t, local, false, throttle.FailLocal)
		})
	}
}

// A server that gets a password while limiters run refuses new connections, and
// each of the calls that go there together has that error.
func TestErrorOfConnectingInAPipeline(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own()) // it gets a password
	admin := s.Client(t)
	o := s.ClientOptions()
	o.MaxRetries, o.PoolSize, o.Password = -1, 1, "what is taken as long as there is none"
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	slots := newLimiter(t, rdb, "slots", throttle.Concurrent(100, time.Minute), throttle.Config{})
	p := slots.Policy()
	var held []throttle.Decision
	for range 3 {
		d, err := slots.TryAcquire(t.Context(), key, 1)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
		}
		held = append(held, d)
	}
	if in := l.LimitStatus(t.Context()); in.Err != nil { // nobody looks for half a second
		t.Fatal(in.Err)
	}
	if err := admin.ConfigSet(t.Context(), "requirepass", "correct horse").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ClientKillByFilter(t.Context(), "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Ping(t.Context()).Err(); err == nil { // the connection that was cut is noticed
		t.Fatal("PING with the old password, want an error")
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			d, err := l.TryAcquire(t.Context(), key, 1)
			if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("TryAcquire = %v, %v, want %v that says WRONGPASS", d, err, throttle.ErrUnavailable)
			}
		})
	}
	all.Wait()
	for _, err := range p.Renew(t.Context(), held) {
		if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("Renew = %v, want %v that says WRONGPASS", err, throttle.ErrUnavailable)
		}
	}
}

// errorsOfEveryCall calls everything that asks Redis.
func errorsOfEveryCall(t *testing.T, rdb redis.UniversalClient, l, slots *throttle.Limiter) map[string]error {
	ctx, p := t.Context(), l.Policy()
	r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: throttle.NewToken()}
	booking := throttle.ForWorkers.Ref(p, r)
	out := make(map[string]error)
	var mu sync.Mutex
	var all sync.WaitGroup
	call := func(name string, do func() error) {
		all.Go(func() {
			err := do()
			mu.Lock()
			defer mu.Unlock()
			out[name] = err
		})
	}
	for name, do := range map[string]func() error{
		"TryAcquire":   func() error { _, err := l.TryAcquire(ctx, key, 1); return err },
		"Acquire":      func() error { return l.Acquire(ctx, key, 1) },
		"Acquire slot": func() error { return slots.Acquire(ctx, key, 1) },
		"Reserve":      func() error { _, err := l.Reserve(ctx, key, 1); return err },
		"Book":         func() error { _, err := p.Book(ctx, r); return err },
		"Redeem":       func() error { _, err := p.Redeem(ctx, r); return err },
		"Refund":       func() error { _, err := p.Refund(ctx, r); return err },
		"Cancel":       func() error { _, err := p.Cancel(ctx, r); return err },
		"Peek":         func() error { _, err := l.Peek(ctx, key, 1); return err },
		"Available":    func() error { _, err := l.Available(ctx, key); return err },
		"TimeUntil":    func() error { _, err := l.TimeUntil(ctx, key, 1); return err },
		"List":         func() error { _, err := l.List(ctx, key, throttle.ListFrom{}, 1); return err },
		"Reset":        func() error { _, err := l.Reset(ctx, key); return err },
		"CloseKey":     func() error { _, err := l.CloseKey(ctx, key, time.Second); return err },
		"OpenKey":      func() error { _, err := l.OpenKey(ctx, key); return err },
		"CloseRule":    func() error { _, err := l.CloseRule(ctx, time.Second); return err },
		"OpenRule":     func() error { return l.OpenRule(ctx) },
		"SetLimit": func() error {
			_, err := l.SetLimit(ctx, throttle.Sliding(2, time.Minute), throttle.SetLimitOptions{})
			return err
		},
		"UnsetLimit":  func() error { return l.UnsetLimit(ctx) },
		"LimitStatus": func() error { return l.LimitStatus(ctx).Err },
		"LimitStatuses": func() error {
			return throttle.ForWorkers.LimitStatuses(ctx, []*throttle.Limiter{l})[0].Err
		},
		"WatchLimit": func() error {
			for _, err := range l.WatchLimit(ctx) {
				return err
			}
			return nil
		},
		"Lookup": func() error { _, err := throttle.ForWorkers.Lookup(ctx, booking, false); return err },
		"Refresh": func() error {
			return throttle.ForWorkers.Refresh(ctx, rdb, []throttle.BookingRef{booking, booking})[1].Err
		},
		"Return":   func() error { _, err := throttle.ForWorkers.Return(ctx, p, r); return err },
		"Postpone": func() error { _, err := throttle.ForWorkers.Postpone(ctx, p, l.Rule(), r, time.Second); return err },
	} {
		call(name, do)
	}
	all.Wait()
	return out
}

// hangsUp is the address of a server that ends each connection when the first request
// has arrived.
func hangsUp(t *testing.T) string {
	var listening net.ListenConfig
	ln, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, 1))
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); served.Wait() })
	return ln.Addr().String()
}
