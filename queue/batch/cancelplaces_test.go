package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	for end := time.Now().Add(20 * time.Second); rdb.ZCard(t.Context(), "asynq:{default}:scheduled").Val() < elements-1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the batch is not fed")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	knowsNoKeys := newClient(t, rdb, policy(func(*asynq.Task) (string, error) { return "", errors.New("the key is found by a function") }))
	if _, err := NewControl(knowsNoKeys).Cancel(t.Context(), "default", "winter"); err != nil {
		t.Fatal(err)
	}
	if left := rdb.ZCount(t.Context(), "hw:{acme}:provider:line", "-inf", "(2251799813685248").Val(); left > 1 { // the task that is pending has no booking beside it
		t.Errorf("%d places are left in the line of the provider, want 1 at most", left)
	}
}

// TestElementThatPanics: an element whose options or whose policy make a panic is refused, and ends no feeder.
func TestElementThatPanics(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	c := newClient(t, rdb, queue.Policy{Type: "sms", Rules: []queue.Rule{{
		Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: func(task *asynq.Task) (string, error) {
			if string(task.Payload()) == "bad" {
				panic("+15550100")
			}
			return string(task.Payload()), nil
		},
	}}})
	in := make(chan Element, 3)
	in <- Element{Payload: []byte("bad")}
	in <- Element{Payload: []byte("a"), Options: []asynq.Option{nil}}
	in <- Element{Payload: []byte("b")}
	close(in)
	refused := make(chan error, 3)
	f, err := NewFeeder(c, FeederConfig{
		Queues: []string{"default"}, Sources: map[string]Source{"messages": Channel(in)},
		Refused: func(_ string, _ Element, err error) { refused <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := winter()
	spec.Total = 3
	b := NewControl(c)
	if _, err := b.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		p, err := b.Progress(t.Context(), "default", "winter")
		if err == nil && p.Enqueued == 1 && p.Refused == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %v, want one enqueued and two refused", p, err)
		}
	}
	for range 2 {
		if err := <-refused; strings.Contains(err.Error(), "+1555") {
			t.Errorf("%v has personal data", err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
