package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/promotion"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/throttle"
)

// givingBack bounds the calls that give back the places of a portion.
const givingBack = time.Second

// errPerClient is about a throttle.Config in which nothing can be booked.
var errPerClient = fmt.Errorf("%w: with PerClient each pool has lines of its own, in which nobody else can book", throttle.ErrInvalidConfig)

// book takes places, enqueues the tasks to be woken at their instants, and gives the
// places back of those that can't be enqueued.
func (c *Client) book(ctx context.Context, entries []*pendingTask) (away error) {
	if away = c.findOthers(ctx, entries); away == nil {
		away = c.takePlaces(ctx, entries)
	}
	if away != nil { // some may have their places: they are given back
		for _, e := range entries {
			if e.Err == nil {
				e.Err = fmt.Errorf("not tried: %w", away)
			}
		}
	}
	if err := c.put(ctx, entries); away == nil {
		away = err
	}
	c.giveBack(ctx, entries)
	return away
}

// findOthers fails the tasks that exist already: a job has one place, and to give it
// back would take it from the other.
func (c *Client) findOthers(ctx context.Context, entries []*pendingTask) (away error) {
	var named []*pendingTask
	var looks []luascripts.Look
	for _, e := range entries {
		if e.options.named {
			named = append(named, e)
			looks = append(looks, luascripts.Look{Queue: c.keys(e.Queue), ID: e.Message.ID, Unique: e.Message.Unique})
		}
	}
	codes, err := luascripts.LookFor(ctx, c.rdb, looks)
	if err != nil {
		failAll(named, err)
		return unanswered(err)
	}
	for i, e := range named {
		e.Err = backend.Refusal(codes[i])
	}
	return nil
}

// takePlaces books for all that have not failed and have a policy.
func (c *Client) takePlaces(ctx context.Context, entries []*pendingTask) (away error) {
	var wishes []throttle.BookRequest
	var who []*pendingTask
	for _, e := range entries {
		switch {
		case e.Err != nil || e.Policy == nil:
			continue
		case c.cfg.PerClient:
			e.Err = errPerClient
			continue
		}
		e.Request.MaxWait = e.Longest()
		wishes = append(wishes, throttle.BookRequest{Policy: e.Policy, Request: e.Request})
		who = append(who, e)
	}
	var promoted []throttle.Promotion
	for i, b := range throttle.BookMany(ctx, c.rdb, wishes) {
		promoted = append(promoted, b.Promoted...)
		e := who[i]
		if e.Err = b.Err; b.Err != nil {
			// whether it has a place is not known
			e.Own = errors.Is(b.Err, throttle.ErrUnavailable)
			if e.Own && !throttle.Answered(b.Err) {
				away = b.Err
			}
			continue
		}
		e.Own = !e.options.id || b.Promised.IsZero()
		e.Task.Booked(b.Decision)
	}
	c.promote(ctx, promoted)
	return away
}

// giveBack gives back the places of tasks that were not enqueued. What can't be given
// back now falls out of its line by itself.
func (c *Client) giveBack(ctx context.Context, entries []*pendingTask) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), givingBack)
	defer cancel()
	var promoted []throttle.Promotion
	for _, e := range entries {
		if e.Err == nil || !e.Own || c.shared(ctx, e) {
			continue
		}
		next, err := e.Policy.Cancel(ctx, e.Request)
		if err != nil {
			break
		}
		promoted = append(promoted, next...)
	}
	c.promote(ctx, promoted)
}

// shared says that another call enqueued a task of this id between our look for it
// and our own try: it stands in the same place, if it was booked.
func (c *Client) shared(ctx context.Context, e *pendingTask) bool {
	if !e.options.id || !errors.Is(e.Err, asynq.ErrTaskIDConflict) {
		return false
	}
	ours, err := luascripts.Ours(ctx, c.rdb, c.keys(e.Queue), e.Message.ID)
	return ours || err != nil // at worst the place falls out of its line
}

// promote moves the tasks forward that may come earlier than they were told, and tells
// the pools. Without it they come at the instants that they were told.
func (c *Client) promote(ctx context.Context, promoted []throttle.Promotion) {
	for queue, tasks := range promotion.ByQueue(promoted...) {
		if tasks.Retime(ctx, c.rdb, c.keys(queue)) != nil || luascripts.Notify(ctx, c.rdb, c.keys(queue), tasks.First()) != nil {
			return
		}
	}
}
