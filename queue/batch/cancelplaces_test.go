package batch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// TestCancelByAClientThatKnowsNoKeys: a dashboard knows the rules of the pools, and not how they find keys. It gives
// the places of a batch up by what is stored beside its tasks.
func TestCancelByAClientThatKnowsNoKeys(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	policy := func(key queue.KeyFunc) queue.Policy {
		return queue.Policy{Type: "sms", Rules: []queue.Rule{
			{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: key},
			{Name: "provider", Limit: throttle.Sliding(1, time.Minute), Constant: "acme"},
		}}
	}
	feeds := newClient(t, rdb, policy(queue.MustJSONKey("$.to")))
	const elements = 20
	in := make(chan Element, elements)
	for i := range elements {
		in <- Element{Payload: fmt.Appendf(nil, `{"to":"+%d"}`, i)}
	}
	close(in)
	f, err := NewFeeder(feeds, FeederConfig{Queues: []string{"default"}, Ahead: time.Hour, Sources: map[string]Source{"messages": Channel(in)}})
	if err != nil {
		t.Fatal(err)
	}
	spec := winter()
	spec.Total = elements
	if _, err := NewControl(feeds).Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	stop := run(t, f)
	eventually(t, "the batch is fed", func() bool { return rdb.ZCard(t.Context(), "asynq:{default}:scheduled").Val() >= elements-1 })
	stop()

	knowsNoKeys := newClient(t, rdb, policy(func(*asynq.Task) (string, error) { return "", errors.New("the key is found by a function") }))
	if _, err := NewControl(knowsNoKeys).Cancel(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	if left := rdb.ZCount(t.Context(), "hw:{acme}:provider:line", "-inf", "(2251799813685248").Val(); left > 1 { // the task that is pending has no booking beside it
		t.Errorf("%d places are left in the line of the provider, want 1 at most", left)
	}
}
