package main

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// sender is the handler of sms:send. It runs under a grant: that the message may
// go now is settled, and it only sends. It is safe for concurrent use.
type sender struct {
	client *GatewayClient
	policy policy
	grants *grantLog
	tally  *Tally
	files  []byte // of phoneKey
	log    *zap.Logger
}

// finalError is a failure that another try would not change.
type finalError struct{ error }

func (e finalError) Unwrap() []error { return []error{e.error, asynq.SkipRetry} }

// ProcessTask implements [asynq.Handler].
func (s *sender) ProcessTask(ctx context.Context, task *asynq.Task) error {
	m, err := DecodeMessage(task.Payload())
	if err != nil {
		return finalError{err}
	}
	d, ok := worker.GrantFrom(ctx)
	if !ok {
		return errors.New("sender: no grant: the task type has no policy")
	}
	g := Grant{
		ID: m.ID, Phone: mask(m.To), Key: phoneKey(s.files, m.To),
		Attempt: d.Token.String(), GrantedUs: d.At.UnixMicro(),
	}
	if !d.Promised.IsZero() {
		g.PromisedUs = d.Promised.UnixMicro()
	}
	if g.Charges, err = s.policy.charges(task.Payload(), s.files); err != nil {
		return finalError{err}
	}
	// Noted before it is used: a process that dies in the POST has shown its grant.
	if err := s.grants.add(g); err != nil {
		return err
	}
	if err := s.client.Send(ctx, m, g.GrantedUs); err != nil {
		return s.notSent(err, g)
	}
	s.tally.Sent(m.To, g.GrantedUs)
	return nil
}

// notSent returns what the handler makes of an error of [GatewayClient.Send]: it
// decides whether there is another try, and when, and whether this one is paid for.
func (s *sender) notSent(err error, g Grant) error {
	_, refused := errors.AsType[*RejectedError](err)
	later, wait := errors.AsType[*RetryLaterError](err)
	connected := !errors.Is(err, errNotConnected)
	switch {
	case refused:
		err = finalError{err}
	case wait: // the phone is left alone for so long, by all its messages
		err = worker.RetryAfter(err, later.After)
	case !connected: // all else may have been sent
		err = worker.NotCharged(err)
	}
	if !connected || s.policy.Charge == queue.ChargeSuccess {
		g.Unused = true
		return errors.Join(err, s.grants.add(g))
	}
	return err
}

// HandleError implements [asynq.ErrorHandler]. asynq calls it before it retries or
// archives; a throttle never comes here.
func (s *sender) HandleError(ctx context.Context, task *asynq.Task, err error) {
	id, _ := asynq.GetTaskID(ctx)
	phone := "" // unknown: the payload is none of ours
	if m, bad := DecodeMessage(task.Payload()); bad == nil {
		phone = mask(m.To)
	}
	fields := []zap.Field{zap.String("phone", phone), zap.Error(err), zap.String("id", id)}
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	if retried < most && !errors.Is(err, asynq.SkipRetry) {
		s.log.Warn("message not sent, asynq tries again", append(fields, zap.Int("retry", retried+1), zap.Int("of", most))...)
		return
	}
	s.tally.Failed()
	s.log.Error("message failed for good", fields...)
}
