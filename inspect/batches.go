package inspect

import (
	"context"
	"fmt"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// BatchesMax bounds how many batches of a queue are listed.
const BatchesMax = 200

// The actions on batches in the audit list.
const (
	ActionPauseBatch  Action = "pause batch"
	ActionResumeBatch Action = "resume batch"
	ActionCancelBatch Action = "cancel batch"
	ActionSetPace     Action = "set pace"   // Value is the pace
	ActionSetWeight   Action = "set weight" // Value is the weight in percent
)

// control is that of the batches on the queues of the policies here.
func (i *Inspector) control() (*batch.Control, error) {
	policies := make([]queue.Policy, 0, len(i.policies))
	for _, p := range i.policies {
		policies = append(policies, p)
	}
	client, err := queue.NewClient(i.rdb, queue.ClientConfig{Policies: policies, Throttle: i.cfg})
	if err != nil {
		return nil, fmt.Errorf("inspect: batches: %w", err)
	}
	return batch.NewControl(client), nil
}

// Batches returns how far the batches of a queue are, at most [BatchesMax] of them, and
// whether there are more: those that have not ended, the oldest first, and then those that
// ended within a day.
func (i *Inspector) Batches(ctx context.Context, queue string) (all []batch.Progress, more bool, err error) {
	control, err := i.control()
	if err != nil {
		return nil, false, err
	}
	for p, err := range control.All(ctx, queue) {
		if err != nil {
			return nil, false, fmt.Errorf("inspect: list batches: %w", err)
		}
		if len(all) == BatchesMax {
			return all, true, nil
		}
		all = append(all, p)
	}
	return all, false, nil
}

// batchChange notes a change of a batch and makes it.
func (i *Inspector) batchChange(ctx context.Context, c Change, r Reason, do func(*batch.Control) error) error {
	control, err := i.control()
	if err != nil {
		return err
	}
	return i.change(ctx, r, c, func() error { return do(control) })
}

// PauseBatch stops a batch within a second, see [batch.Control.Pause].
func (i *Inspector) PauseBatch(ctx context.Context, queue, id string, r Reason) error {
	return i.batchChange(ctx, Change{Action: ActionPauseBatch, Queue: queue, Batch: id}, r, func(c *batch.Control) error { return c.Pause(ctx, queue, id) })
}

// ResumeBatch lets a paused batch go on, see [batch.Control.Resume].
func (i *Inspector) ResumeBatch(ctx context.Context, queue, id string, r Reason) error {
	return i.batchChange(ctx, Change{Action: ActionResumeBatch, Queue: queue, Batch: id}, r, func(c *batch.Control) error { return c.Resume(ctx, queue, id) })
}

// CancelBatch ends a batch for good, see [batch.Control.Cancel].
func (i *Inspector) CancelBatch(ctx context.Context, queue, id string, r Reason) error {
	return i.batchChange(ctx, Change{Action: ActionCancelBatch, Queue: queue, Batch: id}, r, func(c *batch.Control) error {
		_, err := c.Cancel(ctx, queue, id)
		return err
	})
}

// progress is a batch before it is changed.
func (i *Inspector) progress(ctx context.Context, queue, id string) (batch.Progress, error) {
	control, err := i.control()
	if err != nil {
		return batch.Progress{}, err
	}
	p, err := control.Progress(ctx, queue, id)
	if err != nil {
		return p, fmt.Errorf("inspect: read a batch: %w", err)
	}
	return p, nil
}

// SetPace changes how fast the elements of a batch are enqueued; the zero Pace is no bound.
func (i *Inspector) SetPace(ctx context.Context, queue, id string, pace batch.Pace, r Reason) error {
	before, err := i.progress(ctx, queue, id)
	if err != nil {
		return err
	}
	c := Change{Action: ActionSetPace, Queue: queue, Batch: id, Value: pace.String(), Before: before.Pace.String()}
	return i.batchChange(ctx, c, r, func(c *batch.Control) error { return c.SetPace(ctx, queue, id, pace) })
}

// SetWeight changes how much of its window a batch uses, 1 to 100 percent.
func (i *Inspector) SetWeight(ctx context.Context, queue, id string, percent int, r Reason) error {
	before, err := i.progress(ctx, queue, id)
	if err != nil {
		return err
	}
	c := Change{Action: ActionSetWeight, Queue: queue, Batch: id, Value: fmt.Sprintf("%d%%", percent), Before: fmt.Sprintf("%d%%", before.Weight)}
	return i.batchChange(ctx, c, r, func(c *batch.Control) error { return c.SetWeight(ctx, queue, id, percent) })
}
