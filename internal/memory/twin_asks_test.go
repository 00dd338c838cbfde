package memory_test

import (
	gocmp "cmp"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/limitscripts"
)

// acquire asks one or more at once, each as the one before it with another job, or
// as it comes.
func (w *twin) acquire() {
	var calls []*limitscripts.Call
	var of []int // the policy of each
	for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 5, 9}).Draw(w.T, "at once") {
		if len(calls) > 0 && rapid.IntRange(0, 3).Draw(w.T, "another template") > 0 {
			a, policy := calls[len(calls)-1].AcquireArgs, of[len(of)-1]
			w.tokens++
			a.Token = w.tokens
			if a.Job != "" {
				a.Job = w.job(policy)
			}
			calls, of = append(calls, &limitscripts.Call{AcquireArgs: a}), append(of, policy)
			continue
		}
		a, policy := w.acquireArgs()
		calls, of = append(calls, &limitscripts.Call{AcquireArgs: a}), append(of, policy)
	}
	w.fail(limitscripts.AcquireMany(w.ctx, w.rdb, calls))
	for i, got := range calls {
		a := got.AcquireArgs
		w.fail(got.Err)
		w.same(fmt.Sprintf("acquire, %d of %d: %+v", i+1, len(calls), a), got.AcquireReply, w.store.Acquire(a))
		if got.Status == limitscripts.Granted {
			h := &held{token: a.Token, job: a.Job, policy: of[i], worth: got.Worth, at: got.At}
			for _, p := range a.Rules {
				h.costs = append(h.costs, p.Cost)
			}
			h.paid = slices.Clone(h.costs)
			if w.logs() {
				w.held = slices.DeleteFunc(w.held, func(h *held) bool { return h.token == a.Token }) // one that was lost with the ledger
			}
			w.held = append(w.held, h)
		}
	}
}

// anew lets a grant that came too late count from now on, or one that is withdrawn or not known.
func (w *twin) anew() {
	grants := append(w.justHeld(), w.justLost()...)
	if len(grants) == 0 {
		return
	}
	h := rapid.SampledFrom(grants).Draw(w.T, "held")
	a := limitscripts.AcquireArgs{
		Rules: w.grantable(w.ruleCallsOf(h)), Policy: w.name(h.policy), Gate: w.gate(), Token: h.token, Job: h.job, Mode: limitscripts.Anew, MaxWait: -1,
		Inline: rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond}).Draw(w.T, "inline"),
	}
	for i := range a.Rules {
		a.Rules[i].At, a.Rules[i].Until = time.Time{}, time.Time{} // it is known by its token alone
	}
	got, err := limitscripts.Acquire(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("anew %+v", a), got, w.store.Acquire(a))
	if got.Status == limitscripts.Granted {
		h.at, h.worth = got.At, got.Worth
	}
}

