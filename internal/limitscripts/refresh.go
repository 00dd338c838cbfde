package limitscripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// refreshMax bounds how many bookings one call of refresh.lua takes.
const refreshMax = 8

// RefreshArgs are the arguments of refresh.lua about one booking.
type RefreshArgs struct {
	Rules  []RuleCall
	Policy string
	Job    string

	HoldAfterFailover bool // as in [AcquireArgs]
}

// RefreshReply is the answer of refresh.lua about one booking.
type RefreshReply struct {
	Status   Status // Booked, or Refused when it is not known
	Rule     int    // by which it waits, counted from 1
	At       time.Time
	Now      time.Time
	Before   int // permits ahead of it in the line
	Promoted []Promotion
	Err      error

	Version int64 // of the rule's ledger, when Outdated
}

var refreshScript = luascripts.NewScript("limit/refresh")

// Refresh runs refresh.lua for many bookings in one pipeline: once for up to [refreshMax] that
// differ in nothing but keys and jobs, on Cluster of one hash slot. Each booking fails alone.
func Refresh(ctx context.Context, c redis.UniversalClient, bookings []RefreshArgs) []RefreshReply {
	out := make([]RefreshReply, len(bookings))
	var alone [][]int
	refreshAll(ctx, c, bookings, refreshBatches(c, bookings), out)
	for i := range out {
		if out[i].Status == askAlone {
			alone = append(alone, []int{i})
		}
	}
	refreshAll(ctx, c, bookings, alone, out)
	return out
}

// refreshAll asks about bookings by their indices, those of a crowd in one call.
func refreshAll(ctx context.Context, c redis.UniversalClient, bookings []RefreshArgs, crowds [][]int, out []RefreshReply) {
	if len(crowds) == 0 {
		return
	}
	calls := make([]luascripts.Command, len(crowds))
	for n, crowd := range crowds {
		first := &bookings[crowd[0]]
		var keys []string
		args := append(make([]any, 0, 3+len(crowd)), len(crowd), luascripts.Flag(first.HoldAfterFailover), rulesText(first.Rules))
		for _, i := range crowd {
			keys = appendKeysOfRules(keys, bookings[i].Rules, bookings[i].Policy)
			args = append(args, bookings[i].Job)
		}
		calls[n] = refreshScript.Call(keys, args...)
	}
	for n, cmd := range luascripts.SendAll(ctx, c, calls) {
		v, err := cmd.Result()
		r := refreshScript.Read(1+len(crowds[n]), v, err)
		now := r.Time()
		for _, i := range crowds[n] {
			out[i] = refreshReplyOf(&r, now, len(bookings[i].Rules))
		}
	}
}

func refreshReplyOf(r *luascripts.Reply, now time.Time, rules int) RefreshReply {
	in := r.List()
	c := RefreshReply{Now: now, Status: statusOf(&in), Rule: ruleOf(&in, rules), At: in.Time(), Before: int(in.Int())}
	c.Promoted = promotionsOf(&in, in.Int(), rules)
	if c.Err = in.Err(); c.Status == Outdated {
		outdated(&c.At, &c.Version)
	}
	return c
}

// refreshBatches are the indices of bookings that one call can ask about.
func refreshBatches(c redis.UniversalClient, bookings []RefreshArgs) [][]int {
	sharded := luascripts.Sharded(c)
	var crowds [][]int
	for i := range bookings {
		b, joined := &bookings[i], false
		for n := len(crowds) - 1; n >= 0 && !joined; n-- {
			first := &bookings[crowds[n][0]]
			joined = len(crowds[n]) < refreshMax && alikeRules(first.Rules, b.Rules) && (first.Policy == "") == (b.Policy == "") &&
				first.HoldAfterFailover == b.HoldAfterFailover &&
				(!sharded || luascripts.SlotOf(first.Rules[0].ledger) == luascripts.SlotOf(b.Rules[0].ledger))
			if joined {
				crowds[n] = append(crowds[n], i)
			}
		}
		if !joined {
			crowds = append(crowds, []int{i})
		}
	}
	return crowds
}
