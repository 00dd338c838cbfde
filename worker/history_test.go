package worker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// The history has what the observers of two pools heard, and the key on which tasks wait.
func TestPoolsWriteTheHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var granted, deferred, late, waited atomic.Int64
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, 300*ms), Key: queue.MustJSONKey("$.to")},
		{Name: "day", Limit: throttle.Sliding(3, 24*time.Hour), Key: queue.MustJSONKey("$.to")},
	}})
	observer := func() event.Observer { // of one pool
		var here sync.Map // ids of the tasks that it deferred
		return event.Observer{
			Granted: func(_ context.Context, e event.Granted) {
				granted.Add(1)
				if !e.Promised.IsZero() {
					late.Add(1)
				}
				if _, ok := here.Load(e.Task.ID); ok {
					waited.Add(1)
				}
			},
			Deferred: func(_ context.Context, e event.Deferred) {
				deferred.Add(1)
				here.Store(e.Task.ID, true)
			},
		}
	}
	none := cfg
	none.NoHistory, none.Observer = true, observer()
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	cfg.Observer = observer()
	_, stopA := r.start(handler, cfg)
	cfg.Observer = observer()
	_, stopB := r.start(handler, cfg)
	for n := range 8 {
		r.enqueue("sms", fmt.Sprint("a", n), to("+4917"))
	}
	r.enqueue("sms", "b", to("+4918"))
	eventually(t, "the tasks of today have run, the others wait", func() bool { return granted.Load() == 4 && deferred.Load() >= 7 })
	eventually(t, "none is on its way", func() bool {
		q := r.queueInfo()
		return q.Active == 0 && q.Pending == 0 && q.Retry == 5
	})
	stopA()
	stopB()

	i, err := inspect.New(r.rdb, inspect.Config{Policies: cfg.Policies})
	if err != nil {
		t.Fatal(err)
	}
	phone, err := i.History(t.Context(), "phone", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	day, err := i.History(t.Context(), "day", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []inspect.History{phone, day} {
		if h.Total.Granted != granted.Load() || h.Total.Permits != granted.Load() {
			t.Errorf("%s: %d granted, the observers heard of %d", h.Rule, h.Total.Granted, granted.Load())
		}
	}
	if sum := phone.Total.Deferred + day.Total.Deferred; sum != deferred.Load() || day.Total.Deferred == 0 {
		t.Errorf("%d deferred, of which %d by the day, the observers heard of %d", sum, day.Total.Deferred, deferred.Load())
	}
	if day.Total.Limit != "sliding 3/1d" || day.Total.Used != 1 {
		t.Errorf("the day's limit is %q, and %v of it is used: want all", day.Total.Limit, day.Total.Used)
	}
	// A pool measures the waits of the tasks that it deferred itself, and of those that waited a moment in their worker slot.
	if waited.Load() > 0 && phone.Total.WaitedP50 == 0 || late.Load() == 0 && phone.Total.WaitedP50 > 0 || late.Load() > 0 && phone.Total.LateP99 == 0 {
		t.Errorf("tasks waited %v, and %d started %v late", phone.Total.WaitedP50, late.Load(), phone.Total.LateP99)
	}
	keys, err := i.Keys(t.Context(), "day", inspect.ByWait)
	if err != nil || len(keys) != 1 || keys[0].Key != "+4917" || keys[0].Waiting == 0 || keys[0].Permits != 3 {
		t.Errorf("keys that wait for the day: %+v, %v", keys, err)
	}

	_, stop := r.start(handler, none)
	r.enqueue("sms", "c", to("+4919"))
	eventually(t, "it has run", func() bool { return granted.Load() == 5 })
	stop()
	if after, err := i.History(t.Context(), "phone", time.Hour); err != nil || after.Total.Granted != 4 {
		t.Errorf("a pool with NoHistory wrote: %+v, %v", after.Total, err)
	}
}
