package queuescripts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// FetchArgs are the arguments of fetch.lua beside its keys.
type FetchArgs struct {
	Pool      string // who fetches
	Call      uint64 // a higher one than that of the pool's last call about this queue, or the same if that was not answered
	LeaseEnds int64  // when asynq's lease on the tasks ends, in seconds since 1970
	Most      int    // how many tasks, 0 to 1000; 0 when only the answer of the last call is wanted
	Again     bool   // the call may have been sent before, and was not answered
}

// FetchedTask is a task as fetch.lua returns it.
type FetchedTask struct {
	Message string // asynq's
	RunNow  bool   // an operator lets it run without asking its rules, see [TakeRunNow]
	Wait    Wait   // how it waited; zero when it did not
}

var fetchScript = luascripts.NewScript("queue/fetch")

// Fetch runs fetch.lua and returns the tasks, the first to run first.
//
// It is sent once. The client would repeat a call whose answer is lost without a word to the script, and the
// first copy may come last: after an empty answer to the repeat it would take tasks that nobody waits for. So
// the caller repeats it, with Again. A client that is not go-redis' own repeats it all the same, if it repeats calls.
func Fetch(ctx context.Context, c redis.Scripter, k QueueKeys, a FetchArgs) ([]FetchedTask, error) {
	call := fetchScript.Call([]string{k.Pending, k.paused, k.active, k.Lease, k.fetched + a.Pool},
		k.TaskPrefix, a.Call, a.LeaseEnds, a.Most, luascripts.Flag(a.Again))
	call.Once = true
	v, err := luascripts.Send(ctx, c, call).Result()
	r := fetchScript.Read(0, v, err)
	n := r.Count(2)
	tasks := make([]FetchedTask, 0, n)
	for range n {
		t := FetchedTask{Message: r.Text()}
		if how := r.Text(); how != "" {
			t.RunNow, t.Wait = how[0] == '1', waitOf(how[1:])
		}
		tasks = append(tasks, t)
	}
	return tasks, r.Err()
}

// RequeueArgs are the arguments of requeue.lua beside its keys.
type RequeueArgs struct {
	Pool string // who has fetched the tasks
	Call uint64 // by which call, the pool's last about this queue
	IDs  []string
}

var requeueScript = luascripts.NewScript("queue/requeue")

// Requeue runs requeue.lua for at most 1000 tasks, the first to run first. It returns how many
// went back.
func Requeue(ctx context.Context, c redis.Scripter, k QueueKeys, a RequeueArgs) (int, error) {
	args := append(make([]any, 0, 3+len(a.IDs)), k.TaskPrefix, a.Call, len(a.IDs))
	for _, id := range a.IDs {
		args = append(args, id)
	}
	r := requeueScript.Ask(ctx, c, 1, []string{k.Pending, k.active, k.Lease, k.fetched + a.Pool}, args...)
	return int(r.Int()), r.Err()
}

// DeferArgs are the arguments of defer.lua beside its keys.
type DeferArgs struct {
	ID        string
	Token     uint64        // of the deferral: written once, however often it is sent
	At        time.Time     // zero for Wait from now, by the clock of the queue's server
	Wait      time.Duration // from now to At; where the clock of At is another server's, this counts
	Record    string        // what the task waits for
	Pool      PoolMark      // comes first to wake it; zero for all at once
	Unique    string        // asynq's lock of a unique task, or ""
	Postponed bool          // counted, see TimesPostponed
	Reason    WaitReason
}

// WaitReason says why a task that waits has its instant.
type WaitReason struct {
	Cause Cause
	// Rule is which of the rules that it waits for holds it, counted from 1; 0 when it is
	// none of them, and [SameRule] for the one that it waits for already.
	Rule int
}

// SameRule is the rule that a task waits for already, in a [WaitReason].
const SameRule = 255

// Cause is what set the instant of a task that waits.
type Cause byte

