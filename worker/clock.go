package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/luascripts"
)

// How far the local clock may be off Redis'. Grants, bookings and instants
// follow Redis' clock alone; asynq's leases and scores follow the local one.
const (
	ClockSkewWarn = time.Second
	ClockSkewMax  = 5 * time.Second
)

// ErrClockSkew is what a refusal to start because of the clock unwraps to.
var ErrClockSkew = errors.New("worker: clock differs from Redis' clock")

// compareClocks returns an error when the local clock is too far off.
func (a *Adapter) compareClocks(ctx context.Context) error {
	before := time.Now()
	server, err := luascripts.Now(ctx, a.rdb)
	if err != nil {
		return fmt.Errorf("worker: reading Redis' clock: %w", err)
	}
	middle := before.Add(time.Since(before) / 2)
	skew := middle.Sub(server).Round(time.Millisecond)
	switch {
	case skew.Abs() > ClockSkewMax:
		return fmt.Errorf("%w: the local clock is %v ahead, at most %v are allowed; asynq's leases and schedules follow it", ErrClockSkew, skew, ClockSkewMax)
	case skew.Abs() > ClockSkewWarn:
		a.log.Warn("the local clock differs from Redis' clock", zap.Duration("ahead", skew))
	}
	return nil
}

const (
	// rulesTTL is how long a pool's numbers count after it was heard last.
	rulesTTL = 3 * time.Minute
	minute   = time.Minute
)

// everyMinute does what need not be done often.
func (a *Adapter) everyMinute(ctx context.Context) {
	t := time.NewTicker(minute)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			if err := a.compareClocks(ctx); errors.Is(err, ErrClockSkew) {
				a.log.Error("the local clock is far off Redis' clock: tasks may be recovered too early or too late", zap.Error(err))
			}
			a.shareRules(ctx)
			a.deferrals.purge(now)
			a.recentlyDone.purge(now)
			a.batches.dropped.purge(now)
			a.inFlight.purge(now)
		}
	}
}

// shareRules says with which numbers this pool runs its rules, and logs once
// when another pool runs a rule of the same name with others.
func (a *Adapter) shareRules(ctx context.Context) {
	var own []string
	numbers := make(map[string]string)
	for _, p := range a.policies {
		for _, l := range p.decide.Rules() {
			if numbers[l.Rule()] == "" {
				numbers[l.Rule()] = l.Limit().String()
				own = append(own, l.Rule()+" "+l.Limit().String())
			}
		}
	}
	all, err := luascripts.Rules(ctx, a.rdb, a.cfg.Throttle.Prefix, rulesTTL, own)
	if err != nil {
		a.log.Debug("could not compare rules with other pools", zap.Error(err))
		return
	}
	for _, said := range all {
		rule, limit, _ := strings.Cut(said, " ")
		if mine, ok := numbers[rule]; ok && limit != mine {
			a.logOnce("rule "+said, func() {
				a.log.Warn("another pool runs this rule with other numbers, or did in the last three minutes; each decides by its own",
					zap.String("rule", rule), zap.String("here", mine), zap.String("there", limit))
			})
		}
	}
}

// checkAsynqVersion distrusts a version of asynq whose scripts are not pinned.
func (a *Adapter) checkAsynqVersion() {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return // scripts are looked at one by one all the same
	}
	for _, dep := range info.Deps {
		if dep.Path != "github.com/hibiken/asynq" {
			continue
		}
		if dep.Replace != nil {
			dep = dep.Replace
		}
		if dep.Version != asynqwire.Version {
			a.distrust("this version of asynq is not known", zap.String("version", dep.Version), zap.String("known", asynqwire.Version))
		}
	}
}

// distrust makes tasks wait in place on their last attempt: an asynq that we do
// not know would archive them.
func (a *Adapter) distrust(why string, fields ...zap.Field) {
	a.unknown.Store(true)
	a.logOnce(why, func() {
		a.log.Warn(why+": on their last attempt tasks now wait in a worker slot instead of being deferred", fields...)
	})
}
