package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue/batch"
)

const (
	lookEach  = 200 * time.Millisecond
	tickLate  = 10 * time.Second // so late is no tick
	cancelFor = 10 * time.Second
)

// watch looks at the batch until it is over, and returns what it was then.
func (s *session) watch(ctx context.Context) (last batch.Progress, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	keys := e2e.InputLines(reading, s.env.keys)
	look := time.NewTicker(lookEach)
	defer look.Stop()
	over := time.NewTimer(time.Until(s.clock.Until))
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.cancel(ctx)
		case <-over.C:
			_, err := s.cancel(ctx)
			return last, errors.Join(fmt.Errorf("the clock has come to its end before the batch: %d of %d mails were sent", last.Done, len(s.mails)), err)
		case key := <-keys:
			if err := s.press(ctx, key); err != nil {
				s.say("%v", err)
			}
		case <-look.C:
			p, err := s.look(ctx)
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

// look shows how far the batch is, and stops who feeds it when the time has come.
func (s *session) look(ctx context.Context) (batch.Progress, error) {
	id := s.batchID()
	if id == "" {
		if time.Since(s.tick) > tickLate {
			return batch.Progress{}, errors.New("no batch came of the tick: this machine was too slow for the clock")
		}
		s.show(time.Now(), "waiting for the tick of "+s.clock.Show(s.tick))
		return batch.Progress{}, nil
	}
	p, err := s.control().Progress(ctx, s.queue, id)
	if err != nil {
		return p, err
	}
	s.show(p.Now, mailtest.ProgressText(p, s.clock, s.cfg.gate))
	if s.cfg.killFeeder && p.State == batch.Running && p.Done > 0 && p.Done >= p.Total/3 {
		s.killFeeder(p)
	}
	return p, nil
}

// control pauses, resumes and cancels the batch. That of any replica does.
func (s *session) control() *batch.Control { return s.replicas[0].batches }

func (s *session) show(at time.Time, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = s.clock.Show(at) + "  " + text
}

// batchID is the id of the batch, "" before it was started.
func (s *session) batchID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batch
}

// fedBy notes who feeds the batch.
func (s *session) fedBy(r *replica, from int64) {
	s.mu.Lock()
	again := len(s.feeders) > 0 && s.feeders[len(s.feeders)-1].r == r
	if !again {
		s.feeders = append(s.feeders, feederRun{r, from})
	}
	s.mu.Unlock()
	if !again {
		s.say("%s: feeds the batch from mail %d on", r.name, from+1)
	}
}

// killFeeder stops the replica that feeds, once.
func (s *session) killFeeder(p batch.Progress) {
	s.mu.Lock()
	var r *replica
	if n := len(s.feeders); n > 0 && !s.killed {
		r, s.killed = s.feeders[n-1].r, true
	}
	s.mu.Unlock()
	if r == nil {
		return
	}
	s.say("%s: is stopped, with %d of %d mails sent and %d enqueued", r.name, p.Done, p.Total, p.Enqueued)
	r.kill()
}

// press does what a key is for.
func (s *session) press(ctx context.Context, key string) error {
	id := s.batchID()
	switch {
	case id == "":
		return errors.New("there is no batch yet")
	case key == "p":
		s.say("pause")
		return s.control().Pause(ctx, s.queue, id)
	case key == "r":
		s.say("resume")
		return s.control().Resume(ctx, s.queue, id)
	}
	return errors.New("p and Enter pause the batch, r and Enter resume it")
}

// cancel ends the batch before its time.
func (s *session) cancel(ctx context.Context) (batch.Progress, error) {
	id := s.batchID()
	if id == "" {
		return batch.Progress{}, nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelFor)
	defer stop()
	p, err := s.control().Cancel(ctx, s.queue, id)
	if errors.Is(err, batch.ErrState) { // it has ended meanwhile
		return s.control().Progress(ctx, s.queue, id)
	}
	if err == nil {
		s.say("interrupted: the batch is cancelled, %s taken back", e2e.Count(int(p.Dropped), "mail"))
	}
	return p, err
}