func (w *twin) acquireArgs() (limitscripts.AcquireArgs, int) {
	policy, name := w.drawPolicy()
	a := limitscripts.AcquireArgs{
		Rules: w.ruleCalls(policy), Policy: name, Gate: w.gate(), MaxWait: -1, WantLeft: rapid.IntRange(0, 2).Draw(w.T, "want left") == 0,
		Templates: &w.templates, Later: rapid.IntRange(0, 2).Draw(w.T, "later hash slot") == 0,
		Mode:   rapid.SampledFrom([]limitscripts.Mode{limitscripts.Try, limitscripts.GrantOrBook, limitscripts.GrantOrBook, limitscripts.GrantOrBook, limitscripts.Book, limitscripts.BookLastRule}).Draw(w.T, "mode"),
		Inline: rapid.SampledFrom([]time.Duration{0, 50 * time.Millisecond}).Draw(w.T, "inline"),
	}
	if a.Mode != limitscripts.Try {
		a.Job = w.job(policy)
		if w.calm {
			a.Mode, a.MaxWait = limitscripts.GrantOrBook, rapid.SampledFrom([]time.Duration{0, a.Inline}).Draw(w.T, "wait")
		} else if rapid.IntRange(0, 5).Draw(w.T, "max") == 0 {
			a.MaxWait = rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute}).Draw(w.T, "wait")
		}
	}
	w.tokens++
	a.Token = w.tokens
	if lost := w.justLost(); len(lost) > 0 && rapid.IntRange(0, 9).Draw(w.T, "too late") == 0 { // it comes behind its withdrawal
		h := rapid.SampledFrom(lost).Draw(w.T, "withdrawn")
		policy = h.policy
		a.Token, a.Rules, a.Policy = h.token, w.grantable(w.ruleCallsOf(h)), w.name(policy)
		if a.Mode != limitscripts.Try {
			a.Job = w.job(policy)
		}
		return a, policy
	}
	if held := w.justHeld(); len(held) > 0 && rapid.IntRange(0, 5).Draw(w.T, "again") == 0 { // the same call delivered twice
		h := rapid.SampledFrom(held).Draw(w.T, "held")
		policy = h.policy
		a.Token, a.Rules, a.Policy = h.token, w.grantable(w.ruleCallsOf(h)), w.name(policy)
		if a.Mode != limitscripts.Try {
			a.Job = gocmp.Or(h.job, w.job(policy))
		}
	}
	return a, policy
}

// grantable are rules with costs that their limits, which may have changed, can ever grant.
func (w *twin) grantable(rules []limitscripts.RuleCall) []limitscripts.RuleCall {
	for i := range rules {
		rules[i].Cost = min(rules[i].Cost, most(rules[i].Numbers))
	}
	return rules
}

// sureGrants are the grants of which it is sure whether they are known: a token that was due to be
// cleared before the clock went back may or may not be there.
func (w *twin) sureGrants() []*held {
	return slices.DeleteFunc(slices.Clone(w.held), func(h *held) bool {
		forgotten := h.at.Add(time.Minute)
		return w.now.Before(forgotten) && !w.latest.Before(forgotten)
	})
}

// justLost are the tokens that were withdrawn, but for those that hold a grant again which may
// be forgotten by now.
func (w *twin) justLost() []*held {
	return slices.DeleteFunc(slices.Clone(w.lost), func(l *held) bool {
		return slices.ContainsFunc(w.held, func(h *held) bool { return h.token == l.token && !h.at.After(w.latest.Add(-time.Minute)) })
	})
}

// justHeld are the grants of which a copy of the call may still arrive: it does so within a
// minute. Longer than that a token is known until it is cleared away, and how many are cleared
// at a time is not the same.
func (w *twin) justHeld() []*held {
	var out []*held
	for _, h := range w.held {
		if h.at.After(w.latest.Add(-time.Minute)) {
			out = append(out, h)
		}
	}
	return out
}

func (w *twin) cancel() {
	var a limitscripts.CancelArgs
	if grants := w.sureGrants(); len(grants) > 0 && rapid.IntRange(0, 2).Draw(w.T, "a grant") > 0 {
		h := rapid.SampledFrom(grants).Draw(w.T, "held")
		a.Token, a.Rules, a.Policy, a.Job = h.token, w.ruleCallsOf(h), w.name(h.policy), h.job
		switch back := rapid.IntRange(-1, 3).Draw(w.T, "back"); {
		case w.calm || h.job == "":
		case back == 0 && a.Policy != "" && !slices.ContainsFunc(a.Rules, func(r limitscripts.RuleCall) bool { return r.Kind == limitscripts.Leases }):
			a.Away = w.now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, 30 * time.Second}).Draw(w.T, "until"))
		case back == 1:
			a.Park = true
		case back > 1:
			a.Back = true
		}
	} else {
		policy, name := w.drawPolicy()
		a.Rules, a.Policy, a.Job = w.ruleCalls(policy), name, w.job(policy)
		a.Park = !w.calm && rapid.IntRange(0, 3).Draw(w.T, "park") == 0
		if !a.Park && rapid.IntRange(0, 2).Draw(w.T, "under way") == 0 {
			w.tokens++
			a.Token = w.tokens
			h := &held{token: a.Token, job: a.Job, policy: policy, worth: make([]int64, len(a.Rules)), at: w.now}
			for _, p := range a.Rules {
				h.costs = append(h.costs, p.Cost)
			}
			w.lost = append(w.lost, h)
		}
	}
	got, err := limitscripts.Cancel(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("cancel %+v", a), got, w.store.Cancel(a))
}

