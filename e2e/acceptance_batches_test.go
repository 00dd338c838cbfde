//go:build accept

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/headwayq/headway/queue/batch"
)

// TestAcceptBatches runs the figures of batches in real time, as [TestAccept] does
// those of the main job.
func TestAcceptBatches(t *testing.T) {
	acceptParts(t, []acceptPart{
		{"batch: 100,000 messages to 10,000 phones at 1/2s, the provider at 2,000/s, a feeder killed", acceptBatch},
	})
}

func acceptBatch(t *testing.T, tab *table) {
	const jobs, phones, rate, window = 100_000, 10_000, 2_000, 8_000
	s := newPolicyStage(t, []string{
		"phone: {limit: 1/2s, key: $.to}",
		fmt.Sprintf("provider: {limit: %d/1s, key: acme}", rate),
	}, workerSpec{Concurrency: 20})
	for _, m := range s.write(jobs, phones) { // grants tell the task, not the message
		task := "batch:winter:" + m.ID
		s.phones[task], s.messages[task] = m.To, m
		delete(s.phones, m.ID)
	}
	s.crew.spec.Gateway = ""
	s.crew.start(2)
	s.crew.spec.Phones = phones
	feeder := s.crew.launch()
	batches := batch.NewControl(s.client)
	if _, err := batches.Start(t.Context(), batch.Spec{
		ID: "winter", Type: typeSMS, Source: sourceMessages, Args: strconv.Itoa(jobs), Total: jobs, Window: window,
	}); err != nil {
		t.Fatal(err)
	}
	most := int64(0)
	progress := func() batch.Progress {
		p, err := batches.Progress(t.Context(), defaultQueue, "winter")
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		most = max(most, p.Open)
		return p
	}
	s.eventually(time.Minute, "a feeder has it", func() bool { return progress().Fed })
	s.crew.launch() // stands by
	s.eventually(time.Minute, "a third is done", func() bool { return progress().Done > jobs/3 })
	feeder.kill()
	s.eventually(2*time.Minute, "the batch has ended", func() bool { return progress().State == batch.Ended })
	p := progress()
	s.crew.end()

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	breaches := s.breachesOf(grants)
	for _, rule := range slices.Sorted(maps.Keys(breaches)) {
		tab.none(t, "breaches of "+rule, breaches[rule])
	}
	tab.none(t, "handlers that began early", early(all))
	times := make(map[string]int)
	for _, g := range grants {
		times[g.id]++
	}
	var wrong []string
	for id := range s.phones {
		if times[id] != 1 {
			wrong = append(wrong, fmt.Sprintf("%s ran %d times", id, times[id]))
		}
	}
	tab.none(t, "messages that did not run exactly once", wrong)
	tab.none(t, "what the batch counted wrongly", func() (faults []string) {
		if p.Done != jobs || p.Failed+p.Refused+p.Dropped+p.Open != 0 {
			faults = append(faults, fmt.Sprintf("%+v", p))
		}
		return faults
	}())
	took := time.Duration(grants[len(grants)-1].at-grants[0].at) * time.Microsecond
	tab.most(t, "admissions per message", float64(sum(all).Admissions)/jobs, 1.05)
	tab.least(t, "share of the permitted rate, %", 100*float64(jobs-rate)/rate/took.Seconds(), 98)
	tab.most(t, "booked ahead, most", float64(most), window)
	largest := int64(0)
	for _, r := range ofKind(all, kindMemory) {
		largest = max(largest, r.Bytes)
	}
	tab.most(t, "memory of a feeder, MB (resident, at most)", float64(largest)/1e6, 50)
	tab.note("finished after", "%v", took)
}
