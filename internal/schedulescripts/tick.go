package schedulescripts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
)

// TickArgs are the arguments of tick.lua beside its keys.
type TickArgs struct {
	Spec    string        // which spec the ticks are of, see [TickSpec]
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

var tickScript = luascripts.NewScript("queue/tick")

// Tick runs tick.lua for an entry of a schedule that enqueues into a queue.
func Tick(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, entry string, a TickArgs) (TickReply, error) {
	record := k.Tick + entry
	task := record
	if !a.At.IsZero() {
		task = k.Task(a.ID)
	}
	r := tickScript.Ask(ctx, c, 4, []string{record, k.Pending, task, k.Ticks + entry},
		"spec:"+a.Spec, luascripts.Micros(a.Life), luascripts.Instant(a.At), luascripts.Instant(a.From), luascripts.Instant(a.By),
		int(a.Overlap), a.ID, a.Message, k.TaskPrefix)
	return TickReply{Code: r.Int(), Now: r.Time(), From: r.Time(), Held: r.Time()}, r.Err()
}

// TickSpec names a spec in the record of an entry.
func TickSpec(spec string) string {
	sum := sha256.Sum256([]byte(spec))
	return hex.EncodeToString(sum[:8])
}

// decidedTick is a tick of an entry that was decided.
type decidedTick struct {
	At   time.Time
	Code int64     // what tick.lua did
	When time.Time // it did so
}

// TickRecord is what is known of an entry of a schedule.
type TickRecord struct {
	Last  time.Time            // all ticks up to then are decided; zero for no such entry
	Held  time.Time            // the tick that waits; zero when none does
	Since map[string]time.Time // from when on the ticks of each [TickSpec] count
	Ticks []decidedTick        // those decided last, the newest first; after a loss of data a tick may come twice
}

// ReadTicks reads the records of entries that enqueue into a queue. It changes nothing.
func ReadTicks(ctx context.Context, c redis.Cmdable, k queuescripts.QueueKeys, entries []string) ([]TickRecord, error) {
	pipe := c.Pipeline()
	fields, ticks := make([]*redis.MapStringStringCmd, len(entries)), make([]*redis.StringSliceCmd, len(entries))
	for i, entry := range entries {
		fields[i], ticks[i] = pipe.HGetAll(ctx, k.Tick+entry), pipe.LRange(ctx, k.Ticks+entry, 0, -1)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("HGETALL, LRANGE: %w", err)
	}
	records := make([]TickRecord, len(entries))
	for i := range entries {
		if err := records[i].read(fields[i].Val(), ticks[i].Val()); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (r *TickRecord) read(fields map[string]string, ticks []string) error {
	r.Since = make(map[string]time.Time)
	for field, value := range fields {
		spec, since := strings.CutPrefix(field, "spec:")
		if !since && field != "last" && field != "held" {
			continue
		}
		var us int64
		if _, err := fmt.Sscan(value, &us); err != nil { // of a spec only the first number counts
			return &luascripts.ReplyError{Script: "tick", What: "a field of a record is no number"}
		}
		switch {
		case since:
			r.Since[spec] = luascripts.TimeOf(us)
		case field == "last":
			r.Last = luascripts.TimeOf(us)
		default:
			r.Held = luascripts.TimeOf(us)
		}
	}
	for _, text := range ticks {
		var at, code, when int64
		if _, err := fmt.Sscan(text, &at, &code, &when); err != nil {
			return &luascripts.ReplyError{Script: "tick", What: "a tick that was decided can't be read"}
		}
		r.Ticks = append(r.Ticks, decidedTick{At: luascripts.TimeOf(at), Code: code, When: luascripts.TimeOf(when)})
	}
	return nil
}
