package luascripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// TickArgs are the arguments of tick.lua beside its keys.
type TickArgs struct {
	Spec    string        // hex digits: which spec the ticks are of
	Life    time.Duration // of the record, at least
	At      time.Time     // the tick; zero only looks
	From    time.Time     // as the last answer had it
	By      time.Time     // the tick is not done from then on
	Overlap TickOverlap
	ID      string // of the task
	Message []byte // as asynq encodes it; empty to give the tick up
}

// TickOverlap is what becomes of a tick while the task of an earlier one is
// unfinished.
type TickOverlap int

// As tick.lua has them.
const (
	TickRuns TickOverlap = iota
	TickIsSkipped
	TickIsHeld
)

// What tick.lua did.
const (
	TickPassed = iota // it looked, or others came first, or it is not the time
	TickEnqueued
	TickSkipped
	TickHeld
	TickGivenUp
)

// TickReply is the answer of tick.lua.
type TickReply struct {
	Code int64
	Now  time.Time
	From time.Time // all ticks up to then are decided
	Held time.Time // the tick that waits; zero when none does
}

// Tick runs tick.lua for an entry of a schedule that enqueues into a queue.
func Tick(ctx context.Context, c redis.Scripter, k QueueKeys, entry string, a TickArgs) (TickReply, error) {
	record := k.tick + entry
	task := record
	if !a.At.IsZero() {
		task = k.Task(a.ID)
	}
	r := run(ctx, c, tickScript, 4, []string{record, k.pending, task},
		"spec:"+a.Spec, micros(a.Life), instant(a.At), instant(a.From), instant(a.By), int(a.Overlap), a.ID, a.Message, k.task)
	return TickReply{Code: r.int(), Now: r.time(), From: r.time(), Held: r.time()}, r.err
}