// adjust corrects what a grant has paid, also above the limit, or does so again.
func (w *twin) adjust() {
	grants := w.sureGrants()
	if len(grants) == 0 {
		return
	}
	var b adjustment
	if len(w.adjusted) > 0 && rapid.IntRange(0, 3).Draw(w.T, "the same adjustment") == 0 {
		if b = rapid.SampledFrom(w.adjusted).Draw(w.T, "adjustment"); !slices.Contains(grants, b.of) {
			return
		}
	} else {
		w.tokens++
		b = adjustment{of: rapid.SampledFrom(grants).Draw(w.T, "held"), token: w.tokens, at: w.now}
		for _, paid := range b.of.paid {
			b.costs = append(b.costs, rapid.IntRange(-paid, 9).Draw(w.T, "difference"))
		}
		w.adjusted = append(w.adjusted, b)
	}
	a := limitscripts.AdjustArgs{Rules: w.ruleCallsOf(b.of), Policy: w.name(b.of.policy), Token: b.of.token, Charge: b.token}
	if a.Rules[0].Kind == limitscripts.Leases {
		return // nothing of it is paid
	}
	for i := range a.Rules {
		a.Rules[i].Cost = b.costs[i]
	}
	got, err := limitscripts.Adjust(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("adjust %+v", a), got, w.store.Adjust(a))
	if got.Status == limitscripts.Granted {
		for i, cost := range b.costs {
			b.of.paid[i] = max(0, b.of.paid[i]+cost)
		}
	}
}

func (w *twin) check() {
	policy, name := w.drawPolicy()
	a := limitscripts.RefreshArgs{Rules: w.ruleCalls(policy), Policy: name, Job: w.job(policy)}
	w.same(fmt.Sprintf("check %+v", a), limitscripts.Refresh(w.ctx, w.rdb, []limitscripts.RefreshArgs{a})[0], w.store.Refresh(a))
}

func (w *twin) close() {
	policy, name := w.drawPolicy()
	rules := w.ruleCalls(policy)
	rules = rules[:rapid.IntRange(1, len(rules)).Draw(w.T, "as far as")]
	a := limitscripts.CloseArgs{
		Rules: rules, Rule: rapid.IntRange(1, len(rules)).Draw(w.T, "rule"), Policy: name,
		For: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second, 10 * time.Second}).Draw(w.T, "for"),
	}
	if rapid.Bool().Draw(w.T, "goes first") {
		a.Job = w.job(policy)
	}
	got, err := limitscripts.Close(w.ctx, w.rdb, a)
	w.fail(err)
	w.same(fmt.Sprintf("close %+v", a), got, w.store.Close(a))
}

// useLease releases or renews one, most often one that was given.
func (w *twin) useLease(r *rule) {
	token := uint64(999_999)
	if len(w.held) > 0 {
		token = rapid.SampledFrom(w.held).Draw(w.T, "held").token
	}
	p := w.ruleCall(r, 1)
	if rapid.Bool().Draw(w.T, "renew") {
		got := limitscripts.Renew(w.ctx, w.rdb, []limitscripts.RenewArgs{{RuleCall: p, Token: token}})[0]
		w.same("renew", got, w.store.Renew(p, token))
		return
	}
	got, err := limitscripts.Release(w.ctx, w.rdb, p, token)
	w.fail(err)
	w.same("release", got, w.store.Release(p, token))
}
