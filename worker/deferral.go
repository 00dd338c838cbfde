package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/asynqwire"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/throttle"
)

// deferral is a task that is on its way from active back to asynq's retry set.
type deferral struct {
	token     throttle.Token // in the error's text, which asynq writes into the message
	task      event.Task
	unique    string // the key of the task's unique lock; empty for none
	retried   int    // failures of the task before this attempt
	rule      string // that holds the task up; empty when none was asked
	key       string // of that rule, as it stands in Redis; empty for a gate, and where it is not known
	reason    event.Reason
	postponed bool      // its provider asked to wait: that is counted
	at        time.Time // by Redis' clock; zero without a booking: wait from made
	wait      time.Duration
	made      time.Time
	record    queuescripts.WaitRecord
	cause     error // a throttle.ThrottledError, or what kept Redis from answering
	judged    bool  // asynq has asked the adapter whether it is a failure; under the lock of deferrals
	returned  bool  // the attempt has ended with it; under the same lock
}

// causes are the reasons of deferrals as they stand in Redis.
var causes = map[event.Reason]queuescripts.Cause{
	event.Booked: queuescripts.CauseBooked, event.Gated: queuescripts.CauseGate, event.RetryAfter: queuescripts.CauseRetryAfter,
	event.Paused:   queuescripts.CausePaused,
	event.Returned: queuescripts.CauseReturned, event.Unavailable: queuescripts.CauseAway,
}

// Error contains the token. By it the adapter finds the deferral again in the text that
// asynq writes, however often the error was wrapped.
func (d *deferral) Error() string {
	until := d.at
	if until.IsZero() {
		until = d.made.Add(d.wait)
	}
	return fmt.Sprintf("worker: deferred until %s: %v %s%v]",
		until.UTC().Format("2006-01-02T15:04:05.000Z"), d.cause, tokenMark, d.token)
}

// Unwrap leads to [throttle.ErrThrottled], for code that looks at handlers' errors.
func (d *deferral) Unwrap() error { return d.cause }

// firstPool is the mark of the pool that tries first to wake a task: this one. Then the others need
// not look at it. The mark is empty, and every pool tries, when the task waits for a lease: the
// lease may be held here, and this process may die with it. It is also empty once this pool fetches
// no more, for then it wakes no task either.
func (c *core) firstPool(rule string, wait time.Duration) queuescripts.PoolMark {
	if c.forLease(rule, wait) || !c.fetches() {
		return queuescripts.PoolMark{}
	}
	return c.poolMark
}

// forLease says that the instant of a task is the end of a lease that is held now. It must
// be if it is no later than one length of a lease from now.
func (c *core) forLease(rule string, wait time.Duration) bool {
	l := c.set.Limiter(rule)
	if l == nil {
		return false
	}
	limit := throttle.ForWorkers.LimitLastKnown(l)
	return limit.IsConcurrent() && wait <= limit.Window()+max(0, c.cfg.Throttle.InlineWait) // a lease may begin so long after its grant
}

const (
	tokenMark = "[hw:"
	tokenLen  = 16
)

// tokensIn returns the tokens that an error text names, the last first: a text
// may quote an older deferral.
func tokensIn(text string) []string {
	var out []string
	for {
		i := strings.LastIndex(text, tokenMark)
		if i < 0 {
			return out
		}
		if rest := text[i+len(tokenMark):]; len(rest) > tokenLen && rest[tokenLen] == ']' {
			out = append(out, rest[:tokenLen])
		}
		text = text[:i]
	}
}

// deferralTTL is for how long a deferral is remembered when asynq does not write it. One whose attempt has ended with it is
// remembered for longer when Redis does not answer: until it says that the task has another state by now.
const deferralTTL = 10 * time.Minute

// deferrals knows the deferrals that asynq has yet to write. Safe for
// concurrent use.
type deferrals struct {
	mu      sync.Mutex
	byToken map[string]*deferral
	byTask  map[string][]*deferral // by task id, which may be in several queues
}

func newDeferrals() *deferrals {
	return &deferrals{byToken: make(map[string]*deferral), byTask: make(map[string][]*deferral)}
}

func (s *deferrals) add(d *deferral) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byToken[d.token.String()] = d
	s.byTask[d.task.ID] = append(s.byTask[d.task.ID], d)
}

// of returns the deferral that an error is or contains, also when only its text is left.
func (s *deferrals) of(err error) *deferral {
	if err == nil {
		return nil
	}
	if d, ok := errors.AsType[*deferral](err); ok {
		return s.inText(tokenMark + d.token.String() + "]")
	}
	return s.inText(err.Error())
}

func (s *deferrals) inText(text string) *deferral {
	for _, token := range tokensIn(text) {
		s.mu.Lock()
		d := s.byToken[token]
		s.mu.Unlock()
		if d != nil {
			return d
		}
	}
	return nil
}

// judge notes that asynq has asked about a deferral.
func (s *deferrals) judge(d *deferral) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.judged = true
}

// wasJudged says whether it has.
func (s *deferrals) wasJudged(d *deferral) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.judged
}

// markReturned notes that the attempt has ended with the deferral, which asynq is to write.
func (s *deferrals) markReturned(d *deferral) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.returned = true
}

// wasReturned says whether it has.
func (s *deferrals) wasReturned(d *deferral) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.returned
}

// underWay says whether some task of this id is just being deferred.
func (s *deferrals) underWay(taskID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byTask[taskID]) > 0
}

