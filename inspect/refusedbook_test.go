package inspect

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A refused Book gives its place back, which promotes the next task. Under several rules
// that task stood as due now in Deferred once, while Explain told its instant.
func TestRefusedBookLeavesOneTruth(t *testing.T) {
	t.Parallel()
	phone := queue.MustJSONKey("$.to")
	per := func(n int, window time.Duration) throttle.Limit { return throttle.Sliding(n, window) }
	for name, rules := range map[string][]queue.Rule{
		"two on the phone": {{Name: "a", Limit: per(1, time.Hour), Key: phone}, {Name: "b", Limit: per(10, 24*time.Hour), Key: phone}, {Name: "c", Limit: throttle.GCRA(100, time.Second, 20), Constant: "acme"}},
		"three keys":       {{Name: "a", Limit: per(1, time.Hour), Key: phone}, {Name: "b", Limit: per(10, time.Hour), Constant: "tenant"}, {Name: "c", Limit: per(100, time.Second), Constant: "acme"}},
		"all bind":         {{Name: "a", Limit: per(1, time.Hour), Key: phone}, {Name: "b", Limit: per(1, time.Hour), Constant: "tenant"}, {Name: "c", Limit: per(1, time.Hour), Constant: "acme"}},
		"the last binds":   {{Name: "a", Limit: per(10, time.Hour), Key: phone}, {Name: "b", Limit: per(10, time.Hour), Constant: "tenant"}, {Name: "c", Limit: per(1, time.Hour), Constant: "acme"}},
		"slots":            {{Name: "a", Limit: per(1, time.Hour), Constant: "tenant"}, {Name: "b", Limit: per(1, 2*time.Hour), Constant: "acme"}, {Name: "c", Limit: throttle.Concurrent(1, time.Minute), Constant: "acme"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Start(t, redistest.Own()).Client(t)
			// Time stands still: else the first task, for which no pool comes, is soon late, and others pass it.
			redistest.TimedLibrary(rdb, time.Now())
			p := queue.Policy{Type: "sms", Rules: rules}
			client := newClient(t, rdb, queue.ClientConfig{Policies: []queue.Policy{p}})
			inspector, err := New(rdb, Config{Policies: []queue.Policy{p}})
			if err != nil {
				t.Fatal(err)
			}
			book := func(id, phone string, opts ...asynq.Option) error {
				_, err := client.Book(t.Context(), queue.NewTask("sms", fmt.Appendf(nil, `{"to":%q}`, phone), asynq.TaskID(id)), opts...)
				return err
			}
			for _, b := range [][2]string{{"1", "A"}, {"2", "A"}, {"3", "B"}} {
				if err := book(b[0], b[1]); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range [][2]string{{"refused 1", "A"}, {"refused 2", "B"}, {"refused 3", "A"}} {
				if book(b[0], b[1], queue.MaxWait(time.Minute)) == nil {
					t.Log(b, "was booked")
				}
			}
			listed := 0
			for w, err := range inspector.Deferred(t.Context(), "default") {
				if err != nil {
					t.Fatal(err)
				}
				listed++
				if e, err := inspector.Explain(t.Context(), "default", w.ID); err != nil || w.At.Sub(e.At).Abs() > time.Minute {
					t.Errorf("task %s: %v away in Deferred, and %v in Explain, %v", w.ID, w.At.Sub(e.Now), e.At.Sub(e.Now), err)
				}
			}
			if listed == 0 {
				t.Error("nothing is deferred")
			}
		})
	}
}
