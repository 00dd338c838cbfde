package prove

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/worker"
)

// sender is the handler of sms:send. It runs under a grant: that the message may
// go now is settled, and it only sends. It is safe for concurrent use.
type sender struct {
	client *e2e.GatewayClient
	policy e2e.Policy
	grants *e2e.GrantLog
	tally  *e2e.Tally
	files  []byte // of PhoneKey
	log    *zap.Logger
}

// finalError is a failure that another try would not change.
type finalError struct{ error }

func (e finalError) Unwrap() []error { return []error{e.error, asynq.SkipRetry} }

// ProcessTask implements [asynq.Handler].
func (s *sender) ProcessTask(ctx context.Context, task *asynq.Task) error {
	m, err := e2e.DecodeMessage(task.Payload())
	if err != nil {
		return finalError{err}
	}
	d, ok := worker.GrantFrom(ctx)
	if !ok {
		return errors.New("sender: no grant: the task type has no policy")
	}
	g, err := s.policy.GrantOf(m, task.Payload(), s.files, d.Token.String(), d.Promised, d.At)
	if err != nil {
		return finalError{err}
	}
	// Noted before it is used: a process that dies in the POST has shown its grant.
	if err := s.grants.Add(g); err != nil {
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
func (s *sender) notSent(err error, g e2e.Grant) error {
	_, refused := errors.AsType[*e2e.RejectedError](err)
	later, wait := errors.AsType[*e2e.RetryLaterError](err)
	connected := !errors.Is(err, e2e.ErrNotConnected)
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
		return errors.Join(err, s.grants.Add(g))
	}
	return err
}

// HandleError implements [asynq.ErrorHandler]. asynq calls it before it retries or
// archives; a throttle never comes here.
func (s *sender) HandleError(ctx context.Context, task *asynq.Task, err error) {
	id, _ := asynq.GetTaskID(ctx)
	phone := "" // unknown: the payload is none of ours
	if m, bad := e2e.DecodeMessage(task.Payload()); bad == nil {
		phone = e2e.Mask(m.To)
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

// outlet is where messages leave: a client, and the gateway behind it if it is
// ours.
type outlet struct {
	client *e2e.GatewayClient
	own    *e2e.Gateway // nil if the gateway was given
}

// openOutlet leads to the gateway of the flags, or without one to an embedded
// gateway. The secret files is that of PhoneKey.
func openOutlet(ctx context.Context, cfg config, files []byte) (outlet, error) {
	var o outlet
	url := cfg.gateway
	if url == "" {
		own, err := e2e.StartGateway(ctx, cfg.policy, cfg.gwFaults, files)
		if err != nil {
			return outlet{}, err
		}
		o.own, url = own, own.URL()
	}
	client, err := e2e.NewGatewayClient(url, 0)
	if err != nil {
		return outlet{}, err
	}
	o.client = client
	return o, nil
}

// close ends what was opened, and lets requests of other processes end.
func (o outlet) close(ctx context.Context) error {
	o.client.Close()
	if o.own == nil {
		return nil
	}
	return o.own.Shutdown(ctx)
}

// stats returns what the gateway saw, nil if it is not ours.
func (o outlet) stats() *e2e.GatewayStats {
	if o.own == nil {
		return nil
	}
	s := o.own.Stats()
	return &s
}
