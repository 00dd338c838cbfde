package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// Limiter is a named limit on a Redis server: a rule. It counts permits per
// key. Limiters of the same name and prefix share their state, in any number
// of processes, and should have the same numbers. Of two that differ each
// decides by its own, on grants that are remembered for the window of the one
// that granted them.
//
// A Limiter holds no state that matters and needs no closing; it does not own
// the client. It is safe for concurrent use. When Redis does not answer, every
// method returns an error that unwraps to [ErrUnavailable] and nothing is
// granted.
type Limiter struct {
	rdb     redis.UniversalClient
	rule    string
	limit   Limit
	cfg     Config
	waiters waiters
}

// New returns the limiter of a rule. It does not talk to Redis. All faults of
// its arguments are reported at once, unwrapping to [ErrInvalidConfig] or
// [ErrInvalidLimit]. A nil client panics.
func New(rdb redis.UniversalClient, rule string, limit Limit, cfg Config) (*Limiter, error) {
	if rdb == nil {
		panic("throttle: nil Redis client")
	}
	if err := errors.Join(ValidateRule(rule), limit.Validate(), cfg.Validate()); err != nil {
		return nil, err
	}
	cfg = cfg.fill()
	cfg.Secret = slices.Clone(cfg.Secret)
	if cfg.InlineWait == InlineWaitNone {
		cfg.InlineWait = 0
	}
	return &Limiter{rdb: rdb, rule: rule, limit: limit, cfg: cfg}, nil
}

// Rule returns the limiter's name.
func (l *Limiter) Rule() string { return l.rule }

// Limit returns the limiter's limit.
func (l *Limiter) Limit() Limit { return l.limit }

// TryAcquire takes n permits of key now, or none. It books nothing and does
// not pass those who wait: a [Decision] that is not granted tells in At and
// Wait when a newcomer would go. n above the limit is an [ExceedsLimitError].
func (l *Limiter) TryAcquire(ctx context.Context, key string, n int) (Decision, error) {
	r := Request{Key: key, Cost: n, Token: NewToken()}
	d, err := l.ask(ctx, luascripts.Try, r)
	if err != nil {
		l.withdrawLost(ctx, r, err)
	}
	return d, err
}

// Book puts a job into the line of its key, or finds it there, and tells its
// instant; it never grants. A job that is already in the line keeps its place.
// With MaxWait exceeded it leaves the line and the error is a [TooLateError].
func (l *Limiter) Book(ctx context.Context, r Request) (Decision, error) {
	if err := checkJob(r.Job); err != nil {
		return Decision{}, err
	}
	r.Token = NewToken()
	return l.ask(ctx, luascripts.Book, r)
}

// Redeem grants a job its permits when its turn has come, up to InlineWait
// ahead of its instant, and otherwise books, or tells the booking's instant
// anew. The same Token gets the same grant, however often it is sent; a zero
// Token is drawn. With MaxWait exceeded the job leaves the line and the error
// is a [TooLateError]. After [ErrUnavailable] it may have been charged: repeat it
// with the same Token, or take it back with [Limiter.Refund].
func (l *Limiter) Redeem(ctx context.Context, r Request) (Decision, error) {
	if err := checkJob(r.Job); err != nil {
		return Decision{}, err
	}
	return l.ask(ctx, luascripts.Grant, r)
}

// Cancel takes the booking of r.Job out of the line; without one it does
// nothing. Who comes next is told in the Turn.
func (l *Limiter) Cancel(ctx context.Context, r Request) (Turn, error) {
	r.Token = 0
	return l.takeBack(ctx, r, false)
}

// Refund gives the grant of r.Token back, if it has one, and takes the booking
// of r.Job out of the line, if there is one. The token is refused from then
// on, for at least a minute, so a copy of its call that comes late is not
// charged. It is idempotent.
func (l *Limiter) Refund(ctx context.Context, r Request) (Turn, error) {
	return l.takeBack(ctx, r, false)
}

// Return gives the grant of r.Token back like [Limiter.Refund], and r.Job the
// first place in the line for it: a job that was let in and could not start.
func (l *Limiter) Return(ctx context.Context, r Request) (Turn, error) {
	if err := checkJob(r.Job); err != nil {
		return Turn{}, err
	}
	return l.takeBack(ctx, r, true)
}

