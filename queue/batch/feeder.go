package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/stderrlog"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/check"
	"github.com/headwayq/headway/throttle"
)

// Bounds of a [FeederConfig].
const (
	AheadDefault = time.Minute
	aheadMin     = time.Second
	aheadMax     = 24 * time.Hour
)

const (
	// feedLook is how often a feeder looks for batches that nobody feeds.
	feedLook = 250 * time.Millisecond
	// feedLease is how long a batch is kept from others by a feeder that died, and
	// feedRenew how often it is renewed.
	feedLease = 2 * time.Second
	feedRenew = 500 * time.Millisecond
	// feedRetryMax is the longest wait after a failure, of Redis or of a source.
	feedRetryMax = 15 * time.Second
	// feedRelease bounds the call that gives a batch up for others.
	feedRelease = time.Second
	// newerMax bounds of how many batches of newer versions it is remembered that they
	// were logged.
	newerMax = 1024
)

// FeederConfig are the options of a [Feeder].
type FeederConfig struct {
	// Queues are those whose batches it feeds. Required.
	Queues []string

	// Sources are what Spec.Source names. It feeds only batches whose source is
	// here. Required.
	Sources map[string]Source

	// Ahead is how far ahead of now an element is booked: with rules on several keys
	// one whose narrow key is busy for longer is held back. A slower pace shows when what
	// was booked before it has run, so it takes as long. 1 s to 24 h. Defaults to
	// AheadDefault.
	Ahead time.Duration

	// Logger takes a line when a batch is taken over or lost, when Redis is away or
	// back, and when a source fails. Defaults to zap's production lines on stderr, warnings
	// and errors only; zap.NewNop() silences them.
	Logger *zap.Logger

	// Refused hears of each element that could never run, or whose id was taken. What
	// a feeder was told that died at that moment may not be heard, or be heard again. It
	// must not block, and be safe for concurrent use; the element may be personal data.
	// Defaults to none.
	Refused func(batch string, e Element, err error)
}

// Feeder feeds batches from their sources into their queues. Run one in each process
// that has the sources: each batch is fed by one of them at a time, under a lease in
// Redis of 2 s, and by another when that one ends or dies. Every call by which elements
// are enqueued is checked against the lease in the same step.
//
// An element is enqueued once: which ones were is written in the step that enqueues
// them. It is booked first, as [queue.Client.Book] does; with rules on several keys only for
// an instant at which all of them let it run, in the line of the widest, so that a worker
// takes it once. Elements of one narrowest key keep the order of the source; one whose
// key is busy is held back, and those behind it go first. So many are held in memory as
// the window has elements, at most; a source that has all elements of a key in a row is
// read no further than that.
//
// While Redis is away a Feeder waits, and goes on where it was. A Feeder is safe for
// concurrent use. The zero Feeder is not usable.
type Feeder struct {
	c   client
	cfg FeederConfig
	log *zap.Logger
	now func() time.Time

	running atomic.Bool

	mu    sync.Mutex
	held  map[string]bool // batches, by queue and id
	newer map[string]bool // batches of newer versions that were logged
	away  map[string]bool // from whom Redis is, as in reached
}

// NewFeeder returns a feeder that enqueues through client, which must have the policy of
// each batch's type, as the pools do. The error has all that is wrong with cfg, joined;
// it unwraps to ErrInvalid. NewFeeder does not ask Redis, and panics when client
// is nil.
func NewFeeder(client *queue.Client, cfg FeederConfig) (*Feeder, error) {
	c := clientOf(client)
	var errs []error
	bad := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: feeder: %s: %w", ErrInvalid, what, err))
		}
	}
	if cfg.Ahead == 0 {
		cfg.Ahead = AheadDefault
	}
	if len(cfg.Queues) == 0 {
		bad("Queues", errors.New("want one or more"))
	}
	for _, q := range cfg.Queues {
		bad("Queues", check.Queue(q))
	}
	if len(cfg.Sources) == 0 {
		bad("Sources", errors.New("want one or more"))
	}
	for name, s := range cfg.Sources {
		bad("Sources", check.Name(name))
		if s == nil {
			bad("Sources", fmt.Errorf("%q is nil", check.Clip(name)))
		}
	}
	bad("Ahead", check.Range(cfg.Ahead, aheadMin, aheadMax))
	bad("client", c.Bookable())
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	cfg.Logger = stderrlog.Or(cfg.Logger)
	cfg.Queues = slices.Compact(slices.Sorted(slices.Values(cfg.Queues)))
	return &Feeder{
		c: c, cfg: cfg, log: cfg.Logger.With(zap.String("component", "feeder")), now: steadyClock(), held: make(map[string]bool),
		newer: make(map[string]bool), away: make(map[string]bool),
	}, nil
}

// steadyClock goes on evenly when the local clock is set. Instants of Redis are kept by the difference of Redis' clock to it, and would
// be wrong by as much.
func steadyClock() func() time.Time {
	began := time.Now()
	return func() time.Time { return began.Add(time.Since(began)) }
}

