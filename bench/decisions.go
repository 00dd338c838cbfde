package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
)

// decisions measures the time of the script that decides, by kind of limit and by how many
// calls come together.
func decisions(ctx context.Context, b *bench) error {
	_, rdb, err := b.server()
	if err != nil {
		return err
	}
	r := &decisionRun{b: b, rdb: rdb, calls: 2_000, jobs: 4_000}
	if b.short {
		r.calls, r.jobs = 64, 1_000
	}
	for _, c := range decisionCases() {
		r.add(ctx, c)
	}
	for _, limit := range []string{roomyCap, narrowCap} {
		if err := r.throttled(ctx, limit); err != nil {
			return err
		}
	}
	if err := r.measure(); err != nil {
		return err
	}
	b.say("Time of acquire.lua for a decision (INFO commandstats), the median of %d batches of %s decisions. The five rules are those of the pool. "+
		"Of a throttled job: all scripts from its booking to its grant, with %s jobs in line at a phone's %v and a cap.",
		b.rounds, number(float64(r.calls)), number(float64(r.jobs)), perPhone)
	return nil
}

// decisionRun is the section while it runs.
type decisionRun struct {
	b           *bench
	rdb         *redis.Client
	calls, jobs int
	what        []string
	measures    []func() (float64, error)
	token       uint64
}

// decisionCase is calls of one kind.
type decisionCase struct {
	what   string
	merged int // calls of a script
	rules  func(i int) []limitscripts.RuleCall
	policy string
}

func decisionCases() (cases []decisionCase) {
	numbers := func(kind limitscripts.Kind, permits int, window time.Duration, burst int) limitscripts.Numbers {
		return limitscripts.Numbers{Kind: kind, Permits: permits, Window: window, Burst: burst}
	}
	one := func(n limitscripts.Numbers) func(key string) limitscripts.RuleCall {
		return func(key string) limitscripts.RuleCall {
			return limitscripts.RuleCall{LimitKeys: limitscripts.NewLimitKeys("hw", "sms", key), Numbers: n, Cost: 1}
		}
	}
	fresh := func(n limitscripts.Numbers) func(int) []limitscripts.RuleCall {
		return func(i int) []limitscripts.RuleCall { return []limitscripts.RuleCall{one(n)(phone(int64(i)))} }
	}
	hot := func(n limitscripts.Numbers) func(int) []limitscripts.RuleCall {
		rule := one(n)("hot")
		return func(int) []limitscripts.RuleCall { return []limitscripts.RuleCall{rule} }
	}
	first := numbers(limitscripts.Sliding, 1, time.Minute, 0)
	wide := numbers(limitscripts.Sliding, never.permits, never.window, 0)
	gcra := numbers(limitscripts.GCRA, 1_000_000, time.Second, 1_000_000)
	for _, merged := range []int{1, 32} {
		cases = append(cases,
			decisionCase{what: "sliding 1/60s, fresh keys", merged: merged, rules: fresh(first)},
			decisionCase{what: "sliding, hot key", merged: merged, rules: hot(wide)},
			decisionCase{what: "gcra, hot key", merged: merged, rules: hot(gcra)},
			decisionCase{what: "two rules, fresh and hot key", merged: merged, policy: "two", rules: func(i int) []limitscripts.RuleCall {
				return append(fresh(first)(i), hot(wide)(i)...)
			}},
			decisionCase{what: "five rules that never bind", merged: merged, policy: "five", rules: fiveRules},
		)
	}
	return cases
}

// fiveRules are the rules of easyRules, as a call of task i asks for them.
func fiveRules(i int) []limitscripts.RuleCall {
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	rule := func(name, key string, n limitscripts.Numbers) limitscripts.RuleCall {
		return limitscripts.RuleCall{LimitKeys: limitscripts.NewLimitKeys("hw", name, key), Numbers: n, Cost: 1}
	}
	day := limitscripts.Numbers{Kind: limitscripts.Calendar, Permits: 1_000_000, Window: 24 * time.Hour, Short: 24 * time.Hour}
	for k := range 3 {
		day.Bounds = append(day.Bounds, midnight.AddDate(0, 0, k))
	}
	return []limitscripts.RuleCall{
		rule("to", phoneNumber(i%poolPhones), limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1_000, Window: time.Second}),
		rule("tenant", fmt.Sprint("t", i%10), limitscripts.Numbers{Kind: limitscripts.GCRA, Permits: 100_000, Window: time.Second, Burst: 100_000}),
		rule("provider", fmt.Sprint("p", i%3), limitscripts.Numbers{Kind: limitscripts.GCRA, Permits: 100_000, Window: time.Second, Burst: 100_000}),
		rule("country", "+86", limitscripts.Numbers{Kind: limitscripts.Fixed, Permits: 1_000_000, Window: time.Minute}),
		rule("all", "all", day),
	}
}

// add adds a case to those that are measured in turns.
func (r *decisionRun) add(ctx context.Context, c decisionCase) {
	how := "alone"
	if c.merged > 1 {
		how = fmt.Sprintf("each of %d merged", c.merged)
	}
	r.what = append(r.what, c.what+", "+how)
	r.measures = append(r.measures, func() (float64, error) {
		if err := r.rdb.FlushAll(ctx).Err(); err != nil {
			return 0, err
		}
		if _, err := r.ask(ctx, c, 0, 2*c.merged); err != nil { // loads the library
			return 0, err
		}
		w, err := workOf(ctx, r.rdb, func() error {
			granted, err := r.ask(ctx, c, 2*c.merged, r.calls)
			if err == nil && granted < r.calls {
				err = fmt.Errorf("%s: %d of %d calls were granted", c.what, granted, r.calls)
			}
			return err
		})
		return w.scripts / float64(r.calls), err
	})
}

// ask makes calls, and says how many were granted.
func (r *decisionRun) ask(ctx context.Context, c decisionCase, from, many int) (granted int, err error) {
	var templates limitscripts.CallTemplates
	for i := from; i < from+many; {
		calls := make([]*limitscripts.Call, 0, c.merged)
		for len(calls) < c.merged && i < from+many {
			r.token++
			calls = append(calls, &limitscripts.Call{AcquireArgs: limitscripts.AcquireArgs{
				Rules: c.rules(i), Policy: c.policy, Token: r.token, Job: fmt.Sprint("job-", i),
				Mode: limitscripts.GrantOrBook, Inline: 15 * time.Millisecond, MaxWait: -1, Templates: &templates,
			}})
			i++
		}
		if err := limitscripts.AcquireMany(ctx, r.rdb, calls); err != nil {
			return 0, err
		}
		for _, call := range calls {
			if call.Err != nil {
				return 0, call.Err
			}
			if call.Status == limitscripts.Granted {
				granted++
			}
		}
	}
	return granted, nil
}

// throttled adds a job's way from its booking to its grant under a cap.
func (r *decisionRun) throttled(ctx context.Context, limit string) error {
	_, rdb, err := r.b.server()
	if err != nil {
		return err
	}
	c, _, err := assembled(ctx, rdb, r.jobs, limit)
	if err != nil {
		return err
	}
	r.what = append(r.what, "a throttled job, cap "+limit)
	r.measures = append(r.measures, func() (float64, error) {
		w, err := c.measure(ctx)
		return w.scripts / passSize, err
	})
	return nil
}

func (r *decisionRun) measure() error {
	figures, err := r.b.interleave(r.measures...)
	if err != nil {
		return err
	}
	for i, what := range r.what {
		r.b.row(alone(what, "µs", lower, figures[i]))
	}
	return nil
}
