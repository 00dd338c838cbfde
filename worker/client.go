package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/coalesce"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
)

// freshContextTimeout bounds a finishing script whose own context has ended already, and all of them
// together while Redis answers none after a shutdown has begun.
const freshContextTimeout = 5 * time.Second

// client is the Redis client of one asynq server. All of asynq's scripts go
// through it; other commands pass as they are.
type client struct {
	redis.UniversalClient
	a      *Adapter
	misses atomic.Int32 // queues in a row that had no task; asynq asks one after the other

	mu      sync.Mutex       // over failing
	failing map[string]error // the queues that failed since Redis answered about one, or since asynq got an error

	// skipRecovery is set when another server of this pool recovers the tasks of dead processes. If
	// each server did that, each would call the user's functions about the same task.
	skipRecovery bool
}

// Eval runs a script that Redis does not have yet: asynq sends its text.
func (c *client) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	sha := asynqwire.SHA(text)
	if asynqwire.ListsExpired(sha) && !c.recovers(ctx) {
		return answerNone(ctx)
	}
	args = c.withRightInstants(sha, args)
	op, call := asynqwire.Recognise(sha, keys, args)
	if op == asynqwire.OpDone || op == asynqwire.OpComplete {
		if err := c.a.finished.learn(sha, text, call.TaskKey); err != nil { // it was tried a moment ago
			return answerError(ctx, err)
		}
	}
	cmd := c.dispatch(ctx, op, call, func(ctx context.Context) *redis.Cmd {
		return c.eval(ctx, text, keys, args)
	})
	c.keepFinished(op, call, cmd.Err(), sha, keys, args)
	return cmd
}

// EvalSha is how asynq runs its scripts.
func (c *client) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if asynqwire.ListsExpired(sha) && !c.recovers(ctx) {
		return answerNone(ctx)
	}
	args = c.withRightInstants(sha, args)
	op, call := asynqwire.Recognise(sha, keys, args)
	cmd := c.dispatch(ctx, op, call, func(ctx context.Context) *redis.Cmd {
		if c.a.finishPipeline.rdb == nil || op == asynqwire.OpOther || op == asynqwire.OpUnknown {
			return luascripts.SendWhileSlotMoves(ctx, c.UniversalClient, func() *redis.Cmd {
				return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
			})
		}
		return c.a.finishPipeline.evalSha(ctx, sha, keys, args, func(ctx context.Context) bool {
			return op == asynqwire.OpRetry && c.wrote(ctx, call)
		})
	})
	if wantsText := c.keepFinished(op, call, cmd.Err(), sha, keys, args); wantsText {
		return answerError(ctx, redis.ErrNoScript) // now asynq sends the text
	}
	return cmd
}

// ZAddXX is how asynq renews leases.
func (c *client) ZAddXX(ctx context.Context, key string, members ...redis.Z) *redis.IntCmd {
	if asynqwire.IsLease(key) {
		members = slices.Clone(members)
		for i := range members {
			members[i].Score = float64(c.a.localClock.moveSeconds(int64(members[i].Score)))
		}
	}
	return c.UniversalClient.ZAddXX(ctx, key, members...)
}

// keepFinished remembers how asynq tried to write the end of a finished task, when that failed with an error that may pass. It
// says whether the text of the script is wanted: Redis may have forgotten it by the time that it answers again.
func (c *client) keepFinished(op asynqwire.Op, call asynqwire.Call, err error, sha string, keys []string, args []any) (wantsText bool) {
	if op != asynqwire.OpDone && op != asynqwire.OpComplete || !rediserr.MayPass(err) {
		return false
	}
	run, ok := c.a.recentlyDone.get(call.TaskKey, time.Now())
	return ok && c.a.finished.keep(&finishedTask{op: op, call: call, retried: run.retried, sha: sha, keys: keys, args: args, failed: err})
}

// endFinished writes the end of a task as asynq tried to.
func (c *client) endFinished(ctx context.Context, t *finishedTask, text string) *redis.Cmd {
	return c.runFinish(ctx, t.op, t.call, func(ctx context.Context) *redis.Cmd {
		return c.eval(ctx, text, t.keys, t.args)
	})
}

// eval sends a script with its text. Like all scripts of asynq it waits on a Cluster while its slot moves: asynq
// repeats some of them after seconds only, until the lease of the task ends, and logs the error as it is.
func (c *client) eval(ctx context.Context, text string, keys []string, args []any) *redis.Cmd {
	return luascripts.SendWhileSlotMoves(ctx, c.UniversalClient, func() *redis.Cmd {
		return c.UniversalClient.Eval(ctx, text, keys, args...)
	})
}

