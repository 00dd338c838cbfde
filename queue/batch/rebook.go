package batch

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// rebook gives what is enqueued new places, in the order of the source: while the batch
// was paused some gave theirs up, and some behind them did not. It comes before anything
// else is fed.
func (g *feeding) rebook(ctx context.Context) error {
	c := g.f.c
	if !g.limited {
		return c.recall(ctx, g.queue, g.id)
	}
	for _, step := range []func([]luascripts.BatchElement) error{
		func(open []luascripts.BatchElement) error { return g.unbook(ctx, open) },
		func(open []luascripts.BatchElement) error { return g.bookAgain(ctx, open) },
	} {
		err := c.eachOpen(ctx, g.queue, g.id, func(open []luascripts.BatchElement) error {
			if err := g.renew(ctx); err != nil {
				return err
			}
			return step(open)
		})
		if err != nil {
			return err
		}
	}
	return luascripts.Notify(ctx, c.Redis(), g.keys, 0)
}

// unbook gives up the places of what waits.
func (g *feeding) unbook(ctx context.Context, open []luascripts.BatchElement) error {
	g.f.c.leaveAll(ctx, g.queue, g.id, open, g.payloads(ctx, open)) // others come when they were told, or earlier
	return ctx.Err()
}

// payloads are the tasks of some elements that wait; nil for what does not.
func (g *feeding) payloads(ctx context.Context, open []luascripts.BatchElement) []*asynq.Task {
	tasks := make([]*asynq.Task, len(open))
	atOnce(len(open), func(i int) {
		tasks[i] = g.f.c.payloadOf(ctx, g.queue, g.spec.Type, luascripts.BatchTaskID(g.id, open[i].ID))
	})
	return tasks
}

// leaveOut makes nil those that failed, and wait for asynq to try again: they would not
// come when they are told, and hold up those behind them.
func (g *feeding) leaveOut(ctx context.Context, open []luascripts.BatchElement, tasks []*asynq.Task) {
	atOnce(len(open), func(i int) {
		if tasks[i] == nil {
			return
		}
		f, err := luascripts.Find(ctx, g.f.c.Redis(), g.keys, luascripts.BatchTaskID(g.id, open[i].ID))
		if err == nil && f.State == "retry" && !f.Ours {
			tasks[i] = nil
		}
	})
}

// bookAgain books what waits, and has it woken at its new instants.
func (g *feeding) bookAgain(ctx context.Context, open []luascripts.BatchElement) error {
	var wishes []throttle.BookRequest
	var ids []string
	tasks := g.payloads(ctx, open)
	g.leaveOut(ctx, open, tasks)
	for i, task := range tasks {
		id := luascripts.BatchTaskID(g.id, open[i].ID)
		if task == nil {
			continue // it runs, or has ended
		}
		request, err := g.policy.Request(task, luascripts.JobID(g.queue, id))
		if err != nil {
			continue // the pool says so
		}
		wishes = append(wishes, throttle.BookRequest{Policy: g.policy.Decide, Request: request})
		ids = append(ids, id)
	}
	var moves []luascripts.Retiming
	for i, b := range throttle.BookMany(ctx, g.f.c.Redis(), wishes) {
		at := b.At
		if b.Err != nil {
			at = g.redisNow().Add(time.Duration(i) * time.Microsecond) // it hears it from a pool
		}
		moves = append(moves, luascripts.Retiming{ID: ids[i], At: at})
	}
	if len(moves) == 0 {
		return nil
	}
	_, err := luascripts.Retime(ctx, g.f.c.Redis(), g.keys, false, moves)
	return err
}
