package queue

import (
	"context"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

//nolint:gochecknoinits // it only sets a function: as a method of Client every user would see it
func init() {
	backend.Of = func(client any) backend.Client { return clientBackend{client.(*Client)} }
}

// clientBackend gives the packages below this one what a [Client] does not offer to users.
type clientBackend struct{ c *Client }

func (b clientBackend) Redis() redis.UniversalClient { return b.c.rdb }

func (b clientBackend) Keys(queue string) queuescripts.QueueKeys { return b.c.keys(queue) }

func (b clientBackend) Prefix() string { return b.c.cfg.Prefix }

func (b clientBackend) Bookable() error {
	if b.c.cfg.PerClient {
		return errPerClient
	}
	return nil
}

func (b clientBackend) Shadow() bool { return b.c.cfg.Shadow }

func (b clientBackend) Booking(stored queuescripts.StoredBooking, job string) (throttle.BookingRef, bool) {
	return b.c.set.Booking(stored, job)
}

func (b clientBackend) Policy(typ string) (backend.Policy, bool) {
	p, ok := b.c.policies[typ]
	if !ok {
		return backend.Policy{}, false
	}
	return backend.Policy{Limiters: p.limits.Rules(), Limits: p.limits, Request: func(task *asynq.Task, job string) (throttle.Request, error) {
		d, err := p.ask(task)
		if err != nil {
			return throttle.Request{}, err
		}
		return d.Request(job), nil
	}}, true
}

func (b clientBackend) Check(ctx context.Context, task *asynq.Task) error {
	return b.c.check(ctx, task)
}

func (b clientBackend) CheckOptions(opts []asynq.Option) error { return checkOptions(opts) }

func (b clientBackend) Compose(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (queuescripts.EnqueueTask, error) {
	r, _, err := b.c.compose(ctx, task, opts...)
	return r.Task, err
}

func (b clientBackend) Prepare(ctx context.Context, typ string, payload []byte, opts []asynq.Option) (*backend.Task, error) {
	t, err := b.c.prepare(ctx, booking, NewTask(typ, payload), opts)
	if err != nil {
		return nil, err
	}
	return &t.Task, nil
}

func (b clientBackend) RegisterQueue(ctx context.Context, queue string) error {
	return b.c.registerQueue(ctx, queue)
}

func (b clientBackend) Promote(ctx context.Context, promoted []throttle.Promotion) {
	promotion.Move(ctx, b.c.rdb, b.c.cfg.Prefix, b.c.set, promoted...)
}

func (b clientBackend) SafeText(err error) string { return safeText(err) }
