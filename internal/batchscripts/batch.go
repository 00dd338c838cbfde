package batchscripts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
)

// ElementsMax bounds how many elements of a batch one call takes.
const ElementsMax = 100

// batchSchema is the field v of a record, as batch.lua has it.
const batchSchema = "1"

// newerSchema is what batch.lua answers when a newer version wrote the record.
const newerSchema = 5

// ErrNewer says that a newer version wrote the record of a batch: nothing was done.
var ErrNewer = errors.New("batchscripts: a batch of a newer schema")

// batchKeys are the keys of one batch.
type batchKeys struct {
	record, unfinished, ahead string
}

func keysOf(k queuescripts.QueueKeys, id string) batchKeys {
	record := k.Batch + id
	return batchKeys{record: record, unfinished: record + ":open", ahead: record + ":ahead"}
}

// State is what a batch does.
type State string

// As the records have them.
const (
	Running   State = "running"
	Paused    State = "paused"
	Cancelled State = "cancelled"
	Ended     State = "ended"
)

// Batch is the record of a batch. Its first fields are what it was started with.
type Batch struct {
	ID, Name, Type, Source, Args string

	Total          int64 // elements of the source, 0 when that is not known
	Window, Weight int   // weight: percent of the window
	PaceN          int   // at most so many elements in PacePer; 0 and 0 for as the limits allow
	PacePer        time.Duration

	State                                    State
	Cursor                                   int64  // position in the source, all before it are settled
	Mark                                     string // the source's own text for that position
	End                                      bool   // all of the source is settled
	Enqueued, Done, Failed, Refused, Dropped int64
	RefusedFor                               map[string]int64 // by reason; those that an older version refused are not among them
	PaceAt                                   time.Time        // from when on its pace allows the next
	Calls                                    int64            // that fed it, see [FeedArgs]
	Until                                    time.Time        // of the lease of who feeds it
	Started, Ended, Resumed                  time.Time
	Rebooked                                 time.Time // the Resumed for which what was enqueued has new places

	sampled [2]struct { // the later one last
		at    time.Time
		ended int64
	}
}

// Ceiling is how many elements may be enqueued and not have ended, as feed.lua has it.
func (b *Batch) Ceiling() int { return max(1, b.Window*b.Weight/100) }

// rateEvery is from one sample of the rate to the next, as batch.lua has it; of less than
// rateFrom there is none.
const (
	rateEvery = 10 * time.Second
	rateFrom  = time.Second
)

// Rate is how many tasks ended per second, in the last 10 to 20 s while anybody looks
// after the batch; 0 when nobody does.
func (b *Batch) Rate(now time.Time) float64 {
	from := b.sampled[0]
	passed := now.Sub(from.at)
	if passed < rateFrom || now.Sub(b.sampled[1].at) > 2*rateEvery { // nothing was counted for so long
		return 0
	}
	return float64(b.Done+b.Failed+b.Dropped-from.ended) / passed.Seconds()
}

// readBatch reads the fields of a record.
func readBatch(id string, fields map[string]string) (Batch, error) {
	b := Batch{
		ID: id, Name: fields["name"], Type: fields["type"], Source: fields["source"], Args: fields["args"],
		State: State(fields["state"]), Mark: fields["mark"], End: fields["end"] == "1",
	}
	if fields["v"] != batchSchema {
		return b, fmt.Errorf("%w: %.10q, want %q", ErrNewer, fields["v"], batchSchema)
	}
	var failed string
	number := func(field string) int64 {
		n, err := strconv.ParseInt(cmp.Or(fields[field], "0"), 10, 64)
		if err != nil || n < 0 {
			failed = cmp.Or(failed, field)
		}
		return n
	}
	b.Total, b.Window, b.Weight = number("total"), int(number("window")), int(number("weight"))
	b.PaceN, b.PacePer = int(number("pace_n")), time.Duration(number("pace_us"))*time.Microsecond
	b.Cursor, b.Enqueued, b.Done, b.Failed = number("cursor"), number("enqueued"), number("done"), number("failed")
	b.Refused, b.Dropped = number("refused"), number("dropped")
	for field := range fields {
		if reason, ok := strings.CutPrefix(field, "refused:"); ok {
			if b.RefusedFor == nil {
				b.RefusedFor = make(map[string]int64)
			}
			b.RefusedFor[reason] = number(field)
		}
	}
	b.PaceAt, b.Until, b.Calls = luascripts.TimeOf(number("pace_at")), luascripts.TimeOf(number("until")), number("calls")
	b.Started, b.Ended, b.Resumed = luascripts.TimeOf(number("started")), luascripts.TimeOf(number("ended")), luascripts.TimeOf(number("resumed"))
	b.Rebooked = luascripts.TimeOf(number("rebooked"))
	for i, of := range [...][2]string{{"t0", "n0"}, {"t1", "n1"}} {
		b.sampled[i].at, b.sampled[i].ended = luascripts.TimeOf(number(of[0])), number(of[1])
	}
	if failed != "" {
		return b, &luascripts.ReplyError{Script: "batch", What: fmt.Sprintf("field %s of a record is no number", failed)}
	}
	return b, nil
}

