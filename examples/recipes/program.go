package recipes

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// Together puts rules together for a program that is no worker.
func Together(rdb redis.UniversalClient) (*throttle.Policy, error) {
	phone, err := throttle.New(rdb, "phone-minute", throttle.Sliding(1, time.Minute), throttle.Config{})
	if err != nil {
		return nil, err
	}
	slots, err := throttle.New(rdb, "slots", throttle.Concurrent(50, 30*time.Second), throttle.Config{})
	if err != nil {
		return nil, err
	}
	return throttle.NewPolicy(phone, slots) // leases last
}

// Run does its work under all rules of a policy.
func Run(ctx context.Context, p *throttle.Policy, phone string, work func(context.Context) error) error {
	d, err := p.Acquire(ctx, throttle.Request{Key: phone, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}})
	if err != nil {
		return err
	}
	held, release := p.Hold(ctx, d) // renews; held ends when the lease is lost
	defer func() { _, _ = release(context.WithoutCancel(ctx)) }()
	return work(held)
}

// Maintenance keeps everybody from a provider while it is being repaired.
func Maintenance(ctx context.Context, provider *throttle.Limiter, repair func() error) error {
	if _, err := provider.CloseRule(ctx, 4*time.Hour); err != nil { // ends by itself, should we die
		return err
	}
	if err := repair(); err != nil {
		return err // it stays closed
	}
	return provider.OpenRule(ctx)
}

// Complaint stops what is sent to a phone for a week.
func Complaint(ctx context.Context, perPhone *throttle.Limiter, phone string) (until time.Time, err error) {
	return perPhone.CloseKey(ctx, phone, 7*24*time.Hour) // OpenKey ends it earlier
}
