package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

const (
	p1 = "+12025550117"
	p2 = "+447700900142"
)

func faultsOf(t *testing.T, err error) []Fault {
	t.Helper()
	if err == nil {
		return nil
	}
	ie, ok := errors.AsType[*InputError](err)
	if !ok {
		t.Fatalf("error = %v, want an *InputError", err)
	}
	return ie.Faults
}

// fields shows messages in clear, which their String does not.
func fields(msgs []Message) [][2]string {
	var all [][2]string
	for _, m := range msgs {
		all = append(all, [2]string{m.To, m.Text})
	}
	return all
}

const (
	quoteFault = `broken quoting: a " too many or too few in a quoted field`
	bareFault  = `broken quoting: a " inside an unquoted field`
)

func TestReadInput(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		want     [][2]string
		faults   []Fault
	}{
		{name: "plain", in: "to,text\n" + p1 + ",hi\n" + p2 + ",\"a, b\"\n", want: [][2]string{{p1, "hi"}, {p2, "a, b"}}},
		{name: "no last newline", in: "to,text\n" + p1 + ",hi", want: [][2]string{{p1, "hi"}}},
		{name: "columns in any order, others ignored", in: "x,text,y,to\n1,hi,\xff," + p1 + "\n", want: [][2]string{{p1, "hi"}}},
		{name: "byte order mark, CRLF, blank lines", in: "\uFEFFto,text\r\n\r\n" + p1 + ",hi\r\n\r\n", want: [][2]string{{p1, "hi"}}},
		{name: "byte order mark and a quoted header", in: "\uFEFF\"to\",\"text\"\n" + p1 + ",hi\n", want: [][2]string{{p1, "hi"}}},
		{name: "spaces in the header", in: "to, text\n" + p1 + ",hi\n", want: [][2]string{{p1, "hi"}}},
		{name: "header only", in: "to,text\n"},
		{name: "empty", in: "", faults: []Fault{{1, `no header, want columns "to" and "text"`}}},
		{name: "no header", in: p1 + ",secret\n", faults: []Fault{{1, `header has no column "to"`}, {1, `header has no column "text"`}}},
		{name: "missing column", in: "\nto,body\n" + p1 + ",secret\n", faults: []Fault{{2, `header has no column "text"`}}},
		{name: "column twice", in: "to,text,to\n", faults: []Fault{{1, `header has column "to" twice`}}},
		{name: "broken header", in: "to,\"text\n" + p1 + ",hi\n", faults: []Fault{{1, "header: " + quoteFault}}},
		{
			name: "every fault, with the line on which its record starts",
			in: "to,text\n" + // 1
				"12025550117,secret\n" + // 2
				p1 + ",\"two\nlines\"\n" + // 3, 4
				"\n" + // 5
				"Jane,\" \n \"\n" + // 6, 7
				p1 + "\n" + // 8
				p1 + ",secret,more\n" + // 9
				p1 + ",sec\"ret\n" + // 10
				p1 + ",\"secret\" more\n" + // 11
				",\n" + // 12
				p2 + ",bad\xff\n" + // 13
				"\xff,hi\n" + // 14
				p2 + ",last\n", // 15
			want: [][2]string{{p1, "two\nlines"}, {p2, "last"}},
			faults: []Fault{
				{2, "to 120…0117 does not start with +"},
				{6, "to … does not start with +"}, {6, "text is empty"},
				{8, "number of fields is 1, want 2 as in the header"},
				{9, "number of fields is 3, want 2 as in the header"},
				{10, bareFault},
				{11, quoteFault},
				{12, "to is empty"}, {12, "text is empty"},
				{13, "text is not UTF-8"},
				{14, "to is not UTF-8"},
			},
		},
		{
			name:   "a quote that is never closed takes no other line with it",
			in:     "to,text\r\n\r\n" + p1 + ",\"secret\r\n\r\n" + p2 + ",hi\r\nx,y\r\n" + p1 + ",\"multi\r\nline\"\r\n" + p2 + ",end",
			want:   [][2]string{{p2, "hi"}, {p1, "multi\nline"}, {p2, "end"}},
			faults: []Fault{{3, quoteFault}, {6, "to … does not start with +"}},
		},
		{
			name:   "a quote that is never closed, to the end",
			in:     "to,text\n" + p1 + ",\"secret\n" + p2 + ",hi\n" + p2 + ",end",
			want:   [][2]string{{p2, "hi"}, {p2, "end"}},
			faults: []Fault{{2, quoteFault}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			msgs, err := ReadInput(strings.NewReader(tt.in))
			if diff := cmp.Diff(tt.want, fields(msgs)); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.faults, faultsOf(t, err)); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if err != nil && (strings.Contains(err.Error(), "2025550117") || strings.Contains(err.Error(), "secret")) {
				t.Errorf("the error gives a message away: %v", err)
			}
		})
	}
}

