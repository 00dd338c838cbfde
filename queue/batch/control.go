package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/check"
	"github.com/headwayq/headway/throttle"
)

const (
	// batchPage is how many batches are read at once.
	batchPage = 100
	// cancelPause is the pause between two rounds over what a cancelled batch has left,
	// and cancelFor is how long pools may not have heard that it was cancelled.
	cancelPause = 100 * time.Millisecond
	cancelFor   = time.Second
)

// Control starts batches, tells how far they are, and pauses, resumes, changes and
// cancels them, from any process. What feeds them is a [Feeder]. All of it is in Redis:
// nothing of it is lost with a process.
//
// A queue that is "" is "default". Errors are [*Error]: ErrNotFound for a batch that
// is not there, ErrState for one that has ended or was cancelled,
// throttle.ErrSchema for one that a newer version wrote, of which nothing is changed, and
// throttle.ErrUnavailable when Redis does not answer. A Control owns nothing and is safe
// for concurrent use. The zero Control is not usable.
type Control struct{ c client }

// NewControl returns the batches on the queues that a client enqueues on. To cancel
// one, the client needs the policy of its type: without it places are left to fall out
// of their lines, each after its instant. It panics when client is nil.
func NewControl(client *queue.Client) *Control {
	return &Control{clientOf(client)}
}

// Start starts a batch, once by its id: of replicas that all start it at 09:00 one does,
// and for the others started is false. The id is taken until a day after the batch
// ended. When what it names is another batch, with another name, type, source, args or
// total, the error unwraps to ErrExists; while the last of a cancelled one runs, to
// ErrState. When that is over the id is free: a replica that comes late starts again
// what was cancelled. A spec that makes no sense is ErrInvalid, all its faults joined.
func (b *Control) Start(ctx context.Context, spec Spec) (started bool, err error) {
	spec, err = spec.ready()
	if err != nil {
		return false, err
	}
	if err := b.c.RegisterQueue(ctx, spec.Queue); err != nil {
		return false, batchFault(spec.ID, err)
	}
	a := batchscripts.StartArgs{Token: uint64(throttle.NewToken()), Batch: batchscripts.Batch{
		ID: spec.ID, Name: spec.Name, Type: spec.Type, Source: spec.Source, Args: spec.Args, Total: spec.Total,
		Window: spec.Window, Weight: spec.Weight, PaceN: spec.Pace.N, PacePer: spec.Pace.Per,
	}}
	r, err := batchscripts.Start(ctx, b.c.Redis(), b.c.Keys(spec.Queue), a)
	if err != nil {
		return false, batchFault(spec.ID, err)
	}
	if fields := spec.differs(specOf(spec.Queue, r.Batch)); len(fields) > 0 {
		return false, &Error{Batch: spec.ID, Field: strings.Join(fields, ", "), Err: ErrExists}
	}
	if r.State == batchscripts.Cancelled {
		return false, &Error{Batch: spec.ID, Err: ErrState}
	}
	return r.Status == 1, nil
}

// Progress tells how far a batch is, also for a day after it ended.
func (b *Control) Progress(ctx context.Context, queue, id string) (Progress, error) {
	if err := check.Name(id); err != nil {
		return Progress{}, &Error{Batch: id, Err: ErrNotFound}
	}
	queue = named(queue)
	views, errs := batchscripts.Read(ctx, b.c.Redis(), b.c.Keys(queue), []string{id})
	if errs[0] != nil {
		return Progress{}, batchFault(id, errs[0])
	}
	return progressOf(queue, views[0]), nil
}

// All are the batches of a queue: those that have not ended, the oldest first, and then
// those that ended within a day. One that can't be read is [Unreadable]. After an error nothing
// follows.
func (b *Control) All(ctx context.Context, queue string) iter.Seq2[Progress, error] {
	queue = named(queue)
	return func(yield func(Progress, error) bool) {
		seen := make(map[string]bool) // one may end meanwhile
		err := b.each(ctx, queue, func(ids []string) error {
			page, err := b.read(ctx, queue, ids, seen)
			for _, p := range page {
				if !yield(p, nil) {
					return errStop
				}
			}
			return err
		})
		if err != nil {
			yield(Progress{}, err)
		}
	}
}

// Page returns at most `most` of these batches, from a position on: the first batch is at 0. next is
// the position of the next page, or 0 when this page is the last one. Of the batches before the
// page only the ids are read. A batch that ends meanwhile moves behind those that have not ended,
// and may be missed.
func (b *Control) Page(ctx context.Context, queue string, from, most int) (page []Progress, next int, err error) {
	queue = named(queue)
	seen, at := make(map[string]bool), 0
	err = b.each(ctx, queue, func(ids []string) error {
		over := min(len(ids), max(0, from-at))
		for _, id := range ids[:over] {
			seen[id] = true
		}
		at, ids = at+over, ids[over:]
		for len(ids) > 0 {
			if len(page) == most {
				next = at
				return errStop
			}
			n := min(len(ids), most-len(page))
			some, err := b.read(ctx, queue, ids[:n], seen)
			page = append(page, some...)
			if err != nil {
				return err
			}
			at, ids = at+n, ids[n:]
		}
		return nil
	})
	return page, next, err
}

