package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
)

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
