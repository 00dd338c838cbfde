package luascripts

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// WalkReply is the answer of walk.lua.
type WalkReply struct {
	Now   time.Time
	Last  time.Time // the last instant of all; zero when there is none
	Tasks []DueTask // without their states and pools
}

// Walk runs walk.lua: at most `most` deferred tasks, 1 to 1000, from an instant
// on, but for the first skip of that very instant.
func Walk(ctx context.Context, c redis.Scripter, k QueueKeys, from time.Time, skip, most int) (WalkReply, error) {
	first := int64(0)
	if !from.IsZero() {
		first = from.UnixMicro()
	}
	r := run(ctx, c, walkScript(), "walk.lua", 3, []string{k.due}, first, skip, most)
	reply := WalkReply{Now: r.time(), Last: r.time()}
	for range r.count(3) {
		reply.Tasks = append(reply.Tasks, DueTask{At: r.time(), ID: longID(r.text()), For: r.text()})
	}
	return reply, r.err
}

// RuleVersion is the version of a rule's stored limit; 0 when none is stored.
type RuleVersion struct {
	Rule    string
	Version int64
}

// Claim runs claim.lua for 1 to 1000 rules: open says which of them have
// changed since the queue was planned, claimed that this owner alone may plan
// it anew for so long.
func Claim(ctx context.Context, c redis.Scripter, k QueueKeys, owner string, ttl time.Duration, rules []RuleVersion) (claimed bool, open []int64, err error) {
	args := pairs(rules, owner, micros(ttl), len(rules))
	r := run(ctx, c, claimScript(), "claim.lua", 1+len(rules), []string{k.claim, k.planned}, args...)
	claimed = r.int() == 1
	open, err = codes(r, len(rules))
	return claimed, open, err
}

// Planned runs planned.lua for at most 1000 rules, and answers false when the
// claim was lost. Without rules it only gives the claim back.
func Planned(ctx context.Context, c redis.Scripter, k QueueKeys, owner string, rules []RuleVersion) (bool, error) {
	n, err := plannedScript().Run(ctx, c, []string{k.claim, k.planned}, pairs(rules, owner, len(rules))...).Int()
	if err != nil {
		return false, fmt.Errorf("planned.lua: %w", err)
	}
	return n == 1, nil
}

// pairs are arguments with those of the rules behind them.
func pairs(rules []RuleVersion, args ...any) []any {
	for _, r := range rules {
		args = append(args, r.Rule, r.Version)
	}
	return args
}
