package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

const (
	// readAhead is how many elements are read before they are asked for.
	readAhead = 64
	// markMax is the longest mark of an element.
	markMax = 256
	// sourceGrace is how long it is waited for a source that was told to end.
	sourceGrace = time.Second
)

// given is what a source gave.
type given struct {
	Element
	err  error
	over bool // there is no more
}

// reader reads a source in its own goroutine.
type reader struct {
	out  chan given
	stop context.CancelFunc
	gone chan struct{} // closed when the source has returned

	had *given // taken out of the channel by who waited for it
}

func startReader(ctx context.Context, s Source, spec Spec, from Position) *reader {
	r := &reader{out: make(chan given, readAhead), gone: make(chan struct{})}
	ctx, r.stop = context.WithCancel(ctx)
	send := func(x given) bool {
		if ctx.Err() != nil {
			return false // also where there is room: nobody reads any more
		}
		select {
		case r.out <- x:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(r.gone)
		var last error
		for e, err := range s(ctx, spec, from) {
			if last = err; !send(given{Element: e, err: err}) {
				return
			}
		}
		if ctx.Err() == nil { // otherwise that may be why it ended, and there is more
			send(given{over: true, err: last})
		}
	}()
	return r
}

// close stops reading, and waits a moment for it. A source that does not heed its context
// is left alone: nobody hears what it yields. It answers when that has returned, and nil
// when it did.
func (r *reader) close() (left <-chan struct{}) {
	if r == nil {
		return nil
	}
	r.stop()
	t := time.NewTimer(sourceGrace)
	defer t.Stop()
	select {
	case <-r.gone:
		return nil
	case <-t.C:
		return r.gone
	}
}

// poll is the next of the source, if it is there.
func (r *reader) poll() (x given, ok bool) {
	if r.had != nil {
		x, r.had = *r.had, nil
		return x, true
	}
	select {
	case x = <-r.out:
		return x, true
	default:
		return given{}, false
	}
}

// mayRead says that more can be held.
func (g *feeding) mayRead() bool {
	return !g.over && g.reader != nil && !g.f.now().Before(g.reopen) && g.keyQueues.held < g.spec.Window && !g.farRead()
}

// read puts the next element into its key queue, and answers false when there is none now.
func (g *feeding) read(ctx context.Context) (bool, error) {
	if p := g.unprepared; p != nil {
		if err := g.prepare(ctx, p); err != nil {
			return false, err
		}
		g.unprepared = nil
		return true, nil
	}
	if !g.mayRead() {
		return false, nil
	}
	x, ok := g.reader.poll()
	switch {
	case !ok:
		return false, nil
	case x.over:
		<-g.reader.gone // that was the last it did
		g.reader.stop()
		g.reader = nil
		if g.over = x.err == nil; !g.over {
			g.reopen = g.f.now().Add(min(time.Second<<min(g.sourceFails-1, 10), feedRetryMax))
		}
		return false, nil
	case x.err != nil:
		g.sourceFailed(x.err)
		return true, nil //nolint:nilerr // it is not Redis' fault, and there may be more
	}
	g.sourceFails = 0
	if len(x.Mark) > markMax {
		x.fault, x.Mark = fmt.Errorf("%w: the mark of an element is over %d bytes long", ErrInvalid, markMax), ""
	}
	position := g.cursor.read(x.Mark)
	if x.ID == "" {
		x.ID = strconv.FormatInt(position, 10)
	}
	if g.ahead[x.ID] { // it was settled before this feeder came
		delete(g.ahead, x.ID)
		g.cursor.settle([]int64{position})
		return true, nil
	}
	p := &item{Element: x.Element, position: position}
	if err := g.prepare(ctx, p); err != nil {
		g.unprepared = p
		return false, err
	}
	return true, nil
}

// sourceFailed notes an error of the source. One that yields many in a row is read ever
// more slowly, and logged ever less often.
func (g *feeding) sourceFailed(err error) {
	if n := g.sourceFails; n&(n-1) == 0 {
		g.log.Warn("the source of a batch failed", zap.String("error", g.f.c.SafeText(err)), zap.Int("before", n))
	}
	g.reopen = g.f.now().Add(min(time.Millisecond<<min(g.sourceFails, 20)-time.Millisecond, feedRetryMax))
	g.sourceFails++
}

// prepare makes a task of an element and puts it into its key queue; or the element is
// refused. The error is that of a Redis that does not answer.
func (g *feeding) prepare(ctx context.Context, p *item) error {
	if p.fault == nil && !luascripts.IsElementID(p.ID) {
		p.fault = fmt.Errorf("%w: the id of an element is none", ErrInvalid)
	}
	if p.fault == nil {
		p.fault = checkElementOptions(p.Options)
	}
	if p.fault == nil {
		opts := append(slices.Clone(p.Options), asynq.Queue(g.queue), asynq.TaskID(luascripts.BatchTaskID(g.id, p.ID)))
		task, err := g.f.c.Prepare(ctx, g.spec.Type, p.Payload, opts)
		if errors.Is(err, throttle.ErrUnavailable) {
			return err
		}
		p.task, p.fault = task, err
	}
	if p.fault != nil {
		g.refused = append(g.refused, p)
		return nil //nolint:nilerr // it is the element's own fault
	}
	g.sort(p)
	g.keyQueues.add(p)
	return nil
}

// checkElementOptions returns the options that an element can't have, each an
// [*queue.OptionError].
func checkElementOptions(opts []asynq.Option) error {
	var errs []error
	for _, opt := range opts {
		switch opt.Type() {
		case asynq.QueueOpt:
			errs = append(errs, &queue.OptionError{Option: "Queue", Reason: "the queue is the batch's"})
		case asynq.TaskIDOpt:
			errs = append(errs, &queue.OptionError{Option: "TaskID", Reason: "the id of a task is made of its batch and its element"})
		}
	}
	return errors.Join(errs...)
}

// sort finds the key queue of a item: the narrowest key of its policy. The rules before the
// widest that are on other keys are narrow ones.
func (g *feeding) sort(p *item) {
	if p.task.Policy == nil {
		return
	}
	wants := append([]throttle.KeyCost{{Key: p.task.Request.Key, Cost: p.task.Request.Cost}}, p.task.Request.More...)
	p.queueKey = wants[0].Key
	widest := wants[g.widest()].Key
	p.narrow = wants[:slices.IndexFunc(wants, func(w throttle.KeyCost) bool { return w.Key == widest })]
}

// widest is the last rule of the policy that is a rate; the first, if none is.
func (g *feeding) widest() int {
	for i, l := range slices.Backward(g.policy.Limiters) {
		if !l.LimitLastKnown().IsConcurrent() {
			return i
		}
	}
	return 0
}

// width is the most that one may ask of a rule at once.
func (g *feeding) width(rule int) int {
	return g.policy.Limiters[rule].LimitLastKnown().MaxCost()
}

// regain is how long after it was spent a cost can be asked for again.
func (g *feeding) regain(rule, cost int) time.Duration {
	limit := g.policy.Limiters[rule].LimitLastKnown()
	switch limit.Kind() {
	case "gcra", "leaky", "smooth": // bit by bit
		return time.Duration(float64(limit.Window()) * min(1, float64(cost)/float64(max(limit.Permits(), 1))))
	}
	return limit.Window()
}

// leased says that a rule of the policy limits how many run at once.
func (g *feeding) leased() bool {
	return slices.ContainsFunc(g.policy.Limiters, func(l *throttle.Limiter) bool { return l.LimitLastKnown().IsConcurrent() })
}

// cursor knows which of the elements that were read are settled: enqueued, or refused.
// All before the cursor are.
type cursor struct {
	next int64
	mark string // of the last element before the cursor
	open []slot // from the cursor on, of each that was read
}

type slot struct {
	mark    string
	settled bool
}

// read notes the next element, and answers its position.
func (t *cursor) read(mark string) (position int64) {
	t.open = append(t.open, slot{mark: mark})
	return t.next + int64(len(t.open)) - 1
}

// at is where a source goes on behind all that was read.
func (t *cursor) at() Position {
	p := Position{Read: t.next + int64(len(t.open)), Mark: t.mark}
	if n := len(t.open); n > 0 {
		p.Mark = t.open[n-1].mark
	}
	return p
}

// settle notes elements, and moves the cursor to the first that is not settled.
func (t *cursor) settle(positions []int64) {
	for _, p := range positions {
		if i := p - t.next; i >= 0 && i < int64(len(t.open)) {
			t.open[i].settled = true
		}
	}
	n := 0
	for n < len(t.open) && t.open[n].settled {
		t.mark = t.open[n].mark
		n++
	}
	t.next += int64(n)
	clear(t.open[:n]) // their marks
	t.open = t.open[n:]
}

// with is where the cursor will be once these elements are settled too.
func (t *cursor) with(positions []int64) (cursor int64, mark string) {
	more := make(map[int64]bool, len(positions))
	for _, p := range positions {
		more[p] = true
	}
	cursor, mark = t.next, t.mark
	for _, s := range t.open {
		if !s.settled && !more[cursor] {
			break
		}
		cursor, mark = cursor+1, s.mark
	}
	return cursor, mark
}

// all says that all that was read is settled, once these are.
func (t *cursor) all(positions []int64) bool {
	cursor, _ := t.with(positions)
	return cursor == t.at().Read
}
