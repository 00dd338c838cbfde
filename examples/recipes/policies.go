package recipes

import (
	"context"
	"io"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// SMS is a policy of three rules on two keys.
func SMS() queue.Policy {
	to := queue.MustJSONKey("$.to")
	return queue.Policy{Type: "sms:send", Rules: []queue.Rule{ // narrowest key first
		{Name: "phone-minute", Limit: throttle.Sliding(1, time.Minute), Key: to},
		{Name: "phone-day", Limit: throttle.Sliding(10, 24*time.Hour), Key: to},
		{Name: "provider", Limit: throttle.GCRA(100, time.Second, 20), Constant: "acme"},
	}}
}

// NewPool runs tasks by policies from files, and follows the files while it runs.
func NewPool(rdb redis.UniversalClient, handler asynq.Handler, files ...string) (*worker.Pool, error) {
	return worker.New(rdb, handler, worker.Config{PolicyFiles: files}) // an error has everything that is wrong, each with its line
}

// Tenants reads a file whose key is found by a function.
func Tenants(file io.Reader) ([]queue.Policy, error) {
	fn := queue.Funcs{Keys: map[string]queue.KeyFunc{
		"tenant": func(t *asynq.Task) (string, error) { return t.Headers()["tenant"], nil },
	}}
	return fn.ReadPolicies("tenants.yaml", file)
}

// PerTenant gives each tenant a limit of its own, under one rule.
func PerTenant(planOf func(tenant string) (throttle.Limit, time.Time), refresh func(ctx context.Context, tenant string) error) queue.Policy {
	return queue.Policy{Type: "report:make", Rules: []queue.Rule{{
		Name: "tenant", Key: queue.MustJSONKey("$.tenant"),
		Limit: throttle.Sliding(100, time.Hour), // of tenants without a plan
		LimitOf: func(ctx context.Context, tenant string, newer time.Time) (throttle.Limit, time.Time, error) {
			if !newer.IsZero() { // Redis knows of a plan that was changed then
				if err := refresh(ctx, tenant); err != nil {
					return throttle.Limit{}, time.Time{}, err
				}
			}
			limit, changed := planOf(tenant)
			return limit, changed, nil
		},
	}}}
}

// Serve is asynq's own server, with limits around its handler.
func Serve(ctx context.Context, rdb redis.UniversalClient, mux *asynq.ServeMux, policies ...queue.Policy) error {
	a, err := worker.NewAdapter(rdb, worker.Config{Policies: policies})
	if err != nil {
		return err
	}
	defer a.Close()
	srv := asynq.NewServerFromRedisClient(a.Client(), a.Server(asynq.Config{Concurrency: 10}))
	if err := a.Start(ctx); err != nil {
		return err
	}
	if err := srv.Start(a.Handler(mux)); err != nil { // or mux.Use(a.Handler) before, and the mux here
		return err
	}
	<-ctx.Done()
	a.Stop()
	srv.Shutdown()
	return nil
}
