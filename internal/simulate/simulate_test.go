package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/fake"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// start is a Monday.
var start = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

func policies(t testing.TB, rules string) []queue.Policy {
	t.Helper()
	all, err := queue.ReadPolicies("test", strings.NewReader(rules))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// one is a policy file with one policy.
func one(typ string, rules ...string) string {
	var names []string
	for _, r := range rules {
		name, _, _ := strings.Cut(r, ":")
		names = append(names, name)
	}
	return fmt.Sprintf("rules:\n  %s\npolicies:\n  %s: {rules: [%s]}\n", strings.Join(rules, "\n  "), typ, strings.Join(names, ", "))
}

// to is a job for a phone so long after the start.
func to(phone string, after time.Duration) Job {
	return Job{At: start.Add(after), Type: "sms", Payload: fmt.Appendf(nil, `{"to":%q,"n":2}`, phone)}
}

// many are jobs for one phone that arrive at the start.
func many(n int, phone string) (jobs []Job) {
	for range n {
		jobs = append(jobs, to(phone, 0))
	}
	return jobs
}

// Jobs start when a calculation by hand says, and wait for the rule that it names.
func TestStartsAreThoseOfTheFormulas(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rules string
		jobs  []Job
		takes time.Duration
		start func(n int) time.Duration // of the n-th job, from 0
		rule  func(n int) string
	}{
		"one a minute for each phone: the n-th starts at n minutes": {
			rules: one("sms", `phone: {limit: 1/60s, key: $.to}`),
			jobs:  append(many(50, "a"), many(50, "b")...),
			start: func(n int) time.Duration { return time.Duration(n%50) * time.Minute },
			rule:  func(n int) string { return map[bool]string{true: "", false: "phone"}[n%50 == 0] },
		},
		"the order of the file is not that of the arrivals": {
			rules: one("sms", `phone: {limit: 1/60s, key: $.to}`),
			jobs:  []Job{to("a", 20*time.Second), to("a", 0), to("a", 10*time.Second)},
			start: func(n int) time.Duration { return []time.Duration{2 * time.Minute, 0, time.Minute}[n] },
			rule:  func(n int) string { return []string{"phone", "", "phone"}[n] },
		},
		"gcra lets its burst go at once, and then one every 10 ms": {
			rules: one("sms", `provider: {limit: gcra 100/1s burst 20, key: =acme}`),
			jobs:  many(220, "a"),
			start: func(n int) time.Duration { return time.Duration(max(0, n-19)) * 10 * time.Millisecond },
			rule:  func(n int) string { return map[bool]string{true: "", false: "provider"}[n < 20] },
		},
		"a cost counts": {
			rules: one("sms", `phone: {limit: 4/60s, key: $.to, cost: $.n}`),
			jobs:  many(20, "a"),
			start: func(n int) time.Duration { return time.Duration(n/2) * time.Minute },
			rule:  func(n int) string { return map[bool]string{true: "", false: "phone"}[n < 2] },
		},
		"a gate opens at nine": {
			rules: one("sms", `hours: {gate: "09:00-10:00 UTC"}`, `phone: {limit: 1/20m, key: $.to}`),
			jobs:  many(5, "a"),
			start: func(n int) time.Duration { // at 9:00, 9:20, 9:40, and on the next day
				return []time.Duration{1 * time.Hour, 80 * time.Minute, 100 * time.Minute, 25 * time.Hour, 25*time.Hour + 20*time.Minute}[n]
			},
			rule: func(n int) string { return []string{"hours", "phone", "phone", "hours", "phone"}[n] },
		},
		"jobs that come while a gate is open wait for the gate, and then for the limit": {
			rules: one("sms", `hours: {gate: "08:00-21:00 Europe/Berlin"}`, `phone: {limit: sliding 1/1h, key: $.to}`),
			jobs:  slices.Repeat([]Job{to("a", 630*time.Minute)}, 9), // at 18:30 UTC, and it closes at 20:00
			start: func(n int) time.Duration { // the next day at 7:00, 8:00 and so on
				return append([]time.Duration{630 * time.Minute, 690 * time.Minute}, hours(23, 30)...)[n]
			},
			rule: func(n int) string {
				return append([]string{"", "phone", "hours"}, slices.Repeat([]string{"phone"}, 6)...)[n]
			},
		},
		"a calendar day ends at midnight": {
			rules: one("sms", `day: {limit: calendar 3/day UTC, key: $.to}`),
			jobs:  many(7, "a"),
			start: func(n int) time.Duration { return []time.Duration{0, 16 * time.Hour, 40 * time.Hour}[n/3] },
			rule:  func(n int) string { return map[bool]string{true: "", false: "day"}[n < 3] },
		},
		"the narrower of two rules binds": {
			rules: one("sms", `phone: {limit: 1/60s, key: $.to}`, `provider: {limit: 10/1s, key: =acme}`),
			jobs:  many(30, "a"),
			start: func(n int) time.Duration { return time.Duration(n) * time.Minute },
			rule:  func(n int) string { return map[bool]string{true: "", false: "phone"}[n == 0] },
		},
		"the wider of two rules binds": {
			rules: one("sms", `phone: {limit: 10/1s, key: $.to}`, `provider: {limit: 1/60s, key: =acme}`),
			jobs:  []Job{to("a", 0), to("b", 0), to("c", 0), to("d", 0)},
			start: func(n int) time.Duration { return time.Duration(n) * time.Minute },
			rule:  func(n int) string { return map[bool]string{true: "", false: "provider"}[n == 0] },
		},
		"two run at once, and each takes a second": {
			rules: one("sms", `slots: {limit: concurrent 2 lease 30s, key: =acme}`),
			jobs:  many(200, "a"), takes: time.Second,
			start: func(n int) time.Duration { return time.Duration(n/2) * time.Second },
			rule:  func(n int) string { return map[bool]string{true: "", false: "slots"}[n < 2] },
		},
		"a lease that is shorter than the job is renewed": {
			rules: one("sms", `slots: {limit: concurrent 1 lease 3s, key: =acme}`),
			jobs:  many(20, "a"), takes: 10 * time.Second,
			start: func(n int) time.Duration { return time.Duration(n) * 10 * time.Second },
			rule:  func(n int) string { return map[bool]string{true: "", false: "slots"}[n == 0] },
		},
		"a job waits for one that runs for a day": {
			rules: one("sms", `slots: {limit: concurrent 2 lease 5s, key: =acme}`),
			jobs:  many(3, "a"), takes: 24 * time.Hour,
			start: func(n int) time.Duration { return time.Duration(n/2) * 24 * time.Hour },
			rule:  func(n int) string { return map[bool]string{true: "", false: "slots"}[n < 2] },
		},
		"a job runs longer than the longest lease": {
			rules: one("sms", `slots: {limit: concurrent 2 lease 5s, key: =acme}`),
			jobs:  many(30, "a"), takes: 100 * 24 * time.Hour,
			start: func(n int) time.Duration { return time.Duration(n/2) * 100 * 24 * time.Hour },
			rule:  func(n int) string { return map[bool]string{true: "", false: "slots"}[n < 2] },
		},
		"a type without a policy waits for nothing": {
			rules: one("mail", `phone: {limit: 1/60s, key: $.to}`),
			jobs:  many(3, "a"),
			start: func(int) time.Duration { return 0 },
			rule:  func(int) string { return "" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := Run(t.Context(), policies(t, tt.rules), tt.jobs, tt.takes)
			if err != nil {
				t.Fatal(err)
			}
			for n, o := range out {
				if got := o.Start.Sub(start); o.Err != nil || got != tt.start(n) || o.Rule != tt.rule(n) {
					t.Errorf("job %d starts at %v by %q, %v; want %v by %q", n, got, o.Rule, o.Err, tt.start(n), tt.rule(n))
				}
			}
		})
	}
}