// recordOf reads the record behind an answer.
func recordOf(r *luascripts.Reply, id string) Batch {
	fields := make(map[string]string)
	for r.More() {
		name := r.Text()
		fields[name] = r.Text()
	}
	if r.Err() != nil {
		return Batch{}
	}
	b, err := readBatch(id, fields)
	if err != nil {
		r.Fail(err)
	}
	return b
}

// batchTask opens the id of each task of a batch.
const batchTask = "batch:"

// TaskID names the task of an element.
func TaskID(batch, element string) string { return batchTask + batch + ":" + element }

// ParseTaskID reads it back. Whether there is such a batch is another question.
func ParseTaskID(id string) (batch, element string, ok bool) {
	rest, ok := strings.CutPrefix(id, batchTask)
	if !ok {
		return "", "", false
	}
	batch, element, ok = strings.Cut(rest, ":")
	if !ok || !isBatchID(batch) || !IsElementID(element) {
		return "", "", false
	}
	return batch, element, true
}

// isBatchID says that a text may name a batch.
func isBatchID(id string) bool {
	return len(id) >= 1 && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-", c)
	})
}

// IsElementID says that a text may name an element of a batch.
func IsElementID(id string) bool {
	return len(id) >= 1 && len(id) <= 128 && !strings.ContainsFunc(id, func(c rune) bool {
		return c < '!' || c > '~' || strings.ContainsRune(":{}", c)
	})
}

// StartArgs are a batch to be. Of Batch only what it is started with counts.
type StartArgs struct {
	Batch
	Token uint64 // of this call, not zero: with the same one it can be sent again
}

// Reply is the answer about a batch with its record.
type Reply struct {
	Status int64
	View
}

var batchStartScript = luascripts.NewScript("batch/batchstart")

// Start runs batchstart.lua. A Status of 1 says that the batch began by this call,
// 0 that there was one of its id, which is answered.
func Start(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, a StartArgs) (Reply, error) {
	of := keysOf(k, a.ID)
	r := batchStartScript.Ask(ctx, c, 2, []string{of.record, k.Batches, k.BatchesEnded},
		a.ID, luascripts.TokenText(a.Token), a.Name, a.Type, a.Source, a.Args, a.Total, a.Window, a.Weight, a.PaceN, luascripts.Micros(a.PacePer))
	reply := Reply{Status: r.Int(), View: View{Now: r.Time()}}
	reply.Batch = recordOf(r, a.ID)
	return reply, r.Err()
}

// What a claim came back with.
const (
	ClaimGone    = 0 // there is no such batch, or it has ended
	ClaimOurs    = 1
	ClaimAnother = 2
)

// ClaimArgs are the arguments of batchclaim.lua. A lease of zero gives it up.
type ClaimArgs struct {
	ID    string
	Owner uint64 // not zero
	Lease time.Duration
	Renew bool // only a lease that is Owner's: none is taken

	// Rebooked is the Resumed for which Owner gave what was enqueued new places; zero for
	// none. It is noted unless the batch was paused since.
	Rebooked time.Time
}

var batchClaimScript = luascripts.NewScript("batch/batchclaim")

// Claim runs batchclaim.lua.
func Claim(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, a ClaimArgs) (Reply, error) {
	of := keysOf(k, a.ID)
	r := batchClaimScript.Ask(ctx, c, 3, []string{of.record, of.unfinished},
		luascripts.TokenText(a.Owner), luascripts.Micros(max(0, a.Lease)), luascripts.Instant(a.Rebooked), luascripts.Flag(a.Renew))
	return replyOf(r, a.ID)
}

