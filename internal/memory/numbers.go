package memory

import (
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// numbers are those of a limit, in microseconds and permits.
type numbers struct {
	figures
	version int64   // of the limit
	bounds  []int64 // of a calendar, from the call; a ledger does not keep them
}

// figures are what a ledger remembers of the limit that it was written under.
type figures struct {
	kind  luascripts.Kind
	n, w  int64
	burst int64
	warm  int64
	cold  int64 // thousandths
	short int64
}

func numbersOf(a luascripts.Numbers) *numbers {
	l := &numbers{version: a.Version, figures: figures{
		kind: a.Kind, n: int64(a.Permits), w: micros(a.Window),
		burst: int64(a.Burst), warm: micros(a.Warm), cold: int64(a.ColdMilli), short: micros(a.Short),
	}}
	for _, b := range a.Bounds {
		l.bounds = append(l.bounds, b.UnixMicro())
	}
	return l
}

// covers says whether a calendar knows the window of now.
func (l *numbers) covers(now int64) bool {
	if l.kind != luascripts.Calendar {
		return true
	}
	last := len(l.bounds) - 1
	return last > 0 && l.bounds[0] <= now && now < l.bounds[last]
}

// micros are whole microseconds, rounded up: never early.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

// instantOf is the time of an instant; 0 is the zero time.
func instantOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// microsOf is an instant in microseconds; 0 is the zero time.
func microsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
