package main

import (
	"bytes"
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
	} else if fault := phoneFault(to); fault != "" {
		in.fault(line, "to %s %s", mask(to), fault)
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