// errStop: who goes through batches has had enough.
var errStop = errors.New("batch: stop")

// each goes through the ids of the batches of a queue by portions, until f returns an error.
func (b *Control) each(ctx context.Context, queue string, f func(ids []string) error) error {
	var own error // of f
	portion := func(ids []string) error {
		own = f(ids)
		return own
	}
	k := b.c.Keys(queue)
	err := batchscripts.EachUnfinished(ctx, b.c.Redis(), k, batchPage, portion)
	if err == nil {
		err = batchscripts.EachFinished(ctx, b.c.Redis(), k, batchPage, portion)
	}
	switch {
	case errors.Is(own, errStop):
		return nil
	case own != nil:
		return own
	case err != nil:
		return fmt.Errorf("batch: list batches: %w: %w", throttle.ErrUnavailable, err)
	}
	return nil
}

// read reads those of some batches that were not seen, until Redis does not answer.
func (b *Control) read(ctx context.Context, queue string, ids []string, seen map[string]bool) (page []Progress, err error) {
	views, errs := batchscripts.Read(ctx, b.c.Redis(), b.c.Keys(queue), ids)
	for i, v := range views {
		switch {
		case seen[ids[i]] || errors.Is(errs[i], batchscripts.ErrNotFound):
			continue
		case errs[i] != nil && errors.Is(batchFault(ids[i], errs[i]), throttle.ErrUnavailable):
			return page, batchFault(ids[i], errs[i])
		}
		seen[ids[i]] = true
		if errs[i] != nil {
			page = append(page, Progress{Spec: Spec{ID: ids[i], Queue: queue}, State: Unreadable})
			continue
		}
		page = append(page, progressOf(queue, v))
	}
	return page, nil
}

// Pause stops a batch within a second: nothing more of it is enqueued, and what waits is
// deferred when its turn comes, its place given to others. What runs, runs on. To pause
// what is paused does nothing.
func (b *Control) Pause(ctx context.Context, queue, id string) error {
	_, err := b.set(ctx, named(queue), batchscripts.SetArgs{ID: id, What: batchscripts.Pause})
	return err
}

// Resume lets a paused batch go on within a second: what was enqueued comes first, in the
// order of the source; its feeder gives it new places before it feeds more. What comes due
// before the feeder has done so, 0.3 s at least, runs, and may pass what was deferred for the pause.
// Resume returns when the feeder has renewed its lease, within a second.
//
// Without a feeder that order is only about what was deferred for the pause. Resume then brings it back, and
// looks for it twice, 0.3 s and 1 s after the batch went on. When the feeder has just died, Resume first
// waits about 2 s until its lease has ended. Should ctx end before, call it again. To
// resume what runs does nothing, but without a feeder it looks once more for what was deferred for the pause.
func (b *Control) Resume(ctx context.Context, queue, id string) error {
	queue = named(queue)
	v, err := b.set(ctx, queue, batchscripts.SetArgs{ID: id, What: batchscripts.Resume})
	if err != nil || v.Resumed.IsZero() {
		return err
	}
	if v, err = b.feederRenews(ctx, queue, v); err != nil || fed(v) || v.State != batchscripts.Running {
		return err // its feeder brings back what was deferred for the pause, before it feeds more; or it was paused again, or has ended
	}
	since := max(0, v.Now.Sub(v.Resumed))
	for _, after := range []time.Duration{resumeAfter, maintainEvery} {
		// Pools may just be putting away for an hour what came to them.
		if err := pause(ctx, after-since); err != nil {
			return &Error{Batch: id, Err: err}
		}
		since = max(since, after)
		if err := b.c.recall(ctx, queue, id); err != nil {
			return batchFault(id, err)
		}
	}
	return nil
}

// feederRenews waits until the feeder of a batch has renewed its lease, or the lease has ended because
// the feeder is dead. It does not wait when what was deferred for the pause is back already.
func (b *Control) feederRenews(ctx context.Context, queue string, v batchscripts.View) (batchscripts.View, error) {
	lease := v.Until
	for fed(v) && v.Until.Equal(lease) && !v.Rebooked.Equal(v.Resumed) {
		if err := pause(ctx, feedLook); err != nil {
			return v, &Error{Batch: v.ID, Err: err}
		}
		err := luascripts.WhileSlotMoves(ctx, b.c.Redis(), func() error {
			views, errs := batchscripts.Read(ctx, b.c.Redis(), b.c.Keys(queue), []string{v.ID})
			if errs[0] == nil {
				v = views[0]
			}
			return errs[0]
		})
		if err != nil {
			return v, batchFault(v.ID, err)
		}
	}
	return v, nil
}

