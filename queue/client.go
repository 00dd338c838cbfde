package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/throttle"
)

// Client enqueues tasks on asynq. It refuses what could never run, so that the
// producer learns of it and not an archive a day later. It does not wait or spend
// permits. There are two ways to enqueue:
//
//   - [Client.Enqueue] and [Client.EnqueueMany] leave it to the pool when a task
//     runs. One that has to wait is taken by a worker twice: once to learn of its
//     instant, and once at that instant. They read the limit that is stored for a rule
//     (throttle.Limiter.SetLimit) only when a cost is above the limit in code, or above 1
//     where the rule has a LimitOf.
//   - [Client.Book] and [Client.BookMany] take a place in the line of the task's key
//     first, and put the task where it is woken at its instant: a worker takes it
//     once. The caller learns the instant, and can refuse one that is too late.
//
// A task type without a policy is enqueued as it is: types are compared exactly, and
// whether such a task runs is up to the pool, see worker.Config.Unlimited. When Redis is away every
// call returns its error. Such an error does not prove that nothing was
// enqueued, for the answer may have been lost: a task with asynq.TaskID or
// asynq.Unique can be enqueued again without being doubled. When only the answer of a call
// was lost, the Redis client sends the call again within a minute. Such a copy gets the
// answer of the first call and enqueues nothing; only [Client.Enqueue] does not have that.
//
// A Client is safe for concurrent use. The zero Client is not usable.
type Client struct {
	rdb      redis.UniversalClient
	cfg      throttle.Config
	asynq    *asynq.Client
	composer *asynq.Client         // over a [asynqwire.Recorder]: it makes messages
	named    sync.Map              // queues that are in asynq's list of them
	set      *policyset.Set        // the limiters of all policies
	policies map[string]typePolicy // by task type, never changed
}

// typePolicy is the policy of a task type, with what decides by it. The rules of limits
// have the order of [Demand.Costs], and know the limits in force.
type typePolicy struct {
	Policy
	limits *throttle.Policy
}

// ClientConfig are the options of a [Client]. The zero value is
// ready to use.
type ClientConfig struct {
	// Policies are what tasks of their types need, see [ValidatePolicies]. Defaults to
	// none: each task is enqueued as it is.
	Policies []Policy

	// Throttle is that of the pools. Limits are stored under its Prefix. To book, Prefix,
	// Secret and Shadow must be the pools': they say in which line a task stands, and in
	// shadow mode nothing is refused for its key or cost. With
	// PerClient nothing can be booked, for each pool has lines of its own. OnUnavailable
	// does not matter, for nothing can be enqueued while Redis is away. Defaults to the
	// zero throttle.Config.
	Throttle throttle.Config
}

// NewClient returns a client that enqueues through rdb and checks tasks by the
// policies. The error has all that is wrong with cfg, joined: it unwraps to
// [ErrInvalidPolicy], throttle.ErrInvalidConfig or both. The client does not own rdb: it
// has nothing to close, and whoever opened rdb closes it after the last call. NewClient
// does not ask Redis. It panics when rdb is nil.
func NewClient(rdb redis.UniversalClient, config ClientConfig) (*Client, error) {
	if policyset.IsNil(rdb) {
		panic("queue: nil Redis client")
	}
	policies, cfg := config.Policies, config.Throttle
	if err := errors.Join(ValidatePolicies(policies), throttle.ForWorkers.ValidateConfig(cfg)); err != nil {
		return nil, err
	}
	cfg = throttle.ForWorkers.FillConfig(cfg)
	cfg.OnUnavailable = throttle.FailClosed
	set, byType := policyset.New(rdb, cfg), make(map[string]typePolicy, len(policies))
	for _, p := range policies {
		p.Rules = slices.Clone(p.Rules)
		rules := make([]policyset.Rule, len(p.Rules))
		for i, r := range p.Rules {
			rules[i] = policyset.Rule{Name: r.Name, Limit: r.Limit, LimitOf: r.LimitOf}
		}
		decide, err := set.Compile(rules)
		if err != nil {
			return nil, err
		}
		byType[p.Type] = typePolicy{p, decide}
	}
	return &Client{
		rdb: rdb, cfg: cfg, set: set, policies: byType,
		asynq: asynq.NewClientFromRedisClient(rdb), composer: asynq.NewClientFromRedisClient(asynqwire.Recorder{UniversalClient: rdb}),
	}, nil
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
	if err := checkOptions(task.with(opts)); err != nil {
		return nil, err
	}
	at := task.asynqTask()
	if err := c.check(ctx, at); err != nil {
		return nil, err
	}
	var info *asynq.TaskInfo
	err := luascripts.WhileSlotMoves(ctx, c.rdb, func() (err error) {
		info, err = c.asynq.EnqueueContext(ctx, at, opts...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("queue: enqueue %q: %w", task.typ, err)
	}
	return info, nil
}

// check checks the task by its policy.
func (c *Client) check(ctx context.Context, task *asynq.Task) error {
	_, _, err := c.demand(ctx, task)
	return err
}

// demand is what the task needs under the policy of its type; limited is false when nothing
// is decided about it. In shadow mode a policy that refuses it is as good as none: the pool
// counts why it would not run.
func (c *Client) demand(ctx context.Context, task *asynq.Task) (d Demand, limited bool, err error) {
	p, ok := c.policies[task.Type()]
	if !ok {
		return Demand{}, false, nil
	}
	d, err = p.demand(ctx, task)
	if _, refused := errors.AsType[*DemandError](err); refused && c.cfg.Shadow {
		return Demand{}, false, nil
	}
	return d, err == nil, err
}

// ask is [Policy.Demand]. A panic of a user's function, such as a [KeyFunc], is a fault of the task: who enqueues has
// other tasks, and a feeder that ended by one would leave it to the next. What was panicked with may be
// personal data, so it is not in the error.
func (p typePolicy) ask(task *asynq.Task) (_ Demand, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &DemandError{Type: p.Type, Reason: "a function of its policy panicked"}
		}
	}()
	return p.Demand(task)
}

// demand is what the task needs, if that can ever be met.
func (p typePolicy) demand(ctx context.Context, task *asynq.Task) (Demand, error) {
	d, err := p.ask(task)
	if err != nil {
		return Demand{}, err
	}
	costs, limiters := d.Costs, p.limits.Rules()
	for _, r := range p.Rules {
		if !r.limited() {
			continue
		}
		if err := p.fits(ctx, r, limiters[0], costs[0]); err != nil {
			return Demand{}, err
		}
		costs, limiters = costs[1:], limiters[1:]
	}
	return d, nil
}

// fits refuses a cost above the limit in force. A stored limit is read only where the cost is above the limit in code, so that most
// tasks cost no call more: what only a smaller stored limit forbids is refused by the pool.
func (p typePolicy) fits(ctx context.Context, r Rule, l *throttle.Limiter, of throttle.KeyCost) error {
	cost := of.Cost
	if r.LimitOf == nil && cost <= r.Limit.MaxCost() || cost == 1 {
		return nil
	}
	limit, err := throttle.ForWorkers.LimitOfKey(ctx, l, of.Key)
	switch {
	case errors.Is(err, throttle.ErrStoredLimit):
		return nil // nobody knows: the task waits in the pool until somebody does
	case err != nil: // not a DemandError, after which a producer may drop the task
		return fmt.Errorf("queue: enqueue %q: %w", p.Type, err)
	case cost > limit.MaxCost():
		return p.refuse(r, ErrBadCost, fmt.Sprintf("the cost is above the limit %v", limit), nil)
	}
	return nil
}
