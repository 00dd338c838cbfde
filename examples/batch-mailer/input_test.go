package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadMails(t *testing.T) {
	t.Parallel()
	got, err := ReadMails(strings.NewReader("\uFEFFid,text,to,subject\r\n1,\"two\nlines\",jane@example.com,Hello\r\n2,\"a \"\"quote\"\"\",Joe@Example.com,Grüße\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mail{
		{To: "jane@example.com", Subject: "Hello", Text: "two\nlines"},
		{To: "Joe@Example.com", Subject: "Grüße", Text: `a "quote"`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ReadMails (-want +got):\n%s", diff)
	}
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
				"line 4: wrong number of fields",
				"line 5: subject has a line break, or another control character",
				"line 7: to is no mail address such as name@example.com, in ASCII",
				`line 8: bare " in non-quoted-field`,
				"line 9: to is no mail address such as name@example.com, in ASCII",
				"line 9: subject is not UTF-8",
			}},
	} {
		mails, err := ReadMails(strings.NewReader(test.input))
		invalid, ok := errors.AsType[*InputError](err)
		if !ok || mails != nil {
			t.Errorf("%s: ReadMails = %d mails, %v; want an InputError", test.name, len(mails), err)
			continue
		}
		if diff := cmp.Diff(test.want, invalid.Faults); diff != "" {
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
			if f := m.faults(); len(f) > 0 {
				t.Errorf("Sample(%d)[%d] has faults: %v", n, i, f)
			}
		}
		if recipients, most := recipientsOf(mails); len(mails) != n || recipients > (n+3)/4 || most > 4 {
			t.Errorf("Sample(%d) is %d mails to %d recipients, %d to one", n, len(mails), recipients, most)
		}
	}
}