// SetPace changes how fast elements are enqueued, from now on; the zero Pace is no bound.
func (b *Control) SetPace(ctx context.Context, queue, id string, p Pace) error {
	if err := p.check(); err != nil {
		return &Error{Batch: id, Field: "Pace", Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	_, err := b.set(ctx, named(queue), batchscripts.SetArgs{ID: id, What: batchscripts.SetPace, N: p.N, Per: p.Per})
	return err
}

// SetWeight changes the weight, 1 to 100. A smaller share comes about as what is unfinished
// ends.
func (b *Control) SetWeight(ctx context.Context, queue, id string, percent int) error {
	return b.setNumber(ctx, queue, id, batchscripts.SetWeight, "Weight", percent, 100)
}

// SetWindow changes the window, 1 to WindowMax. A smaller one comes about as what is
// unfinished ends.
func (b *Control) SetWindow(ctx context.Context, queue, id string, window int) error {
	return b.setNumber(ctx, queue, id, batchscripts.SetWindow, "Window", window, WindowMax)
}

func (b *Control) setNumber(ctx context.Context, queue, id string, what batchscripts.Change, field string, n, most int) error {
	if err := check.Range(n, 1, most); err != nil {
		return &Error{Batch: id, Field: field, Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	}
	_, err := b.set(ctx, named(queue), batchscripts.SetArgs{ID: id, What: what, N: n})
	return err
}

func (b *Control) set(ctx context.Context, queue string, a batchscripts.SetArgs) (batchscripts.View, error) {
	if err := check.Name(a.ID); err != nil {
		return batchscripts.View{}, &Error{Batch: a.ID, Err: ErrNotFound}
	}
	r, err := batchscripts.Set(ctx, b.c.Redis(), b.c.Keys(queue), a)
	switch {
	case err != nil:
		return r.View, batchFault(a.ID, err)
	case r.Status == batchscripts.SetGone:
		return r.View, &Error{Batch: a.ID, Err: ErrNotFound}
	case r.Status == batchscripts.SetWrong:
		return r.View, &Error{Batch: a.ID, Err: ErrState}
	}
	return r.View, nil
}

// Cancel ends a batch for good: nothing more of it is enqueued, what waits is deleted,
// and its places are given back. It returns when nothing is left but what runs, or is
// pending behind so many tasks that it is left to the pools, which drop it when its turn
// comes; when the last of that has ended, no key is left either. The progress is the last
// that is known: of what ended while its feeder dropped the rest beside it, some may count
// as Dropped. Should ctx end before, or this process die, its feeder goes on with it.
func (b *Control) Cancel(ctx context.Context, queue, id string) (Progress, error) {
	queue = named(queue)
	v, err := b.set(ctx, queue, batchscripts.SetArgs{ID: id, What: batchscripts.Cancel})
	if err != nil {
		return Progress{}, err
	}
	p := progressOf(queue, v)
	p.State = Cancelled
	began := time.Now()
	for p.Open > 0 {
		d, err := b.c.drain(ctx, queue, p.Type, id)
		if err != nil {
			return p, batchFault(id, err)
		}
		if d.counted {
			p.Open, p.Done, p.Failed, p.Dropped = int64(d.Unfinished), d.Done, d.Failed, d.Dropped
		} else if !d.gone { // nothing was unfinished any more
			state, err := batchscripts.StateOf(ctx, b.c.Redis(), b.c.Keys(queue), id)
			if err != nil {
				return p, batchFault(id, err)
			}
			d.gone = state != batchscripts.Cancelled
		}
		if d.gone { // its feeder or a pool saw the last of it
			p.Open, p.Dropped = 0, p.Enqueued-p.Done-p.Failed
		}
		if d.gone || d.changed == 0 && time.Since(began) > cancelFor {
			break
		}
		if err := pause(ctx, cancelPause); err != nil {
			return p, &Error{Batch: id, Err: err}
		}
	}
	return p, nil
}

// named is the name of a queue.
func named(queue string) string { return cmp.Or(queue, "default") }

// pause waits d, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// batchFault is what kept a batch from being asked about.
func batchFault(id string, err error) error {
	if errors.Is(err, batchscripts.ErrNotFound) {
		return &Error{Batch: id, Err: ErrNotFound}
	}
	if errors.Is(err, batchscripts.ErrNewer) {
		return &Error{Batch: id, Err: throttle.ErrSchema}
	}
	if _, ok := errors.AsType[*luascripts.ReplyError](err); ok {
		return &Error{Batch: id, Err: err} // Redis answered: the record is none of ours
	}
	return &Error{Batch: id, Err: fmt.Errorf("%w: %w", throttle.ErrUnavailable, err)}
}
