package batch

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Every refused element counts for one reason, also in a record of an older or a newer
// version: the sum is always Refused.
func TestRefusedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record map[string]int64
		all    int64
		want   map[event.Reason]int64
	}{
		"none":                {nil, 0, map[event.Reason]int64{}},
		"all are known":       {map[string]int64{"invalid": 2, "id taken": 1, "duplicate": 3}, 6, map[event.Reason]int64{event.Invalid: 2, IDTaken: 1, Duplicate: 3}},
		"of an older version": {nil, 4, map[event.Reason]int64{ReasonUnknown: 4}},
		"of two versions":     {map[string]int64{"too late": 1}, 4, map[event.Reason]int64{event.TooLate: 1, ReasonUnknown: 3}},
		"of a newer version":  {map[string]int64{"exceeds limit": 1, "<b>": 2}, 3, map[event.Reason]int64{event.ExceedsLimit: 1, ReasonUnknown: 2}},
	} {
		if got := refusedFor(batchscripts.Batch{Refused: c.all, RefusedFor: c.record}); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestReasonOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want event.Reason
	}{
		{fmt.Errorf("x: %w", &throttle.TooLateError{}), event.TooLate},
		{fmt.Errorf("x: %w", &throttle.ExceedsLimitError{}), event.ExceedsLimit},
		{&queue.DemandError{}, event.Invalid},
		{fmt.Errorf("x: %w", ErrInvalid), event.Invalid},
		{errors.New("x"), event.Invalid},
		{&queue.OptionError{}, event.Invalid},
		{asynq.ErrTaskNotFound, event.Invalid},
	} {
		if got := reasonOf(c.err); got != c.want {
			t.Errorf("reasonOf(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

// TestElementThatPanics: an element whose options or whose policy make a panic is refused, and ends no feeder.
func TestElementThatPanics(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
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
	stop := run(t, f)
	eventually(t, "one is enqueued and two are refused", func() bool {
		p, err := b.Progress(t.Context(), "default", "winter")
		return err == nil && p.Enqueued == 1 && p.Refused == 2
	})
	stop()
	for range 2 {
		if err := <-refused; strings.Contains(err.Error(), "+1555") {
			t.Errorf("%v has personal data", err)
		}
	}
}
