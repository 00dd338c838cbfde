package batch

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/queue/internal/check"
)

// Bounds of a [Spec].
const (
	WindowDefault = 1000
	WindowMax     = 100_000
	WeightDefault = 100

	batchTextMax = 1024
)

// Spec describes a batch: elements of a source that become tasks of one type on
// one queue, at the pace of their limits, and never more than a window ahead. It is
// only a description; see [Control.Start]. The zero Spec is invalid.
//
// No field of it may hold personal data: all are kept in Redis in clear, and shown.
type Spec struct {
	// ID is 1 to 64 characters out of A-Z, a-z, 0-9, "_", "." and "-", and names the
	// batch on its queue for as long as it runs and a day longer. Required.
	ID string

	// Name is what people call it, 1024 bytes at most. Defaults to none.
	Name string

	// Queue is the queue of its tasks. Defaults to "default".
	Queue string

	// Type is the task type of its elements, whose policy they go by. Required.
	Type string

	// Source names the source among FeederConfig.Sources, in the characters of an ID.
	// Required.
	Source string

	// Args is for the source, such as the path of a file, 1024 bytes at most.
	Args string

	// Total is how many elements the source has; 0 when that is not known, and then
	// there is no expected end.
	Total int64

	// Window is how many elements may be enqueued and not have ended, waiting ones
	// and running ones together, 1 to WindowMax. Defaults to WindowDefault.
	Window int

	// Weight is how much of its window the batch uses, in percent, 1 to 100. Batches
	// that share a limit get shares of it as their weighted windows are to each other.
	// Defaults to WeightDefault.
	Weight int

	// Pace bounds how fast elements are enqueued. Defaults to none: as fast as the
	// window and the limits allow.
	Pace Pace
}

// Pace is N elements in Per, evenly: one each Per/N. Up to a quarter of a second that
// the feeder came too late is made up. The zero Pace is no bound.
type Pace struct {
	N   int
	Per time.Duration // 100 us or more for each element, and 31 days at most
}

// String returns such as "100/1m0s", or "as the limits allow".
func (p Pace) String() string {
	if p == (Pace{}) {
		return "as the limits allow"
	}
	return fmt.Sprintf("%d/%v", p.N, p.Per)
}

// each is the time from one element to the next.
func (p Pace) each() time.Duration { return p.Per / time.Duration(p.N) }

func (p Pace) check() error {
	switch {
	case p == (Pace{}):
		return nil
	case p.N < 1 || p.Per < 1:
		return errors.New("want both N and Per, or none")
	case p.Per > 31*24*time.Hour:
		return errors.New("want a Per of 31 days at most")
	case p.Per/time.Duration(p.N) < 100*time.Microsecond:
		return errors.New("want 10000 a second at most")
	}
	return nil
}

// State is what a batch does.
type State string

// The states. The elements of one that ended have all ended, or were refused; one that
// was cancelled is gone when nothing of it runs any more.
//
//	Start --> running <--pause, resume--> paused
//	             |  \--------- cancel -------/ \
//	             v                              v
//	           ended                        cancelled --> (gone)
const (
	Running   State = "running"
	Paused    State = "paused"
	Cancelled State = "cancelled"
	Ended     State = "ended"

	// Unreadable is that of a batch whose record a newer version wrote, or nobody of ours: nothing
	// but its id and its queue is known. Lists have it, so that one such record hides no other batch.
	Unreadable State = "unreadable"
)

// ready is the spec with its defaults, or what is wrong with it.
func (s Spec) ready() (Spec, error) {
	var errs []error
	bad := func(field string, err error) {
		if err != nil {
			errs = append(errs, &Error{Batch: s.ID, Field: field, Err: fmt.Errorf("%w: %w", ErrInvalid, err)})
		}
	}
	s.Queue = named(s.Queue)
	s.Window = cmp.Or(s.Window, WindowDefault)
	s.Weight = cmp.Or(s.Weight, WeightDefault)
	bad("ID", check.Name(s.ID))
	bad("Name", atMost(s.Name, batchTextMax))
	bad("Queue", check.Queue(s.Queue))
	if strings.TrimSpace(s.Type) == "" {
		bad("Type", errors.New("want a task type"))
	}
	bad("Source", check.Name(s.Source))
	bad("Args", atMost(s.Args, batchTextMax))
	if s.Total < 0 {
		bad("Total", fmt.Errorf("it is %d, want 0 or more", s.Total))
	}
	bad("Window", check.Range(s.Window, 1, WindowMax))
	bad("Weight", check.Range(s.Weight, 1, 100))
	bad("Pace", s.Pace.check())
	return s, errors.Join(errs...)
}

