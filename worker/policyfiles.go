package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/filewatch"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// policyFiles brings the limits of policy files in force, at the start and when the files
// are edited while the pool runs.
type policyFiles struct {
	*core
	stamps filewatch.Stamps
	code   []queue.Policy // those that are not in files

	mu       sync.Mutex
	policies []queue.Policy            // as the files had them when they were read last without a fault
	rules    map[string]*fileRule      // by name
	said     map[string]throttle.Limit // what decides instead of a file's limit, as it was logged; zero for nothing
}

// fileRule is the limit of a rule in the files.
type fileRule struct {
	was     throttle.Limit // the limit before `now`; zero at the start
	now     throttle.Limit
	settled bool // it was brought in force, or something goes before it
}

// readPolicyFiles adds the policies of the files to those in code.
func (c Config) readPolicyFiles() (Config, *policyFiles, error) {
	f := &policyFiles{rules: make(map[string]*fileRule), said: make(map[string]throttle.Limit)}
	if len(c.PolicyFiles) == 0 {
		return c, f, c.Validate()
	}
	f.stamps = filewatch.Of(c.PolicyFiles...)
	var err error
	if f.policies, err = c.PolicyFuncs.ReadPolicyFiles(c.PolicyFiles...); err != nil {
		return c, f, errors.Join(err, c.Validate())
	}
	f.code = slices.Clone(c.Policies)
	c.Policies = slices.Concat(f.code, f.policies)
	for _, p := range f.policies {
		for _, r := range p.Rules {
			if r.Limit != (throttle.Limit{}) {
				f.rules[r.Name] = &fileRule{now: r.Limit}
			}
		}
	}
	return c, f, c.Validate()
}

// run follows the files until ctx ends.
func (f *policyFiles) run(ctx context.Context) {
	if len(f.rules) == 0 {
		return
	}
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		filewatch.Run(ctx, filewatch.Poll, f.stamps, func() { _ = f.reload(ctx) }, f.cfg.PolicyFiles...)
	})
	every(ctx, filewatch.Poll, func(time.Time) { f.settle(ctx) })
}

// reload reads the files again. A fault changes nothing.
func (f *policyFiles) reload(ctx context.Context) error {
	if len(f.cfg.PolicyFiles) == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	after, err := f.cfg.PolicyFuncs.ReadPolicyFiles(f.cfg.PolicyFiles...)
	var changed map[string]throttle.Limit
	if err == nil {
		changed, err = queue.ChangedLimits(f.policies, after)
	}
	if err == nil {
		err = queue.ValidatePolicies(slices.Concat(f.code, after))
	}
	if err != nil {
		f.log.Error("the policy files were edited, and nothing was changed: their limits stay as they were", zap.Error(err))
		return err
	}
	f.policies = after
	f.log.Info("the policy files were read", zap.Strings("changed", slices.Sorted(maps.Keys(changed))))
	for rule, limit := range changed {
		r := f.rules[rule]
		if r.settled { // or the one before that never came in force
			r.was = r.now
		}
		r.now, r.settled = limit, false
	}
	return f.settleLocked(ctx)
}

// settle brings the limits in force that are not yet, or not any more: an operator's limit
// may have ended, and the limit in code is older than the file.
func (f *policyFiles) settle(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.settleLocked(ctx); err != nil && ctx.Err() == nil {
		f.logFew("policy files", func() {
			f.log.Warn("the limits of the policy files can't be compared with what is stored", zap.Error(err))
		})
	}
}

func (f *policyFiles) settleLocked(ctx context.Context) error {
	var (
		rules    []string
		limiters []*throttle.Limiter
		errs     []error
	)
	for _, rule := range slices.Sorted(maps.Keys(f.rules)) {
		if l, r := f.set.Limiter(rule), f.rules[rule]; !r.settled || r.now != l.Limit() {
			rules, limiters = append(rules, rule), append(limiters, l)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	for i, is := range throttle.ForWorkers.LimitStatuses(ctx, limiters) {
		r, before := f.rules[rules[i]], is
		if is.Err == nil && is.Limit != r.now {
			is, is.Err = throttle.ForWorkers.FollowFile(ctx, limiters[i], r.was, r.now)
		}
		if is.Err != nil {
			errs = append(errs, is.Err)
			continue
		}
		r.was, r.settled = throttle.Limit{}, true // from now on nothing is edited back
		f.tell(rules[i], r.now, before, is)
	}
	return errors.Join(errs...)
}

// tell logs what became of a file's limit.
func (f *policyFiles) tell(rule string, limit throttle.Limit, before, is throttle.LimitStatus) {
	log := f.log.With(zap.String("rule", rule), zap.Stringer("file", limit))
	switch {
	case is.Limit == limit:
		if before.Limit != limit {
			log.Info("the limit of the policy file is in force now", zap.Stringer("before", before.Limit))
		}
		delete(f.said, rule)
	case f.said[rule] == is.Limit:
	case is.Replaced == nil:
		log.Warn("a limit that was stored with SetLimit goes before the one in the policy file: take it away with headway limit unset, or "+
			"UnsetLimit, if the file is to count",
			zap.Stringer("stored", is.Limit))
		f.said[rule] = is.Limit
	default:
		log.Warn("the policy file here is older than the one whose limit is in force: update it. If it was changed back on purpose while no pool "+
			"ran, take the stored limit away with headway limit unset, or UnsetLimit",
			zap.Stringer("stored", is.Limit))
		f.said[rule] = is.Limit
	}
}

// limitOf is the limit that this process has for a rule: of the file as it is now, or in code.
func (f *policyFiles) limitOf(l *throttle.Limiter) throttle.Limit {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.rules[l.Rule()]; r != nil {
		return r.now
	}
	return l.Limit()
}
