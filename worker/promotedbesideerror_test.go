package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A task gives up what it has while the server of one of its keys is away. The server of the other key promotes the task
// that comes next there, and that one is told, although the call as a whole failed.
func TestPromotionsBesideAnErrorArePassedOn(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	rdb := redistest.StartCluster(t, 3)
	rdb.AddHook(redistest.FailingScripts{"cancel": "{+1}"})
	for name, giveUp := range map[string]struct {
		granted bool // else the first task waits before the second
		do      func(t *attempt, p *throttle.Policy, d throttle.Decision)
	}{
		"refund": {true, func(t *attempt, p *throttle.Policy, d throttle.Decision) {
			t.refund(context.Background(), decided{policy: p, Decision: d})
		}},
		"returnGrant": {true, func(t *attempt, p *throttle.Policy, d throttle.Decision) {
			t.returnGrant(context.Background(), p, d)
		}},
		"cancelBooking": {false, func(t *attempt, p *throttle.Policy, d throttle.Decision) {
			t.cancelBooking(context.Background(), decided{policy: p, Decision: d})
		}},
		"cancelBookings": {false, func(t *attempt, _ *throttle.Policy, _ throttle.Decision) {
			t.cancelBookings(context.Background(), asynq.NewTask("sms", []byte(`{"to":"+1"}`)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := NewAdapter(rdb, Config{Logger: zap.NewNop(), Throttle: throttle.Config{Prefix: name}, Policies: []queue.Policy{{Type: "sms", Rules: []queue.Rule{
				{Name: "phone", Limit: throttle.Sliding(5, time.Minute), Key: queue.MustJSONKey("$.to")},
				{Name: "provider", Limit: throttle.Sliding(1, time.Hour), Constant: "acme"},
			}}}})
			if err != nil {
				t.Fatal(err)
			}
			p := a.policies["sms"].limits
			ask := func(phone string) throttle.Decision {
				t.Helper()
				d, err := p.Redeem(t.Context(), throttle.Request{Key: phone, Cost: 1, Job: luascripts.JobID("default", phone),
					More: []throttle.KeyCost{{Key: "acme", Cost: 1}}})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			if !giveUp.granted {
				ask("+9")
			}
			first, second := ask("+1"), ask("+2")
			if first.Granted != giveUp.granted || second.Granted {
				t.Fatalf("the first is granted = %v, the second %v", first.Granted, second.Granted)
			}
			giveUp.do(&attempt{a: a, job: first.Job}, p, first)
			var told []string
			for len(a.promotions.waiting) > 0 {
				told = append(told, (<-a.promotions.waiting).Job)
			}
			if fmt.Sprint(told) != fmt.Sprint([]string{second.Job}) {
				t.Errorf("%q are promoted, want %q", told, second.Job)
			}
		})
	}
}

// The first hash slot grants, and the next one can't be asked, so the grant goes back. The next job in the line of the first one hears of it.
func TestPromotionsBesideAFailedAdmissionArePassedOn(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	rdb := redistest.StartCluster(t, 3)
	for _, failed := range []throttle.FailureMode{throttle.FailClosed, throttle.FailOpen} {
		name := fmt.Sprintf("failed-%d", failed)
		a, err := NewAdapter(rdb, Config{Logger: zap.NewNop(), Throttle: throttle.Config{Prefix: name, OnUnavailable: failed}, Policies: []queue.Policy{{
			Type: "sms", Rules: []queue.Rule{
				{Name: "phone", Limit: throttle.Sliding(1, time.Hour), Key: queue.MustJSONKey("$.to")},
				{Name: "provider", Limit: throttle.Sliding(9, time.Hour), Constant: name},
			},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		p := a.policies["sms"].limits
		request := func(id string) throttle.Request {
			return throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", id), More: []throttle.KeyCost{{Key: name, Cost: 1}}}
		}
		first, err := p.Redeem(t.Context(), request("first"))
		if err != nil || !first.Granted {
			t.Fatalf("Redeem = %+v, %v", first, err)
		}
		for _, id := range []string{"second", "third"} {
			if d, err := p.Redeem(t.Context(), request(id)); err != nil || d.Granted {
				t.Fatalf("%s: Redeem = %+v, %v", id, d, err)
			}
		}
		if _, err := p.Refund(t.Context(), first.Request); err != nil {
			t.Fatal(err)
		}
		rdb.AddHook(redistest.FailingScripts{"acquire": name + ":{" + name + "}"})
		task := &attempt{a: a, queue: "default", taskID: "second", job: request("second").Job}
		_, _ = task.Ask(t.Context(), p, request("second")) // deferred, or granted without Redis
		earlier := false
		for len(a.promotions.waiting) > 0 {
			told := <-a.promotions.waiting
			earlier = earlier || told.Job == request("third").Job && told.Wait < time.Minute
		}
		if !earlier {
			t.Errorf("%s: the task behind the one that failed was not told that it may come", name)
		}
	}
}