// The causes. Scripts keep them and do not look at them.
const (
	CauseBooked     Cause = 'b' // it got a place in a line, or asked again and was told another instant
	CauseGate       Cause = 'g' // a gate is closed
	CauseRetryAfter Cause = 'p' // its provider asked for a later attempt
	CausePaused     Cause = 'h' // its batch is paused
	CauseReturned   Cause = 'r' // it was granted and could not start
	CauseAway       Cause = 'a' // Redis could not be asked
	CauseLine       Cause = 'l' // those before it took longer, or less long
	CauseChange     Cause = 'c' // a limit or a closing was changed
	CausePromotion  Cause = 'e' // permits came back
	CauseBatch      Cause = 't' // its batch goes on, or was booked anew
)

// WaitReasonOf says that a cause made a task wait for one of the rules that it booked by.
func WaitReasonOf(cause Cause, booked StoredBooking, rule string) WaitReason {
	return WaitReason{cause, slices.Index(strings.Split(booked.Policy(), "+"), rule) + 1}
}

// RuleOf is the rule that holds a task, of those that it booked by; "" when it is none.
func (w Wait) RuleOf(booked StoredBooking) string {
	return w.RuleAmong(strings.Split(booked.Policy(), "+"))
}

// RuleAmong is the rule that held a task, of the names of its policy's limits; "" when it was none.
func (w Wait) RuleAmong(names []string) string {
	if w.Reason.Rule > 0 && w.Reason.Rule <= len(names) {
		return names[w.Reason.Rule-1]
	}
	return ""
}

func (w WaitReason) text() string { return string([]byte{byte(w.Cause), byte(w.Rule)}) } //nolint:gosec // a policy has at most RulesMax rules

// Wait is how a task waits.
type Wait struct {
	Since  time.Time // in whole seconds; zero when it does not wait
	Moved  int       // how often its instant was changed since
	Reason WaitReason
}

// waitOf reads what deferred.lua writes about it.
func waitOf(text string) Wait {
	if len(text) != 8 || text == "\x00\x00\x00\x00\x00\x00\x00\x00" {
		return Wait{}
	}
	b := []byte(text)
	return Wait{
		Since: time.Unix(int64(binary.BigEndian.Uint32(b)), 0), Moved: int(binary.BigEndian.Uint16(b[4:])),
		Reason: WaitReason{Cause(b[6]), int(b[7])},
	}
}

// PoolMark tells pools apart. It is 4 bytes short: two pools of one mark only wake at the same time.
type PoolMark [4]byte

var deferScript = luascripts.NewScript("queue/defer")

// Defer runs defer.lua and hands asynq its very answer.
func Defer(ctx context.Context, c redis.Scripter, k QueueKeys, a DeferArgs) *redis.Cmd {
	task := k.Task(a.ID)
	unique := a.Unique
	if unique == "" {
		unique = task
	}
	return deferScript.Run(ctx, c, []string{task, k.active, k.Lease, k.Retry, k.Due, unique},
		luascripts.ShortID(a.ID), luascripts.TokenText(a.Token), dueAt(c, a.At, time.Now().Add(a.Wait)), luascripts.Micros(max(0, a.Wait)),
		a.Record, luascripts.Flag(a.Postponed), a.Pool[:], a.Reason.text())
}

// dueAt is an instant as the scripts of queues take it: microseconds since 1970, or the time
// from now, negated. That is for an instant of no known clock (the zero time), and for Redis
// Cluster, where it is by the clock of another server than the queue's. start is the instant by our clock.
func dueAt(c redis.Scripter, at, start time.Time) any {
	if at.IsZero() || luascripts.Sharded(c) {
		return timeUntil(start)
	}
	return at.UnixMicro()
}

// timeUntil is how long it is until an instant of our clock, negated, as an argument of a call. It is computed when the
// call is written: one that waits for its slot, or is repeated, is not late by that.
type timeUntil time.Time

// MarshalBinary writes the argument.
func (t timeUntil) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(nil, -max(0, time.Until(time.Time(t)).Microseconds()), 10), nil
}

