package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/worker"
)

// What a worker process records.
const (
	kindGranted  = "granted"  // the pool let a task's handler in
	kindDeferred = "deferred" // the pool gave the slot back; At is the booking
	kindMoved    = "moved"    // the booking moved to At while the task waited
	kindWoken    = "woken"    // the task went back to pending
	kindStart    = "start"    // the first line of the handler
	kindDone     = "done"     // the last line of the handler
	kindAcked    = "acked"    // Redis took the task out of asynq's active list
	kindLost     = "lost"     // the handler gave up, since its context ended
	kindOther    = "other"    // a task without a rule ran
	kindStats    = "stats"    // the pool's counters at a graceful end
	kindMemory   = "memory"   // of a process that feeds batches
)

// record is one line of what worker processes write. All of them append to one
// file, a line per write: what a killed process had written stays.
type record struct {
	Life     int           `json:"life"` // which process, counted by its crew
	Kind     string        `json:"kind"`
	Wrote    int64         `json:"wrote_us"` // by the machine's clock, which is Redis' too
	Task     string        `json:"task,omitempty"`
	To       string        `json:"to,omitempty"`
	At       int64         `json:"at_us,omitempty"`
	From     int64         `json:"from_us,omitempty"`
	Promised int64         `json:"promised_us,omitempty"`
	Late     time.Duration `json:"late_ns,omitempty"`
	Stats    *worker.Stats `json:"stats,omitempty"`
	Bytes    int64         `json:"bytes,omitempty"`
}

// recorder appends records to a file. It observes a worker process.
type recorder struct {
	lines *e2e.LineWriter
	life  int
}

func openRecorder(name string, life int) (*recorder, error) {
	lines, err := e2e.OpenLines(name)
	if err != nil {
		return nil, fmt.Errorf("recorder: %w", err)
	}
	return &recorder{lines: lines, life: life}, nil
}

// write appends one record with one write. A line that is lost would be judged
// as something that did not happen, so there is no going on without it.
func (r *recorder) write(rec record) {
	rec.Life = r.life
	if rec.Wrote == 0 {
		rec.Wrote = time.Now().UnixMicro()
	}
	if err := r.lines.Write(rec); err != nil {
		panic(fmt.Sprintf("recorder: %v", err))
	}
}

// observer records what a pool tells.
func (r *recorder) observer() event.Observer {
	return event.Observer{
		Granted: func(_ context.Context, e event.Granted) {
			r.write(record{Kind: kindGranted, Task: e.Task.ID, At: micros(e.At), From: micros(e.From), Promised: micros(e.Promised), Late: e.Late})
		},
		Deferred: func(_ context.Context, e event.Deferred) {
			rec := record{Kind: kindDeferred, Task: e.Task.ID, At: micros(e.At)}
			if e.Rule == "" {
				rec.At = 0 // Redis was away: there is no booking, and no promise
			}
			r.write(rec)
		},
		Moved: func(_ context.Context, e event.Moved) {
			r.write(record{Kind: kindMoved, Task: e.Task.ID, At: micros(e.At)})
		},
		Woken: func(_ context.Context, e event.Woken) {
			r.write(record{Kind: kindWoken, Task: e.Task.ID, At: micros(e.At)})
		},
	}
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// readRecords reads what was written so far. The last process to write may have been
// killed in its line.
func readRecords(name string) ([]record, error) {
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	all, err := e2e.ReadLines(bytes.NewReader(whole), func(r record) bool { return r.Kind != "" })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

// ofKind are the records of one kind, in the order in which they were written.
func ofKind(all []record, kind string) []record {
	var out []record
	for _, r := range all {
		if r.Kind == kind {
			out = append(out, r)
		}
	}
	return out
}
