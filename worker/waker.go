package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

const (
	// wakeBatch bounds how many due tasks one look lists.
	wakeBatch = 100
	// lookMost is the longest time between two looks at the due index: what
	// another process deferred, and died, is found within it.
	lookMost = time.Second
	// sweepAfter is how overdue a task has to be that another pool comes first to wake:
	// were each checked by all pools at its instant, that would be their number times
	// the load.
	sweepAfter = 25 * time.Millisecond
	// moveLeast is what a booking must have moved to be re-timed.
	moveLeast = time.Millisecond
	// A woken task is counted as on its way to us for so long. While workers are
	// free it is fetched at once: if not by us, then another pool took it. While
	// all are busy it waits for one of them.
	wokenFor     = 25 * time.Millisecond
	wokenForBusy = time.Second
	// activeFor is how long after its instant a task may still be running
	// before its due entry is given up: a deferral would write it anew.
	activeFor   = 2 * time.Second
	activePause = 2 * time.Millisecond // the first; doubled each time
	// notYetPause is the pause after Redis found a hundred woken tasks waiting.
	notYetPause = 100 * time.Millisecond
	// movedPause is the pause between two looks when the first found more than
	// there was room for and some of that had moved, or was woken by another pool:
	// an entry that can't be re-timed must not make it spin.
	movedPause = 2 * time.Millisecond
)

// waker wakes the deferred tasks of one queue: it sleeps until the first entry
// of the due index is due, checks the bookings of what is due, re-times what
// has moved, and moves the rest to the head of pending, in order, no more than
// workers are free.
type waker struct {
	a     *Adapter
	queue string
	keys  luascripts.Queue
	bell  chan struct{}

	limits chan limitVersions // the newest look at the limits in force

	mu      sync.Mutex
	next    time.Time            // local: when it will look again
	looking bool                 // it may have its answer about the due index already
	blocked bool                 // it waits for a free worker
	onWay   map[string]time.Time // woken, not yet arrived
	pauses  int                  // looks in a row that found an active task
	adopts  time.Time            // local: until then it wakes what others deferred as its own
	waiting bool                 // something is deferred, as far as is known
	newcome bool                 // somebody was deferred since the last look began
}

func newWaker(a *Adapter, queue string) *waker {
	return &waker{a: a, queue: queue, keys: a.keys(queue), bell: make(chan struct{}, 1), limits: make(chan limitVersions, 1), onWay: make(map[string]time.Time)}
}

// expect says that a task is due in d.
func (w *waker) expect(d time.Duration) {
	at := time.Now().Add(d - w.a.lead.get())
	w.mu.Lock()
	w.waiting, w.newcome = true, true
	early := at.Before(w.next)
	if early {
		w.next = at
	}
	looking := w.looking
	w.mu.Unlock()
	if early && !looking {
		w.ring()
	}
}

// free says that a worker has become free.
func (w *waker) free() {
	w.mu.Lock()
	blocked := w.blocked
	w.blocked = false
	w.mu.Unlock()
	if blocked {
		w.ring()
	}
}

// arrived says that a task has reached admission, and answers when it was woken.
func (w *waker) arrived(id string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.onWay[id]
	delete(w.onWay, id)
	return at
}

func (w *waker) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// room is how many tasks may be woken now: as many as workers are free, and one
// for each server to fetch ahead, less those on their way. Woken tasks go
// before all others, so more of them would starve the rest. For less than want
// it asks to be rung; unless it is, there may be more again later.
func (w *waker) room(now time.Time, want int) (room int, again time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock() // over all of it: a worker that becomes free meanwhile finds blocked set
	free := int(w.a.workers.Load() - w.a.running.Load())
	again = wokenForBusy
	if free > 0 {
		again = max(wokenFor, 2*w.a.lead.get())
	}
	for id, at := range w.onWay {
		if now.Sub(at) >= again {
			delete(w.onWay, id)
		}
	}
	room = free + int(w.a.servers.Load()) - len(w.onWay)
	w.blocked = room < want
	return min(max(0, room), wakeBatch), again
}