// TimesPostponed is how often a task was deferred because its provider asked for a later attempt, by a Retry-After.
func TimesPostponed(ctx context.Context, c redis.Cmdable, k QueueKeys, id string) (int, error) {
	n, err := c.HGet(ctx, k.Task(id), "hw_postponed").Int()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}

// DueTask is an entry of the due index: a task that waits.
type DueTask struct {
	ID     string
	At     time.Time
	State  string   // asynq's state, "" when the task is gone
	Record string   // as [DeferArgs] had it
	Pool   PoolMark // who came first to wake it, zero for every pool
	Wait   Wait     // told by [ScanDeferredWithStates] alone
}

// DueArgs are the arguments of due.lua.
type DueArgs struct {
	Lead time.Duration // how long before its instant a task is due
	Room int           // how many that can be woken are listed, 0 to 1000
	Free int           // how many of the first of these are taken; the others stay every pool's
	Pool PoolMark      // who asks: what is every pool's becomes its own; zero for nobody, to whom all are listed
	// Others is how long after its instant a task is due to this pool that another pool should wake.
	Others time.Duration
}

// DueReply is the answer of due.lua.
type DueReply struct {
	Now   time.Time
	Again time.Time // when the next is due to who asks; zero when there is none
	More  bool      // another is now, for which there was no room
	Tasks []DueTask
}

var dueScript = luascripts.NewScript("queue/due")

// Due runs due.lua.
func Due(ctx context.Context, c redis.Scripter, k QueueKeys, a DueArgs) (DueReply, error) {
	r := dueScript.Ask(ctx, c, 4, []string{k.Due}, k.TaskPrefix, luascripts.Micros(a.Lead), a.Room, a.Free, a.Pool[:], luascripts.Micros(a.Others))
	reply := DueReply{Now: r.Time(), Again: r.Time(), More: r.Int() == 1}
	for range r.Count(5) {
		t := DueTask{At: r.Time(), ID: luascripts.LongID(r.Text()), State: r.Text(), Record: r.Text()}
		copy(t.Pool[:], r.Text())
		reply.Tasks = append(reply.Tasks, t)
	}
	return reply, r.Err()
}

// What wake.lua did with a task. STATUS in deferred.lua has the same words.
const (
	Woken       = 1
	StillActive = 2
	Deleted     = 3
	NotOurs     = 4
	NotYet      = 5
	Ended       = 6 // archived or completed
)

var wakeScript = luascripts.NewScript("queue/wake")

// Wake runs wake.lua for at most 1000 tasks, the first to run first, and
// answers what became of each. Of a task only ID and Record matter; Record may be empty,
// but then the entry of a task that is gone stays, unless it has no record either. While workers
// are scarce one other task stays in front of them.
func Wake(ctx context.Context, c redis.Scripter, k QueueKeys, tasks []DueTask, now time.Time, scarce bool) ([]int64, error) {
	keys := append(make([]string, 0, 4+len(tasks)), k.Due, k.Retry, k.Pending, k.Scheduled)
	args := append(make([]any, 0, 4+2*len(tasks)), now.UnixNano(), k.TaskPrefix, luascripts.Flag(scarce), len(tasks))
	for i := range tasks {
		keys = append(keys, k.Task(tasks[i].ID))
		args = append(args, luascripts.ShortID(tasks[i].ID), tasks[i].Record)
	}
	return wakeScript.Ask(ctx, c, len(tasks), keys, args...).Ints(len(tasks))
}

// RetimeMax bounds how many tasks one call of retime.lua takes.
const RetimeMax = 1000

// Retiming is a task and its new instant.
type Retiming struct {
	ID     string
	At     time.Time
	In     time.Duration // from now to At, as Wait of [DeferArgs]
	Any    bool          // every pool wakes it from now on; else who came first still does
	Reason WaitReason

	// Record is what the task waits for where At is of that: an entry that is left of
	// another task of this id is not moved.
	Record string
}

// Retimed is the answer of [Retime] about a task that moved. About one that is gone it is
// [Deleted] or [Ended], as [Wake] has them.
const Retimed = 1

var retimeScript = luascripts.NewScript("queue/retime")

