package memory_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestTwinTicketsOfALineThatIsNeverEmpty: tickets count up while a line is never empty. They must stay below 2^51, where promises
// begin. The traces begin near that bound, and near the ticket from which on tickets count up slower.
func TestTwinTicketsOfALineThatIsNeverEmpty(t *testing.T) {
	t.Parallel()
	const permits, ofAJob = 1 << 20, 1 << 32 // a job that takes all permits had so many tickets
	for name, begins := range map[string]int64{"slower": 1<<50 - 20*ofAJob, "bound": 1<<51 - 20*ofAJob} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, store, at := onMini(t)
			keys := limitscripts.NewLimitKeys("hw", "rule", "id")
			rules := func(cost int) []limitscripts.RuleCall {
				return []limitscripts.RuleCall{{
					LimitKeys: keys, Numbers: limitscripts.Numbers{Kind: limitscripts.GCRA, Permits: permits, Window: time.Second, Burst: permits}, Cost: cost,
				}}
			}
			type waiting struct {
				job   string
				cost  int
				until time.Time
			}
			var line []waiting
			now, token, random := start, uint64(0), rand.New(rand.NewPCG(1, 1))
			ask := func(job string, cost int) limitscripts.AcquireReply {
				t.Helper()
				token++
				a := limitscripts.AcquireArgs{Rules: rules(cost), Token: token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1}
				got, err := limitscripts.Acquire(t.Context(), rdb, a)
				if diff := cmp.Diff(store.Acquire(a), got); err != nil || diff != "" {
					t.Fatalf("%s at %v: %v; the script (+) and the store (-) differ:\n%s", job, now.Sub(start), err, diff)
				}
				return got
			}
			join := func(i int) {
				w := waiting{job: fmt.Sprint(i), cost: permits}
				if random.IntN(4) == 0 {
					w.cost = 1 + random.IntN(permits)
				}
				r := ask(w.job, w.cost)
				if len(line) > 0 && r.At.Before(line[len(line)-1].until) {
					t.Fatalf("job %d is told %v, before the job ahead of it: %v", i, r.At, line[len(line)-1].until)
				}
				w.until = r.At
				line = append(line, w)
			}
			// run lets the first of the line go at its instant, which may have moved when another came late
			run := func(w waiting) {
				t.Helper()
				for range 3 {
					if w.until.After(now) {
						now = w.until
					}
					at(now.Sub(start))
					r := ask(w.job, w.cost)
					if r.Status == limitscripts.Granted {
						return
					}
					w.until = r.At
				}
				t.Fatalf("job %s gets no grant at its instant", w.job)
			}
			if r := ask("first", permits); r.Status != limitscripts.Granted {
				t.Fatalf("%+v, want a grant", r)
			}
			join(0)
			store.ShiftTickets(keys, begins)
			all, err := rdb.ZRangeWithScores(t.Context(), keys.Ledger()+":line", 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, z := range all {
				if m, _ := z.Member.(string); strings.Contains(m, ":") && !strings.HasPrefix(m, "@") { // a ticket, and no promise
					if err := rdb.ZIncrBy(t.Context(), keys.Ledger()+":line", float64(begins), m).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range 40 { // more than are looked at one by one
				join(1 + i)
			}
			for i := range 60 {
				first := line[0]
				line = line[1:]
				run(first)
				if i%10 == 9 { // it comes back, and goes first again
					back := limitscripts.CancelArgs{Rules: rules(first.cost), Token: token, Job: first.job, Back: true}
					got, err := limitscripts.Cancel(t.Context(), rdb, back)
					if diff := cmp.Diff(store.Cancel(back), got); err != nil || diff != "" {
						t.Fatalf("cancel: %v; the script (+) and the store (-) differ:\n%s", err, diff)
					}
					run(first)
				}
				join(41 + i)
			}
			for _, w := range line {
				run(w)
			}
		})
	}
}
