package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A task that waits for a closed key comes soon after an operator, in another
// process, has opened it.
func TestVirtualOpenedKeyWakesWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clients, _ := mini(t, 2)
		limit := throttle.Sliding(10, time.Second)
		operator, err := throttle.New(clients[1], "sms", limit, throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := operator.CloseKey(t.Context(), "acme", time.Hour); err != nil {
			t.Fatal(err)
		}
		ran := make(chan time.Time, 1)
		handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			ran <- time.Now()
			return nil
		})
		pool := started(t, clients[0], handler, policies(queue.Policy{Type: "sms", Rules: []queue.Rule{{
			Name: "sms", Limit: limit, Constant: "acme",
		}}}))
		enqueue(t, clients[0], queue.NewTask("sms", nil))
		time.Sleep(time.Minute)
		if len(ran) != 0 || pool.Stats().Deferred != 1 {
			t.Fatalf("on a closed key: %d ran, %+v", len(ran), pool.Stats())
		}
		opened := time.Now()
		if _, err := operator.OpenKey(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		if waited := (<-ran).Sub(opened); waited > 2*time.Second {
			t.Errorf("it ran %v after the key was opened, want about a second", waited)
		}
	})
}
