package throttle

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// Bounds of a request.
const (
	KeyMax  = 1024              // bytes of a key
	JobMax  = luascripts.JobMax // bytes of a job id
	ruleMax = 64                // bytes of a rule's name, and of a client's
)

// Defaults and bounds of a [Config].
const (
	InlineWaitNone    = -1 // no grant lies in the future
	inlineWaitDefault = 50 * time.Millisecond
	inlineWaitMax     = time.Second
	secretMin         = 16 // bytes of a secret
	replicasMax       = 16
	replicasWithin    = 100 * time.Millisecond
)

// Config is what limiters may have in common. The zero Config is usable.
type Config struct {
	// Prefix starts every key in Redis, so that two applications on one server
	// do not collide: 1 to 32 bytes without braces, colons and spaces, and not
	// "asynq". Defaults to "hw".
	Prefix string

	// Secret, when given, turns every key into a keyed hash (HMAC-SHA256)
	// before it reaches Redis, so that no key of ours shows a phone number. At
	// least 16 bytes, the same in all processes: another secret means
	// another ledger. Defaults to none.
	Secret []byte

	// InlineWait is how far in the future a grant may lie; the caller waits the
	// rest in place. It is for remainders of milliseconds, never for waiting:
	// at most 1 s, [InlineWaitNone] for none: then tasks are woken at their instant, and start
	// later by what an admission takes. Defaults to 50 ms.
	InlineWait time.Duration

	// PerClient counts for each process by itself: n processes together may have
	// n times the limit. The rule stands in keys as "rule@client"; what a process
	// leaves behind goes with the life of its keys. A task that a worker
	// deferred waits in the line of that worker's process: one that another
	// process wakes starts in a line there. Defaults to counting for all.
	PerClient bool

	// Client names this process where PerClient is set: as a rule's name, 1 to
	// 64 bytes. Two processes of one name count together, and a process
	// that starts again under its name finds what it spent. Defaults to a name
	// drawn at random once per process.
	Client string

	// HoldAfterFailover keeps limits also when Redis forgets grants. A server that was promoted
	// lacks the last grants of the one before, and one that has begun again may have lost some. With
	// this set it grants nothing on any key until those have stopped to count. That takes a
	// window of the rule; for a bucket, until it would be full; for smooth, leaky and warmup, until
	// a job of the same cost has been paid for. It begins with the first call after a
	// failover, and two seconds more are for clients that come late to the new master; or with
	// the process of Redis, and a second more. Who asks meanwhile is refused, or waits, as if the rule
	// were closed. State.Held says until when. Set it in all processes.
	//
	// It needs Redis functions (Redis 7.0 or newer; rights +fcall, +function|load, +info) and a
	// redis.Client or redis.ClusterClient: otherwise each call that could grant is an [ErrUnavailable]. It goes with
	// OnUnavailable [FailClosed] alone. It does not help while clients use two masters for longer than
	// a second (min-replicas-to-write does), and slots of a Cluster must not move while a key is held. Whenever
	// Redis gets another text of Headway's functions, or loses it (a new version of Headway, FUNCTION
	// FLUSH), all keys are held once more, unless Redis never followed another server and began within
	// the last hour. A limiter in memory forgets nothing, and ignores this. Defaults to false: a
	// grant that Redis forgot can be made again.
	HoldAfterFailover bool

	// Replicas is how many replicas must have a grant before the caller gets it: 0 to 16. A failover
	// to one of these does not forget it. If it is the number of all replicas, no failover does. The master
	// waits for them behind the decision, in the same round trip (WAIT, right +wait). If fewer have
	// the grant within ReplicasWithin, the call is an [ErrUnavailable], and the permit is given back. So
	// with too few replicas nothing is granted.
	//
	// A call that is refused, or books, waits for earlier writes in the same way, and so do calls of other
	// limiters on the same client that are sent together with one of this. Nothing else waits for
	// replicas: places in a line, what is given back or corrected, stored limits, closings, tasks.
	// It goes with OnUnavailable [FailClosed] alone, and with a redis.Client or redis.ClusterClient. A
	// limiter in memory ignores it. Defaults to 0.
	Replicas int

	// ReplicasWithin is how long a grant may wait for its replicas: 1 ms to 1 s. A worker does not act
	// on a grant that is older than a tenth of the rule's window: stay below that, and below the client's
	// ReadTimeout. Defaults to 100 ms where Replicas is set.
	ReplicasWithin time.Duration

	// OnUnavailable is what happens to calls while Redis does not answer.
	// Defaults to [FailClosed].
	OnUnavailable FailureMode

	// LimitOf finds the limit of one key, where keys have limits of their own: each tenant what
	// it has paid for. The zero Limit stands for the limit of the rule, in code or stored. changed
	// is when the limit of this key was set, or taken away; the zero time when nobody knows. What a
	// key has spent is written with that time, and a process whose function knows an older limit
	// than another process is refused: it does not bring the old limit back. So give a time
	// with each limit that can change, also with one that was taken away.
	//
	// It is called for each decision, and has to answer from memory. When Redis knows of a limit
	// that was set at a later time, it is called once more with that time in newer, and should
	// look where the limits come from. Its limit counts like the one in code: what runs at once
	// and what runs per window are kept apart. An error is an [ErrStoredLimit] with its cause, and
	// grants nothing. It must be safe for concurrent use. Defaults to none.
	LimitOf func(ctx context.Context, key string, newer time.Time) (limit Limit, changed time.Time, err error)

	// Shadow decides and counts, and lets run: nothing is refused, waits, takes
	// a place or fails because of the limit. What the limit would not have
	// admitted is granted at once, with Decision.Shadowed, and spends nothing;
	// so its instants are those of a job that is first in the line. For a
	// limit that is to be tried on real traffic. A worker.RetryAfter is a provider's wish
	// and no limit: it defers its own task also then. Defaults to false.
	Shadow bool

	// Observer hears of every decision, see package event: Granted, Refused, Deferred,
	// Adjusted, LeaseLost, LimitChanged, KeyClosed, RedisAway and RedisBack. It must not
	// block. A caller that waits in [Limiter.Acquire] is Deferred once, and then Granted.
	// The zero Observer hears nothing.
	Observer event.Observer
}