// replyOf reads {status, now, unfinished, record}; there is no record with ClaimGone, which is
// SetGone, too.
func replyOf(r *luascripts.Reply, id string) (Reply, error) {
	reply := Reply{Status: r.Int(), View: View{Now: r.Time(), Unfinished: int(r.Int())}}
	failIfNewer(r, reply.Status)
	if r.Err() == nil && reply.Status != ClaimGone {
		reply.Batch = recordOf(r, id)
	}
	return reply, r.Err()
}

// failIfNewer makes the status of a newer schema an error.
func failIfNewer(r *luascripts.Reply, status int64) {
	if r.Err() == nil && status == newerSchema {
		r.Fail(ErrNewer)
	}
}

// FeedTask is an element of a batch. Its task is named by [TaskID], whatever ID
// says; without a Message it is refused, and counted for Reason.
type FeedTask struct {
	Position int64
	Element  string
	Reason   string
	queuescripts.EnqueueTask
}

// The reasons for which feed.lua itself refuses an element.
const (
	ReasonIDTaken   = "id taken"
	ReasonDuplicate = "duplicate"
)

// FeedArgs are the arguments of feed.lua beside its keys.
type FeedArgs struct {
	Batch  string
	Owner  uint64 // as it was claimed
	Call   uint64 // drawn for this call: with the same one it can be sent again
	Cursor int64  // all before it are settled once these are
	Mark   string // the source's own text for Cursor
	End    bool   // the source has no more, and nothing else of it is left to be settled
	PaceAt time.Time
	Calls  int64      // that were done, as far as who feeds it knows: a Redis that has lost some answers NotOwner
	Tasks  []FeedTask // 0 to ElementsMax
}

// What feed.lua did, beside [queuescripts.Enqueued], [queuescripts.Conflict] and [queuescripts.Duplicate].
const (
	FeedNoRoom  = 2 // the window is full: not settled, and Cursor is not taken over
	FeedSettled = 3 // it was enqueued or refused before
	FeedRefused = 4 // as it was asked for
)

// What a feeding call came back with.
const (
	Fed        = 1
	NotOwner   = -1 // the lease is another's, or the batch is gone, or Redis has lost calls: nothing was done
	NotRunning = -2 // nothing was done
)

// FeedReply is the answer of feed.lua. Codes are by task; none unless Fed.
type FeedReply struct {
	Status     int64
	Now        time.Time
	Unfinished int
	Ended      bool // the batch, by this
	Codes      []int64
}

var feedScript = luascripts.NewScript("batch/feed")

