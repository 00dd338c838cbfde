package main

import "context"

// outlet is where messages leave: a client, and the gateway behind it if it is
// ours.
type outlet struct {
	client *GatewayClient
	own    *Gateway // nil if the gateway was given
}

// openOutlet leads to the gateway of the flags, or without one to an embedded
// gateway. The secret files is that of phoneKey.
func openOutlet(ctx context.Context, cfg config, files []byte) (outlet, error) {
	var o outlet
	url := cfg.gateway
	if url == "" {
		own, err := StartGateway(ctx, cfg.policy, cfg.gwFaults, files)
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
