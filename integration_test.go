package headway_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// TestOneMessagePerPhoneAndWindow is the whole of Headway in one place: a client
// enqueues twelve messages to four phones, two pools run them, and no phone gets two
// messages within a second. Package e2e has the same with processes that are killed.
func TestOneMessagePerPhoneAndWindow(t *testing.T) {
	t.Parallel()
	const phones, messages, window = 4, 3, time.Second
	server := redistest.Start(t)

	// 1. A policy: one message per phone in any second. The phone is in the payload.
	policy := queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, window), Key: queue.MustJSONKey("$.to")},
	}}

	// 2. Two pools, each with a connection of its own, as two processes have them.
	var sent outbox
	var pools []*worker.Pool
	for range 2 {
		pool, err := worker.New(server.Client(t), asynq.HandlerFunc(sent.send), worker.Config{Policies: []queue.Policy{policy}})
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Shutdown)
		pools = append(pools, pool)
	}

	// 3. A producer. All messages come at once.
	client, err := queue.NewClient(server.Client(t), queue.ClientConfig{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range phones * messages {
		payload := fmt.Appendf(nil, `{"to":"phone-%d"}`, i%phones)
		if _, err := client.Enqueue(t.Context(), queue.NewTask("sms", payload)); err != nil {
			t.Fatal(err)
		}
	}
	sent.wait(t, phones*messages)

	// 4. Every message went once, and the grants of a phone are a window apart.
	for phone, grants := range sent.byPhone() {
		if len(grants) != messages {
			t.Errorf("%d messages went to %s, want %d", len(grants), phone, messages)
		}
		for i := 1; i < len(grants); i++ {
			if gap := grants[i].Sub(grants[i-1]); gap < window {
				t.Errorf("two messages to %s were granted %v apart, want %v at least", phone, gap, window)
			}
		}
	}

	// 5. A message that had to wait cost two admissions, one that booked and one that
	// ran, whatever the length of the line, and no attempt.
	var admissions int64
	for _, pool := range pools {
		admissions += pool.Stats().Admissions
	}
	if most := int64(2 * phones * messages); admissions > most {
		t.Errorf("%d admissions for %d messages, want %d at most", admissions, phones*messages, most)
	}
}

// outbox notes when which phone was sent a message, by the instants of the grants: by
// Redis' clock.
type outbox struct {
	mu     sync.Mutex
	grants map[string][]time.Time
	count  int
}

func (o *outbox) send(ctx context.Context, task *asynq.Task) error {
	grant, ok := worker.GrantFrom(ctx)
	if !ok {
		return fmt.Errorf("%w: no grant in the context of a handler", asynq.SkipRetry)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grants == nil {
		o.grants = make(map[string][]time.Time)
	}
	phone := string(task.Payload())
	o.grants[phone] = append(o.grants[phone], grant.At)
	o.count++
	return nil
}

func (o *outbox) byPhone() map[string][]time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.grants
}

// wait returns when so many messages have gone.
func (o *outbox) wait(t *testing.T, messages int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); ; {
		o.mu.Lock()
		count := o.count
		o.mu.Unlock()
		if count >= messages {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d messages went within 30 s", count, messages)
		}
	}
}
