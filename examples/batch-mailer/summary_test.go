package main

import (
	"fmt"
	"testing"

	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue/batch"
)

// TestWrong: each thing that went wrong fails the run.
func TestWrong(t *testing.T) {
	t.Parallel()
	s := &session{mails: make([]mailtest.Mail, 3)}
	for _, test := range []struct {
		name string
		last batch.Progress
		j    mailtest.Judgement
		want string
	}{
		{"nothing", ended, mailtest.Judgement{Accepted: 3}, "[]"},
		{"missing", ended, mailtest.Judgement{Accepted: 2}, "[1 mail did not reach the server]"},
		{"twice and missing", ended, mailtest.Judgement{Accepted: 3, Twice: 1}, "[1 mail did not reach the server 1 mail came twice]"},
		{"failed", failed, mailtest.Judgement{Accepted: 2}, "[1 mail failed for good]"},
		{"cancelled", cancelled, mailtest.Judgement{Accepted: 1}, "[]"},
		{"too fast", ended, mailtest.Judgement{Accepted: 3, OverProvider: 2, OverRecipient: 1}, "[2 mails came faster than the provider allows 1 mail came faster than a recipient is to get them]"},
		{"shut", ended, mailtest.Judgement{Accepted: 3, WhileShut: 1, Early: 1}, "[1 mail went out while the gate was shut 1 mail came before Redis let it through: the clocks differ, and the judgement is void]"},
	} {
		if got := fmt.Sprint(s.wrong(test.last, test.j)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

var (
	ended     = batch.Progress{State: batch.Ended}
	failed    = batch.Progress{State: batch.Ended, Failed: 1}
	cancelled = batch.Progress{State: batch.Cancelled}
)
