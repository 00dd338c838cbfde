package inspect

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// errPerClient is about a throttle.Config with which there is no common line.
var errPerClient = fmt.Errorf("%w: with PerClient each process has lines of its own, which nobody else can read", throttle.ErrInvalidConfig)

// pageMax is how many jobs a page has at most.
const pageMax = throttle.PeekMax

// Cursor is where a page begins. It is text without personal data, for a link to the next
// page. The empty Cursor is the first page's.
type Cursor string

// Waiting is one task that waits.
type Waiting struct {
	// Queue and ID are those of the task. In a line they are empty for a caller
	// that blocks in an Acquire, and for a task whose id is longer than a line holds (about 500 bytes).
	Queue, ID string
	Cost      int // permits of the rule whose line it is; 0 in a list of a queue
	// At is the instant of its place, as things stand now. A parked job has missed it. In a
	// list of a queue, At is when the task is woken, as it was told last.
	At     time.Time
	Parked bool // it came too late, see [Explanation]
	// Rules are those of its policy that it waits for, in a list of a queue; none for a
	// task without a place, as at a gate.
	Rules []string
}

// Page is a part of a list.
type Page struct {
	Waiting []Waiting
	Now     time.Time // Redis' clock
	Next    Cursor    // the next page's; empty when nothing follows
	All     int       // how many are in the line; 0 in a list of a queue
}

// LinePage is the page of a line that begins at a cursor, with most places, 1 to
// 250. The line is that of a rule of a policy on one key; those who came too late
// stand first in it. A task that waits for another rule is in that rule's line alone.
func (i *Inspector) LinePage(ctx context.Context, rule, key string, from Cursor, most int) (Page, error) {
	l := i.set.Limiter(rule)
	if l == nil {
		return Page{}, fmt.Errorf("%w: no policy here has a limit named %q", queue.ErrInvalidPolicy, clip(rule))
	}
	if i.cfg.PerClient {
		return Page{}, errPerClient
	}
	number, skip, err := from.read(most)
	if err != nil {
		return Page{}, err
	}
	at := throttle.ListFrom{}
	if from != "" {
		at = throttle.ListFrom{Ticket: number, Skip: skip}
	}
	list, err := l.List(ctx, key, at, most)
	if err != nil {
		return Page{}, fmt.Errorf("inspect: list a line: %w", err)
	}
	p := Page{Now: list.Now, All: list.All}
	for _, b := range list.Listed {
		queue, id, _ := luascripts.TaskOf(b.Job)
		p.Waiting = append(p.Waiting, Waiting{Queue: queue, ID: id, Cost: b.Cost, At: b.At, Parked: b.Parked})
	}
	if len(p.Waiting) == most {
		p.Next = cursorOf(list.Next.Ticket, list.Next.Skip)
	}
	return p, nil
}

// Line is all pages of a line, one after the other. After an error nothing follows.
func (i *Inspector) Line(ctx context.Context, rule, key string) iter.Seq2[Waiting, error] {
	return pages(func(from Cursor) (Page, error) { return i.LinePage(ctx, rule, key, from, pageMax) })
}

// DeferredPage is the page that begins at a cursor, with most places, 1 to 250, of
// what was deferred on a queue or booked for it: all tasks that pools will wake, the first
// to come first. Those that failed, or that a producer scheduled, are asynq's to tell.
func (i *Inspector) DeferredPage(ctx context.Context, queue string, from Cursor, most int) (Page, error) {
	number, skip, err := from.read(most)
	if err != nil {
		return Page{}, err
	}
	first := time.Time{}
	if from != "" {
		first = time.UnixMicro(number)
	}
	r, err := luascripts.ScanDeferred(ctx, i.rdb, i.keys(queue), first, skip, most, false)
	if err != nil {
		return Page{}, away("list what waits", err)
	}
	p := Page{Now: r.Now}
	for _, t := range r.Tasks {
		w := Waiting{Queue: queue, ID: t.ID, At: t.At}
		if place, ok := luascripts.ParseBookingRef(t.For); ok && place.Rules != "" {
			w.Rules = strings.Split(place.Rules.Policy(), "+")
		}
		p.Waiting = append(p.Waiting, w)
		if at := t.At.UnixMicro(); at != number {
			number, skip = at, 0
		}
		skip++
	}
	if len(p.Waiting) == most {
		p.Next = cursorOf(number, skip)
	}
	return p, nil
}

// Deferred is all pages of what waits on a queue, one after the other. After an error
// nothing follows.
func (i *Inspector) Deferred(ctx context.Context, queue string) iter.Seq2[Waiting, error] {
	return pages(func(from Cursor) (Page, error) { return i.DeferredPage(ctx, queue, from, pageMax) })
}

func pages(page func(Cursor) (Page, error)) iter.Seq2[Waiting, error] {
	return func(yield func(Waiting, error) bool) {
		for from := Cursor(""); ; {
			p, err := page(from)
			if err != nil {
				yield(Waiting{}, err)
				return
			}
			for _, w := range p.Waiting {
				if !yield(w, nil) {
					return
				}
			}
			if from = p.Next; from == "" {
				return
			}
		}
	}
}

// cursorOf is behind so many of a number.
func cursorOf(number int64, skip int) Cursor {
	return Cursor(strconv.FormatInt(number, 10) + "." + strconv.Itoa(skip))
}

// read takes a cursor apart, for a page of most places.
func (c Cursor) read(most int) (number int64, skip int, err error) {
	if most < 1 || most > pageMax {
		return 0, 0, fmt.Errorf("%w: a page of %d places, want 1 to %d", ErrInvalidCursor, most, pageMax)
	}
	if c == "" {
		return 0, 0, nil
	}
	before, behind, _ := strings.Cut(string(c), ".")
	number, bad := strconv.ParseInt(before, 10, 64)
	skip, worse := strconv.Atoi(behind)
	if bad != nil || worse != nil || skip < 1 || cursorOf(number, skip) != c {
		return 0, 0, fmt.Errorf("%w: it was not made by a page", ErrInvalidCursor)
	}
	return number, skip, nil
}