const (
	// recoverAfter is how long after an outage no task is taken for one of a dead process.
	recoverAfter = 3 * unwrittenEvery
	// recoverWithin bounds the wait for that: of a Cluster a part may be away for long.
	recoverWithin = 10 * time.Second
	// recoverSlack is how long ago a lease must have ended, as asynq has it: clocks may differ.
	recoverSlack = 30 * time.Second
)

// recovers says whether this server looks now for tasks of dead processes, as it does once a minute. After an outage
// the tasks of living ones look the same, until those have written what became of them: so it waits for a moment. It does the
// same after its start, for it does not know of an outage before.
func (c *client) recovers(ctx context.Context) bool {
	if c.skipRecovery {
		return false
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(recoverWithin); time.Now().Before(end) && c.a.away.lately(recoverAfter); {
		select {
		case <-ticker.C:
		case <-c.a.stop:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// withRightInstants are the arguments of a script of asynq without the error of the local clock. A recoverer reads the clock before it asks
// about the first queue, and the clock may have been set since: so it is read again.
func (c *client) withRightInstants(sha string, args []any) []any {
	if !asynqwire.ListsExpired(sha) || len(args) == 0 {
		return asynqwire.MoveInstants(sha, args, -c.a.localClock.off())
	}
	args = slices.Clone(args)
	args[0] = c.a.localClock.now().Add(-recoverSlack).Unix()
	return args
}

// wrote says whether a retry whose answer was lost was written. The task may run again by now, when its
// back-off is short: the same call once more would end that run. When asynq repeats the call itself, some
// seconds later, the message has another time in it, but no failure is counted twice.
func (c *client) wrote(ctx context.Context, call asynqwire.Call) bool {
	stored, err := c.UniversalClient.HGet(ctx, call.TaskKey, "msg").Bytes()
	if err != nil {
		return false
	}
	if !call.Failure {
		return bytes.Equal(stored, call.Message)
	}
	is, err := asynqwire.DecodeMessage(stored)
	want, bad := asynqwire.DecodeMessage(call.Message)
	return err == nil && bad == nil && is.Retried >= want.Retried
}

// dispatch runs a script of asynq in the way that its kind asks for: run sends it as it is.
func (c *client) dispatch(ctx context.Context, op asynqwire.Op, call asynqwire.Call, run func(context.Context) *redis.Cmd) *redis.Cmd {
	switch op {
	case asynqwire.OpOther:
		return run(ctx)
	case asynqwire.OpUnknown:
		c.a.distrust("a script of asynq is not as pinned", zap.String("queue", call.Queue))
		return run(ctx)
	case asynqwire.OpDequeue:
		return c.fetch(ctx, call)
	}
	if ctx.Err() != nil {
		return c.finishWithFreshContext(ctx, op, call, run)
	}
	return c.finishOrDefer(ctx, op, call, run)
}

// finishWithFreshContext runs a script that finishes a task, and whose context has ended: asynq's syncer repeats
// what it could not write during an outage. Without a fresh context it would never be written,
// and the task would run again.
func (c *client) finishWithFreshContext(ctx context.Context, op asynqwire.Op, call asynqwire.Call, run func(context.Context) *redis.Cmd) *redis.Cmd {
	left := c.freshContextLeft(time.Now())
	if left <= 0 {
		return answerError(ctx, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), left)
	defer cancel()
	if op == asynqwire.OpRetry && c.wrote(ctx, call) {
		c.a.freshContextUntil.Store(nil)
		return answerOK(ctx) // and what is in flight is another delivery of it
	}
	cmd := c.finishOrDefer(ctx, op, call, run)
	if err := cmd.Err(); err == nil || rediserr.Of(err).Answered() {
		c.a.freshContextUntil.Store(nil)
	}
	return cmd
}

// finishOrDefer runs a script that finishes a task, or writes the task's deferral in its place.
func (c *client) finishOrDefer(ctx context.Context, op asynqwire.Op, call asynqwire.Call, run func(context.Context) *redis.Cmd) *redis.Cmd {
	switch op {
	case asynqwire.OpRetry, asynqwire.OpArchive:
		delivered, bypassed := c.a.inFlight.take(call.TaskKey, time.Now()) // its handler may never have been called
		if cmd := c.deferTask(ctx, op, call); cmd != nil {
			return cmd
		}
		if bypassed && !endedByAsynq(call) {
			c.a.types.bypassed(delivered.Type)
		}
		if op == asynqwire.OpRetry {
			c.forgetDue(ctx, call)
		}
	case asynqwire.OpDone, asynqwire.OpComplete:
		if cmd := c.deferHidden(ctx, call); cmd != nil {
			return cmd
		}
		if c.a.recentlyDone.has(call.TaskKey, time.Now()) {
			break // and what is in flight is another delivery of it
		}
		if delivered, bypassed := c.a.inFlight.take(call.TaskKey, time.Now()); bypassed {
			c.a.types.bypassed(delivered.Type)
		}
	}
	return c.runFinish(ctx, op, call, run)
}

// runFinish runs a script that finishes a task, and notes what came of it. It answers that all is well of a task that is not
// active any more.
func (c *client) runFinish(ctx context.Context, op asynqwire.Op, call asynqwire.Call, run func(context.Context) *redis.Cmd) *redis.Cmd {
	cmd := run(ctx)
	if cmd.Err() == nil {
		c.a.batchCounts.countEnd(ctx, op, call, func() bool {
			_, dropped := c.a.batches.dropped.take(call.TaskKey, time.Now())
			return dropped
		})
	}
	switch {
	case isNotFound(cmd.Err()):
		c.a.batches.dropped.take(call.TaskKey, time.Now())
		c.a.finished.forget(call.TaskKey)
		c.forgetDone(ctx, call.TaskKey)
		// The task is not active any more: this call was done before and its answer was
		// lost, or the lease was lost. asynq would repeat the call in some seconds, and
		// might end another delivery of the same task by that.
		return answerOK(ctx)
	case cmd.Err() == nil && (op == asynqwire.OpDone || op == asynqwire.OpComplete):
		c.a.recentlyDone.take(call.TaskKey, time.Now())
		c.a.finished.forget(call.TaskKey)
	}
	return cmd
}

// forgetDone is called when the end of a task can't be written because the task is not active here any more. It
// forgets the run, unless the recoverer has put the task back. Otherwise Redis knows the end already, and a task that has this id was
// enqueued anew.
func (c *client) forgetDone(ctx context.Context, taskKey string) {
	run, ok := c.a.recentlyDone.get(taskKey, time.Now())
	if !ok {
		return
	}
	stored, err := c.UniversalClient.HGet(ctx, taskKey, "msg").Bytes()
	if err != nil && !errors.Is(err, redis.Nil) {
		return
	}
	if m, bad := asynqwire.DecodeMessage(stored); err == nil && bad == nil && run.again(m) {
		return
	}
	c.a.recentlyDone.take(taskKey, time.Now())
}

// freshContextLeft is how long a script may take that finishes a task whose own context has ended. asynq repeats those
// that Redis did not answer one by one when it shuts down, and does not look how long that takes. So while Redis
// answers none of them they have one time together.
func (c *client) freshContextLeft(now time.Time) time.Duration {
	if !c.a.stopped() {
		return freshContextTimeout
	}
	until := new(now.Add(freshContextTimeout))
	if !c.a.freshContextUntil.CompareAndSwap(nil, until) {
		until = cmp.Or(c.a.freshContextUntil.Load(), until)
	}
	return until.Sub(now)
}

// endedByAsynq says that asynq may have ended an attempt before it called the handler: the
// deadline had passed, or the recoverer found the task.
func endedByAsynq(call asynqwire.Call) bool {
	m, err := asynqwire.DecodeMessage(call.Message)
	return err != nil || slices.Contains([]string{context.DeadlineExceeded.Error(), context.Canceled.Error(), asynq.ErrLeaseExpired.Error()}, m.ErrorMsg)
}

// deferTask writes a deferral where asynq wants to write a retry or an archived
// task. It returns nil when the attempt was not deferred.
func (c *client) deferTask(ctx context.Context, op asynqwire.Op, call asynqwire.Call) *redis.Cmd {
	m, err := asynqwire.DecodeMessage(call.Message)
	if err != nil {
		c.a.distrust("a message of asynq can't be read", zap.Error(err))
		return nil
	}
	d := c.a.deferrals.inText(m.ErrorMsg)
	if m.ErrorMsg == asynq.ErrLeaseExpired.Error() {
		// asynq's recoverer found a task whose end or deferral could not be written during an outage
		if cmd := c.a.finished.writeIfGivenUp(ctx, call.TaskKey); cmd != nil {
			return cmd
		}
		d = c.a.deferrals.ofTask(call.Queue, call.TaskID)
	}
	if d == nil {
		return c.deferHidden(ctx, call)
	}
	if d.task.ID != call.TaskID || d.task.Queue != call.Queue {
		return nil
	}
	_, _ = c.a.returnedDeferrals.take(call.TaskKey, time.Now())
	if op == asynqwire.OpRetry && m.ErrorMsg != asynq.ErrLeaseExpired.Error() && !c.a.deferrals.wasJudged(d) {
		c.a.logOnce("other configuration", func() {
			c.a.log.Error("a server of this adapter does not have the configuration that Adapter.Server returned: limits hold, but your "+
				"ErrorHandler, IsFailure and RetryDelayFunc see "+
				"throttled tasks as failures; give the server what Adapter.Server returns", zap.String("queue", d.task.Queue))
		})
	}
	return c.deferBy(ctx, d)
}

// deferHidden writes a deferral of which asynq knows nothing: a middleware around the
// adapter's handler has answered that the task is done, or has failed by an error of its own.
// It returns nil when the attempt was not deferred.
func (c *client) deferHidden(ctx context.Context, call asynqwire.Call) *redis.Cmd {
	now := time.Now()
	d, ok := c.a.returnedDeferrals.take(call.TaskKey, now)
	if !ok {
		return nil
	}
	cmd := c.deferBy(ctx, d)
	if cmd.Err() != nil {
		c.a.returnedDeferrals.put(call.TaskKey, d, now) // asynq repeats the call
		return cmd
	}
	c.a.counters.hidden.Add(1)
	c.a.logOnce("hidden deferral", func() {
		c.a.log.Error("a middleware around the adapter's handler does not return the error of a task that was deferred: "+
			"the task is deferred all the same; let the middleware return what the handler returns, or wrap it",
			zap.String("queue", d.task.Queue), zap.String("task", d.task.ID), zap.String("rule", d.rule))
	})
	return cmd
}

// deferBy writes a deferral.
func (c *client) deferBy(ctx context.Context, d *deferral) *redis.Cmd {
	left := time.Until(d.made.Add(d.wait))
	cmd := queuescripts.Defer(ctx, c.UniversalClient, c.a.keys(d.task.Queue), queuescripts.DeferArgs{
		ID: d.task.ID, Token: uint64(d.token), At: d.at, Record: d.record.Text(), Wait: left, Unique: d.unique, Postponed: d.postponed,
		Pool:   c.a.firstPool(d.rule, d.wait),
		Reason: queuescripts.WaitReasonOf(causes[d.reason], d.record.Booking, d.rule),
	})
	if isNotFound(cmd.Err()) { // as in runFinish: its lease was lost
		c.a.deferrals.remove(d)
		return answerOK(ctx)
	}
	// Any other error is repeated by asynq's syncer, through here again; the
	// script knows the token and writes it once.
	if cmd.Err() == nil && c.a.deferrals.remove(d) {
		c.a.counters.deferred.Add(1)
		c.a.countWait(d)
		if tell := c.a.cfg.Observer.Deferred; tell != nil {
			tell(ctx, event.Deferred{Task: d.task, Rule: d.rule, Reason: d.reason, At: d.at, Wait: d.wait})
		}
		if w := c.a.wakers[d.task.Queue]; w != nil {
			w.expect(left)
		}
	}
	return cmd
}

// forgetDue drops the due entry that a deferral before this failure left behind: it would
// wake the task before the user's back-off is over. If this call fails, the score in
// asynq's retry set still shows that the entry is old, unless both are in one second.
func (c *client) forgetDue(ctx context.Context, call asynqwire.Call) {
	if err := queuescripts.Forget(ctx, c.UniversalClient, c.a.keys(call.Queue), call.TaskID, ""); err != nil {
		c.a.log.Debug("could not clear the due index", zap.Error(err))
	}
}

// answerOK is the answer of a script of asynq that went well.
func answerOK(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetVal("OK")
	return cmd
}

// answerError is the answer of a script that failed.
func answerError(ctx context.Context, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}

// answerNone is the answer of a script that lists tasks and found none.
func answerNone(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetVal([]any{})
	return cmd
}

func isNotFound(err error) bool { return rediserr.Of(err) == rediserr.NotFound }

// finishPipelineMost is how many scripts of asynq's go in one pipeline.
const finishPipelineMost = 64

// finishPipeline sends the scripts by which asynq's servers of this process end tasks. Fetches go
// another way, see fetcher.
// Those that come while others are under way go in one pipeline, see [coalesce.Batcher]: the
// system calls for one script cost more than the script does.
//
// Each script has its own answer. One whose answer was lost is sent again by itself, if the
// client repeats anything at all: go-redis would repeat the whole pipeline. On Redis
// Cluster, and with a client type that is not go-redis' own, each script is a call of its own.
type finishPipeline struct {
	rdb       *redis.Client // nil where each script is a call of its own
	repeats   bool          // the client repeats a call whose answer was lost
	transport coalesce.Transport[*finishCall]
	batcher   *coalesce.Batcher[*finishCall]
}

// finishCall is one call of a script that finishes a task, with its answer.
type finishCall struct {
	*redis.Cmd
	answered bool
	again    bool // it did nothing, or its answer was lost: it is sent again
}

// SetErr is called by go-redis with the result of a command. When a pipeline breaks,
// go-redis calls it for all commands, also for those that were answered before: their
// answers are kept. A hook that sends a pipeline anew resets the errors with nil.
func (f *finishCall) SetErr(err error) {
	if err == nil && f.Val() != nil || err != nil && rediserr.Of(err).Answered() {
		f.answered = true
	} else if f.answered {
		return
	}
	f.Cmd.SetErr(err)
}

// NoRetry has go-redis send a pipeline once.
func (f *finishCall) NoRetry() bool { return true }

func newFinishPipeline(rdb redis.UniversalClient) *finishPipeline {
	p := &finishPipeline{}
	if p.rdb, _ = rdb.(*redis.Client); p.rdb != nil {
		p.repeats = p.rdb.Options().MaxRetries > 0
	}
	p.transport = coalesce.Transport[*finishCall]{
		Alone: p.sendOne, Together: p.sendTogether, Patience: coalesce.PatienceDefault,
		Weight: func(*finishCall) int { return 1 }, Most: finishPipelineMost,
	}
	p.batcher = coalesce.NewBatcher(&p.transport)
	return p
}

// evalSha answers as the client's own does. A call whose answer was lost is sent again, unless
// took says that it took effect.
func (p *finishPipeline) evalSha(ctx context.Context, sha string, keys []string, args []any, took func(context.Context) bool) *redis.Cmd {
	const first = 3
	all := make([]any, first, first+len(keys)+len(args))
	all[0], all[1], all[2] = "evalsha", sha, len(keys)
	for _, k := range keys {
		all = append(all, k)
	}
	all = append(all, args...)
	f := &finishCall{Cmd: redis.NewCmd(ctx, all...)}
	f.SetFirstKeyPos(first)
	if err := p.batcher.Do(ctx, f); err != nil && ctx.Err() != nil { // it may be under way still
		cmd := redis.NewCmd(ctx, all...)
		cmd.SetErr(err)
		return cmd
	}
	if f.again && !f.answered && took(ctx) {
		return answerOK(ctx)
	}
	if f.again {
		f.Cmd.SetErr(nil)
		_ = p.rdb.Process(ctx, f.Cmd)
	}
	return f.Cmd
}

// sendOne returns the error of a script whose answer is lost.
func (p *finishPipeline) sendOne(ctx context.Context, f *finishCall) (lost error) {
	return p.settle(ctx, f, p.rdb.Process(ctx, f))
}

// sendTogether returns the error of those whose answers are lost.
func (p *finishPipeline) sendTogether(ctx context.Context, all []*finishCall) (lost error) {
	pipe := p.rdb.Pipeline()
	for _, f := range all {
		_ = pipe.Process(ctx, f)
	}
	_, err := pipe.Exec(ctx)
	for _, f := range all {
		lost = cmp.Or(p.settle(ctx, f, err), lost)
	}
	return lost
}

// settle decides after a script was sent, with err, whether it is sent again. It returns the
// error of one whose answer is lost.
func (p *finishPipeline) settle(ctx context.Context, f *finishCall, err error) (lost error) {
	if f.answered {
		f.again = p.repeats && rediserr.Of(f.Err()) == rediserr.Passing
		return nil
	}
	lost = cmp.Or(f.Err(), err, errNoAnswer)
	f.Cmd.SetErr(lost)
	f.again = p.repeats && ctx.Err() == nil && rediserr.Of(lost) != rediserr.TimedOut
	return lost
}

// errNoAnswer is the error of a script that a hook neither sent nor answered.
var errNoAnswer = errors.New("worker: a script was not answered")
