package batch

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Elements give their places up. One whose server does not answer keeps none of the others from doing so.
func TestElementsLeaveTheirPlacesBesideAServerThatIsAway(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	rdb := redistest.StartCluster(t, 3)
	rdb.AddHook(redistest.FailingScripts{"cancel": "{+1}"})
	c := newClient(t, rdb, queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
	}})
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Sources: map[string]Source{"messages": Channel(make(chan Element))}})
	if err != nil {
		t.Fatal(err)
	}
	g := newFeeding(f, "default", "winter")
	var items []*item
	var requests []throttle.BookRequest
	for i := range 4 {
		task, err := f.c.Prepare(t.Context(), "sms", fmt.Appendf(nil, `{"to":"+%d"}`, i), nil)
		if err != nil {
			t.Fatal(err)
		}
		task.Own = true
		items = append(items, &item{task: task})
		requests = append(requests, throttle.BookRequest{Policy: task.Policy, Request: task.Request})
	}
	for _, b := range throttle.ForWorkers.BookMany(t.Context(), rdb, requests) {
		if b.Err != nil {
			t.Fatal(b.Err)
		}
	}
	g.leave(t.Context(), items)
	for i, p := range items {
		want := int64(0)
		if i == 1 {
			want = 1
		}
		n := rdb.ZCount(t.Context(), fmt.Sprintf("hw:{+%d}:phone:line", i), "-inf", "(2251799813685248").Val()
		if n != want || p.task.Own != (want > 0) {
			t.Errorf("%d places are left on +%d, want %d", n, i, want)
		}
	}
}
