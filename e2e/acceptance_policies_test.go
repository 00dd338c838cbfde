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

// TestAcceptPolicies runs the figures of policies with several rules in real time,
// as [TestAccept] does those of the main job.
func TestAcceptPolicies(t *testing.T) {
	acceptParts(t, []acceptPart{
		{"two keys: a limit of each phone, and one of the provider", acceptTwoKeys},
		{"five rules: 5,000 jobs, a worker killed every 3 s", acceptFiveRules},
		{"postponed: one phone of 1,000 answers 429 with 30 s", acceptPostponed},
		{"slots: 10 at once, jobs of 50 ms, processes killed", acceptSlots},
		{"slots: 100,000 keys with a lease each", acceptLeases},
		{"gate: it opens while 10,000 jobs wait", acceptGate},
	})
}

// acceptTwoKeys plays phones with a limit each behind one provider. In each case the limit of the
// provider decides how long all messages take at least.
func acceptTwoKeys(t *testing.T, tab *table) {
	for _, c := range []twoKeys{
		{200, 5, "1/6s", "gcra 20/1s burst 3", (1000 - 3) * time.Second / 20},
		{50, 20, "1/1s", "gcra 30/1s burst 3", (1000 - 3) * time.Second / 30},
		{1000, 3, "1/6s", "gcra 100/1s burst 10", (3000 - 10) * time.Second / 100},
	} {
		name := fmt.Sprintf("%d x %d, %s, %s: ", c.phones, c.messages, c.phone, c.provider)
		t.Run(name, func(t *testing.T) {
			r := c.run(t, 3)
			for _, rule := range slices.Sorted(maps.Keys(r.breaches)) {
				tab.none(t, name+"breaches of "+rule, r.breaches[rule])
			}
			tab.none(t, name+"handlers that began early", r.early)
			tab.most(t, name+"admissions per message", r.perJob, 3.05)
			tab.most(t, name+"finishing time, of the least that the provider allows", r.took.Seconds()/c.least.Seconds(), 1.03)
		})
	}
}

// acceptFiveRules kills a process every 3 s while the jobs flow.
func acceptFiveRules(t *testing.T, tab *table) {
	const (
		phones, kills = 500, 16
		slots         = 20
		every         = 3 * time.Second
		recovery      = 5 * time.Minute // asynq finds the last victim's tasks after 60 to 120 s
	)
	s := newPolicyTestbed(t, fiveRules("1/2s", "gcra 100/1s burst 20", fmt.Sprintf("concurrent %d lease 2s", slots)), workerSpec{Concurrency: 10})
	s.tenants = 5
	s.gateway.SetTakes(150 * time.Millisecond)
	s.enqueue(10*phones, phones)
	alive := s.crew.start(3)
	tick := time.NewTicker(every)
	defer tick.Stop()
	under := 0 // kills while there was work
	for i := range kills {
		<-tick.C
		if s.gateway.Answered() < s.sent-30 {
			under++
		}
		alive[i%3].kill()
		alive[i%3] = s.crew.launch()
	}
	s.eventually(recovery, "every message is sent", func() bool { return s.gateway.Answered() == s.sent })
	s.settled(recovery, 0)
	s.crew.end()

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	for rule, faults := range s.breachesOf(grants) {
		tab.none(t, "breaches of "+rule, faults)
	}
	tab.most(t, "at the gateway at once", float64(mostAtOnce(crowds(s.gateway.Arrivals()))), slots)
	tab.none(t, "handlers that began early", early(all))
	again, faults := sentAgain(all, func(life int) bool { return s.crew.life(life).killed })
	tab.none(t, "sent again, but not running in a killed process", faults)
	poll(t.Context(), 10*time.Second, func() bool { return len(s.stray()) == 0 })
	b := s.audit(grants, phones)
	inHand := kills * s.crew.spec.Concurrency
	tab.none(t, "keys on which more ran than paid, or something is left of what was refused", append(b.unpaid, b.left...))
	tab.none(t, "keys of ours that are left beside the ledgers of a day", s.stray())
	for rule, spent := range map[string]int{"phone-day": b.perPhone, "tenant": b.perT} {
		tab.least(t, "permits spent of "+rule, float64(spent), float64(b.granted))
		tab.most(t, fmt.Sprintf("permits spent of %s, %d kills", rule, kills), float64(spent), float64(b.granted+inHand))
	}
	tab.least(t, "kills while there was work", float64(under), kills-1)
	tab.note("granted, sent again", "%d, %d", b.granted, again)
}