// Retime runs retime.lua for at most [RetimeMax] tasks and answers which moved.
func Retime(ctx context.Context, c redis.Scripter, k QueueKeys, tasks []Retiming) ([]int64, error) {
	return retime(ctx, c, k, 0, tasks)
}

// RetimeEarlier is [Retime], but only what comes earlier moves, also of a task that is active.
func RetimeEarlier(ctx context.Context, c redis.Scripter, k QueueKeys, tasks []Retiming) ([]int64, error) {
	return retime(ctx, c, k, 1, tasks)
}

func retime(ctx context.Context, c redis.Scripter, k QueueKeys, onlyEarlier int, tasks []Retiming) ([]int64, error) {
	keys := append(make([]string, 0, 3+len(tasks)), k.Due, k.Retry, k.Scheduled)
	args := append(make([]any, 0, 2+5*len(tasks)), len(tasks), onlyEarlier)
	for _, t := range tasks {
		keys = append(keys, k.Task(t.ID))
		args = append(args, t.Reason.text(), luascripts.ShortID(t.ID), dueAt(c, t.At, time.Now().Add(t.In)), luascripts.Flag(t.Any), t.Record)
	}
	return retimeScript.Ask(ctx, c, len(tasks), keys, args...).Ints(len(tasks))
}

var forgetScript = luascripts.NewScript("queue/forget")

// Forget runs forget.lua. record says what the task waited for by the entry that is dropped,
// as [DueTask] has it. Empty means the entry that the task has now.
func Forget(ctx context.Context, c redis.Scripter, k QueueKeys, id, record string) error {
	if err := forgetScript.Run(ctx, c, []string{k.Due, k.Task(id)}, luascripts.ShortID(id), record).Err(); err != nil {
		return forgetScript.Wrap(err)
	}
	return nil
}

// RunNowStatus is an answer of run_now.lua.
type RunNowStatus int64

// The answers of run_now.lua.
const (
	RunNowPending RunNowStatus = 1 // it is pending, with the mark
	RunNowActive  RunNowStatus = 2
	RunNowDeleted RunNowStatus = 3
	RunNowGrouped RunNowStatus = 4 // it waits for others of its group
	RunNowEnded   RunNowStatus = 6 // archived or completed
)

var runNowScript = luascripts.NewScript("queue/run_now")

// RunNow runs run_now.lua.
func RunNow(ctx context.Context, c redis.Scripter, k QueueKeys, id string, now time.Time) (RunNowStatus, error) {
	r := runNowScript.Ask(ctx, c, 1, []string{k.Due, k.Retry, k.Pending, k.Scheduled, k.Task(id)}, luascripts.ShortID(id), now.UnixNano())
	return RunNowStatus(r.Int()), r.Err()
}

// TakeRunNow takes the mark of run_now.lua from a task. It returns whether there was one: of
// several who take it, one gets it.
func TakeRunNow(ctx context.Context, c redis.Cmdable, k QueueKeys, id string) (bool, error) {
	n, err := c.HDel(ctx, k.Task(id), "hw_now").Result()
	if err != nil {
		return false, fmt.Errorf("take the mark of a task that is to run now: %w", err)
	}
	return n == 1, nil
}

var rulesScript = luascripts.NewScript("queue/rules")

// Rules runs rules.lua: it says that this process runs the given "rule limit"
// pairs, and answers at most 1000 that were said within ttl, those said last first.
func Rules(ctx context.Context, c redis.Scripter, prefix string, ttl time.Duration, own []string) ([]string, error) {
	args := append(make([]any, 0, 2+len(own)), luascripts.Micros(ttl), len(own))
	for _, m := range own {
		args = append(args, m)
	}
	v, err := rulesScript.Run(ctx, c, []string{rulesKey(prefix)}, args...).StringSlice()
	if err != nil {
		return nil, rulesScript.Wrap(err)
	}
	return v, nil
}

// ScanDeferredReply is the answer of scan_deferred.lua.
type ScanDeferredReply struct {
	Now   time.Time
	Last  time.Time // the last instant of all; zero when there is none
	Tasks []DueTask // without their pools
}

