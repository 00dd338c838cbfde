package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// Client enqueues tasks on asynq. It refuses what could never run, so that the
// producer learns of it and not an archive a day later; everything else is
// asynq's. It does not wait or spend permits. For a limit in Redis it looks only
// when a cost is above the one in code: then a limit that is stored for the rule
// (throttle.Limiter.SetLimit) may allow more.
//
// A task type without a policy is enqueued as it is. When Redis is away every
// call returns its error. Such an error does not prove that nothing was
// enqueued, for the answer may have been lost: a task with asynq.TaskID or
// asynq.Unique can be enqueued again without being doubled.
//
// A Client is safe for concurrent use. The zero Client is not usable.
type Client struct {
	asynq    *asynq.Client
	policies map[string]rulePolicy // by task type, never changed
}

// rulePolicy is a policy with its limits in the order of [Demand.Wants].
type rulePolicy struct {
	Policy
	limits []ruleLimit
}

// ruleLimit is a rule with its limiter, which knows the limit in force.
type ruleLimit struct {
	Rule
	limiter *throttle.Limiter
}

// NewClient returns a client that enqueues through rdb and holds tasks against
// the policies; see [ValidatePolicies] for its errors. The client does not own
// rdb: it has nothing to close, and whoever opened rdb closes it after the last
// call. NewClient does not ask Redis. It panics when rdb is nil.
func NewClient(rdb redis.UniversalClient, policies ...Policy) (*Client, error) {
	return NewClientIn(rdb, throttle.PrefixDefault, policies...)
}

// NewClientIn is [NewClient] for pools whose throttle.Config has another Prefix:
// that is where limits are stored.
func NewClientIn(rdb redis.UniversalClient, prefix string, policies ...Policy) (*Client, error) {
	if rdb == nil {
		panic("queue: nil Redis client")
	}
	if err := ValidatePolicies(policies); err != nil {
		return nil, err
	}
	if err := (throttle.Config{Prefix: prefix}).Validate(); err != nil {
		return nil, err
	}
	byType := make(map[string]rulePolicy, len(policies))
	limiters := make(map[string]*throttle.Limiter) // by rule
	for _, p := range policies {
		p.Rules = slices.Clone(p.Rules)
		rp := rulePolicy{Policy: p}
		for _, r := range p.Rules {
			if !r.limited() {
				continue
			}
			if limiters[r.Name] == nil {
				l, err := throttle.New(rdb, r.Name, r.Limit, throttle.Config{Prefix: prefix})
				if err != nil {
					return nil, err
				}
				limiters[r.Name] = l
			}
			rp.limits = append(rp.limits, ruleLimit{r, limiters[r.Name]})
		}
		byType[p.Type] = rp
	}
	return &Client{asynq: asynq.NewClientFromRedisClient(rdb), policies: byType}, nil
}

// Enqueue enqueues a task. Options of the call come after those of the task: of
// two of a kind, asynq takes the last.
//
// Nothing is enqueued when there is an error from before Redis is asked: a
// [*DemandError] for a task that could never run under its policy, or an
// [*OptionError] for each option that asynq would alter or drop. asynq's own
// errors are found with errors.Is: asynq.ErrDuplicateTask for a task with
// asynq.Unique, asynq.ErrTaskIDConflict for one with asynq.TaskID.
//
// ctx is for the call; use asynq.Timeout and asynq.Deadline for the task.
func (c *Client) Enqueue(ctx context.Context, task *Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil {
		return nil, errors.New("queue: enqueue: no task")
	}
	if err := checkOptions(slices.Concat(task.opts, opts)); err != nil {
		return nil, err
	}
	return c.enqueue(ctx, task.asynqTask(), opts)
}

// EnqueueAsynq is [Client.Enqueue] for a task of asynq.NewTask. The options
// inside it can't be read and go to asynq unaltered and unchecked; those of the
// call are checked.
//
// Do not share such a task between goroutines that pass options here: asynq
// appends them to the task's own slice, a data race when that slice has room to
// spare. A [Task] has no such rule.
func (c *Client) EnqueueAsynq(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil {
		return nil, errors.New("queue: enqueue: no task")
	}
	if err := checkOptions(opts); err != nil {
		return nil, err
	}
	return c.enqueue(ctx, task, opts)
}

// enqueue holds the task against its policy and hands it to asynq.
func (c *Client) enqueue(ctx context.Context, task *asynq.Task, opts []asynq.Option) (*asynq.TaskInfo, error) {
	if p, ok := c.policies[task.Type()]; ok {
		d, err := p.Demand(task)
		if err != nil {
			return nil, err
		}
		for i, w := range d.Wants {
			if err := p.fits(ctx, p.limits[i], w.Cost); err != nil {
				return nil, err
			}
		}
	}
	info, err := c.asynq.EnqueueContext(ctx, task, opts...)
	if err != nil {
		return nil, fmt.Errorf("queue: enqueue %q: %w", task.Type(), err)
	}
	return info, nil
}

// fits refuses a cost that the limit in force can't meet.
func (p rulePolicy) fits(ctx context.Context, r ruleLimit, cost int) error {
	if cost <= r.Limit.MaxCost() {
		return nil
	}
	limit, err := r.limiter.LimitInForce(ctx)
	switch {
	case errors.Is(err, throttle.ErrStoredLimit):
		return nil // nobody knows: the task waits in the pool until somebody does
	case err != nil: // not a DemandError, after which a producer may drop the task
		return fmt.Errorf("queue: enqueue %q: %w", p.Type, err)
	case cost > limit.MaxCost():
		return p.refuse(r.Rule, ErrBadCost, fmt.Sprintf("the cost is above the limit %v", limit), nil)
	}
	return nil
}