// hours are the hours from one to another after the start.
func hours(from, to int) (all []time.Duration) {
	for h := from; h < to; h++ {
		all = append(all, time.Duration(h)*time.Hour)
	}
	return all
}

// A job that waits for a slot asks a few times, however long the jobs run before it.
func TestAsksLittle(t *testing.T) {
	t.Parallel()
	const n = 1000
	var now time.Time
	asks := 0
	rdb := &fake.Client{Source: fake.Source{
		Now: func() time.Time { return now }, Fault: func() error { return nil }, Join: func(func()) {}, Decided: func(any, error) { asks++ },
	}}
	set := func(at time.Time) error {
		now = at
		return nil
	}
	all := policies(t, one("sms", `slots: {limit: concurrent 2 lease 30s, key: =acme}`))
	out, err := runOn(t.Context(), rdb, set, all, many(n, "a"), 6*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range out {
		if want := time.Duration(i/2) * 6 * time.Hour; o.Err != nil || o.Start.Sub(start) != want {
			t.Errorf("job %d starts at %v, %v; want %v", i, o.Start.Sub(start), o.Err, want)
		}
	}
	if asks > 5*n {
		t.Errorf("%d jobs ask %d times, want at most 5 times each", n, asks)
	}
}

// Jobs that can never run say why, and hold up nobody.
func TestNeverRuns(t *testing.T) {
	t.Parallel()
	all := policies(t, one("sms", `phone: {limit: 1/60s, key: $.to, cost: $.cost}`))
	job := func(payload string) Job { return Job{At: start, Type: "sms", Payload: []byte(payload)} }
	out, err := Run(t.Context(), all, []Job{job(`{"to":"a","cost":2}`), job(`{"cost":1}`), job(`{"to":"a","cost":1}`)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(out[0].Err, throttle.ErrExceedsLimit) || !errors.Is(out[1].Err, queue.ErrNoKey) {
		t.Errorf("they never run because of %v and %v, want a cost and a key", out[0].Err, out[1].Err)
	}
	if out[2].Err != nil || !out[2].Start.Equal(start) {
		t.Errorf("the good job starts at %v, %v; want at once", out[2].Start, out[2].Err)
	}
	years := policies(t, one("sms", `phone: {limit: 1/365d, key: $.to}`))
	out, err = Run(t.Context(), years, many(12, "a"), 0)
	if err != nil || out[10].Err != nil || !errors.Is(out[11].Err, ErrBeyondHorizon) {
		t.Errorf("after ten years: %v, %v, %v; want that only the last never runs", err, out[10].Err, out[11].Err)
	}
}

const crowdRules = `
rules:
  phone: {limit: 2/60s, key: $.to, cost: $.n}
  pace: {limit: gcra 10/1s burst 3, key: $.to}
  tenant: {limit: bucket 20/10s burst 30, key: $.tenant}
  provider: {limit: 5/1s, key: =acme}
policies:
  sms: {rules: [phone, pace, tenant, provider]}
  mail: {rules: [tenant, provider]}
`

// alike are jobs of phones and tenants whose names are the same text, drawn by a seed.
func alike(n int, seed uint64) (jobs []Job) {
	r := rand.New(rand.NewPCG(seed, 3)) // #nosec G404: the same jobs each time
	for range n {
		payload := fmt.Appendf(nil, `{"to":"%d","tenant":"%d"}`, r.IntN(3), r.IntN(3))
		jobs = append(jobs, Job{At: start.Add(time.Duration(r.IntN(1_000_000)) * time.Microsecond), Type: "sms", Payload: payload})
	}
	return jobs
}

// Keys of two rules that are the same text by chance, as user 42 and tenant 42, let no jobs
// wait for each other in a circle: each job runs, and no later than all would one by one.
func TestKeysOfOneTextByChance(t *testing.T) {
	t.Parallel()
	all := policies(t, one("sms", "phone: {limit: 1/60s, key: $.to}", "tenant: {limit: 1/10s, key: $.tenant}"))
	const n = 30
	for seed := range uint64(20) {
		out, err := Run(t.Context(), all, alike(n, seed), 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if o.Err != nil || o.Start.Sub(start) > n*time.Minute {
				t.Errorf("seed %d: job %d starts at %v, %v", seed, i, o.Start, o.Err)
			}
		}
	}
}

// crowd are jobs that arrive within some minutes, drawn by a seed.
func crowd(n int) (jobs []Job) {
	r := rand.New(rand.NewPCG(1, 2)) // #nosec G404: the same jobs each time
	for i := range n {
		jobs = append(jobs, Job{
			At:      start.Add(time.Duration(r.IntN(120_000_000)) * time.Microsecond),
			Type:    []string{"sms", "sms", "mail"}[i%3],
			Payload: fmt.Appendf(nil, `{"to":"phone %d","tenant":"tenant %d","n":%d}`, r.IntN(20), r.IntN(3), 1+r.IntN(2)),
		})
	}
	return jobs
}

// server is a real redis-server whose clock the test moves.
func server(t *testing.T) redistest.Timed {
	t.Helper()
	rdb := redistest.NewTimedForLong(redistest.Start(t).Client(t), start)
	return rdb
}

// A simulation in memory has the same result as one in which a redis-server decides.
func TestSameAsOnRedis(t *testing.T) {
	t.Parallel()
	n := 600
	if testing.Short() {
		n = 150
	}
	sameAsOnRedis(t, policies(t, crowdRules), crowd(n))
	sameAsOnRedis(t, policies(t, one("sms", "phone: {limit: 1/60s, key: $.to}", "tenant: {limit: 1/10s, key: $.tenant}")), alike(n/5, 1))
}

func sameAsOnRedis(t *testing.T, all []queue.Policy, jobs []Job) {
	t.Helper()
	n := len(jobs)
	want, err := Run(t.Context(), all, jobs, 0)
	if err != nil {
		t.Fatal(err)
	}
	rdb := server(t)
	got, err := runOn(t.Context(), rdb, func(now time.Time) error { rdb.SetTime(now); return nil }, all, jobs, 0)
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	for i := range jobs {
		if got[i].Err != nil || want[i].Err != nil || !got[i].Start.Equal(want[i].Start) || got[i].Rule != want[i].Rule {
			t.Errorf("job %d: on Redis it starts at %v by %q (%v), in memory at %v by %q (%v)",
				i, got[i].Start, got[i].Rule, got[i].Err, want[i].Start, want[i].Rule, want[i].Err)
		}
		if want[i].Start.After(jobs[i].At.Add(time.Second)) {
			late++
		}
	}
	if late < n/4 {
		t.Errorf("%d of %d jobs wait longer than a second: that shows little", late, n)
	}
}

// What BookMany of a redis-server books for the same arrivals are the instants at which the
// simulated jobs start: under rules of one key a booking is exact from the beginning.
func TestStartsAreThoseThatBookManyBooks(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"1/60s", "3/20m", "gcra 1/30s burst 2", "bucket 10/5m", "fixed 4/10m", "calendar 5/hour UTC", "leaky 6/10m", "smooth 6/10m"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			all := policies(t, one("sms", "short: {limit: "+limit+", key: $.to}", `long: {limit: 20/3h, key: $.to}`))
			var jobs []Job
			for i := range 90 { // three arrive together, for five phones, and nothing that is booked comes due meanwhile
				jobs = append(jobs, to(fmt.Sprint(i%5), time.Duration(i/3)*10*time.Millisecond))
			}
			out, err := Run(t.Context(), all, jobs, 0)
			if err != nil {
				t.Fatal(err)
			}
			for i, at := range booked(t, server(t), all[0], jobs) {
				if !at.Equal(out[i].Start) {
					t.Errorf("job %d is booked for %v, and simulated to start at %v", i, at, out[i].Start)
				}
			}
		})
	}
}