// clientDefault names this process.
var clientDefault = sync.OnceValue(rand.Text)

// rulePattern keeps rule names readable in keys, labels and log lines.
var rulePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// ruleReserved are names whose keys would be those of a queue's own state, now or in an
// earlier version.
var ruleReserved = []string{"due", "places", "replan", "planned", "tick", "ticks", "batch", "batches", "sweep", "sent", "fetched"}

// validateRule is ForWorkers.ValidateRule.
func validateRule(name string) error {
	if slices.Contains(ruleReserved, name) {
		return fmt.Errorf("%w: rule name %q is reserved", ErrInvalidConfig, name)
	}
	if len(name) > ruleMax || !rulePattern.MatchString(name) {
		return fmt.Errorf("%w: rule name %q, want 1 to %d of A-Z a-z 0-9 _ . -", ErrInvalidConfig, errtext.Clip(name), ruleMax)
	}
	return nil
}

// fill puts the defaults where c is zero.
func (c Config) fill() Config {
	c.Prefix = cmp.Or(c.Prefix, luascripts.PrefixDefault)
	c.InlineWait = cmp.Or(c.InlineWait, inlineWaitDefault)
	if c.PerClient && c.Client == "" {
		c.Client = clientDefault()
	}
	if c.Replicas > 0 {
		c.ReplicasWithin = cmp.Or(c.ReplicasWithin, replicasWithin)
	}
	return c
}

// validate returns everything that is wrong with c, joined. Each fault unwraps
// to [ErrInvalidConfig].
func (c Config) validate() error {
	c = c.fill()
	var errs []error
	if len(c.Prefix) > 32 || strings.ContainsAny(c.Prefix, "{}: \t\r\n") {
		errs = append(errs, fmt.Errorf("%w: Prefix %q, want 1 to 32 bytes without braces, colons and spaces", ErrInvalidConfig, errtext.Clip(c.Prefix)))
	}
	if c.Prefix == "asynq" {
		errs = append(errs, fmt.Errorf("%w: Prefix %q is that of asynq's own keys", ErrInvalidConfig, c.Prefix))
	}
	if n := len(c.Secret); n > 0 && n < secretMin {
		errs = append(errs, fmt.Errorf("%w: Secret has %d bytes, want none or at least %d", ErrInvalidConfig, n, secretMin))
	}
	if c.InlineWait != InlineWaitNone && (c.InlineWait < 0 || c.InlineWait > inlineWaitMax) {
		errs = append(errs, fmt.Errorf("%w: InlineWait %v, want 0 to %v, or InlineWaitNone", ErrInvalidConfig, c.InlineWait, inlineWaitMax))
	}
	if c.Client != "" && !c.PerClient {
		errs = append(errs, fmt.Errorf("%w: Client %q without PerClient", ErrInvalidConfig, errtext.Clip(c.Client)))
	}
	if c.PerClient && (len(c.Client) > ruleMax || !rulePattern.MatchString(c.Client)) {
		errs = append(errs, fmt.Errorf("%w: Client %q, want 1 to %d of A-Z a-z 0-9 _ . -", ErrInvalidConfig, errtext.Clip(c.Client), ruleMax))
	}
	switch {
	case c.Replicas < 0 || c.Replicas > replicasMax:
		errs = append(errs, fmt.Errorf("%w: Replicas %d, want 0 to %d", ErrInvalidConfig, c.Replicas, replicasMax))
	case c.Replicas == 0 && c.ReplicasWithin != 0:
		errs = append(errs, fmt.Errorf("%w: ReplicasWithin %v without Replicas", ErrInvalidConfig, c.ReplicasWithin))
	case c.Replicas > 0 && (c.ReplicasWithin < time.Millisecond || c.ReplicasWithin > time.Second):
		errs = append(errs, fmt.Errorf("%w: ReplicasWithin %v, want 1ms to 1s", ErrInvalidConfig, c.ReplicasWithin))
	}
	if c.OnUnavailable != FailClosed && (c.HoldAfterFailover || c.Replicas > 0) {
		errs = append(errs, fmt.Errorf("%w: OnUnavailable %v would grant what HoldAfterFailover and Replicas hold back, want FailClosed with these",
			ErrInvalidConfig, c.OnUnavailable))
	}
	if !c.OnUnavailable.valid() {
		errs = append(errs, fmt.Errorf("%w: OnUnavailable %d, want FailClosed, FailOpen or FailLocal", ErrInvalidConfig, c.OnUnavailable))
	}
	return errors.Join(errs...)
}
