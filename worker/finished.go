package worker

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/asynqwire"
)

// doneRun is a run whose handler returned nil. A task of the same id that is enqueued anew is another task, and has
// to run.
type doneRun struct {
	retried int    // failures before the run
	task    uint64 // hash of the task's type and payload
}

var doneRunSeed = maphash.MakeSeed()

// runOf is a run of a task after so many failures.
func runOf(task *asynq.Task, retried int) doneRun {
	var h maphash.Hash
	h.SetSeed(doneRunSeed)
	_, _ = h.WriteString(task.Type())
	_ = h.WriteByte(0)
	_, _ = h.Write(task.Payload())
	return doneRun{retried, h.Sum64()}
}

// again says that a message may be of the task of this run, which asynq's recoverer took for a task of a dead
// process, because the end of the run was not written. The recoverer counts a failure, unless it archives the task.
func (r doneRun) again(m asynqwire.Message) bool {
	return m.ErrorMsg == asynq.ErrLeaseExpired.Error() && m.Retried >= r.retried
}

// finishedTask is a task whose handler has returned nil, and whose end could not be written. asynq repeats that until its lease
// on the task ends.
type finishedTask struct {
	op      asynqwire.Op
	call    asynqwire.Call
	retried int      // failures of the task before this attempt
	sha     string   // of asynq's script
	keys    []string // of the call
	args    []any
	failed  error // why it could not be written
	asked   bool  // asynq is about to send the text of the script
	lease   int64 // when asynq's lease ends at the latest, in seconds: nobody renews it any more
}

// leaseOfAsynq is how long asynq's leases last.
const leaseOfAsynq = 30 * time.Second

// givenUpIn says that a task is in the state in which its handler left it, and that asynq has given it up. A later lease is that of
// another delivery: of a message of the same id that was enqueued anew, or of another pool.
func (t *finishedTask) givenUpIn(s taskState) bool {
	return s.givenUp && s.retried == t.retried && s.lease <= t.lease
}

// mayStillEndIn says that it is in that state, and that asynq may still write its end.
func (t *finishedTask) mayStillEndIn(s taskState) bool {
	return s.state == "active" && s.retried == t.retried && s.lease <= t.lease
}

// finishedMost bounds how many finished tasks are looked at each time.
const finishedMost = 1000

// finishedTasks writes the ends that asynq has given up: its recoverer would take the tasks for those of a dead process, and
// count a failure. It keeps no more tasks than ran when Redis went away. It is safe for concurrent use.
type finishedTasks struct {
	*core
	write func(ctx context.Context, t *finishedTask, text string) *redis.Cmd
	gone  func(ctx context.Context, taskKey string) // told of a task that another process has, or that has ended

	mu    sync.Mutex
	tasks map[string]*finishedTask // by task key
	texts map[string]string        // of asynq's scripts, by SHA-1
}

func newFinishedTasks(c *core, write func(context.Context, *finishedTask, string) *redis.Cmd, gone func(context.Context, string)) *finishedTasks {
	return &finishedTasks{core: c, write: write, gone: gone, tasks: make(map[string]*finishedTask), texts: make(map[string]string)}
}

// keep remembers a task, and says whether the text of its script is wanted.
func (f *finishedTasks) keep(t *finishedTask) (wantsText bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t.lease = f.localClock.now().Add(leaseOfAsynq).Unix()
	if before := f.tasks[t.call.TaskKey]; before != nil {
		t.lease = before.lease
	}
	f.tasks[t.call.TaskKey] = t
	t.asked = f.texts[t.sha] == ""
	return t.asked
}

// learn takes in the text of a script that was wanted. It returns why the call could not be written that wanted it, or nil.
func (f *finishedTasks) learn(sha, text, taskKey string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.texts[sha] = text
	t := f.tasks[taskKey]
	if t == nil || !t.asked || t.sha != sha {
		return nil
	}
	t.asked = false
	return t.failed
}

func (f *finishedTasks) forget(taskKey string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.tasks, taskKey)
}

// writeIfGivenUp writes the end of a task, if it is known here and nobody has got the task since. Otherwise it returns nil.
func (f *finishedTasks) writeIfGivenUp(ctx context.Context, taskKey string) *redis.Cmd {
	f.mu.Lock()
	t := f.tasks[taskKey]
	f.mu.Unlock()
	if t == nil || !t.givenUpIn(f.statesOf(ctx, []event.Task{t.task()})[0]) {
		return nil
	}
	return f.writeEnd(ctx, t)
}

func (f *finishedTasks) writeEnd(ctx context.Context, t *finishedTask) *redis.Cmd {
	f.mu.Lock()
	text, known := f.texts[t.sha], f.tasks[t.call.TaskKey] == t // or asynq has written it meanwhile
	f.mu.Unlock()
	if text == "" || !known {
		return nil
	}
	return f.write(ctx, t, text)
}

func (t *finishedTask) task() event.Task { return event.Task{Queue: t.call.Queue, ID: t.call.TaskID} }

func (f *finishedTasks) run(ctx context.Context) {
	every(ctx, unwrittenEvery, func(time.Time) { f.look(ctx) })
}

func (f *finishedTasks) look(ctx context.Context) {
	some := f.some()
	if len(some) == 0 {
		return
	}
	tasks := make([]event.Task, len(some))
	for i, t := range some {
		tasks[i] = t.task()
	}
	for i, state := range f.statesOf(ctx, tasks) {
		switch t := some[i]; {
		case !state.known:
		case t.givenUpIn(state):
			f.writeEnd(ctx, t)
		case !t.mayStillEndIn(state): // another process has it, or had it
			f.forget(t.call.TaskKey)
			f.gone(ctx, t.call.TaskKey)
		}
	}
}

// some returns at most [finishedMost] tasks.
func (f *finishedTasks) some() (some []*finishedTask) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.tasks {
		if len(some) == finishedMost {
			break
		}
		some = append(some, t)
	}
	return some
}