func atMost(s string, most int) error {
	if len(s) > most {
		return fmt.Errorf("it is %d bytes long, want %d at most", len(s), most)
	}
	return nil
}

// differs names the fields in which a batch is not what somebody wants to start. What
// can be changed at run time is not among them.
func (s Spec) differs(other Spec) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"Name", s.Name == other.Name}, {"Type", s.Type == other.Type}, {"Source", s.Source == other.Source},
		{"Args", s.Args == other.Args}, {"Total", s.Total == other.Total},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// ParseTaskID returns the batch and the element that the task of an id is of, and whether
// it is of one: for handlers, and for whoever reads logs. Ids that begin with "batch:"
// are for those alone: another task of such an id is paused and dropped with that batch.
func ParseTaskID(id string) (batch, element string, ok bool) {
	return batchscripts.ParseTaskID(id)
}

// Progress is how far a batch is.
type Progress struct {
	Spec  // with the Window, Weight and Pace in force
	State State

	Read     int64 // elements that were enqueued or refused
	Enqueued int64
	Open     int64 // enqueued, and not ended: they wait or run
	Done     int64
	Failed   int64 // archived by asynq: all their attempts failed
	Refused  int64 // never enqueued: they could never run, or their ids were taken
	Dropped  int64 // taken out because the batch was cancelled

	// RefusedFor is how many were refused for each reason, and their sum is Refused. The
	// reasons are event.Invalid, event.TooLate, event.ExceedsLimit, [IDTaken], [Duplicate]
	// and [ReasonUnknown].
	RefusedFor map[event.Reason]int64

	Rate        float64   // ended per second, over the last 10 to 20 s
	ExpectedEnd time.Time // at that rate; zero when that is not known
	Fed         bool      // a feeder has it
	Started     time.Time
	Ended       time.Time // zero until then
	Now         time.Time // Redis' clock
}

// Reasons for which elements are refused, beside those of package event.
const (
	IDTaken       event.Reason = batchscripts.ReasonIDTaken   // the batch has an element of this id, or there is a task of it
	Duplicate     event.Reason = batchscripts.ReasonDuplicate // a unique task that is as this one holds the lock
	ReasonUnknown event.Reason = "not known"                  // another version of this library refused it
)

// refusedFor are the refused elements of a record by reason. What is not counted there was
// refused by a version that did not know the reasons, or knew more of them.
func refusedFor(b batchscripts.Batch) map[event.Reason]int64 {
	counts, left := make(map[event.Reason]int64), b.Refused
	for _, reason := range []event.Reason{event.Invalid, event.TooLate, event.ExceedsLimit, IDTaken, Duplicate} {
		if n := min(b.RefusedFor[string(reason)], left); n > 0 {
			counts[reason] = n
			left -= n
		}
	}
	if left > 0 {
		counts[ReasonUnknown] = left
	}
	return counts
}

// progressOf reads a record.
func progressOf(queue string, v batchscripts.View) Progress {
	p := Progress{
		Spec: specOf(queue, v.Batch), State: State(v.State),
		Read: v.Enqueued + v.Refused, Enqueued: v.Enqueued, Open: int64(v.Unfinished), Done: v.Done, Failed: v.Failed, Refused: v.Refused, Dropped: v.Dropped,
		RefusedFor: refusedFor(v.Batch),
		Fed:        fed(v), Started: v.Started, Ended: v.Ended, Now: v.Now,
	}
	if p.State == Ended {
		return p
	}
	p.Rate = v.Rate(v.Now)
	left := p.Open
	if !v.End {
		left = max(left, p.Total-p.Done-p.Failed-p.Dropped-p.Refused)
	}
	if p.State == Running && p.Total > 0 && p.Rate > 0 {
		const most = 10 * 365 * 24 * 3600 // seconds: further than that nothing is expected
		if seconds := float64(left) / p.Rate; seconds < most {
			p.ExpectedEnd = v.Now.Add(time.Duration(seconds * float64(time.Second)))
		}
	}
	return p
}

func specOf(queue string, b batchscripts.Batch) Spec {
	return Spec{
		ID: b.ID, Name: b.Name, Queue: queue, Type: b.Type, Source: b.Source, Args: b.Args, Total: b.Total,
		Window: b.Window, Weight: b.Weight, Pace: Pace{N: b.PaceN, Per: b.PacePer},
	}
}