func acceptPostponed(t *testing.T, tab *table) {
	const after = 30 * time.Second
	r := playPostponed(t, 1000, 6, 10*time.Second, after, 3)
	tab.none(t, "sent to the phone while it was closed, or out of order", r.early)
	tab.within(t, "from the 429 to the next message", r.waited, after+time.Second)
	tab.least(t, "pace of the other phones, %", 100*r.pace, 99)
	tab.note("admissions per message", "%.3f", r.perJob)
}

// acceptSlots looks at 20 s in peace, and then kills a process every 4 s.
func acceptSlots(t *testing.T, tab *table) {
	r := playSlots(t, 20*time.Second, 5)
	tab.most(t, "at the gateway at once", float64(r.most), slots)
	tab.least(t, "slots busy, % (handlers)", 100*r.busy, 95)
	tab.note("slots busy, % (the gateway's work)", "%.1f", 100*r.atGateway)
	for i, d := range r.back {
		tab.within(t, fmt.Sprintf("the dead one's slots used again after kill %d", i+1), d, slotLease)
	}
	tab.least(t, "messages sent", float64(r.sent), float64(r.wanted))
}

func acceptLeases(t *testing.T, tab *table) {
	left, took := leasesLeft(t, 100_000)
	tab.most(t, "keys left a lease later", float64(left), 0)
	tab.note("granted and gone after", "%v", took)
}

// acceptGate lets jobs wait for the next full minute that leaves time for them to
// come in.
func acceptGate(t *testing.T, tab *table) {
	const jobs, rate, burst = 10_000, 100, 20
	opens := time.Now().UTC().Add(90 * time.Second).Truncate(time.Minute)
	s := newPolicyTestbed(t, []string{
		fmt.Sprintf("hours: {gate: %s-%s UTC}", opens.Format("15:04"), opens.Add(12*time.Hour).Format("15:04")),
		"phone: {limit: 1/60s, key: $.to}",
		fmt.Sprintf("provider: {limit: gcra %d/1s burst %d, key: =acme}", rate, burst),
	}, workerSpec{Concurrency: 10})
	s.crew.start(3)
	s.enqueue(jobs, jobs)
	s.eventually(time.Until(opens), "all wait before the gate opens", func() bool { q, ok := s.queueInfo(); return ok && q.Retry == jobs })
	tab.note("all waited before the opening", "%v", time.Until(opens).Round(time.Second))
	s.allSent(time.Until(opens) + jobs*time.Second/rate + time.Minute)

	all := s.crew.records()
	grants := grantsOf(all, s.phones)
	for rule, faults := range s.breachesOf(grants) {
		tab.none(t, "breaches of "+rule, faults)
	}
	tab.least(t, "first grant after the opening, s", time.UnixMicro(grants[0].at).Sub(opens).Seconds(), 0)
	tab.most(t, "finished, of the time that the provider's pace takes",
		time.UnixMicro(grants[len(grants)-1].at).Sub(opens).Seconds()*rate/(jobs-burst), 1.03)
	tab.most(t, "admissions per message", float64(sum(all).Admissions)/jobs, 3.05)
	var woken []int64
	for _, r := range ofKind(all, kindWoken) {
		woken = append(woken, r.Wrote)
	}
	tab.most(t, "woken within a second, most", float64(mostWithin(woken, time.Second)), 2*rate)
	tab.most(t, "sent more than once", float64(len(s.gateway.Repeated())), 0)
}

// TestAcceptBatches runs the figures of batches in real time, as [TestAccept] does
// those of the main job.
func TestAcceptBatches(t *testing.T) {
	acceptParts(t, []acceptPart{
		{"batch: 100,000 messages to 10,000 phones at 1/2s, the provider at 2,000/s, a feeder killed", acceptBatch},
	})
}

func acceptBatch(t *testing.T, tab *table) {
	const jobs, phones, rate, window = 100_000, 10_000, 2_000, 8_000
	s := newPolicyTestbed(t, []string{
		"phone: {limit: 1/2s, key: $.to}",
		fmt.Sprintf("provider: {limit: %d/1s, key: =acme}", rate),
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
