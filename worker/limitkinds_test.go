package worker_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// spent is what a job took at an instant.
type spent struct {
	at   time.Duration // since the first job of all
	cost int
}

// bound says what is wrong with the jobs of one key, in the order of their
// instants; "" for nothing. It knows nothing of ledgers.
type bound func(jobs []spent) string

// anyWindow: at most n in every half-open window, however it is laid.
func anyWindow(n int, window time.Duration) bound {
	return func(jobs []spent) string {
		return faultAt(jobs, judge.Windows(permits(jobs), n, window), "more than %d permits in %v", n, window)
	}
}

// ownWindows: at most n in a window that begins with its first permit.
func ownWindows(n int, window time.Duration) bound {
	return func(jobs []spent) string {
		return faultAt(jobs, judge.FixedWindows(permits(jobs), n, window), "more than %d permits in its window of %v", n, window)
	}
}

// paid: whatever goes in a span was stored before, at most burst, or came in it,
// one permit each gap. Where jobs are paid for by the next, the last does not count.
func paid(burst int, gap time.Duration, byTheNext bool) bound {
	rate := judge.Rate{N: 1, Window: gap, Burst: burst, PaidBefore: byTheNext}
	return func(jobs []spent) string {
		var over []int
		for _, early := range rate.Breaches(permits(jobs)) {
			over = append(over, early.Index)
		}
		return faultAt(jobs, over, "more than %d permits and one each %v", burst, gap)
	}
}

// permits are jobs as they are judged.
func permits(jobs []spent) []judge.Spent {
	out := make([]judge.Spent, len(jobs))
	for i, j := range jobs {
		out[i] = judge.Spent{At: j.at.Microseconds(), Cost: j.cost}
	}
	return out
}

// faultAt tells the first of the jobs that broke a limit, if any did.
func faultAt(jobs []spent, over []int, format string, args ...any) string {
	if len(over) == 0 {
		return ""
	}
	return fmt.Sprintf("job %d, at %v: ", over[0], jobs[over[0]].at) + fmt.Sprintf(format, args...)
}

// every: all of several bounds.
func every(bounds ...bound) bound {
	return func(jobs []spent) string {
		for _, b := range bounds {
			if fault := b(jobs); fault != "" {
				return fault
			}
		}
		return ""
	}
}

// A backlog of one phone is worked off under each kind of limit: never over its
// bound, in order, with two admissions a job, and to the end.
func TestVirtualEachKind(t *testing.T) {
	t.Parallel()
	const n, per = 2, 4 * time.Second
	const T = per / n
	for _, tc := range []struct {
		limit  string
		jobs   int
		cost   int
		bound  bound
		within time.Duration // for all jobs
	}{
		{"2/4s", 8, 1, anyWindow(n, per), 3 * per},
		{"fixed 2/4s", 8, 1, every(ownWindows(n, per), anyWindow(2*n-1, per)), 3 * per},
		{"fixed 6/4s", 8, 3, ownWindows(6, per), 3 * per},
		{"bucket 2/4s burst 3", 8, 1, paid(3, T, false), 5 * T},
		{"bucket 2/4s burst 4 step", 10, 1, anyWindow(n+4-1, per), 3 * per},
		{"gcra 2/4s", 8, 1, every(anyWindow(n, per), paid(1, T, false)), 7 * T},
		{"gcra 2/4s burst 3", 4, 3, paid(3, T, false), 9 * T},
		{"leaky 2/4s", 8, 1, paid(0, T, true), 7 * T},
		{"leaky 2/4s", 4, 5, paid(0, T, true), 15 * T}, // no window holds 5: the next job pays
		{"smooth 2/4s burst 3", 8, 1, paid(3, T, true), 7 * T},
		{"smooth 2/4s burst 3", 4, 4, paid(3, T, true), 12 * T},
		{"warmup 2/4s over 8s cold 3", 8, 1, paid(0, T, true), 12 * T},
		{"calendar 2/minute", 5, 1, nil, 3 * time.Minute},
	} {
		t.Run(fmt.Sprintf("%s cost %d", tc.limit, tc.cost), func(t *testing.T) {
			t.Parallel()
			limit, err := throttle.ParseLimit(tc.limit)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				b := newKindBacklog(t, limit, tc.cost)
				b.work(tc.jobs, tc.within)
				if tc.bound == nil {
					b.checkMinutes(n)
				} else if fault := tc.bound(b.spent()); fault != "" {
					t.Error(fault)
				}
			})
		})
	}
}

// kindBacklog is jobs of one phone and one cost, and a pool.
type kindBacklog struct {
	*rig
	seen runs
	cost int
	pool *worker.Pool
}

func newKindBacklog(t *testing.T, limit throttle.Limit, cost int) *kindBacklog {
	clients, _ := mini(t, 1)
	b := &kindBacklog{rig: rigOn(t, nil, clients[0]), cost: cost}
	p := smsLimit(limit)
	p.Rules[0].Cost = func(*asynq.Task) (int, error) { return cost, nil }
	b.pool, _ = b.start(b.seen.handler(), policies(p))
	return b
}

