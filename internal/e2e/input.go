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
// the first 50 faults and shows no phone number, no address and no text.
type InputError struct{ Faults []Fault }

// Fault is one thing that is wrong in an input.
type Fault struct {
	Line int    // where the record starts, from 1; a quoted field may span lines
	What string // numbers masked, texts left out
}

// Error lists the faults, one per line.
func (e *InputError) Error() string {
	var b strings.Builder
	b.WriteString("input: " + Count(len(e.Faults), "fault"))
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
func ReadInputFile(path string, stdin io.Reader) (msgs []Message, err error) {
	err = ReadFile(path, stdin, func(r io.Reader) error {
		msgs, err = ReadInput(r)
		return err
	})
	return msgs, err
}

// ReadFile calls read with the file at path, or with stdin for "-".
func ReadFile(path string, stdin io.Reader, read func(io.Reader) error) error {
	if path == "-" {
		return read(stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("input: %w", err)
	}
	defer func() { _ = f.Close() }()
	return read(f)
}

// ReadInput reads messages, without ids, from CSV with the columns "to" and "text", by
// the rules of [ReadCSV]. With faults the messages are the ones without fault: the
// caller either skips what is invalid, or sends nothing at all. With any other error
// there are no messages.
func ReadInput(r io.Reader) ([]Message, error) {
	var msgs []Message
	err := ReadCSV(r, []string{"to", "text"}, func(_ int, fields []string) []string {
		m := Message{To: fields[0], Text: fields[1]}
		faults := m.inputFaults()
		if len(faults) == 0 {
			msgs = append(msgs, m)
		}
		return faults
	})
	if _, ok := errors.AsType[*InputError](err); err != nil && !ok {
		return nil, err
	}
	return msgs, err
}

// inputFaults says what is wrong with a message of an input, with its number masked.
func (m Message) inputFaults() []string {
	var faults []string
	if m.To == "" {
		faults = append(faults, "to is empty")
	} else if !utf8.ValidString(m.To) {
		faults = append(faults, "to is not UTF-8")
	} else if fault := PhoneFault(m.To); fault != "" {
		faults = append(faults, fmt.Sprintf("to %s %s", Mask(m.To), fault))
	}
	if !utf8.ValidString(m.Text) {
		faults = append(faults, "text is not UTF-8")
	} else if strings.TrimSpace(m.Text) == "" {
		faults = append(faults, "text is empty")
	}
	return faults
}

// ReadCSV reads records from CSV with a header that has these columns, in any order and
// among others, which are ignored. It calls take with the line on which a record starts,
// and its fields in the order of columns; take returns what is wrong with them, without quoting them. A
// byte order mark and CRLF are taken as they come. ReadCSV reads to the end before it
// returns, and holds all of it in memory.
//
// With faults the error is an *[InputError] with all of them. A header that cannot be
// used leaves no record. After broken quoting it goes on at the line after the one on
// which the record started.
func ReadCSV(r io.Reader, columns []string, take func(line int, fields []string) (faults []string)) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("input: %w", err)
	}
	in := input{recs: newRecords(bytes.TrimPrefix(data, []byte("\uFEFF"))), columns: columns, take: take}
	if err := in.readHeader(); err != nil {
		return err
	}
	for in.err == nil {
		in.readRecord()
	}
	if !errors.Is(in.err, io.EOF) {
		return in.err
	}
	if len(in.faults) > 0 {
		return &InputError{Faults: in.faults}
	}
	return nil
}

// input is the state of one ReadCSV.
type input struct {
	recs    *records
	columns []string
	take    func(int, []string) []string
	width   int   // fields of the header, and of each record
	at      []int // where the columns are
	faults  []Fault
	err     error // io.EOF at the end
}

// readHeader finds the columns. Its faults never quote the header: without one the
// first line is a record.
func (in *input) readHeader() error {
	fields, line, err := in.recs.next()
	if errors.Is(err, io.EOF) {
		last := len(in.columns) - 1
		want := fmt.Sprintf("no header, want columns %s and %q", strings.Trim(fmt.Sprintf("%q", in.columns[:last]), "[]"), in.columns[last])
		return &InputError{Faults: []Fault{{Line: 1, What: strings.ReplaceAll(want, `" "`, `", "`)}}}
	}
	if broken, ok := errors.AsType[*quotingError](err); ok {
		return &InputError{Faults: []Fault{{Line: line, What: "header: " + broken.Error()}}}
	}
	if err != nil {
		return err
	}
	in.width = len(fields)
	for _, name := range in.columns {
		in.at = append(in.at, in.column(fields, name, line))
	}
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

// readRecord hands one record to take, or notes why it cannot.
func (in *input) readRecord() {
	fields, line, err := in.recs.next()
	if broken, ok := errors.AsType[*quotingError](err); ok {
		in.fault(line, "%v", broken)
		return
	}
	if err != nil {
		in.err = err
		return
	}
	if len(fields) != in.width {
		in.fault(line, "number of fields is %d, want %d as in the header", len(fields), in.width)
		return
	}
	wanted := make([]string, len(in.at))
	for i, column := range in.at {
		wanted[i] = fields[column]
	}
	for _, what := range in.take(line, wanted) {
		in.fault(line, "%s", what)
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

// Sample returns the built-in input, without ids: 24 messages to 12 phones, three
// messages for one phone at most. Under 1/60s the phones go at once, after 60 s and after
// 120 s, so the run ends in about two minutes.
//
// The numbers belong to nobody: they are in the ranges that the regulators of
// their countries keep for films and examples.
func Sample() []Message {
	codes := []Message{
		{To: "+447700900142", Text: "Your code is 482913."},
		{To: "+12025550117", Text: "Your code is 204417."},
		{To: "+61491570156", Text: "Your code is 991350."},
		{To: "+33199001234", Text: "Your code is 618802."},
		{To: "+46701740605", Text: "Your code is 350071."},
		{To: "+447700900687", Text: "Your code is 774126."},
		{To: "+12025550173", Text: "Your code is 129964."},
		{To: "+61491570157", Text: "Your code is 560238."},
		{To: "+33199005678", Text: "Your code is 845519."},
		{To: "+46701740698", Text: "Your code is 037742."},
		{To: "+447700900951", Text: "Your code is 293380."},
		{To: "+12025550199", Text: "Your code is 716605."},
	}
	all := codes
	for _, m := range codes[:8] {
		all = append(all, Message{To: m.To, Text: "Your parcel is on its way."})
	}
	for _, m := range codes[:4] {
		all = append(all, Message{To: m.To, Text: "Your parcel has arrived."})
	}
	return all
}
