package main

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/emersion/go-smtp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/worker"
)

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
