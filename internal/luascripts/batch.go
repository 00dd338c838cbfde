package luascripts

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// BatchMax bounds how many elements of a batch one call takes.
const BatchMax = 100

// batchSchema is the field v of a record, as batch.lua has it.
const batchSchema = "1"

// ErrNewerBatch says that a newer version wrote the record of a batch: nothing was done.
var ErrNewerBatch = errors.New("luascripts: a batch of a newer schema")

// BatchState is what a batch does.
type BatchState string

// As the records have them.
const (
	BatchRunning   BatchState = "running"
	BatchPaused    BatchState = "paused"
	BatchCancelled BatchState = "cancelled"
	BatchEnded     BatchState = "ended"
)

// Batch is the record of a batch. Its first fields are what it was started with.
type Batch struct {
	ID, Name, Type, Source, Args string

	Total          int64 // elements of the source, 0 when that is not known
	Window, Weight int   // weight: percent of the window
	PaceN          int   // at most so many elements in PacePer; 0 and 0 for as the limits allow
	PacePer        time.Duration

	State                                    BatchState
	Cursor                                   int64  // position in the source, all before it are settled
	Mark                                     string // the source's own text for that position
	End                                      bool   // all of the source is settled
	Enqueued, Done, Failed, Refused, Dropped int64
	PaceAt                                   time.Time // from when on its pace allows the next
	Until                                    time.Time // of the lease of who feeds it
	Started, Ended, Resumed                  time.Time
	Rebooked                                 time.Time // the Resumed for which what was enqueued has new places

	sampled [2]struct { // the later one last
		at    time.Time
		ended int64
	}
}

// Ceiling is how many elements may be enqueued and not have ended, as feed.lua has it.
func (b *Batch) Ceiling() int { return max(1, b.Window*b.Weight/100) }

// rateEvery is from one sample of the rate to the next, as batch.lua has it; of less than
// rateFrom there is none.
const (
	rateEvery = 10 * time.Second
	rateFrom  = time.Second
)

// Rate is how many tasks ended per second, in the last 10 to 20 s while anybody looks
// after the batch; 0 when nobody does.
func (b *Batch) Rate(now time.Time) float64 {
	from := b.sampled[0]
	passed := now.Sub(from.at)
	if passed < rateFrom || now.Sub(b.sampled[1].at) > 2*rateEvery { // nothing was counted for so long
		return 0
	}
	return float64(b.Done+b.Failed+b.Dropped-from.ended) / passed.Seconds()
}

// readBatch reads the fields of a record.
func readBatch(id string, fields map[string]string) (Batch, error) {
	b := Batch{
		ID: id, Name: fields["name"], Type: fields["type"], Source: fields["source"], Args: fields["args"],
		State: BatchState(fields["state"]), Mark: fields["mark"], End: fields["end"] == "1",
	}
	if fields["v"] != batchSchema {
		return b, fmt.Errorf("%w: %.10q, want %q", ErrNewerBatch, fields["v"], batchSchema)
	}
	var failed string
	number := func(field string) int64 {
		n, err := strconv.ParseInt(cmp.Or(fields[field], "0"), 10, 64)
		if err != nil || n < 0 {
			failed = cmp.Or(failed, field)
		}
		return n
	}
	b.Total, b.Window, b.Weight = number("total"), int(number("window")), int(number("weight"))
	b.PaceN, b.PacePer = int(number("pace_n")), time.Duration(number("pace_us"))*time.Microsecond
	b.Cursor, b.Enqueued, b.Done, b.Failed = number("cursor"), number("enqueued"), number("done"), number("failed")
	b.Refused, b.Dropped = number("refused"), number("dropped")
	b.PaceAt, b.Until = instantOf(number("pace_at")), instantOf(number("until"))
	b.Started, b.Ended, b.Resumed = instantOf(number("started")), instantOf(number("ended")), instantOf(number("resumed"))
	b.Rebooked = instantOf(number("rebooked"))
	for i, of := range [...][2]string{{"t0", "n0"}, {"t1", "n1"}} {
		b.sampled[i].at, b.sampled[i].ended = instantOf(number(of[0])), number(of[1])
	}
	if failed != "" {
		return b, &ReplyError{Script: "batch", What: fmt.Sprintf("field %s of a record is no number", failed)}
	}
	return b, nil
}

// batch reads the record behind an answer.
func (r *reply) batch(id string) Batch {
	fields := make(map[string]string)
	for r.err == nil && r.next < len(r.values) {
		name := r.text()
		fields[name] = r.text()
	}
	if r.err != nil {
		return Batch{}
	}
	b, err := readBatch(id, fields)
	r.err = err
	return b
}

// batchTask opens the id of each task of a batch.
const batchTask = "batch:"

// BatchTaskID names the task of an element.
func BatchTaskID(batch, element string) string { return batchTask + batch + ":" + element }

// ParseBatchTaskID reads it back. Whether there is such a batch is another question.
func ParseBatchTaskID(id string) (batch, element string, ok bool) {
	rest, ok := strings.CutPrefix(id, batchTask)
	if !ok {
		return "", "", false
	}
	batch, element, ok = strings.Cut(rest, ":")
	if !ok || !IsBatchID(batch) || !IsElementID(element) {
		return "", "", false
	}
	return batch, element, true
}

// IsBatchID says that a text may name a batch.
func IsBatchID(id string) bool {
	return len(id) >= 1 && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-", c)
	})
}

// IsElementID says that a text may name an element of a batch.
func IsElementID(id string) bool {
	return len(id) >= 1 && len(id) <= 128 && !strings.ContainsFunc(id, func(c rune) bool {
		return c < '!' || c > '~' || strings.ContainsRune(":{}", c)
	})
}
