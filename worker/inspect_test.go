package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
)

// What an inspector tells of a pool's tasks is where they are: one runs, two were
// deferred behind it, one failed, and when the pool is gone they wait all the same.
func TestInspectorSeesAPool(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	runs, goOn := make(chan string, 10), make(chan struct{})
	_, stop := r.start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		runs <- id
		if id == "fails" {
			return errors.New("no")
		}
		<-goOn
		return nil
	}), policies(phone("sms", time.Hour)))
	i, err := inspect.New(r.srv.Client(t), inspect.Config{Policies: []queue.Policy{phone("sms", time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	is := func(id string, state inspect.State) inspect.Explanation {
		t.Helper()
		w, err := i.Explain(t.Context(), "default", id)
		if err != nil || w.State != state {
			t.Errorf("Why(%s) = %+v, %v, want it to be %v", id, w, err, state)
		}
		return w
	}

	r.enqueue("sms", "fails", to("+2"), asynq.MaxRetry(3))
	<-runs
	r.enqueue("sms", "a", to("+1"))
	<-runs
	for _, id := range []string{"b", "c"} {
		r.enqueue("sms", id, to("+1"))
		r.eventually(id+" is deferred", func() bool { return r.is(id, asynq.TaskStateRetry) })
	}
	r.eventually("the failure is written", func() bool { return r.is("fails", asynq.TaskStateRetry) })
	is("a", inspect.StateActive)
	is("fails", inspect.StateRetry)
	is("never", inspect.StateMissing)

	close(goOn)
	stop()
	is("a", inspect.StateMissing)
	for n, id := range []string{"b", "c"} {
		w := is(id, inspect.StateLimit)
		wait := time.Duration(n+1) * time.Hour
		if off := wait - w.At.Sub(w.Now); w.Rule != "sms" || w.Jobs != n || w.Permits != n || w.Booked || w.Parked || off < 0 || off > time.Minute {
			t.Errorf("Why(%s) = %+v, want it to wait for sms for %v, behind %d", id, w, wait, n)
		}
	}
	var line, away []string
	for w, err := range i.Line(t.Context(), "sms", "+1") {
		if err != nil {
			t.Fatal(err)
		}
		line = append(line, w.ID)
	}
	for w, err := range i.Deferred(t.Context(), "default") {
		if err != nil {
			t.Fatal(err)
		}
		away = append(away, w.ID)
	}
	if want := []string{"b", "c"}; !slices.Equal(line, want) || !slices.Equal(away, want) {
		t.Errorf("the line is %q, and put away are %q, want %q", line, away, want)
	}
}
