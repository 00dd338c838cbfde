package mailtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle/gate"
)

const (
	lookEach  = 200 * time.Millisecond
	tickLate  = 10 * time.Second // so late the tick did not come
	cancelFor = 10 * time.Second
	plainEach = time.Second // between two lines of progress where none can be redrawn
)

// Watch shows how far a batch is until it is over. People may pause, resume and cancel
// the batch meanwhile. The fields are set before [Watch.Run].
type Watch struct {
	Progress *e2e.Progress // all output goes through it

	Control *batch.Control
	Queue   string
	Mails   int
	Clock   Clock
	Gate    gate.Gate
	Tick    time.Time // the schedule starts the batch then
	Keys    io.Reader // lines "p" and "r" pause and resume the batch; nil for none
	Kill    bool      // the first replica that feeds is killed when a third is sent

	mu      sync.Mutex
	batch   string
	shown   string
	feeders []feeder // one after the other
	killed  bool
}

// feeder is a replica that began to feed the batch from a position.
type feeder struct {
	name string
	from int64
	kill func()
}

// NewWatch returns a watch that writes to out.
func NewWatch(out io.Writer) *Watch {
	w := &Watch{}
	w.Progress = e2e.NewProgressLine(out, plainEach, func(bool) string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.shown
	})
	return w
}

// Say writes a line for people, with the time of the clock.
func (w *Watch) Say(format string, a ...any) {
	_, _ = fmt.Fprintf(w.Progress, w.Clock.Show(time.Now())+"  "+format+"\n", a...)
}

// Started says which batch is watched.
func (w *Watch) Started(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batch = id
}

// Batch is the id of the batch, "" before it was started.
func (w *Watch) Batch() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.batch
}

// Run looks at the batch until it is over, and returns what it was then. When ctx ends it
// cancels the batch.
func (w *Watch) Run(ctx context.Context) (last batch.Progress, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	keys := e2e.InputLines(reading, w.Keys)
	look := time.NewTicker(lookEach)
	defer look.Stop()
	over := time.NewTimer(time.Until(w.Clock.Until))
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return w.cancel(ctx)
		case <-over.C:
			_, err := w.cancel(ctx)
			return last, errors.Join(fmt.Errorf("the clock has come to its end before the batch: %d of %d mails were sent", last.Done, w.Mails), err)
		case key := <-keys:
			if err := w.press(ctx, key); err != nil {
				w.Say("%v", err)
			}
		case <-look.C:
			p, err := w.look(ctx)
			if ctx.Err() != nil {
				continue
			}
			if err != nil || p.State == batch.Ended {
				return p, err
			}
			last = p
		}
	}
}

// look shows how far the batch is.
func (w *Watch) look(ctx context.Context) (batch.Progress, error) {
	id := w.Batch()
	if id == "" {
		if time.Since(w.Tick) > tickLate {
			return batch.Progress{}, errors.New("no batch came of the tick: this machine was too slow for the clock")
		}
		w.show(time.Now(), "waiting for the tick of "+w.Clock.Show(w.Tick))
		return batch.Progress{}, nil
	}
	p, err := w.Control.Progress(ctx, w.Queue, id)
	if err != nil {
		return p, err
	}
	w.show(p.Now, ProgressText(p, w.Clock, w.Gate))
	if p.State == batch.Running && p.Done > 0 && p.Done >= p.Total/3 {
		w.killFeeder(p)
	}
	return p, nil
}

// Feeds notes that a replica feeds the batch, from a position on, and how it is killed.
func (w *Watch) Feeds(name string, from int64, kill func()) {
	w.mu.Lock()
	again := len(w.feeders) > 0 && w.feeders[len(w.feeders)-1].name == name
	if !again {
		w.feeders = append(w.feeders, feeder{name, from, kill})
	}
	w.mu.Unlock()
	if !again {
		w.Say("%s: feeds the batch from mail %d on", name, from+1)
	}
}

// FedBy names the replicas that fed the batch, one after the other.
func (w *Watch) FedBy() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var fed []string
	for _, f := range w.feeders {
		fed = append(fed, fmt.Sprintf("%s from mail %d", f.name, f.from+1))
	}
	return strings.Join(fed, ", then ")
}

// killFeeder kills the replica that feeds the batch, once.
func (w *Watch) killFeeder(p batch.Progress) {
	w.mu.Lock()
	kills := w.Kill && !w.killed && len(w.feeders) > 0
	var f feeder
	if kills {
		f, w.killed = w.feeders[len(w.feeders)-1], true
	}
	w.mu.Unlock()
	if kills {
		w.Say("%s: is stopped, with %d of %d mails sent and %d enqueued", f.name, p.Done, p.Total, p.Enqueued)
		f.kill()
	}
}

func (w *Watch) show(at time.Time, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown = w.Clock.Show(at) + "  " + text
}

// press does what a key is for.
func (w *Watch) press(ctx context.Context, key string) error {
	id := w.Batch()
	switch {
	case id == "":
		return errors.New("there is no batch yet")
	case key == "p":
		w.Say("pause")
		return w.Control.Pause(ctx, w.Queue, id)
	case key == "r":
		w.Say("resume")
		return w.Control.Resume(ctx, w.Queue, id)
	}
	return errors.New("p and Enter pause the batch, r and Enter resume it")
}

// cancel ends the batch before its time.
func (w *Watch) cancel(ctx context.Context) (batch.Progress, error) {
	id := w.Batch()
	if id == "" {
		return batch.Progress{}, nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelFor)
	defer stop()
	p, err := w.Control.Cancel(ctx, w.Queue, id)
	if errors.Is(err, batch.ErrState) { // it has ended meanwhile
		return w.Control.Progress(ctx, w.Queue, id)
	}
	if err == nil {
		w.Say("interrupted: the batch is cancelled, %s taken back", e2e.Count(int(p.Dropped), "mail"))
	}
	return p, err
}

// ProgressText is a batch in a line.
func ProgressText(p batch.Progress, c Clock, hours gate.Gate) string {
	end := "end not known yet"
	if !p.ExpectedEnd.IsZero() {
		end = "end about " + c.ShowFrom(p.Now, p.ExpectedEnd)
	}
	if p.State == batch.Ended {
		end = "ended at " + c.ShowFrom(p.Now, p.Ended)
	}
	state := string(p.State)
	if len(hours.Openings(p.Now, p.Now.Add(time.Nanosecond), c.Zone)) == 0 && p.State == batch.Running {
		state += ", gate shut"
	}
	if !p.Fed && p.State == batch.Running {
		state += ", nobody feeds it"
	}
	bar := e2e.Bar(int(p.Done+p.Failed+p.Refused), int(p.Total))
	return fmt.Sprintf("%ssent %d of %d, %d open, %.1f/s, %s, %s", bar, p.Done, p.Total, p.Open, p.Rate, end, state)
}
