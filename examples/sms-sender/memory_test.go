package main

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
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
func gatewayInMemory(_ context.Context, cfg config, files []byte) (outlet, error) {
	own := NewGateway(cfg.policy, cfg.gwFaults, files)
	client, err := NewGatewayClient("http://127.0.0.1/", 0)
	if err != nil {
		return outlet{}, err
	}
	client.http.Transport = inMemory(own)
	return outlet{client: client, own: own}, nil
}

// inMemory leads to a handler: one that aborts gives no answer, as by net/http.
func inMemory(h http.Handler) roundTripper {
	return func(r *http.Request) (resp *http.Response, err error) {
		defer func() {
			switch aborted := recover(); aborted {
			case nil:
			case http.ErrAbortHandler:
				resp, err = nil, cmp.Or(r.Context().Err(), io.EOF)
			default:
				panic(aborted)
			}
		}()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
