package luascripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// BatchStartArgs are a batch to be. Of Batch only what it is started with counts.
type BatchStartArgs struct {
	Batch
	Token uint64 // of this call, not zero: with the same one it can be sent again
}

// BatchReply is the answer about a batch with its record.
type BatchReply struct {
	Status int64
	BatchView
}

// BatchStart runs batchstart.lua. A Status of 1 says that the batch began by this call,
// 0 that there was one of its id, which is answered.
func BatchStart(ctx context.Context, c redis.Scripter, k QueueKeys, a BatchStartArgs) (BatchReply, error) {
	of := k.batchKeys(a.ID)
	r := run(ctx, c, batchStartScript(), "batchstart.lua", 2, []string{of.record, k.batches, k.ended},
		a.ID, tokenText(a.Token), a.Name, a.Type, a.Source, a.Args, a.Total, a.Window, a.Weight, a.PaceN, micros(a.PacePer))
	reply := BatchReply{Status: r.int(), BatchView: BatchView{Now: r.time()}}
	reply.Batch = r.batch(a.ID)
	return reply, r.err
}

// What a claim came back with.
const (
	ClaimGone    = 0 // there is no such batch, or it has ended
	ClaimOurs    = 1
	ClaimAnother = 2
)

// BatchClaimArgs are the arguments of batchclaim.lua. A lease of zero gives it up.
type BatchClaimArgs struct {
	ID    string
	Owner uint64 // not zero
	Lease time.Duration

	// Rebooked is the Resumed for which Owner gave what was enqueued new places; zero for
	// none. It is noted unless the batch was paused since.
	Rebooked time.Time
}

// BatchClaim runs batchclaim.lua.
func BatchClaim(ctx context.Context, c redis.Scripter, k QueueKeys, a BatchClaimArgs) (BatchReply, error) {
	of := k.batchKeys(a.ID)
	r := run(ctx, c, batchClaimScript(), "batchclaim.lua", 3, []string{of.record, of.open}, tokenText(a.Owner), micros(max(0, a.Lease)), instant(a.Rebooked))
	return r.batchReply(a.ID, ClaimGone)
}

// batchReply reads {status, now, open, record}; there is no record with one status.
func (r *reply) batchReply(id string, gone int64) (BatchReply, error) {
	reply := BatchReply{Status: r.int(), BatchView: BatchView{Now: r.time(), Open: int(r.int())}}
	r.newer(reply.Status)
	if r.err == nil && reply.Status != gone {
		reply.Batch = r.batch(id)
	}
	return reply, r.err
}

// newer makes the status of a newer schema an error.
func (r *reply) newer(status int64) {
	if r.err == nil && status == int64(NewerSchema) {
		r.err = ErrNewerBatch
	}
}

// FeedTask is an element of a batch. Its task is named by [BatchTaskID], whatever ID
// says; without a Message it is refused.
type FeedTask struct {
	Position int64
	Element  string
	EnqueueTask
}

// FeedArgs are the arguments of feed.lua beside its keys.
type FeedArgs struct {
	Batch  string
	Owner  uint64 // as it was claimed
	Call   uint64 // drawn for this call: with the same one it can be sent again
	Cursor int64  // all before it are settled once these are
	Mark   string // the source's own text for Cursor
	End    bool   // the source has no more, and nothing else of it is left to be settled
	PaceAt time.Time
	Tasks  []FeedTask // 0 to BatchMax
}

// What feed.lua did, beside [Enqueued], [Conflict] and [Duplicate].
const (
	FeedNoRoom  = 2 // the window is full: not settled, and Cursor is not taken over
	FeedSettled = 3 // it was enqueued or refused before
	FeedRefused = 4 // as it was asked for
)

// What a feeding call came back with.
const (
	Fed        = 1
	NotOwner   = -1 // the lease is another's, or the batch is gone: nothing was done
	NotRunning = -2 // nothing was done
)

// FeedReply is the answer of feed.lua. Codes are by task; none unless Fed.
type FeedReply struct {
	Status int64
	Now    time.Time
	Open   int
	Ended  bool // the batch, by this
	Codes  []int64
}

// Feed runs feed.lua.
func Feed(ctx context.Context, c redis.Scripter, k QueueKeys, a FeedArgs) (FeedReply, error) {
	of := k.batchKeys(a.Batch)
	keys := append(make([]string, 0, 9+2*len(a.Tasks)), k.pending, k.scheduled, k.due, k.answer(a.Call),
		of.record, of.open, of.ahead, k.batches, k.ended)
	args := append(make([]any, 0, 7+9*len(a.Tasks)), a.Batch, tokenText(a.Owner), a.Cursor, a.Mark, flag(a.End), instant(a.PaceAt), len(a.Tasks))
	for i := range a.Tasks {
		t := &a.Tasks[i]
		task := t.EnqueueTask
		task.ID = BatchTaskID(a.Batch, t.Element)
		keys, args = task.append(k, keys, append(args, t.Position, t.Element))
	}
	r := run(ctx, c, feedScript(), "feed.lua", 4, keys, args...)
	reply := FeedReply{Status: r.int(), Now: r.time(), Open: int(r.int()), Ended: r.int() == 1}
	r.newer(reply.Status)
	if r.err != nil || reply.Status != Fed {
		return reply, r.err
	}
	var err error
	reply.Codes, err = codes(r, len(a.Tasks))
	return reply, err
}

