package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/worker"
)

// TestEncode: what goes to the server is a mail that others can read.
func TestEncode(t *testing.T) {
	t.Parallel()
	granted := time.Date(2026, 3, 1, 9, 0, 0, 123456000, time.UTC)
	m := mailtest.Mail{To: "jane@example.com", Subject: "Grüße und ein langer Betreff, der in eine Zeile soll, und noch mehr", Text: ".\nGrüße\n."}
	got, err := mail.ReadMessage(bytes.NewReader(encode(m, "batch:nightly-2026-03-01:17", granted)))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject"))
	if err != nil || subject != m.Subject {
		t.Errorf("Subject = %q, %v, want %q", subject, err, m.Subject)
	}
	for name, want := range map[string]string{
		"To": m.To, "From": sender, "Message-ID": "<batch.nightly-2026-03-01.17@example.com>", mailtest.GrantedHeader: "1772355600123456",
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

// TestAnswer: what becomes of each answer of a server, whose words are kept back.
func TestAnswer(t *testing.T) {
	t.Parallel()
	said := func(code int) error { return &smtp.SMTPError{Code: code, Message: "jane@example.com is away"} }
	for _, test := range []struct {
		name       string
		err        error
		rule       string // that is closed
		final      bool
		notCharged bool
	}{
		{"refused connection", errNotConnected, "", false, true},
		{"broken connection", fmt.Errorf("read jane@example.com: %w", io.ErrUnexpectedEOF), "", false, false},
		{"421", said(421), ruleProvider, false, false},
		{"450", said(450), ruleRecipient, false, false},
		{"451", said(451), "", false, false},
		{"550", said(550), "", true, false},
		{"554", said(554), "", true, false},
	} {
		err := answer(test.err)
		later, wait := errors.AsType[*worker.RetryAfterError](err)
		if wait != (test.rule != "") || wait && (later.Rule != test.rule || later.After != busyFor) {
			t.Errorf("%s: %#v, want rule %q closed for %v", test.name, later, test.rule, busyFor)
		}
		if final := errors.Is(err, asynq.SkipRetry); final != test.final {
			t.Errorf("%s: final is %t, want %t", test.name, final, test.final)
		}
		marked := worker.NotCharged(errNotConnected)
		if same := fmt.Sprintf("%T", err) == fmt.Sprintf("%T", marked); same != test.notCharged {
			t.Errorf("%s: %T, not charged is %t, want %t", test.name, err, same, test.notCharged)
		}
		checkPersonal(t, test.name, err.Error())
	}
}

// TestRecipientKey: spelling makes no second recipient.
func TestRecipientKey(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"to":"Jane@Example.com","subject":"a","text":"b"}`: "jane@example.com",
		`{"to":"jane@example.com","subject":"a"}`:            "",
		`{"to":"jane","subject":"a","text":"b"}`:             "",
		`jane@example.com`:                                   "",
	} {
		got, err := recipientKey(asynq.NewTask(typeSend, []byte(payload)))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("recipientKey(%s) = %q, %v, want %q", payload, got, err, want)
		}
		if err != nil {
			checkPersonal(t, "the error", err.Error())
		}
	}
}