// ofTask is the last deferral of a task that is under way, or nil.
func (s *deferrals) ofTask(queue, taskID string) *deferral {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range slices.Backward(s.byTask[taskID]) {
		if d.task.Queue == queue {
			return d
		}
	}
	return nil
}

// unwritten returns at most `most` deferrals that asynq should have written longer than `after` ago.
func (s *deferrals) unwritten(now time.Time, after time.Duration, most int) (all []*deferral) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.byToken {
		if len(all) == most {
			break
		}
		if now.Sub(d.made) >= after {
			all = append(all, d)
		}
	}
	return all
}

// remove forgets a deferral, and says whether it was known.
func (s *deferrals) remove(d *deferral) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeLocked(d)
}

func (s *deferrals) removeLocked(d *deferral) bool {
	token := d.token.String()
	if s.byToken[token] != d {
		return false
	}
	delete(s.byToken, token)
	rest := slices.DeleteFunc(s.byTask[d.task.ID], func(other *deferral) bool { return other == d })
	if s.byTask[d.task.ID] = rest; len(rest) == 0 {
		delete(s.byTask, d.task.ID)
	}
	return true
}

// purge forgets what asynq will not come for any more: its handler returned too late. unwrittenDeferrals forgets the rest.
func (s *deferrals) purge(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.byToken {
		if !d.returned && now.Sub(d.made) > deferralTTL {
			s.removeLocked(d)
		}
	}
}

const (
	// unwrittenEvery is how often deferrals are looked at that asynq has not written.
	unwrittenEvery = time.Second
	// unwrittenMost bounds how many of them are looked at each time.
	unwrittenMost = 100
)

// unwrittenDeferrals writes the deferrals that asynq has given up: after an outage beyond the lease of a task asynq repeats nothing, and
// half a minute later another pool would take the task for one whose process has died, and count a failure. And it finds throttled
// tasks that asynq has archived without a call that is known here. While asynq writes what it should, it asks Redis for nothing.
type unwrittenDeferrals struct {
	*core
	deferrals *deferrals
	write     func(context.Context, *deferral) *redis.Cmd
}

func (w *unwrittenDeferrals) run(ctx context.Context) {
	every(ctx, unwrittenEvery, func(now time.Time) { w.look(ctx, now) })
}

func (w *unwrittenDeferrals) look(ctx context.Context, now time.Time) {
	unwritten := w.deferrals.unwritten(now, unwrittenEvery, unwrittenMost)
	if len(unwritten) == 0 {
		return
	}
	tasks := make([]event.Task, len(unwritten))
	for i, d := range unwritten {
		tasks[i] = d.task
	}
	for i, is := range w.statesOf(ctx, tasks) {
		d := unwritten[i]
		switch {
		case !is.known: // asynq can't write it either
		case is.givenUp && is.retried == d.retried && w.deferrals.wasReturned(d):
			w.write(ctx, d) // nobody else has the task yet
		// Another process may have got the task when its lease ended here, or an operator
		// archived it: only the error of this deferral says that asynq wrote it.
		case is.state == "archived" && strings.Contains(is.errorMsg, d.token.String()):
			w.wasArchived(d)
		case now.Sub(d.made) > deferralTTL:
			w.deferrals.remove(d) // the lease of the task was lost
		}
	}
}

// taskState is what Redis says of a task that asynq should have moved.
type taskState struct {
	known    bool   // Redis has answered
	state    string // as asynq writes it; "" when the task is gone, or its message can't be read
	retried  int
	errorMsg string
	lease    int64 // when asynq's lease on it ends, in seconds
	givenUp  bool  // it is active, and that lease has ended
}

// statesOf asks for the states of tasks.
func (c *core) statesOf(ctx context.Context, tasks []event.Task) []taskState {
	now := c.localClock.now()
	pipe := c.rdb.Pipeline()
	answers, leases := make([]*redis.SliceCmd, len(tasks)), make([]*redis.FloatCmd, len(tasks))
	for i, t := range tasks {
		keys := c.keys(t.Queue)
		answers[i] = pipe.HMGet(ctx, keys.Task(t.ID), "state", "msg")
		leases[i] = pipe.ZScore(ctx, keys.Lease, t.ID)
	}
	_, _ = rediserr.Exec(ctx, pipe) // each answer has its error
	out := make([]taskState, len(tasks))
	for i := range tasks {
		fields, err := answers[i].Result()
		lease, noLease := leases[i].Result()
		if err != nil || noLease != nil && !errors.Is(noLease, redis.Nil) {
			continue
		}
		out[i].known = true
		state, _ := fields[0].(string)
		text, _ := fields[1].(string)
		if m, err := asynqwire.DecodeMessage([]byte(text)); err == nil {
			out[i] = taskState{true, state, m.Retried, m.ErrorMsg, int64(lease), state == "active" && noLease == nil && int64(lease) < now.Unix()}
		}
	}
	return out
}

// wasArchived tells that asynq has archived a throttled task.
func (w *unwrittenDeferrals) wasArchived(d *deferral) {
	if !w.deferrals.remove(d) {
		return
	}
	w.counters.archived.Add(1)
	w.distrust("asynq archived a task that was throttled", zap.String("queue", d.task.Queue), zap.String("task", d.task.ID))
	w.logFew("archived", func() {
		w.log.Error("asynq archived a task that was throttled and has not failed: run it again with asynq's tools, and use the version of asynq that Headway names",
			zap.String("queue", d.task.Queue), zap.String("task", d.task.ID), zap.String("rule", d.rule), zap.String("version", asynqwire.Version))
	})
}
