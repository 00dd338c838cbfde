package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// closeMax is the longest time for which a key or a rule can be closed.
const closeMax = 366 * day

func checkClosing(d time.Duration) error {
	if d < time.Millisecond || d > closeMax {
		return fmt.Errorf("%w: closed for %v, want 1ms to %v", ErrInvalidConfig, d, closeMax)
	}
	return nil
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
