package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/mail"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addressMax is how long an address is at most, by RFC 5321.
const addressMax = 254

// Sample returns the built-in input: n mails, four to a recipient, two of them in a
// row. The domain is kept for examples by RFC 2606.
func Sample(n int) []Mail {
	topics := []Mail{
		{Subject: "Your order", Text: "We have your order."},
		{Subject: "Your invoice", Text: "The invoice is attached.\n\nNot to this mail."},
		{Subject: "Your parcel", Text: "Your parcel is on its way."},
		{Subject: "Was all well?", Text: "Tell us how we did."},
	}
	recipients := max(1, (n+3)/4)
	mails := make([]Mail, n)
	for i := range mails {
		half, pair := i/(2*recipients), i%(2*recipients)
		m := topics[2*half+i%2]
		m.To = fmt.Sprintf("reader%d@example.com", 1+pair/2)
		mails[i] = m
	}
	return mails
}

// InputError is all that is wrong with an input, in the order of its lines. Its text
// shows no address and no mail.
type InputError struct{ Faults []string }

func (e *InputError) Error() string {
	return fmt.Sprintf("input: %s\n  %s", count(len(e.Faults), "fault"), strings.Join(e.Faults, "\n  "))
}

// ReadMailsFile is [ReadMails] of the file at path.
func ReadMailsFile(path string) ([]Mail, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	defer func() { _ = f.Close() }()
	return ReadMails(f)
}

// ReadMails reads mails from CSV with a header that has the columns "to", "subject"
// and "text", in any order and among others, which are ignored. It reads to the end
// and tells all faults in an *[InputError]; there are no mails then.
func ReadMails(r io.Reader) ([]Mail, error) {
	in := &input{csv: csv.NewReader(r)}
	if !in.readHeader() {
		return nil, &InputError{in.faults}
	}
	var mails []Mail
	for {
		fields, err := in.csv.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if broken, ok := errors.AsType[*csv.ParseError](err); ok {
			in.fault(broken.StartLine, "%v", broken.Err) // csv's errors quote nothing
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("input: %w", err)
		}
		mails = append(mails, in.mail(fields))
	}
	if len(mails) == 0 && len(in.faults) == 0 {
		in.fault(1, "no mails after the header")
	}
	if len(in.faults) > 0 {
		return nil, &InputError{in.faults}
	}
	return mails, nil
}

// input is the state of one ReadMails.
type input struct {
	csv     *csv.Reader
	columns [3]int // where to, subject and text are
	faults  []string
}

func (in *input) fault(line int, format string, a ...any) {
	in.faults = append(in.faults, fmt.Sprintf("line %d: ", line)+fmt.Sprintf(format, a...))
}

// readHeader finds the columns. Its faults never quote the header: without one the
// first line is a mail.
func (in *input) readHeader() bool {
	header, err := in.csv.Read()
	if err != nil {
		in.fault(1, `no header, want columns "to", "subject" and "text"`)
		return false
	}
	header[0] = strings.TrimPrefix(header[0], "\uFEFF")
	for i, name := range []string{"to", "subject", "text"} {
		in.columns[i] = slices.Index(header, name)
		if in.columns[i] < 0 {
			in.fault(1, "header has no column %q", name)
		} else if slices.Contains(header[in.columns[i]+1:], name) {
			in.fault(1, "header has column %q twice", name)
		}
	}
	return len(in.faults) == 0
}

// mail reads a record, and notes what is wrong with it.
func (in *input) mail(fields []string) Mail {
	line, _ := in.csv.FieldPos(0)
	m := Mail{To: fields[in.columns[0]], Subject: fields[in.columns[1]], Text: fields[in.columns[2]]}
	for _, fault := range m.faults() {
		in.fault(line, "%s", fault)
	}
	return m
}

// faults says why m can't be sent, without quoting it.
func (m Mail) faults() []string {
	var faults []string
	if !isAddress(m.To) {
		faults = append(faults, "to is no mail address such as name@example.com, in ASCII")
	}
	for _, f := range []struct{ name, text string }{{"subject", m.Subject}, {"text", m.Text}} {
		if !utf8.ValidString(f.text) {
			faults = append(faults, f.name+" is not UTF-8")
		} else if strings.TrimSpace(f.text) == "" {
			faults = append(faults, f.name+" is empty")
		}
	}
	if strings.ContainsFunc(m.Subject, unicode.IsControl) {
		faults = append(faults, "subject has a line break, or another control character")
	}
	return faults
}

// isAddress says whether s is an address and nothing else.
func isAddress(s string) bool {
	if len(s) > addressMax || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	a, err := mail.ParseAddress(s)
	return err == nil && a.Name == "" && a.Address == s
}

// recipientsOf is how many recipients mails have, and how many of them the one has
// that gets most.
func recipientsOf(mails []Mail) (recipients, most int) {
	got := map[string]int{}
	for _, m := range mails {
		got[m.recipient()]++
		most = max(most, got[m.recipient()])
	}
	return len(got), most
}
