package batch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/check"
)

// ElementIDMax is how many bytes the id of an element has at most.
const ElementIDMax = 128

// lineMax is the longest line that [Lines] reads.
const lineMax = 1 << 20

// Element is one task of a batch to be.
type Element struct {
	// ID names the element in its batch: 1 to ElementIDMax printable ASCII characters
	// without spaces, ":", "{" and "}". It is part of the task's id, which is logged and
	// shown: it must not be personal data. One that comes again while the first waits or
	// runs is refused; when that has long ended it is a task again. With asynq.Retention
	// asynq keeps a task that is done, and one that failed for good in any case: for as
	// long its id is taken, and a batch that is started again under its old id, such as
	// after a cancel, has those elements refused. What was done is not done twice then; to
	// do all again take another batch id, or delete those tasks with asynq's inspector.
	// Defaults to the element's position, which is right for a source that has the same
	// elements in the same order whenever it is read.
	ID string

	// Payload is the task's, and Options are asynq's: any but Queue, TaskID,
	// ProcessAt, ProcessIn and Group.
	Payload []byte
	Options []asynq.Option

	// Mark is the source's own text for where it goes on behind this element, such as
	// the offset of a file; 256 bytes at most. An element with a longer one is refused, and
	// a source that goes on behind it gets the mark before that. It stands in Redis in clear, also for a
	// day after the batch ended: it must not be personal data, such as the number of a
	// phone by which a table is read. Defaults to none.
	Mark string

	fault error // why it can be no task, as its source knows
}

// String prints the element without its payload and its options, which may be personal
// data.
func (e Element) String() string { return fmt.Sprintf("element %q", check.Clip(e.ID)) }

// Position is where a source begins, or goes on.
type Position struct {
	Read int64  // so many elements come before
	Mark string // that of the last of them; empty at the beginning
}

// Source gives the elements of a batch from a position on, the same ones in the same
// order whenever it is asked. It is asked again after the process that read it died, by
// any other, and then begins with elements some of which were enqueued: those are
// skipped, by their ids.
//
// An error that it yields is logged by its type, for its text may quote an element;
// reading goes on if there is more, and otherwise begins again behind the last element
// after 1 s, 2 s, 4 s and at most 15 s. A source that yields many errors in a row is read
// ever more slowly. A batch ends with a source that ended without an error.
//
// ctx ends when the feeder ends, or has lost the batch; a pause does not end it. A source
// that does not heed it is left alone after a second: nothing that it yields is heard, and
// until it returns its feeder does not take the batch again; others do. One that panics
// ends the process. A Source is called by one goroutine of a feeder for each batch.
type Source func(ctx context.Context, b Spec, from Position) iter.Seq2[Element, error]

// Seq is a source that counts: all elements of a sequence, from the beginning, less
// those that come before the position.
func Seq(elements func(Spec) iter.Seq[Element]) Source {
	return func(ctx context.Context, b Spec, from Position) iter.Seq2[Element, error] {
		return func(yield func(Element, error) bool) {
			skip := from.Read
			for e := range elements(b) {
				if skip > 0 && ctx.Err() == nil {
					skip--
					continue
				}
				if skip > 0 || !yield(e, nil) {
					return
				}
			}
		}
	}
}

// Channel is a source that goes on from where the channel is; the batch ends when it is
// closed. It belongs to one process: another that feeds the same batch has a channel of
// its own, and elements that a process has taken, as many as the window has and 64, are
// lost when it dies, ends or loses the batch before it enqueued them. An element without an ID gets one that is drawn.
func Channel(ch <-chan Element) Source {
	return func(ctx context.Context, _ Spec, _ Position) iter.Seq2[Element, error] {
		return func(yield func(Element, error) bool) {
			for {
				select {
				case <-ctx.Done():
					return
				case e, ok := <-ch:
					if !ok {
						return
					}
					if e.ID == "" {
						e.ID = rand.Text()
					}
					if !yield(e, nil) {
						return
					}
				}
			}
		}
	}
}

// errLine is about a line that is longer than can be read.
var errLine = fmt.Errorf("batch: a line is over %d bytes long", lineMax)

// Lines is a source with an element in each line of a file, or of what else open
// returns for Spec.Args. It goes on at an offset, without reading what comes before
// it. A line that parse refuses is an element that is refused, and counted as one; so
// is a line over 1 MiB. Empty lines are none.
func Lines(open func(args string) (io.ReadSeekCloser, error), parse func(line []byte) (Element, error)) Source {
	return func(ctx context.Context, b Spec, from Position) iter.Seq2[Element, error] {
		return func(yield func(Element, error) bool) {
			f, err := open(b.Args)
			if err != nil {
				yield(Element{}, err)
				return
			}
			defer f.Close()
			at, err := seek(f, from)
			if err != nil {
				yield(Element{}, err)
				return
			}
			readLines(ctx, bufio.NewReaderSize(f, 64<<10), at, parse, yield)
		}
	}
}

// seek goes to where a position's mark says.
func seek(f io.Seeker, from Position) (int64, error) {
	if from.Read == 0 {
		return 0, nil
	}
	at, err := strconv.ParseInt(from.Mark, 10, 64)
	if err != nil || at < 0 {
		return 0, errors.New("batch: the mark of a batch is no offset")
	}
	return f.Seek(at, io.SeekStart)
}

func readLines(ctx context.Context, r *bufio.Reader, at int64, parse func([]byte) (Element, error), yield func(Element, error) bool) {
	for ctx.Err() == nil {
		line, n, err := readLine(r)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLine) {
			yield(Element{}, err)
			return
		}
		over := errors.Is(err, io.EOF)
		at += n
		line = bytes.TrimRight(line, "\r\n")
		if len(line) > 0 || errors.Is(err, errLine) {
			var e Element
			if errors.Is(err, errLine) {
				err = errLine
			} else {
				e, err = parse(line)
			}
			if err != nil {
				e = Element{fault: err}
			}
			e.Mark = strconv.FormatInt(at, 10)
			if !yield(e, nil) {
				return
			}
		}
		if over {
			return
		}
	}
}

// readLine reads a line with its end, and how many bytes that took; of one that is too
// long errLine, behind it, which is joined with io.EOF at the end.
func readLine(r *bufio.Reader) (line []byte, n int64, err error) {
	long := false
	for {
		part, err := r.ReadSlice('\n')
		n += int64(len(part))
		if long = long || len(line)+len(part) > lineMax; !long {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if long {
			return nil, n, errors.Join(errLine, err)
		}
		return line, n, err
	}
}
