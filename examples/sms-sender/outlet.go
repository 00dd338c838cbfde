package main

import (
	"context"

	"github.com/headwayq/headway/throttle"
)

// outlet is where messages leave: a client, and the gateway behind it if it is
// ours.
type outlet struct {
	client *GatewayClient
	own    *Gateway // nil if the gateway was given
}

// openOutlet leads to the gateway at url, or without one to an embedded gateway.
func openOutlet(ctx context.Context, url string, limit throttle.Limit, files []byte) (outlet, error) {
	var o outlet
	if url == "" {
		own, err := StartGateway(ctx, limit, files)
		if err != nil {
			return outlet{}, err
		}
		o.own, url = own, own.URL()
	}
	client, err := NewGatewayClient(url, 0)
	if err != nil {
		return outlet{}, err
	}
	o.client = client
	return o, nil
}

// close ends what was opened, and lets requests of other processes end.
func (o outlet) close(ctx context.Context) error {
	o.client.Close()
	if o.own == nil {
		return nil
	}
	return o.own.Shutdown(ctx)
}

// stats returns what the gateway saw, nil if it is not ours.
func (o outlet) stats() *GatewayStats {
	if o.own == nil {
		return nil
	}
	s := o.own.Stats()
	return &s
}