// Feed runs feed.lua.
func Feed(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, a FeedArgs) (FeedReply, error) {
	of := keysOf(k, a.Batch)
	keys := append(make([]string, 0, 9+2*len(a.Tasks)), k.Pending, k.Scheduled, k.Due, k.Answer(a.Call),
		of.record, of.unfinished, of.ahead, k.Batches, k.BatchesEnded)
	args := append(make([]any, 0, 8+9*len(a.Tasks)), a.Batch, luascripts.TokenText(a.Owner), a.Cursor, a.Mark,
		luascripts.Flag(a.End), luascripts.Instant(a.PaceAt), a.Calls, len(a.Tasks))
	for i := range a.Tasks {
		t := &a.Tasks[i]
		task := t.EnqueueTask
		task.ID = TaskID(a.Batch, t.Element)
		if t.Message == nil {
			task.Record = t.Reason
		}
		keys, args = task.Append(c, k, keys, append(args, t.Position, t.Element))
	}
	r := feedScript.Ask(ctx, c, 4, keys, args...)
	reply := FeedReply{Status: r.Int(), Now: r.Time(), Unfinished: int(r.Int()), Ended: r.Int() == 1}
	failIfNewer(r, reply.Status)
	if r.Err() != nil || reply.Status != Fed {
		return reply, r.Err()
	}
	var err error
	reply.Codes, err = r.Ints(len(a.Tasks))
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

var batchCountScript = luascripts.NewScript("batch/batchcount")

// Count runs batchcount.lua for 1 to ElementsMax elements. It answers how many of
// them it counted, each once whoever says so, and whether the batch ended by that: a
// cancelled one is gone then.
func Count(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, id string, outcome Outcome, elements ...string) (counted int, ended bool, _ error) {
	of := keysOf(k, id)
	args := append(make([]any, 0, 3+len(elements)), id, string(outcome), len(elements))
	for _, e := range elements {
		args = append(args, e)
	}
	r := batchCountScript.Ask(ctx, c, 2, []string{of.record, of.unfinished, of.ahead, k.Batches, k.BatchesEnded}, args...)
	counted, ended = int(r.Int()), r.Int() == 1
	return counted, ended, r.Err()
}

var batchSweepScript = luascripts.NewScript("batch/batchsweep")

// Sweep runs batchsweep.lua for 1 to ElementsMax elements: it counts those whose tasks
// have ended, and answers how, and whether the batch ended by that.
func Sweep(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, id string, elements []string) (done, failed int, ended bool, _ error) {
	of := keysOf(k, id)
	keys := append(make([]string, 0, 5+len(elements)), of.record, of.unfinished, of.ahead, k.Batches, k.BatchesEnded)
	args := append(make([]any, 0, 2+len(elements)), id, len(elements))
	for _, e := range elements {
		keys, args = append(keys, k.Task(TaskID(id, e))), append(args, e)
	}
	r := batchSweepScript.Ask(ctx, c, 3, keys, args...)
	done, failed, ended = int(r.Int()), int(r.Int()), r.Int() == 1
	return done, failed, ended, r.Err()
}

// Change is what batchset.lua does.
type Change string

// As batchset.lua has them.
const (
	Pause     Change = "pause"
	Resume    Change = "resume"
	Cancel    Change = "cancel"
	SetPace   Change = "pace"
	SetWeight Change = "weight"
	SetWindow Change = "window"
)

// What batchset.lua did.
const (
	SetGone  = 0 // there is no such batch
	SetDone  = 1 // or it was so already
	SetWrong = 2 // the batch has ended, or is cancelled
)

// SetArgs are the arguments of batchset.lua. N is the weight, the window, or of
// the pace how many go in Per.
type SetArgs struct {
	ID   string
	What Change
	N    int
	Per  time.Duration
}

var batchSetScript = luascripts.NewScript("batch/batchset")

// Set runs batchset.lua. A cancelled batch of which nothing is unfinished is gone at
// once: what is answered was the last of it.
func Set(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, a SetArgs) (Reply, error) {
	of := keysOf(k, a.ID)
	r := batchSetScript.Ask(ctx, c, 3, []string{of.record, of.unfinished, of.ahead, k.Batches},
		a.ID, string(a.What), a.N, luascripts.Micros(a.Per))
	return replyOf(r, a.ID)
}

// What batchdrop.lua did with an element.
const (
	DropRuns     = 0 // or it is pending behind many tasks, and left to the pools
	Dropped      = 1
	DropDone     = 2 // it had ended, and nobody had counted it
	DropFailed   = 3
	DropFinished = 4
)

// DropReply is the answer of batchdrop.lua.
type DropReply struct {
	Cancelled             bool // otherwise there is no such batch, or it is not cancelled: nothing was done
	Now                   time.Time
	Unfinished            int
	Gone                  bool // nothing was left of the batch: it is gone
	Done, Failed, Dropped int64
	Codes                 []int64
	Record                []string // what each waited for, as [queuescripts.EnqueueTask] or [queuescripts.DeferArgs] had it
}

var batchDropScript = luascripts.NewScript("batch/batchdrop")

// Drop runs batchdrop.lua for 1 to ElementsMax elements of a cancelled batch.
func Drop(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, id string, elements []string) (DropReply, error) {
	of := keysOf(k, id)
	keys := append(make([]string, 0, 8+len(elements)), k.Pending, k.Scheduled, k.Retry, k.Due, of.record, of.unfinished, of.ahead, k.Batches)
	args := append(make([]any, 0, 2+2*len(elements)), id, len(elements))
	for _, e := range elements {
		task := TaskID(id, e)
		keys = append(keys, k.Task(task))
		args = append(args, e, luascripts.ShortID(task))
	}
	r := batchDropScript.Ask(ctx, c, 7, keys, args...)
	status := r.Int()
	reply := DropReply{Cancelled: status == 1, Now: r.Time(), Unfinished: int(r.Int()), Gone: r.Int() == 1}
	reply.Done, reply.Failed, reply.Dropped = r.Int(), r.Int(), r.Int()
	failIfNewer(r, status)
	if r.Err() != nil || !reply.Cancelled {
		return reply, r.Err()
	}
	reply.Codes, reply.Record = make([]int64, len(elements)), make([]string, len(elements))
	for i := range elements {
		reply.Codes[i], reply.Record[i] = r.Int(), r.Text()
	}
	return reply, r.Err()
}

// View is a batch at an instant.
type View struct {
	Batch
	Unfinished int       // elements that were enqueued and have not ended
	Now        time.Time // by the clock of the server that has it
}

// ErrNotFound says that there is no such batch.
var ErrNotFound = errors.New("batchscripts: no such batch")

var batchPeekScript = luascripts.NewScript("batch/batchpeek")

// Read reads batches in one round trip. Each has an error of its own, which is [ErrNotFound] when there
// is no such batch.
func Read(ctx context.Context, c redis.UniversalClient, k queuescripts.QueueKeys, ids []string) ([]View, []error) {
	views, errs := make([]View, len(ids)), make([]error, len(ids))
	calls := make([]luascripts.Command, len(ids))
	for i, id := range ids {
		of := keysOf(k, id)
		calls[i] = batchPeekScript.Call([]string{of.record, of.unfinished})
	}
	for i, cmd := range luascripts.SendAll(ctx, c, calls) {
		v, err := cmd.Result()
		read := batchPeekScript.Read(3, v, err)
		r, err := replyOf(&read, ids[i])
		if err == nil && r.Status == 0 {
			err = ErrNotFound
		}
		views[i], errs[i] = r.View, err
	}
	return views, errs
}

// StateOf is the state of a batch. It is empty when there is no such batch.
func StateOf(ctx context.Context, c redis.Cmdable, k queuescripts.QueueKeys, id string) (State, error) {
	state, err := c.HGet(ctx, keysOf(k, id).record, "state").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("HGET: %w", err)
	}
	return State(state), nil
}

