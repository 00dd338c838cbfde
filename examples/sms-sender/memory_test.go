package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// redisInMemory is an embedded Redis without a socket, for bubbles.
func redisInMemory(*redis.Options) (redis.UniversalClient, func(), error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{
		// Nobody listens there. An IP literal, so that no name is looked up.
		Addr: "127.0.0.1:6379",
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			c, err := m.Dial()
			if err != nil {
				return nil, err
			}
			return newAsyncConn(c), nil
		},
	})
	return rdb, func() {
		_ = rdb.Close()
		m.Close()
	}, nil
}

// asyncConn writes in the background, as a socket does. miniredis' own pipe has no
// buffer: a client that writes a pipeline longer than the 4 KiB that the server
// reads at once, and a server that answers its first part, wait for each other until
// the client's time-outs are over.
type asyncConn struct {
	net.Conn
	wg sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	buf     []byte
	err     error // of a write, or [net.ErrClosed]
}

func newAsyncConn(c net.Conn) *asyncConn {
	a := &asyncConn{Conn: c}
	a.changed = sync.NewCond(&a.mu)
	a.wg.Go(a.flush)
	return a
}

func (a *asyncConn) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return 0, a.err
	}
	a.buf = append(a.buf, b...)
	a.changed.Signal()
	return len(b), nil
}

func (a *asyncConn) Close() error {
	a.mu.Lock()
	a.err = net.ErrClosed
	a.changed.Signal()
	a.mu.Unlock()
	err := a.Conn.Close()
	a.wg.Wait()
	return err
}

func (a *asyncConn) flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.err == nil {
		if len(a.buf) == 0 {
			a.changed.Wait()
			continue
		}
		b := a.buf
		a.buf = nil
		a.mu.Unlock()
		n, err := a.Conn.Write(b)
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		a.mu.Lock()
		if a.err == nil {
			a.err = err
		}
	}
}

// gatewayInMemory is a gateway without a socket, for bubbles.
func gatewayInMemory(_ context.Context, _ string, limit throttle.Limit, files []byte) (outlet, error) {
	own := NewGateway(limit, files)
	client, err := NewGatewayClient("http://127.0.0.1/", 0)
	if err != nil {
		return outlet{}, err
	}
	client.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		own.ServeHTTP(w, r)
		return w.Result(), nil
	})
	return outlet{client: client, own: own}, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
