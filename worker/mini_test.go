package worker_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// mini is redistest.Mini with clients whose writes are buffered. net.Pipe has
// no room at all: a pipeline that miniredis begins to answer before it has read
// the whole of it would stand still until go-redis' time-out.
func mini(t *testing.T, clients int) ([]*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	_, m := redistest.Mini(t)
	var out []*redis.Client
	for range clients {
		o := redistest.MiniOptions(m)
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return newBuffered(conn), nil
		}
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		out = append(out, c)
	}
	return out, m
}

// buffered is a connection whose writes never wait for the reader.
type buffered struct {
	net.Conn
	out  chan []byte
	done chan struct{}
	once sync.Once
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, out: make(chan []byte, 1024), done: make(chan struct{})}
	go b.pump()
	return b
}

func (b *buffered) pump() {
	for {
		select {
		case p := <-b.out:
			if _, err := b.Conn.Write(p); err != nil {
				return
			}
		case <-b.done:
			return
		}
	}
}

func (b *buffered) Write(p []byte) (int, error) {
	select {
	case b.out <- slices.Clone(p):
		return len(p), nil
	case <-b.done:
		return 0, net.ErrClosed
	}
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.done) })
	return b.Conn.Close()
}