// Run feeds until ctx ends, gives its batches up for others, and returns nil, within some
// seconds: a source that has not returned after one more is left alone, and nothing that
// it yields is enqueued. It panics when it is called while it runs.
func (f *Feeder) Run(ctx context.Context) error {
	if f.running.Swap(true) {
		panic("batch: Feeder.Run is called while it runs")
	}
	defer f.running.Store(false)
	var feedings sync.WaitGroup
	defer feedings.Wait()
	feedings.Go(func() { presence.Run(ctx, f.c.Redis(), f.c.Prefix(), f.process(), func(*presence.Process) {}) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		err := f.look(ctx, &feedings)
		f.reached(ctx, "", err)
		if err == nil {
			failures = 0
			timer.Reset(feedLook)
			continue
		}
		failures++
		timer.Reset(min(feedLook<<min(failures, 10), time.Second))
	}
}

// process is what an operator is told of this feeder.
func (f *Feeder) process() presence.Process {
	p := presence.New(presence.Feeder)
	p.Queues = make(map[string]int, len(f.cfg.Queues))
	for _, queue := range f.cfg.Queues {
		p.Queues[queue] = 1
	}
	for _, name := range slices.Sorted(maps.Keys(f.cfg.Sources)) {
		p.Entries = append(p.Entries, presence.Entry{Name: name})
	}
	return p
}

// look takes what nobody feeds.
func (f *Feeder) look(ctx context.Context, feedings *sync.WaitGroup) error {
	var failed error // one batch, of which the others are not to suffer
	for _, queue := range f.cfg.Queues {
		err := batchscripts.EachUnfinished(ctx, f.c.Redis(), f.c.Keys(queue), batchPage, func(ids []string) error {
			failed = cmp.Or(failed, f.takeFree(ctx, queue, ids, feedings))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return failed
}

// takeFree claims those of some batches that are free and have a source here.
func (f *Feeder) takeFree(ctx context.Context, queue string, ids []string, feedings *sync.WaitGroup) error {
	ids = slices.DeleteFunc(ids, func(id string) bool { return f.holds(queue, id) })
	if len(ids) == 0 {
		return nil
	}
	views, errs := batchscripts.Read(ctx, f.c.Redis(), f.c.Keys(queue), ids)
	var unread error
	for i, v := range views {
		switch {
		case errors.Is(errs[i], batchscripts.ErrNotFound):
			continue
		case errors.Is(errs[i], batchscripts.ErrNewer):
			f.logNewerOnce(queue, ids[i])
			continue
		case errs[i] != nil:
			unread = cmp.Or(unread, errs[i])
			continue
		case f.cfg.Sources[v.Source] == nil || fed(v):
			continue
		}
		g := newFeeding(f, queue, ids[i])
		if err := g.begin(ctx); errors.Is(err, errLost) {
			continue // another was faster
		} else if err != nil {
			return err
		}
		f.hold(queue, g.id, true)
		feedings.Go(func() {
			defer f.reached(ctx, g.name(), nil)
			left := g.run(ctx)
			if left == nil {
				f.hold(queue, g.id, false)
				return
			}
			go func() { // one goroutine at a time reads the source of a batch; this one ends with it
				<-left
				f.hold(queue, g.id, false)
			}()
		})
	}
	return unread
}

// fed says that a feeder has the lease of a batch, as batchclaim.lua has it: one that ends
// far ahead was given before Redis' clock went back.
func fed(v batchscripts.View) bool {
	return v.Until.After(v.Now) && !v.Until.After(v.Now.Add(2*feedLease))
}

func (f *Feeder) holds(queue, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[queue+"/"+id]
}

func (f *Feeder) hold(queue, id string, held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if held {
		f.held[queue+"/"+id] = true
		return
	}
	delete(f.held, queue+"/"+id)
}

// logNewerOnce says once of a batch that it is for newer feeders.
func (f *Feeder) logNewerOnce(queue, id string) {
	f.mu.Lock()
	known := f.newer[queue+"/"+id]
	if len(f.newer) >= newerMax {
		clear(f.newer)
	}
	f.newer[queue+"/"+id] = true
	f.mu.Unlock()
	if !known {
		f.log.Warn("a newer version wrote the record of a batch: it is left to feeders of that version", zap.String("queue", queue), zap.String("batch", id))
	}
}

// reached notes whether Redis answered the feeder's look for batches, whose name is "",
// or the feeding of one, and logs when it stops to answer any, and when it answers all
// again: one that is full refuses a feeding while it answers the look.
func (f *Feeder) reached(ctx context.Context, who string, err error) {
	ended := ctx.Err() != nil
	f.mu.Lock()
	before := len(f.away) > 0
	if err != nil && !ended {
		f.away[who] = true
	} else {
		delete(f.away, who)
	}
	away := len(f.away) > 0
	f.mu.Unlock()
	switch {
	case away == before || ended:
	case away:
		f.log.Warn("the feeder can't reach Redis", zap.Error(err))
	default:
		f.log.Info("the feeder reaches Redis again")
	}
}

// newOwner names who holds a batch.
func newOwner() uint64 { return uint64(throttle.NewToken()) }
