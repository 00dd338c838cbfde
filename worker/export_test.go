package worker

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/tail"
	"github.com/headwayq/headway/throttle"
)

// Hooks for tests of the package's own promises that no public door leads to.

// Adapter is what a pool is made of.
func (p *Pool) Adapter() *Adapter { return p.adapter }

// DistrustAsynq makes the adapter take asynq for one that it does not know.
func (a *Adapter) DistrustAsynq() { a.asynqUntrusted.Store(true) }

// ForgetRecentlyDone is what a restart of the process forgets.
func (a *Adapter) ForgetRecentlyDone() {
	a.recentlyDone.mu.Lock()
	defer a.recentlyDone.mu.Unlock()
	clear(a.recentlyDone.entries)
	a.finished.mu.Lock()
	defer a.finished.mu.Unlock()
	clear(a.finished.tasks)
}

// StartedEarlier makes the adapter take policies for waiting for tasks since longer.
func (a *Adapter) StartedEarlier(d time.Duration) {
	a.types.mu.Lock()
	defer a.types.mu.Unlock()
	a.types.started = a.types.started.Add(-d)
}

// Dropped is how many tasks of cancelled batches are remembered.
func (a *Adapter) Dropped() int {
	a.batches.dropped.mu.Lock()
	defer a.batches.dropped.mu.Unlock()
	return len(a.batches.dropped.entries)
}

// IsRecentlyDone says whether a task is remembered as finished and not yet written.
func (a *Adapter) IsRecentlyDone(queue, id string) bool {
	return a.recentlyDone.has(a.keys(queue).Task(id), time.Now())
}

// Job is the id under which a task stands in a line.
func Job(queue, id string) string { return luascripts.JobID(queue, id) }

// TaskOf reads it back.
func TaskOf(job string) (queue, id string, ok bool) { return luascripts.TaskOf(job) }

// WithdrawLater hands a withdrawal to the background.
func (a *Adapter) WithdrawLater(l *throttle.Limiter, r throttle.Request) {
	a.lateGiveBacks.refund(l.Policy(), r)
}

// ReceiveUntilSilent listens for nobody, until the connection is dead.
func ReceiveUntilSilent(ctx context.Context, sub *redis.PubSub) {
	(&subscriber{teller: tail.NewTeller(nil, "")}).receiveUntilSilent(ctx, sub, nil)
}

// SilenceMax is after what silence it asks.
const SilenceMax = silenceMax

// Promote passes promotions on, as the calls of a pool do that are answered with some.
func (a *Adapter) Promote(p ...throttle.Promotion) { a.promotions.add(p...) }

// Jump is by how much a server's clock was set between two looks at local instants, of which the second took so long.
func Jump(was, is, first, second time.Time, call time.Duration) time.Duration {
	return serverSeen{clock: was, before: first, after: first}.jump(serverSeen{clock: is, before: second, after: second.Add(call)})
}