func TestInputErrorListsFifty(t *testing.T) {
	t.Parallel()
	_, err := ReadInput(strings.NewReader("to,text\n" + strings.Repeat("x,hi\n", 60)))
	if n := len(faultsOf(t, err)); n != 60 {
		t.Fatalf("%d faults, want 60", n)
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 52 || lines[0] != "input: 60 faults" || lines[50] != "  line 51: to … does not start with +" || lines[51] != "  and 10 more" {
		t.Errorf("text = %d lines:\n%v", len(lines), err)
	}
	_, err = ReadInput(strings.NewReader("to,text\nx,hi\n"))
	if want := "input: 1 fault\n  line 2: to … does not start with +"; err.Error() != want {
		t.Errorf("text = %q, want %q", err, want)
	}
}

func TestReadInputFile(t *testing.T) {
	t.Parallel()
	const in = "to,text\n" + p1 + ",hi\n"
	path := filepath.Join(t.TempDir(), "in.csv")
	if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, "-"} {
		msgs, err := ReadInputFile(path, strings.NewReader(in))
		if err != nil || len(msgs) != 1 {
			t.Errorf("ReadInputFile(%s) = %v, %v, want one message", path, msgs, err)
		}
	}
	if _, err := ReadInputFile(path+"x", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error = %v, want os.ErrNotExist", err)
	}
	broken := iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(in)))
	if msgs, err := ReadInput(broken); !errors.Is(err, iotest.ErrTimeout) || msgs != nil {
		t.Errorf("ReadInput of a broken reader = %v, %v, want no message and its error", msgs, err)
	}
}

// The worst cases for reading lines again: each line opens a quote, or the first
// one opens a quote that swallows all. Quadratic would be minutes.
func TestReadInputIsLinear(t *testing.T) {
	t.Parallel()
	const n = 50_000
	for name, in := range map[string]string{
		"each line opens a quote":  strings.Repeat("\"x\n", n),
		"one quote swallows all":   "\"x\n" + strings.Repeat("a,b\n", n),
		"the rest has even quotes": "\"x\n" + strings.Repeat("a\"\"b\n", n),
		"valid":                    strings.Repeat(p1+",hi\n", n),
	} {
		start := time.Now()
		msgs, err := ReadInput(strings.NewReader("to,text\n" + in))
		if got := len(msgs) + len(faultsOf(t, err)); got < n {
			t.Errorf("%s: %d messages and faults, want at least %d", name, got, n)
		}
		if d := time.Since(start); d > time.Minute {
			t.Errorf("%s: took %v", name, d)
		}
	}
}

