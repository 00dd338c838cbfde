package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	typeSend  = "mail:send"
	typeStart = "mail:start"

	ruleRecipient = "recipient"
	ruleProvider  = "provider"
	ruleGate      = "daytime"

	sender = "shop@example.com"

	// sendFor bounds one mail, and busyFor is how long a server is left alone that
	// says it is busy.
	sendFor = 10 * time.Second
	busyFor = 2 * time.Second
)

// policyOf are the rules for mails: one per recipient in an hour of the clock, what the
// provider takes from all of us, and the hours.
func policyOf(cfg config, zone *time.Location) queue.Policy {
	return queue.Policy{Type: typeSend, Rules: []queue.Rule{
		{Name: ruleRecipient, Limit: throttle.Sliding(1, cfg.perRecipient()), Key: recipientKey},
		{Name: ruleProvider, Limit: cfg.rate, Constant: "smtp"},
		{Name: ruleGate, Gate: cfg.gate, Zone: func(*asynq.Task) (*time.Location, error) { return zone, nil }},
	}}
}

func recipientKey(task *asynq.Task) (string, error) {
	m, err := mailtest.Decode(task.Payload())
	return m.Recipient(), err
}

// mailer is the handler of mail:send. It runs under a grant: that the mail may go now is
// settled, and it only sends. It is safe for concurrent use.
type mailer struct {
	server string // host:port
	log    *zap.Logger
}

// ProcessTask implements [asynq.Handler].
func (s *mailer) ProcessTask(ctx context.Context, task *asynq.Task) error {
	m, err := mailtest.Decode(task.Payload())
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	d, ok := worker.GrantFrom(ctx)
	if !ok {
		return errors.New("no grant: the task type has no policy")
	}
	id, _ := asynq.GetTaskID(ctx)
	if err := s.send(ctx, m, id, d.At); err != nil {
		err = answer(err)
		s.log.Warn("mail not sent", zap.Stringer("mail", m), zap.String("task", id), zap.Error(err))
		return err
	}
	return nil
}

// errNotConnected: nothing has reached the server.
var errNotConnected = errors.New("the SMTP server can't be reached")

// send hands the mail to the server, on a connection of its own. A mail that is tried
// again has the same Message-ID: a server that took it, and whose answer was lost, can
// tell.
func (s *mailer) send(ctx context.Context, m mailtest.Mail, id string, granted time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, sendFor)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.server)
	if err != nil {
		return errNotConnected
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c := smtp.NewClient(conn)
	if err := c.SendMail(sender, []string{m.To}, bytes.NewReader(m.Encode(sender, id, granted))); err != nil {
		return err
	}
	_ = c.Quit() // the mail is theirs already
	return nil
}

// answer is what becomes of an error of [mailer.send]. A server's own words are left
// out, for they like to quote the address.
func answer(err error) error {
	said, ok := errors.AsType[*smtp.SMTPError](err)
	switch {
	case errors.Is(err, errNotConnected):
		return worker.NotCharged(err)
	case !ok: // it may have been sent
		return errors.New("the connection to the SMTP server broke")
	}
	err = fmt.Errorf("the SMTP server said %d", said.Code)
	switch {
	case said.Code == 421: // it is busy as a whole, and all wait
		return &worker.RetryAfterError{Err: err, After: busyFor, Rule: ruleProvider}
	case said.Code == 450: // this mailbox is, and what goes there waits
		return &worker.RetryAfterError{Err: err, After: busyFor, Rule: ruleRecipient}
	case said.Temporary(): // asynq tries again
		return err
	}
	return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
}
