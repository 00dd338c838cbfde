package main

import (
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/worker"
)

// watch hears from the pool how late messages start, and when deferred ones are
// due. The zero watch is ready. It is safe for concurrent use.
type watch struct {
	mu   sync.Mutex
	late []time.Duration      // a sample per message that had waited
	due  map[string]time.Time // deferred by this process, by task id, by Redis' clock
}

// Observe implements [worker.Observer].
func (w *watch) Observe(e worker.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case worker.EventDeferred, worker.EventMoved:
		if w.due == nil {
			w.due = map[string]time.Time{}
		}
		w.due[e.Task] = e.At
	case worker.EventWoken:
		delete(w.due, e.Task)
	case worker.EventGranted:
		delete(w.due, e.Task)
		if !e.Promised.IsZero() {
			w.late = append(w.late, e.Late)
		}
	}
}

// lateness returns the samples so far.
func (w *watch) lateness() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.late)
}

// nextIn returns the time from now until the next message of this process is
// due, 0 if none is known. It is for display: it compares the local clock with Redis'.
func (w *watch) nextIn(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var next time.Duration
	for id, at := range w.due {
		in := at.Sub(now)
		if in <= 0 {
			delete(w.due, id) // another process woke it
		} else if next == 0 || in < next {
			next = in
		}
	}
	return next
}