func (w *waker) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.mu.Lock()
		w.looking, w.next, w.newcome = true, time.Now().Add(lookMost), false
		w.mu.Unlock()
		began, wait := w.look(ctx)
		w.mu.Lock()
		if at := began.Add(wait); at.Before(w.next) {
			w.next = at // or somebody was deferred during the look, who comes before
		}
		w.looking = false
		t := time.NewTimer(time.Until(w.next))
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-w.bell:
		case <-t.C:
		}
		t.Stop()
	}
}

// look does what is due, and answers when to look again: so long after it
// began. However slow the way to Redis and back was, the next look comes rather
// too early, and looks once more, than too late.
func (w *waker) look(ctx context.Context) (began time.Time, wait time.Duration) {
	lead := w.a.lead.get()
	began = time.Now()
	due, err := luascripts.Due(ctx, w.a.rdb, w.keys, lead, wakeBatch)
	if err != nil {
		w.a.failed(ctx, "the due index can't be read", err)
		return time.Now(), lookMost
	}
	w.found(len(due.Tasks) > 0 || !due.Next.IsZero())
	wait = lookMost
	if !due.Next.IsZero() && len(due.Tasks) < wakeBatch {
		wait = min(wait, due.Next.Sub(due.Now)-lead)
	}
	b := w.sort(due, &wait)
	if len(b.over) > 0 {
		w.wake(ctx, b.over, began) // clears their entries
		w.giveUp(ctx, b.over)
	}
	for _, t := range b.stuck {
		_ = luascripts.Forget(ctx, w.a.rdb, w.keys, t.ID, t.For)
	}
	ready := len(b.ready)
	room, again := w.room(time.Now(), ready)
	if room < ready {
		// the others when a worker is free (it rings), or when another pool
		// sweeps them
		b.ready = b.ready[:room]
		wait = again
	} else if len(due.Tasks) == wakeBatch && ready > 0 {
		wait = 0 // more may be due; unless none of these was ours to wake yet
	}
	if len(b.ready) > 0 {
		codes, woken := w.wake(ctx, w.check(ctx, b.ready, lead), began)
		if slices.Contains(codes, luascripts.NotYet) {
			wait = min(wait, notYetPause)
		} else if room < ready && woken < room {
			wait = min(wait, movedPause) // who had moved, or was woken by another pool, took no room: the next are due now
		}
	}
	return began, max(wait, 0)
}

// found notes whether something is deferred.
func (w *waker) found(some bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = some || w.newcome
}

// dueTask is a due entry with what was stored beside it.
type dueTask struct {
	luascripts.DueTask
	place luascripts.Place
	known bool // place was read
}

// batch is what one look found.
type batch struct {
	ready []dueTask // to check and to wake
	over  []dueTask // gone, archived or completed by somebody else
	stuck []dueTask // running, long after their instant
}

// sort tells the due tasks apart, and shortens wait for those that are to be
// looked at again.
func (w *waker) sort(due luascripts.DueReply, wait *time.Duration) batch {
	var b batch
	active := false
	w.mu.Lock()
	adopts := time.Now().Before(w.adopts)
	w.mu.Unlock()
	for _, d := range due.Tasks {
		t := dueTask{DueTask: d}
		t.place, t.known = luascripts.ReadPlace(d.For)
		switch d.State {
		case "", "archived", "completed":
			b.over = append(b.over, t)
			continue
		case "active": // its deferral is on its way, or it was let in after all
			if due.Now.Sub(d.At) > activeFor {
				b.stuck = append(b.stuck, t)
			} else {
				active = true
			}
			continue
		}
		ours := adopts || t.Pool == w.a.mark || t.Pool == luascripts.PoolMark{} // every pool's
		if late := due.Now.Sub(d.At); !ours && late < sweepAfter {
			*wait = min(*wait, sweepAfter-late)
			continue
		}
		b.ready = append(b.ready, t)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !active {
		w.pauses = 0
		return b
	}
	*wait = min(*wait, activePause<<min(w.pauses, 9))
	w.pauses++
	return b
}
