package inspect

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Config are the options of an [Inspector]. The zero value is ready to use, for tasks
// without policies.
type Config struct {
	// Policies are those of the pools, see [queue.ValidatePolicies]. Defaults to none.
	Policies []queue.Policy

	// Throttle is that of the pools: Prefix and Secret say where their limits and lines
	// are. Defaults to the zero throttle.Config.
	Throttle throttle.Config
}

// ErrInvalidCursor says that a cursor was not made by a page, or that a page is to have no
// places or too many.
var ErrInvalidCursor = errors.New("inspect: invalid cursor")

// Inspector tells what waits, and why, from Redis alone: it needs no pool to run, and
// changes nothing, neither places nor what was promised to those who have them.
//
//   - [Inspector.Explain] is about one task: what it waits for, until when, and how much
//     is ahead of it.
//   - [Inspector.Line] and [Inspector.LinePage] list who waits on one key of a rule, in
//     the order in which they are let in.
//   - [Inspector.Deferred] and [Inspector.DeferredPage] list what pools will wake on a
//     queue, the first to come first.
//
// Each answer is as of one moment and costs O(log n) in what waits; a page costs that
// and its length, 250 at most. What moves while it is listed may be missed or
// come twice.
//
// Keys are given in clear; an Inspector finds them also where a Secret hides them, and
// gives none back: tasks are known by their ids. When Redis is away every call returns
// an error that unwraps to throttle.ErrUnavailable. An Inspector owns nothing and is
// safe for concurrent use. The zero Inspector is not usable.
type Inspector struct {
	rdb      redis.UniversalClient
	cfg      throttle.Config
	set      *policyset.Set          // the limiters of all policies
	policies map[string]queue.Policy // by task type, never changed
	asynq    *asynq.Inspector
}

// New returns an inspector of pools that have these policies and this throttle.Config. The
// error has all that is wrong with config, joined: it unwraps to queue.ErrInvalidPolicy,
// throttle.ErrInvalidConfig or both. New does not ask Redis, and panics when rdb is nil.
func New(rdb redis.UniversalClient, config Config) (*Inspector, error) {
	if rdb == nil {
		panic("inspect: nil Redis client")
	}
	if err := errors.Join(queue.ValidatePolicies(config.Policies), throttle.ForWorkers.ValidateConfig(config.Throttle)); err != nil {
		return nil, err
	}
	cfg := throttle.ForWorkers.FillConfig(config.Throttle)
	cfg.OnUnavailable = throttle.FailClosed
	i := &Inspector{
		rdb: rdb, cfg: cfg, set: policyset.New(rdb, cfg), policies: make(map[string]queue.Policy, len(config.Policies)),
		asynq: asynq.NewInspectorFromRedisClient(rdb),
	}
	for _, p := range config.Policies {
		p.Rules = slices.Clone(p.Rules)
		rules := make([]policyset.Rule, len(p.Rules))
		for n, r := range p.Rules {
			rules[n] = policyset.Rule{Name: r.Name, Limit: r.Limit}
		}
		if _, err := i.set.Compile(rules); err != nil {
			return nil, err
		}
		i.policies[p.Type] = p
	}
	return i, nil
}

func (i *Inspector) keys(queue string) luascripts.QueueKeys {
	return luascripts.NewQueueKeys(i.cfg.Prefix, queue)
}

// gated says that a rule of a valid policy is a gate.
func gated(r queue.Rule) bool { return r.Gate != gate.Gate{} }

// away is the error of a Redis that did not answer as it should.
func away(what string, err error) error {
	return fmt.Errorf("inspect: %s: %w: %w", what, throttle.ErrUnavailable, err)
}

// clip keeps an error readable when somebody passes a whole file as a name.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
