package main

import (
	"context"
	"net/http"
	"net/http/httptest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// redisInMemory is an embedded Redis without a socket, for bubbles.
func redisInMemory(*redis.Options) (redis.UniversalClient, func(), error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	rdb := redis.NewClient(redistest.MiniOptions(m))
	return rdb, func() {
		_ = rdb.Close()
		m.Close()
	}, nil
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
