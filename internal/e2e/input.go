package e2e

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// faultsShown is how many faults the text of an [InputError] lists.
const faultsShown = 50

// InputError is everything that is wrong with an input, by line. Its text lists
// the first 50 faults and shows no phone number and no message.
type InputError struct{ Faults []Fault }

// Fault is one thing that is wrong in an input.
type Fault struct {
	Line int    // where the record starts, from 1; a quoted field may span lines
	What string // numbers masked, texts left out
}

// Error lists the faults, one per line.
func (e *InputError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "input: %d faults", len(e.Faults))
	if len(e.Faults) == 1 {
		b.Reset()
		b.WriteString("input: 1 fault")
	}
	for i, f := range e.Faults {
		if i == faultsShown {
			fmt.Fprintf(&b, "\n  and %d more", len(e.Faults)-i)
			break
		}
		fmt.Fprintf(&b, "\n  line %d: %s", f.Line, f.What)
	}
	return b.String()
}

// ReadInputFile is [ReadInput] of the file at path, or of stdin for "-".
func ReadInputFile(path string, stdin io.Reader) ([]Message, error) {
	if path == "-" {
		return ReadInput(stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	defer func() { _ = f.Close() }()
	return ReadInput(f)
}

// ReadInput reads messages, without ids, from CSV with a header that has the
// columns "to" and "text", in any order and among others, which are ignored. A byte
// order mark and CRLF are taken as they come. It reads to the end before it
// returns, and holds all of it in memory.
//
// With faults the error is an *[InputError] with all of them, and the messages
// are the ones without fault: the caller either skips what is invalid, or
// sends nothing at all. A header that cannot be used leaves no message. After broken
// quoting it goes on at the line after the one on which the record started. With
// any other error there are no messages.
func ReadInput(r io.Reader) ([]Message, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	in := input{recs: newRecords(bytes.TrimPrefix(data, []byte("\uFEFF")))}
	if err := in.readHeader(); err != nil {
		return nil, err
	}
	for in.err == nil {
		in.readMessage()
	}
	if !errors.Is(in.err, io.EOF) {
		return nil, in.err
	}
	if len(in.faults) > 0 {
		return in.msgs, &InputError{Faults: in.faults}
	}
	return in.msgs, nil
}

// input is the state of one ReadInput.
type input struct {
	recs     *records
	columns  int // fields of the header, and of each record
	to, text int // where the two columns are
	msgs     []Message
	faults   []Fault
	err      error // io.EOF at the end
}

// readHeader finds the two columns. Its faults never quote the header: without
// one the first line is a message.
func (in *input) readHeader() error {
	fields, line, err := in.recs.next()
	if errors.Is(err, io.EOF) {
		return &InputError{Faults: []Fault{{Line: 1, What: `no header, want columns "to" and "text"`}}}
	}
	if broken, ok := errors.AsType[*quotingError](err); ok {
		return &InputError{Faults: []Fault{{Line: line, What: "header: " + broken.Error()}}}
	}
	if err != nil {
		return err
	}
	in.columns = len(fields)
	in.to = in.column(fields, "to", line)
	in.text = in.column(fields, "text", line)
	if len(in.faults) > 0 {
		return &InputError{Faults: in.faults}
	}
	return nil
}

func (in *input) column(header []string, name string, line int) int {
	found := -1
	for i, f := range header {
		if strings.TrimSpace(f) != name {
			continue
		}
		if found >= 0 {
			in.fault(line, "header has column %q twice", name)
			break
		}
		found = i
	}
	if found < 0 {
		in.fault(line, "header has no column %q", name)
	}
	return found
}

// readMessage takes one record, into msgs or faults.
func (in *input) readMessage() {
	fields, line, err := in.recs.next()
	if broken, ok := errors.AsType[*quotingError](err); ok {
		in.fault(line, "%v", broken)
		return
	}
	if err != nil {
		in.err = err
		return
	}
	if len(fields) != in.columns {
		in.fault(line, "number of fields is %d, want %d as in the header", len(fields), in.columns)
		return
	}
	before := len(in.faults)
	to, text := fields[in.to], fields[in.text]
	if to == "" {
		in.fault(line, "to is empty")
	} else if !utf8.ValidString(to) {
		in.fault(line, "to is not UTF-8")
	} else if fault := PhoneFault(to); fault != "" {
		in.fault(line, "to %s %s", Mask(to), fault)
	}
	if !utf8.ValidString(text) {
		in.fault(line, "text is not UTF-8")
	} else if strings.TrimSpace(text) == "" {
		in.fault(line, "text is empty")
	}
	if len(in.faults) == before {
		in.msgs = append(in.msgs, Message{To: to, Text: text})
	}
}

func (in *input) fault(line int, format string, a ...any) {
	in.faults = append(in.faults, Fault{Line: line, What: fmt.Sprintf(format, a...)})
}

// records reads CSV records with the line on which each starts, and goes on after
// broken quoting at the line after the one on which the record started: with
// encoding/csv alone a quote too many takes with it all lines up to the next
// quote, or the rest of the file.
//
// No line is read more than twice. A line that an open quote swallows whole has an even
// number of quotes, so when it is read again as the start of a record, no quote is open at its end.
type records struct {
	data      []byte
	csv       *csv.Reader
	base      int // offset in data at which csv began
	firstLine int // line number of base, from 1
}

// quotingError is a record whose quoting is broken.
type quotingError struct{ cause error }

func (e *quotingError) Error() string {
	if errors.Is(e.cause, csv.ErrBareQuote) {
		return `broken quoting: a " inside an unquoted field`
	}
	return `broken quoting: a " too many or too few in a quoted field`
}

func newRecords(data []byte) *records {
	r := &records{data: data}
	r.startAt(0, 1)
	return r
}

func (r *records) startAt(offset, line int) {
	r.base, r.firstLine = offset, line
	r.csv = csv.NewReader(bytes.NewReader(r.data[offset:]))
	r.csv.FieldsPerRecord = -1 // counted by the caller, who has the header
	r.csv.ReuseRecord = true
}

// next returns the fields of the next record, valid until the next call, and the
// line on which it starts. The error is [io.EOF] at the end, or a
// *quotingError, after which next goes on.
func (r *records) next() ([]string, int, error) {
	from := r.base + int(r.csv.InputOffset())
	fields, err := r.csv.Read()
	if err == nil {
		line, _ := r.csv.FieldPos(0)
		return fields, r.firstLine + line - 1, nil
	}
	if errors.Is(err, io.EOF) {
		return nil, 0, io.EOF
	}
	pe, ok := errors.AsType[*csv.ParseError](err)
	if !ok {
		return nil, 0, fmt.Errorf("input: %w", err)
	}
	line := r.firstLine + pe.StartLine - 1
	if second := r.secondLine(from); second < r.base+int(r.csv.InputOffset()) {
		r.startAt(second, line+1)
	}
	return nil, line, &quotingError{cause: pe.Err}
}

// secondLine returns where the second line begins of the record that begins at
// or after from, behind the blank lines that csv skips.
func (r *records) secondLine(from int) int {
	for {
		n := bytes.IndexByte(r.data[from:], '\n')
		if n < 0 {
			return len(r.data)
		}
		line := r.data[from : from+n]
		from += n + 1
		if len(line) > 0 && !bytes.Equal(line, []byte("\r")) {
			return from
		}
	}
}

// PrintFaults prints all faults of an input, however many.
func PrintFaults(w io.Writer, invalid *InputError, what string) {
	_, _ = fmt.Fprintf(w, "input: %s%s\n", Count(len(invalid.Faults), "fault"), what)
	for _, f := range invalid.Faults {
		_, _ = fmt.Fprintf(w, "  line %d: %s\n", f.Line, f.What)
	}
}
