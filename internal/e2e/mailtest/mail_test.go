package mailtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/e2e"
)

// personal matches what nobody may see: an address of the tests, or a text.
var personal = regexp.MustCompile(`(?i)jane|example\.com[^,]|secret`)

func checkPersonal(t *testing.T, where, s string) {
	t.Helper()
	// A fault says what an address looks like.
	if found := personal.FindString(strings.ReplaceAll(s, "name@example.com", "")); found != "" {
		t.Errorf("%s shows %q:\n%s", where, found, s)
	}
}

func TestMask(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"jane@example.com": "j…@e…", "ab@c.de": "a…@c…", "a@example.com": "…", "": "…", "jane": "…", "jane doe@example.com": "…", "@example.com": "…",
	} {
		if got := Mask(address); got != want {
			t.Errorf("Mask(%q) = %q, want %q", address, got, want)
		}
	}
	m := Mail{To: "jane@example.com", Subject: "Secret", Text: "Secret"}
	checkPersonal(t, "a printed mail", fmt.Sprintf("%v %+v %#v %s", m, m, m, m))
}

func TestReadMails(t *testing.T) {
	t.Parallel()
	got, err := ReadMails(fileOf(t, "\uFEFFid,text,to,subject\r\n1,\"two\nlines\",jane@example.com,Hello\r\n2,\"a \"\"quote\"\"\",Joe@Example.com,Grüße\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mail{
		{To: "jane@example.com", Subject: "Hello", Text: "two\nlines"},
		{To: "Joe@Example.com", Subject: "Grüße", Text: `a "quote"`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("readMails (-want +got):\n%s", diff)
	}
}

func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mails.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadMailsFaults: all faults are told at once, each with its line, and none quotes
// the input.
func TestReadMailsFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, input string
		want        []string
	}{
		{"empty", "", []string{`line 1: no header, want columns "to", "subject" and "text"`}},
		{"no header", "jane@example.com,Hello,Secret\n", []string{
			`line 1: header has no column "to"`, `line 1: header has no column "subject"`, `line 1: header has no column "text"`,
		}},
		{"twice", "to,subject,text,to\n", []string{`line 1: header has column "to" twice`}},
		{"no mails", "to,subject,text\n", []string{"line 1: no mails after the header"}},
		{"records", "to,subject,text\n" +
			"jane,Hello,Secret\n" +
			"jane@example.com,,\n" +
			"jane@example.com,Hello\n" +
			"jane@example.com,\"a\nBcc: jane\",Secret\n" +
			"Jane <jane@example.com>,Hello,Secret\n" +
			"jane@example.com,He\"llo,Secret\n" +
			"jäne@example.com,\xff,Secret\n",
			[]string{
				"line 2: to is no mail address such as name@example.com, in ASCII",
				"line 3: subject is empty",
				"line 3: text is empty",
				"line 4: number of fields is 2, want 3 as in the header",
				"line 5: subject has a line break, or another control character",
				"line 7: to is no mail address such as name@example.com, in ASCII",
				`line 8: broken quoting: a " inside an unquoted field`,
				"line 9: to is no mail address such as name@example.com, in ASCII",
				"line 9: subject is not UTF-8",
			}},
	} {
		mails, err := ReadMails(fileOf(t, test.input))
		invalid, ok := errors.AsType[*e2e.InputError](err)
		if !ok || mails != nil {
			t.Errorf("%s: readMails = %d mails, %v; want an InputError", test.name, len(mails), err)
			continue
		}
		var got []string
		for _, f := range invalid.Faults {
			got = append(got, fmt.Sprintf("line %d: %s", f.Line, f.What))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", test.name, diff)
		}
		checkPersonal(t, test.name, err.Error())
	}
}

func TestSample(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 5, 239, 240} {
		mails := Sample(n)
		for i, m := range mails {
			if f := m.Faults(); len(f) > 0 {
				t.Errorf("Sample(%d)[%d] has faults: %v", n, i, f)
			}
		}
		if recipients, most := Recipients(mails); len(mails) != n || recipients > (n+3)/4 || most > 4 {
			t.Errorf("Sample(%d) is %d mails to %d recipients, %d to one", n, len(mails), recipients, most)
		}
	}
}

// TestEncode: what goes to the server is a mail that others can read.
func TestEncode(t *testing.T) {
	t.Parallel()
	granted := time.Date(2026, 3, 1, 9, 0, 0, 123456000, time.UTC)
	m := Mail{To: "jane@example.com", Subject: "Grüße und ein langer Betreff, der in eine Zeile soll, und noch mehr", Text: ".\nGrüße\n."}
	got, err := mail.ReadMessage(bytes.NewReader(m.Encode("shop@example.com", "batch:nightly-2026-03-01:17", granted)))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
	if err != nil || subject != m.Subject {
		t.Errorf("Subject = %q, %v, want %q", subject, err, m.Subject)
	}
	for name, want := range map[string]string{
		"To": m.To, "From": "shop@example.com", "Message-ID": "<batch.nightly-2026-03-01.17@example.com>", GrantedHeader: "1772355600123456",
	} {
		if got := got.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if at, err := got.Header.Date(); err != nil || !at.Equal(granted.Truncate(time.Second)) {
		t.Errorf("Date = %v, %v, want %v", at, err, granted)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(got.Body))
	if err != nil || string(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))) != m.Text {
		t.Errorf("text = %q, %v, want %q", text, err, m.Text)
	}
}
