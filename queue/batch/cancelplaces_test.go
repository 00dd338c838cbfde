package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// TestCancelByAClientThatKnowsNoKeys: a dashboard knows the rules of the pools, and not how they find keys. It gives
// the places of a batch up by what is stored beside its tasks.
func TestCancelByAClientThatKnowsNoKeys(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
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

// dropsTwice is a hook by which the answer to each call of batchdrop.lua is lost, and the call is sent again.
type dropsTwice struct{}

func (dropsTwice) DialHook(next redis.DialHook) redis.DialHook { return next }
func (dropsTwice) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (dropsTwice) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name, ok := cmd.Args()[min(1, len(cmd.Args())-1)].(string); ok && strings.HasSuffix(name, "_batchdrop") {
			_ = next(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// TestCancelWhoseAnswersAreLost: what a call dropped whose answer was lost leaves no places in the lines.
func TestCancelWhoseAnswersAreLost(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	rdb := redistest.Client(t)
	const elements = 150 // two calls
	c := newClient(t, rdb, queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "provider", Limit: throttle.Sliding(1, 10*time.Second), Constant: "acme"}}})
	in := make(chan Element, elements)
	for range elements {
		in <- Element{Payload: []byte(`{}`)}
	}
	close(in)
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Ahead: time.Hour, Sources: map[string]Source{"messages": Channel(in)}})
	if err != nil {
		t.Fatal(err)
	}
	spec := winter()
	spec.Total, spec.Window = elements, 2*elements
	if _, err := NewControl(c).Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	stop := run(t, f)
	eventually(t, "the batch is fed", func() bool { return rdb.ZCard(t.Context(), "asynq:{default}:scheduled").Val() >= elements-1 })
	stop()
	rdb.AddHook(dropsTwice{})
	if _, err := NewControl(c).Cancel(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	if left := rdb.ZCount(t.Context(), "hw:{acme}:provider:line", "-inf", "(2251799813685248").Val(); left > 0 {
		t.Errorf("%d places are left in the line of the provider, want none", left)
	}
}
