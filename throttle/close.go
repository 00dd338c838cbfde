package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// CloseMax is the longest time for which a key or a rule can be closed.
const CloseMax = 366 * day

// CloseKey lets nothing through on a key for d from now on, 1 ms to [CloseMax],
// by Redis' clock: what is booked moves behind, keeps its order, and goes at the
// limit's pace from the instant that is returned. Of several closings the last to
// end counts. Other keys go on.
func (l *Limiter) CloseKey(ctx context.Context, key string, d time.Duration) (until time.Time, err error) {
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	reply, err := l.policy.closeKey(ctx, 0, Request{Key: key, Cost: 1}, d)
	return reply.Until, err
}

// OpenKey ends a closing of a key before its time. Who comes next is told in the
// Turns; pools plan the rule's deferred tasks anew, which takes about a second. On a
// key that is open it changes nothing.
func (l *Limiter) OpenKey(ctx context.Context, key string) ([]Promotion, error) {
	reply, err := l.policy.closeKey(ctx, 0, Request{Key: key, Cost: 1}, 0)
	if err != nil {
		return nil, err
	}
	turns := l.policy.promotions(reply.Promoted, reply.Now)
	_, err = l.closeRule(ctx, -time.Microsecond) // changes nothing, and everybody looks
	return turns, err
}

// CloseRule is [Limiter.CloseKey] for all keys of the rule. It bites at once in
// this limiter and within a second in all others.
func (l *Limiter) CloseRule(ctx context.Context, d time.Duration) (until time.Time, err error) {
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	return l.closeRule(ctx, d)
}

// OpenRule ends a closing of the rule before its time; keys that are closed stay
// closed.
func (l *Limiter) OpenRule(ctx context.Context) error {
	_, err := l.closeRule(ctx, 0)
	return err
}

func checkClosing(d time.Duration) error {
	if d < time.Millisecond || d > CloseMax {
		return fmt.Errorf("%w: closed for %v, want 1ms to %v", ErrInvalidConfig, d, CloseMax)
	}
	return nil
}

// PutOff closes the key of a rule of the policy for d from now on, and gives r.Job the
// first place in its line: a job whose provider said that it comes too early. The
// grant stays spent. It returns the instant from which the key is open.
func (p *Policy) Postpone(ctx context.Context, rule string, r Request, d time.Duration) (until time.Time, err error) {
	if err := checkJob(r.Job); err != nil {
		return time.Time{}, err
	}
	if err := checkClosing(d); err != nil {
		return time.Time{}, err
	}
	for i, l := range p.rules {
		if l.rule == rule {
			reply, err := p.closeKey(ctx, i, r, d)
			return reply.Until, err
		}
	}
	return time.Time{}, fmt.Errorf("%w: policy %v has no rule %q", ErrInvalidConfig, p, rule)
}

// closeKey closes the key of a rule. The job goes first in the narrower rules too,
// and in those that share the key.
func (p *Policy) closeKey(ctx context.Context, rule int, r Request, d time.Duration) (reply luascripts.CloseReply, err error) {
	if err := p.check(&r); err != nil {
		return reply, err
	}
	ids := p.ids(r)
	end := rule + 1
	for end < len(ids) && ids[end] == ids[rule] && !p.rules[end].limit.IsConcurrent() {
		end++
	}
	t, err := p.retry(ctx)
	if err != nil {
		return reply, err
	}
	args := luascripts.CloseArgs{Rules: p.ruleCalls(ids, r)[:end], Rule: rule + 1, Policy: p.name, Job: r.Job, For: d}
	for again := true; again; {
		number(args.Rules, t.limits, t.begin())
		reply, err = t.store.close(ctx, args)
		again, err = t.again(ctx, "close", answer{reply.Status, reply.Rule, reply.Version, reply.Now}, err)
	}
	return reply, err
}

func (l *Limiter) closeRule(ctx context.Context, d time.Duration) (time.Time, error) {
	until, version, err := l.limits.closeRule(ctx, l.rule, d)
	if err != nil {
		return time.Time{}, l.fault("closerule", 0, err)
	}
	if k := l.force.last.Load(); k != nil && k.err == nil {
		then := *k
		then.closed, then.changed, then.done = until, max(version, k.changed), time.Now()
		l.learned(then)
	}
	l.readLimit(ctx) // what is known of the limit is as old as it was
	return until, nil
}

// closedLastKnown is until when the rule is closed, as it was heard last.
func (l *Limiter) closedLastKnown() time.Time {
	if k := l.force.last.Load(); k != nil {
		return k.closed
	}
	return time.Time{}
}