// work enqueues n jobs, each when the one before has its place, and waits until
// all ran.
func (b *kindBacklog) work(n int, within time.Duration) {
	b.Helper()
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("s%02d", i))
		b.enqueue("sms", ids[i], to("+1"), asynq.MaxRetry(0))
		time.Sleep(100 * ms) // of the bubble
	}
	start := time.Now()
	for len(b.seen.all()) < n && time.Since(start) < within {
		time.Sleep(100 * ms)
	}
	time.Sleep(time.Second)
	runs := b.seen.all()
	slices.SortStableFunc(runs, func(x, y run) int { // of one instant, any may be first
		return cmp.Or(x.grant.At.Compare(y.grant.At), cmp.Compare(x.id, y.id))
	})
	var got []string
	for _, r := range runs {
		got = append(got, r.id)
	}
	if !slices.Equal(got, ids) {
		b.Fatalf("after %v there ran %v, want %v", time.Since(start), got, ids)
	}
	if per := float64(b.pool.Stats().Admissions) / float64(n); per > 2.05 {
		b.Errorf("%.2f admissions a job, want 2.05 at most", per)
	}
	for _, r := range runs {
		if late := r.at.Sub(r.grant.Start()); late < 0 || late > 10*ms {
			b.Errorf("%s began %v after its grant", r.id, late)
		}
	}
	b.wantQueue(n, 0, 0)
}

// spent is what the handlers saw.
func (b *kindBacklog) spent() []spent {
	var out []spent
	runs := b.seen.all()
	slices.SortStableFunc(runs, func(x, y run) int { return x.grant.At.Compare(y.grant.At) })
	for _, r := range runs {
		out = append(out, spent{r.grant.At.Sub(runs[0].grant.At), b.cost})
	}
	return out
}

// checkMinutes: at most n in each minute of the clock.
func (b *kindBacklog) checkMinutes(n int) {
	b.Helper()
	minutes := make(map[time.Time]int)
	for _, r := range b.seen.all() {
		minutes[r.grant.At.UTC().Truncate(time.Minute)] += b.cost
	}
	for minute, sum := range minutes {
		if sum > n {
			b.Errorf("%d permits in the minute of %v, want %d at most", sum, minute.Format(time.TimeOnly), n)
		}
	}
}

// A task that costs more than the limit in code holds runs when the one in force
// allows it; when none does it fails for good, with the limit's own error.
func TestCostIsHeldAgainstTheLimitInForce(t *testing.T) {
	t.Parallel()
	r, seen := newRig(t), &runs{}
	code := throttle.Sliding(3, time.Hour)
	r.set(throttle.Sliding(5, time.Hour))
	p := smsLimit(code)
	p.Rules[0].Cost = queue.MustJSONCost("$.n")
	pool, _ := r.start(seen.handler(), policies(p))
	r.enqueue("sms", "fits", `{"to":"+1","n":5}`, asynq.MaxRetry(5))
	r.enqueue("sms", "never", `{"to":"+2","n":6}`, asynq.MaxRetry(5))
	seen.ran(t, 1)
	r.eventually("archived", func() bool { return r.is("never", asynq.TaskStateArchived) })
	want := (&throttle.ExceedsLimitError{Rule: "sms", Cost: 6, Limit: throttle.Sliding(5, time.Hour)}).Error()
	if info := r.info("never"); info == nil || info.LastErr != want {
		t.Errorf("archived as %+v, want the error %q", info, want)
	}
	if seen.count("fits") != 1 || seen.count("never") != 0 || pool.Stats().Refused != 1 {
		t.Errorf("ran %v, stats %+v, want one run and one refusal", seen.ids(), pool.Stats())
	}
}

// The bounds find what they must, and nothing else.
func TestBoundsBite(t *testing.T) {
	t.Parallel()
	at := func(cost int, instants ...time.Duration) (out []spent) {
		for _, at := range instants {
			out = append(out, spent{at * ms, cost})
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		bound bound
		jobs  []spent
		fault bool
	}{
		{"any window", anyWindow(2, 100*ms), at(1, 0, 0, 100, 100), false},
		{"any window, early", anyWindow(2, 100*ms), at(1, 0, 50, 99), true},
		{"own windows, around an edge", ownWindows(2, 100*ms), at(1, 0, 99, 100, 199), false},
		{"own windows, early", ownWindows(2, 100*ms), at(1, 0, 10, 99), true},
		{"paid at once", paid(2, 100*ms, false), at(2, 0, 200), false},
		{"paid at once, early", paid(2, 100*ms, false), at(2, 0, 199), true},
		{"paid by the next", paid(0, 100*ms, true), at(2, 0, 200), false},
		{"paid by the next, early", paid(0, 100*ms, true), at(2, 0, 199), true},
		{"paid by the next, stored", paid(2, 100*ms, true), at(2, 0, 0, 200), false},
		{"several", every(paid(5, 100*ms, false), anyWindow(1, 100*ms)), at(1, 0, 0), true},
	} {
		if fault := tc.bound(tc.jobs); (fault != "") != tc.fault {
			t.Errorf("%s: %q, want a fault: %v", tc.name, fault, tc.fault)
		}
	}
}
