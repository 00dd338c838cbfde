package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// A task that can never run is archived, and the log says why, a few times, without a key.
func TestTaskThatCanNeverRunIsTold(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	cfg := policies(queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "phone", Limit: throttle.Sliding(2, time.Hour), Key: queue.MustJSONKey("$.to"), Cost: queue.MustJSONCost("$.n")},
	}})
	a := r.adapter(cfg)
	server := a.Server(asynq.Config{Concurrency: 1})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.serve(a.Client(), server, a.Handler(seen.handler()))
	for i := range 3 {
		r.enqueuePlain("sms", fmt.Sprint("nokey", i), `{"n":1,"name":"+15550100"}`)
		r.enqueuePlain("sms", fmt.Sprint("dear", i), `{"n":3,"to":"+15550100"}`)
	}
	r.eventually("all are archived", func() bool { return r.queueInfo().Archived == 6 })
	lines := r.logs.FilterMessage("a task can never run, and is archived").All()
	reasons := make(map[string]int)
	for _, line := range lines {
		fields := line.ContextMap()
		reasons[fmt.Sprint(fields["reason"])]++
		if fields["type"] != "sms" || fields["rule"] != "phone" || fields["remedy"] == "" || strings.Contains(fmt.Sprint(fields), "15550100") {
			t.Errorf("line %v, want the type, the rule and a remedy, and no key", fields)
		}
	}
	if len(reasons) != 2 || reasons["a cost of 3 is above the limit sliding 2/1h"] == 0 {
		t.Errorf("reasons %v, want the missing key and the cost", reasons)
	}
}