// booked are the instants that BookMany returns for jobs that arrive three at a time.
func booked(t *testing.T, rdb redistest.Timed, p queue.Policy, jobs []Job) (at []time.Time) {
	t.Helper()
	decide := compile(t, rdb, p)
	for arriving := range slices.Chunk(jobs, 3) {
		rdb.SetTime(arriving[0].At)
		var requests []throttle.BookRequest
		for _, job := range arriving {
			demand, err := p.Demand(asynq.NewTask(job.Type, job.Payload))
			if err != nil {
				t.Fatal(err)
			}
			requests = append(requests, throttle.BookRequest{Policy: decide, Request: demand.Request(fmt.Sprintf("job %d", len(at)+len(requests)))})
		}
		for i, b := range throttle.ForWorkers.BookMany(t.Context(), rdb, requests) {
			if b.Err != nil {
				t.Fatal(b.Err)
			}
			if at = append(at, b.At); b.At.Equal(arriving[0].At) { // it runs at once
				if d, err := decide.Redeem(t.Context(), requests[i].Request); err != nil || !d.Granted {
					t.Fatalf("a job that was booked for now: %v, %v", d, err)
				}
			}
		}
	}
	return at
}

func compile(t *testing.T, rdb redis.UniversalClient, p queue.Policy) *throttle.Policy {
	t.Helper()
	var rules []policyset.Rule
	for _, r := range p.Rules {
		rules = append(rules, policyset.Rule{Name: r.Name, Limit: r.Limit})
	}
	decide, err := policyset.New(rdb, throttle.Config{}).Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return decide
}

// Nobody waits for a simulation that is interrupted.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if _, err := Run(ctx, policies(t, crowdRules), crowd(10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was interrupted", err)
	}
}