// Outcome is how a task of a batch ended.
type Outcome string

// As the records have them.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeDropped Outcome = "dropped"
)

// BatchCount runs batchcount.lua for 1 to BatchMax elements. It answers how many of
// them it counted, each once whoever says so, and whether the batch ended by that: a
// cancelled one is gone then.
func BatchCount(ctx context.Context, c redis.Scripter, k QueueKeys, id string, outcome Outcome, elements ...string) (counted int, ended bool, _ error) {
	of := k.batchKeys(id)
	args := append(make([]any, 0, 3+len(elements)), id, string(outcome), len(elements))
	for _, e := range elements {
		args = append(args, e)
	}
	r := run(ctx, c, batchCountScript(), "batchcount.lua", 2, []string{of.record, of.open, of.ahead, k.batches, k.ended}, args...)
	counted, ended = int(r.int()), r.int() == 1
	return counted, ended, r.err
}

// BatchSweep runs batchsweep.lua for 1 to BatchMax elements: it counts those whose tasks
// have ended, and answers how, and whether the batch ended by that.
func BatchSweep(ctx context.Context, c redis.Scripter, k QueueKeys, id string, elements []string) (done, failed int, ended bool, _ error) {
	of := k.batchKeys(id)
	keys := append(make([]string, 0, 5+len(elements)), of.record, of.open, of.ahead, k.batches, k.ended)
	args := append(make([]any, 0, 2+len(elements)), id, len(elements))
	for _, e := range elements {
		keys, args = append(keys, k.Task(BatchTaskID(id, e))), append(args, e)
	}
	r := run(ctx, c, batchSweepScript(), "batchsweep.lua", 3, keys, args...)
	done, failed, ended = int(r.int()), int(r.int()), r.int() == 1
	return done, failed, ended, r.err
}

// BatchChange is what batchset.lua does.
type BatchChange string

// As batchset.lua has them.
const (
	BatchPause     BatchChange = "pause"
	BatchResume    BatchChange = "resume"
	BatchCancel    BatchChange = "cancel"
	BatchSetPace   BatchChange = "pace"
	BatchSetWeight BatchChange = "weight"
	BatchSetWindow BatchChange = "window"
)

// What batchset.lua did.
const (
	SetGone  = 0 // there is no such batch
	SetDone  = 1 // or it was so already
	SetWrong = 2 // the batch has ended, or is cancelled
)

// BatchSetArgs are the arguments of batchset.lua. N is the weight, the window, or of
// the pace how many go in Per.
type BatchSetArgs struct {
	ID   string
	What BatchChange
	N    int
	Per  time.Duration
}

// BatchSet runs batchset.lua. A cancelled batch of which nothing is open is gone at
// once: what is answered was the last of it.
func BatchSet(ctx context.Context, c redis.Scripter, k QueueKeys, a BatchSetArgs) (BatchReply, error) {
	of := k.batchKeys(a.ID)
	r := run(ctx, c, batchSetScript(), "batchset.lua", 3, []string{of.record, of.open, of.ahead, k.batches},
		a.ID, string(a.What), a.N, micros(a.Per))
	return r.batchReply(a.ID, SetGone)
}

// What batchdrop.lua did with an element.
const (
	DropRuns    = 0 // or it is pending behind many tasks, and left to the pools
	Dropped     = 1
	DropDone    = 2 // it had ended, and nobody had counted it
	DropFailed  = 3
	DropNotOpen = 4
)

// DropReply is the answer of batchdrop.lua.
type DropReply struct {
	Cancelled             bool // otherwise there is no such batch, or it is not cancelled: nothing was done
	Now                   time.Time
	Open                  int
	Gone                  bool // nothing was left of the batch: it is gone
	Done, Failed, Dropped int64
	Codes                 []int64
	For                   []string // what each waited for, as [EnqueueTask] or [DeferArgs] had it
}

// BatchDrop runs batchdrop.lua for 1 to BatchMax elements of a cancelled batch.
func BatchDrop(ctx context.Context, c redis.Scripter, k QueueKeys, id string, elements []string) (DropReply, error) {
	of := k.batchKeys(id)
	keys := append(make([]string, 0, 8+len(elements)), k.pending, k.scheduled, k.retry, k.due, of.record, of.open, of.ahead, k.batches)
	args := append(make([]any, 0, 2+2*len(elements)), id, len(elements))
	for _, e := range elements {
		task := BatchTaskID(id, e)
		keys = append(keys, k.Task(task))
		args = append(args, e, shortID(task))
	}
	r := run(ctx, c, batchDropScript(), "batchdrop.lua", 7, keys, args...)
	status := r.int()
	reply := DropReply{Cancelled: status == 1, Now: r.time(), Open: int(r.int()), Gone: r.int() == 1}
	reply.Done, reply.Failed, reply.Dropped = r.int(), r.int(), r.int()
	r.newer(status)
	if r.err != nil || !reply.Cancelled {
		return reply, r.err
	}
	reply.Codes, reply.For = make([]int64, len(elements)), make([]string, len(elements))
	for i := range elements {
		reply.Codes[i], reply.For[i] = r.int(), r.text()
	}
	return reply, r.err
}