var scanDeferredScript = luascripts.NewScript("queue/scan_deferred")

// ScanDeferred runs scan_deferred.lua: at most `most` deferred tasks, 1 to 1000, from an instant
// on, but for the first skip of that very instant. It tells no states, nor how the tasks wait.
func ScanDeferred(ctx context.Context, c redis.Scripter, k QueueKeys, from time.Time, skip, most int) (ScanDeferredReply, error) {
	return scanDeferred(ctx, c, k, from, skip, most, "")
}

// ScanDeferredWithStates is [ScanDeferred], and reads of each task its state and how it waits.
func ScanDeferredWithStates(ctx context.Context, c redis.Scripter, k QueueKeys, from time.Time, skip, most int) (ScanDeferredReply, error) {
	return scanDeferred(ctx, c, k, from, skip, most, k.TaskPrefix)
}

// ScanDeferredEnd runs scan_deferred.lua for the last `most` deferred tasks, 1 to 1000.
func ScanDeferredEnd(ctx context.Context, c redis.Scripter, k QueueKeys, most int) (ScanDeferredReply, error) {
	return scanDeferredFrom(ctx, c, k, -1, 0, most, "")
}

func scanDeferred(ctx context.Context, c redis.Scripter, k QueueKeys, from time.Time, skip, most int, prefix string) (ScanDeferredReply, error) {
	first := int64(0)
	if !from.IsZero() {
		first = from.UnixMicro()
	}
	return scanDeferredFrom(ctx, c, k, first, skip, most, prefix)
}

func scanDeferredFrom(ctx context.Context, c redis.Scripter, k QueueKeys, first int64, skip, most int, prefix string) (ScanDeferredReply, error) {
	r := scanDeferredScript.Ask(ctx, c, 3, []string{k.Due}, first, skip, most, prefix)
	reply := ScanDeferredReply{Now: r.Time(), Last: r.Time()}
	for range r.Count(5) {
		reply.Tasks = append(reply.Tasks, DueTask{At: r.Time(), ID: luascripts.LongID(r.Text()), Record: r.Text(), State: r.Text(), Wait: waitOf(r.Text())})
	}
	return reply, r.Err()
}

// ClaimSweep says that the caller alone may look for tasks that are gone, for so long from
// now on.
func ClaimSweep(ctx context.Context, c redis.Cmdable, k QueueKeys, ttl time.Duration) (bool, error) {
	err := c.SetArgs(ctx, k.sweep, 1, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// RuleVersion is the version of a rule's stored limit; 0 when none is stored.
type RuleVersion struct {
	Rule    string
	Version int64
}

var replanClaimScript = luascripts.NewScript("queue/replan_claim")

// ReplanClaim runs replan_claim.lua for 1 to 1000 rules. open says which of them have changed since the queue was
// planned. claimed says that this owner alone may plan the queue anew, for as long as ttl.
func ReplanClaim(ctx context.Context, c redis.Scripter, k QueueKeys, owner string, ttl time.Duration, rules []RuleVersion) (
	claimed bool, open []int64, err error) {
	args := pairs(rules, owner, luascripts.Micros(ttl), len(rules))
	r := replanClaimScript.Ask(ctx, c, 1+len(rules), []string{k.claim, k.planned}, args...)
	claimed = r.Int() == 1
	open, err = r.Ints(len(rules))
	return claimed, open, err
}

var replanDoneScript = luascripts.NewScript("queue/replan_done")

// ReplanDone runs replan_done.lua for at most 1000 rules, and answers false when the
// claim was lost. Without rules it only gives the claim back.
func ReplanDone(ctx context.Context, c redis.Scripter, k QueueKeys, owner string, rules []RuleVersion) (bool, error) {
	n, err := replanDoneScript.Run(ctx, c, []string{k.claim, k.planned}, pairs(rules, owner, len(rules))...).Int()
	if err != nil {
		return false, replanDoneScript.Wrap(err)
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