// Reset forgets what was spent on a key. Who waits keeps its place.
func (l *Limiter) Reset(ctx context.Context, key string) (Turn, error) {
	if err := checkKey(key); err != nil {
		return Turn{}, err
	}
	reply, err := luascripts.Reset(ctx, l.rdb, l.keys(l.ID(key)), l.numbers())
	if err := l.fault("reset", reply.Status, err); err != nil {
		return Turn{}, err
	}
	return l.turn(reply.Next, reply.Now), nil
}

// ID is the form in which a key appears in Redis: as it is, or hashed, see
// [Config] and docs/redis-keys.md.
func (l *Limiter) ID(key string) string { return luascripts.KeyID(l.cfg.Secret, key) }

// Ledger names the key in Redis that holds what was spent: limiters whose ledger
// is the same count together.
func (l *Limiter) Ledger(key string) string { return l.keys(l.ID(key)).Ledger() }

func (l *Limiter) keys(id string) luascripts.Limit {
	return luascripts.LimitKeys(l.cfg.Prefix, l.rule, id)
}

func (l *Limiter) numbers() luascripts.Numbers {
	return luascripts.Numbers{Permits: l.limit.permits, Window: l.limit.window}
}

// ask runs acquire.lua for r and reads its answer.
func (l *Limiter) ask(ctx context.Context, mode luascripts.Mode, r Request) (Decision, error) {
	if err := l.check(r); err != nil {
		return Decision{}, err
	}
	if r.Token == 0 {
		r.Token = NewToken()
	}
	longest := time.Duration(-1)
	if r.MaxWait != 0 {
		longest = max(0, r.MaxWait)
	}
	reply, err := luascripts.Acquire(ctx, l.rdb, l.keys(l.ID(r.Key)), luascripts.AcquireArgs{
		Numbers: l.numbers(), Cost: r.Cost, Token: uint64(r.Token), Job: r.Job, Mode: mode,
		Inline: l.cfg.InlineWait, MaxWait: longest,
	})
	d := Decision{
		Request: r, Rule: l.rule, Granted: reply.Status == luascripts.Granted,
		At: reply.At, From: reply.From, Now: reply.Now, Promised: reply.Promised,
		Next: l.turn(reply.Next, reply.Now), start: time.Now().Add(reply.At.Sub(reply.Now)),
	}
	if err := l.fault("acquire", reply.Status, err); err != nil {
		return Decision{Request: r, Rule: l.rule}, err
	}
	switch reply.Status {
	case luascripts.TooLate:
		return d, &TooLateError{Rule: l.rule, At: d.At, Wait: d.At.Sub(d.Now), MaxWait: r.MaxWait}
	case luascripts.Withdrawn:
		return d, fmt.Errorf("%w: rule %q", ErrWithdrawn, l.rule)
	}
	return d, nil
}

func (l *Limiter) takeBack(ctx context.Context, r Request, back bool) (Turn, error) {
	if err := l.check(r); err != nil {
		return Turn{}, err
	}
	reply, err := luascripts.Cancel(ctx, l.rdb, l.keys(l.ID(r.Key)), luascripts.CancelArgs{
		Numbers: l.numbers(), Cost: r.Cost, Token: uint64(r.Token), Job: r.Job, Back: back,
	})
	if err := l.fault("cancel", reply.Status, err); err != nil {
		return Turn{}, err
	}
	return l.turn(reply.Next, reply.Now), nil
}

// turn makes a Turn of a script's answer, and rings the job when it waits in
// this very process.
func (l *Limiter) turn(t luascripts.Turn, now time.Time) Turn {
	if t.Job == "" {
		return Turn{}
	}
	l.waiters.ring(t.Job)
	return Turn{Job: t.Job, At: t.At, Wait: max(0, t.At.Sub(now))}
}

// check refuses what can never succeed before it costs a round trip.
func (l *Limiter) check(r Request) error {
	if err := checkKey(r.Key); err != nil {
		return err
	}
	if len(r.Job) > JobMax {
		return checkJob(r.Job)
	}
	if r.Cost < 1 {
		return fmt.Errorf("%w: %d permits for rule %q, want at least 1", ErrInvalidCost, r.Cost, l.rule)
	}
	if r.Cost > l.limit.permits {
		return &ExceedsLimitError{Rule: l.rule, Cost: r.Cost, Limit: l.limit}
	}
	return nil
}

func checkKey(key string) error {
	if key == "" || len(key) > KeyMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidKey, len(key), KeyMax)
	}
	return nil
}

func checkJob(job string) error {
	if job == "" || len(job) > JobMax {
		return fmt.Errorf("%w: %d bytes, want 1 to %d", ErrInvalidJob, len(job), JobMax)
	}
	return nil
}
