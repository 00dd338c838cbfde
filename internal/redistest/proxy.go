package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// Proxy stands between a client and a Redis and makes faults.
type Proxy = redisserver.Proxy

// NewProxy starts a proxy in front of target that ends with tb.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p, err := redisserver.ListenProxy(target, tb.Fatalf)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// Behind starts a proxy in front of s, and returns a client that goes through it.
// Both end with tb. A change to the client's options may be nil.
func Behind(tb testing.TB, s *Server, change func(o *redis.Options)) (*redis.Client, *Proxy) {
	tb.Helper()
	p := NewProxy(tb, s.Addr())
	o := s.ClientOptions()
	o.Addr = p.Addr()
	if change != nil {
		change(o)
	}
	rdb := redis.NewClient(o)
	tb.Cleanup(func() { _ = rdb.Close() }) // it may have been cut off
	return rdb, p
}