// FuzzInput holds the reader to its promises on any bytes: it returns, each
// message can be sent, lines go up and lie in the input, no digits get out.
func FuzzInput(f *testing.F) {
	f.Add([]byte("to,text\n" + p1 + ",hi\n"))
	f.Add([]byte("\uFEFFtext,to\r\n\"a\r\nb\"," + p1 + "\r\n"))
	f.Add([]byte("to,text\n" + p1 + ",\"open\n" + p2 + ",x\"y\n12025550117,\xff\n\r"))
	f.Add([]byte("to,text\n\"\n\"\"\n,\"\n\"a\"b\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		msgs, err := ReadInput(bytes.NewReader(in))
		for _, m := range msgs {
			if PhoneFault(m.To) != "" || strings.TrimSpace(m.Text) == "" || !utf8.ValidString(m.Text) {
				t.Errorf("invalid message to %q: %q", m.To, m.Text)
			}
		}
		lines, last := bytes.Count(in, []byte("\n"))+1, 1
		for _, fault := range faultsOf(t, err) {
			if fault.Line < last || fault.Line > lines {
				t.Errorf("fault on line %d after one on line %d, the input has %d lines", fault.Line, last, lines)
			}
			last = fault.Line
		}
		if len(msgs) > lines {
			t.Errorf("%d messages on %d lines", len(msgs), lines)
		}
		if err != nil && !utf8.ValidString(err.Error()) {
			t.Errorf("the error is not UTF-8: %q", err)
		}
		again, err2 := ReadInput(iotest.OneByteReader(bytes.NewReader(in)))
		if diff := cmp.Diff(fields(msgs), fields(again)); diff != "" || fmt.Sprint(err) != fmt.Sprint(err2) {
			t.Errorf("the second time differs: %v, %v\n%s", err, err2, diff)
		}
	})
}

func BenchmarkReadInput(b *testing.B) {
	in := []byte("to,text\n" + strings.Repeat(p1+",your code is 482913\n", 10_000))
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadInput(bytes.NewReader(in)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestRecordsGoOnAfterBrokenQuoting(t *testing.T) {
	t.Parallel()
	type record struct {
		Line   int
		Fields string // joined by |; "!" if broken
	}
	for _, tt := range []struct {
		in   string
		want []record
	}{
		{"a,b\nc,d", []record{{1, "a|b"}, {2, "c|d"}}},
		{"\n\r\na\n\n\"b\nc\"\nd\n", []record{{3, "a"}, {5, "b\nc"}, {7, "d"}}},
		{"a\"b\nc\n", []record{{1, "!"}, {2, "c"}}},
		{"\"a\nb\nc\n", []record{{1, "!"}, {2, "b"}, {3, "c"}}},
		{"\n\"a\n\nb\n\"c\nd\n", []record{{2, "!"}, {4, "b"}, {5, "!"}, {6, "d"}}},
		{"\"a\r\nb\r\n\"c\"\r\nd", []record{{1, "!"}, {2, "b"}, {3, "c"}, {4, "d"}}},
		{"\"", []record{{1, "!"}}},
		{"\"\n", []record{{1, "!"}}},
		{"a\n\r", []record{{1, "a"}}},
	} {
		var got []record
		for r := newRecords([]byte(tt.in)); ; {
			fields, line, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if _, ok := errors.AsType[*quotingError](err); ok {
				fields = []string{"!"}
			} else if err != nil {
				t.Fatalf("next: %v", err)
			}
			got = append(got, record{line, strings.Join(fields, "|")})
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("records of %q (-want +got):\n%s", tt.in, diff)
		}
	}
}

func TestSample(t *testing.T) {
	t.Parallel()
	perPhone, masked := map[string]int{}, map[string]bool{}
	for _, m := range Sample() {
		if fault := PhoneFault(m.To); fault != "" || m.Text == "" {
			t.Errorf("%v: %s", m, fault)
		}
		perPhone[m.To]++
		masked[Mask(m.To)] = true
	}
	phones := map[int]int{}
	for _, n := range perPhone {
		phones[n]++
	}
	if phones[1] != 4 || phones[2] != 4 || phones[3] != 4 || len(perPhone) != 12 {
		t.Errorf("phones by number of messages = %v, want 4 each with 1, 2 and 3", phones)
	}
	if len(masked) != len(perPhone) {
		t.Errorf("%d different masked phones, want %d: the table could not be read", len(masked), len(perPhone))
	}
	a := Sample()
	a[0].Text = "changed"
	if Sample()[0].Text == "changed" {
		t.Error("two samples share memory")
	}
}
