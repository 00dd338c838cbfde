package luascripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// CheckMost bounds how many bookings one call of check.lua takes.
const RefreshMax = 8

// CheckArgs are the arguments of check.lua about one booking.
type RefreshArgs struct {
	Rules  []RuleCall
	Policy string
	Job    string
}

// CheckReply is the answer of check.lua about one booking.
type RefreshReply struct {
	Status   Status // Booked, or Refused when it is not known
	Rule     int    // by which it waits, counted from 1
	At       time.Time
	Now      time.Time
	Before   int // permits ahead of it in the line
	Promoted []Promotion
	Err      error

	Version int64 // of the part's ledger, when Outdated
}

// Check runs check.lua for many bookings in one pipeline: once for up to [CheckMost] that
// differ in nothing but keys and jobs, on Cluster of one slot. Each booking fails alone.
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

// checkAll asks about bookings by their indices, those of a crowd in one call.
func refreshAll(ctx context.Context, c redis.UniversalClient, bookings []RefreshArgs, crowds [][]int, out []RefreshReply) {
	send := func(n int, pipe redis.Pipeliner) *redis.Cmd {
		first := &bookings[crowds[n][0]]
		var keys []string
		args := append(make([]any, 0, 2+len(crowds[n])+9*len(first.Rules)), len(crowds[n]), len(first.Rules))
		for _, i := range crowds[n] {
			keys = appendPartKeys(keys, bookings[i].Rules, bookings[i].Policy)
			args = append(args, bookings[i].Job)
		}
		return checkScript().EvalSha(ctx, pipe, keys, partArgs(args, first.Rules)...)
	}
	pipelined(ctx, c, checkScript(), len(crowds), send, func(n int, v any, err error) {
		r := readReply("check.lua", 1+len(crowds[n]), v, err)
		now := r.time()
		for _, i := range crowds[n] {
			out[i] = r.refreshReply(now)
		}
	})
}

func (r *reply) refreshReply(now time.Time) RefreshReply {
	in := r.list()
	c := RefreshReply{Now: now, Status: Status(in.int()), Rule: int(in.int()), At: in.time(), Before: int(in.int())}
	c.Promoted = in.promotions(in.int())
	if c.Err = in.err; c.Status == Outdated {
		outdated(&c.At, &c.Version)
	}
	return c
}

// checkCrowds are the indices of bookings that one call can ask about.
func refreshBatches(c redis.UniversalClient, bookings []RefreshArgs) [][]int {
	_, sharded := c.(interface {
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	})
	var crowds [][]int
	for i := range bookings {
		b, joined := &bookings[i], false
		for n := len(crowds) - 1; n >= 0 && !joined; n-- {
			first := &bookings[crowds[n][0]]
			joined = len(crowds[n]) < RefreshMax && alikeParts(first.Rules, b.Rules) && (first.Policy == "") == (b.Policy == "") &&
				(!sharded || slotOf(first.Rules[0].ledger) == slotOf(b.Rules[0].ledger))
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
