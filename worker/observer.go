package worker

import "time"

// Observer hears what happens to tasks under a limit. Its method is called on
// the way of every admission and must not block; calls come concurrently.
type Observer interface{ Observe(Event) }

// EventKind says what happened.
type EventKind int

// What happens to a task under a limit.
const (
	EventGranted  EventKind = iota + 1 // its handler starts
	EventDeferred                      // it was given a booking and gave its slot back
	EventMoved                         // its booking's instant moved while it waited
	EventWoken                         // it was put back to pending
)

// Event is one thing that happened to a task. It holds no key.
type Event struct {
	Kind     EventKind
	Queue    string
	Task     string // its id
	Rule     string
	At       time.Time     // of the grant or the booking, by Redis' clock
	Late     time.Duration // EventGranted: the handler's start after the later of its promise and From
	From     time.Time     // EventGranted: since when the ledger admitted it
	Promised time.Time     // EventGranted: what it was told last; zero when it never waited
}

func (a *Adapter) observe(e Event) {
	if a.cfg.Observer != nil {
		a.cfg.Observer.Observe(e)
	}
}