// EachUnfinished goes through the ids of the batches that have not ended, the oldest
// first, at most `most` at a time. One that is there all the time comes once, also when
// others end meanwhile.
func EachUnfinished(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, most int, f func(ids []string) error) error {
	return eachBatch(ctx, c, k.Batches, most, f)
}

// EachFinished goes through those that have ended, as long as their records are kept; some
// of them may be gone.
func EachFinished(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, most int, f func(ids []string) error) error {
	return eachBatch(ctx, c, k.BatchesEnded, most, f)
}

func eachBatch(ctx context.Context, c redis.Scripter, key string, most int, f func(ids []string) error) error {
	return EachElement(0, most, func(from int64, most int) ([]Element, error) {
		return positioned(ctx, c, key, from, most)
	}, func(page []Element) error {
		ids := make([]string, len(page))
		for i, e := range page {
			ids[i] = e.ID
		}
		return f(ids)
	})
}

// Element is an element and its position in the source.
type Element struct {
	ID       string
	Position int64
}

// UnfinishedElements are those of a batch that were enqueued and have not ended, from a
// position on, in order, most of them 1 to 1000; AheadElements those that are settled and
// not before the cursor. An id comes once, and a position as often as the source gave it to
// another element. [EachElement] goes through all.
func UnfinishedElements(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, id string, from int64, most int) ([]Element, error) {
	return positioned(ctx, c, keysOf(k, id).unfinished, from, most)
}

// AheadElements is said at [UnfinishedElements].
func AheadElements(ctx context.Context, c redis.Scripter, k queuescripts.QueueKeys, id string, from int64, most int) ([]Element, error) {
	return positioned(ctx, c, keysOf(k, id).ahead, from, most)
}

var batchListScript = luascripts.NewScript("batch/batchlist")

func positioned(ctx context.Context, c redis.Scripter, key string, from int64, most int) ([]Element, error) {
	r := batchListScript.Ask(ctx, c, 1, []string{key}, from, most)
	out := make([]Element, r.Count(2))
	for i := range out {
		out[i] = Element{ID: r.Text(), Position: r.Int()}
	}
	return out, r.Err()
}

// EachElement goes through elements from a position on, at most `most` at a time, of which
// list gives so many from a position on. Those that are there all the time come once, also
// when others of one position are taken out meanwhile.
func EachElement(from int64, most int, list func(from int64, most int) ([]Element, error), f func([]Element) error) error {
	seen := make(map[string]bool) // at the position from, where the next page begins
	for {
		asked := most + len(seen)
		page, err := list(from, asked)
		if err != nil {
			return err
		}
		whole := len(page) < asked
		page = slices.DeleteFunc(page, func(e Element) bool { return e.Position == from && seen[e.ID] })
		if len(page) == 0 {
			return nil
		}
		whole = whole && len(page) <= most
		page = page[:min(len(page), most)]
		if last := page[len(page)-1].Position; last != from {
			from = last
			clear(seen)
		}
		for _, e := range page {
			if e.Position == from {
				seen[e.ID] = true
			}
		}
		if err := f(page); err != nil || whole {
			return err
		}
	}
}
