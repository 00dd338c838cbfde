package redistest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Mini returns an embedded server and a client that reaches it without a
// socket; both are closed with tb. Call it inside the synctest bubble, so that
// its goroutines belong there: TTLs and the TIME of scripts then follow the
// bubble's clock, and a virtual minute takes no time.
//
// miniredis is not Redis: it hides how Redis prints numbers in Lua, what memory
// runs out, and how expiry works. Test those with [Start].
func Mini(tb testing.TB) (*redis.Client, *miniredis.Miniredis) {
	tb.Helper()
	OneRedis(tb, "miniredis is no Cluster")
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	tb.Cleanup(m.Close)
	return clientFor(tb, MiniOptions(m)), m
}

// MiniOptions returns new options that lead to m without a socket, for clients
// beside the one of [Mini].
func MiniOptions(m *miniredis.Miniredis) *redis.Options {
	return &redis.Options{
		// Nobody listens there. An IP literal, because go-redis looks a name up
		// on a goroutine of its own, which crashes a bubble.
		Addr: "127.0.0.1:6379",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := m.Dial()
			if err != nil {
				return nil, err
			}
			return newBuffered(conn), nil
		},
		// Who waits for a connection does so with a timer that bubbles share, which
		// crashes them.
		PoolSize: 200,
	}
}

// buffered is a connection that writes in the background, as a socket does.
// miniredis' own pipe has no room at all: a client that writes a long pipeline
// and a server that answers its first part would wait for each other until the
// client's time-outs are over.
type buffered struct {
	net.Conn
	wg sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	buf     []byte
	err     error // of a write, or [net.ErrClosed]
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c}
	b.changed = sync.NewCond(&b.mu)
	b.wg.Go(b.flush)
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	b.buf = append(b.buf, p...)
	b.changed.Signal()
	return len(p), nil
}

func (b *buffered) Close() error {
	b.mu.Lock()
	b.err = net.ErrClosed
	b.changed.Signal()
	b.mu.Unlock()
	err := b.Conn.Close()
	b.wg.Wait()
	return err
}

func (b *buffered) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil {
		if len(b.buf) == 0 {
			b.changed.Wait()
			continue
		}
		p := b.buf
		b.buf = nil
		b.mu.Unlock()
		_, err := b.Conn.Write(p)
		b.mu.Lock()
		if b.err == nil {
			b.err = err
		}
	}
}
