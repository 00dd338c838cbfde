package prove

import (
	"context"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"

	"github.com/headwayq/headway/internal/e2e"
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
	own := e2e.NewGateway(cfg.policy, cfg.gwFaults, files)
	client, err := e2e.NewGatewayClient("http://127.0.0.1/", 0)
	if err != nil {
		return outlet{}, err
	}
	client.HTTP.Transport = e2e.InMemory(own)
	return outlet{client: client, own: own}, nil
}
