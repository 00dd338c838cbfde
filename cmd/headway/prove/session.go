package prove

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"

	"github.com/headwayq/headway/internal/e2e"
)

// sendGrace is how long a shutdown lets a send go on: longer than a POST takes,
// so that none is cut off and sent again.
const sendGrace = e2e.GatewayTimeoutDefault + time.Second

// session is one run with good flags and a good input.
type session struct {
	cfg      config
	env      env
	msgs     []e2e.Message
	grants   *e2e.GrantLog
	progress *e2e.Progress // all output to stderr goes through it
	log      *zap.Logger

	rdb     redis.UniversalClient
	secret  secret
	backlog *e2e.Backlog
	tally   e2e.Tally
	watch   e2e.Watch
	total   atomic.Int64 // messages that this run expects to see sent; -1 if unknown
}

func newSession(cfg config, e env, msgs []e2e.Message, grants *e2e.GrantLog) *session {
	s := &session{cfg: cfg, env: e, msgs: msgs, grants: grants}
	s.progress = e2e.NewProgress(e.stderr, s.snapshot)
	s.log = e2e.NewLogger(s.progress)
	if e.openRedis == nil {
		s.env.openRedis = openRedis
	}
	if e.openOutlet == nil {
		s.env.openOutlet = openOutlet
	}
	s.total.Store(-1)
	return s
}

// run does what the role says, and returns what went wrong, a broken limit
// included.
func (s *session) run(ctx context.Context) error {
	rdb, closeRedis, err := s.env.openRedis(s.cfg.redis)
	if err != nil {
		return err
	}
	defer closeRedis()
	s.rdb = rdb
	if s.secret, err = e2e.LoadSecret(ctx, s.rdb, secretKey, s.cfg.policy.Longest()); err != nil {
		return err
	}
	s.backlog = e2e.NewBacklog(s.rdb, queueName, s.cfg.role == roleWork)
	if !s.cfg.role.works() {
		return s.onlyEnqueue(ctx)
	}
	return s.work(ctx)
}

// onlyEnqueue is -role enqueue.
func (s *session) onlyEnqueue(ctx context.Context) error {
	start := time.Now()
	err := s.enqueue(ctx)
	if s.cfg.report == "" {
		return err
	}
	r := e2e.NewReport(&s.tally, e2e.Totals{Elapsed: time.Since(start)})
	return errors.Join(err, r.WriteFile(s.cfg.report))
}

// work runs a pool until the end, which is Ctrl-C or an empty queue, and sums up.
func (s *session) work(ctx context.Context) error {
	out, err := s.env.openOutlet(ctx, s.cfg, s.secret.forFiles())
	if err != nil {
		return err
	}
	closeOutlet := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendGrace)
		defer cancel()
		return out.close(ctx)
	}
	pool, err := s.newPool(out)
	if err == nil {
		err = pool.Start(ctx)
	}
	if err != nil {
		return errors.Join(err, closeOutlet())
	}
	s.announce(out)
	start := time.Now()
	err = s.runPool(ctx, pool)
	elapsed := time.Since(start)
	return errors.Join(err, closeOutlet(), s.sumUp(pool.Stats(), out, elapsed))
}

// newPool is how a program uses Headway: a handler, a policy, a pool.
func (s *session) newPool(out outlet) (*worker.Pool, error) {
	h := &sender{client: out.client, policy: s.cfg.policy, grants: s.grants, tally: &s.tally, files: s.secret.forFiles(), log: s.log}
	mux := asynq.NewServeMux()
	mux.Handle(e2e.TaskType, h)
	return worker.New(s.rdb, mux, worker.Config{
		Asynq: asynq.Config{
			Concurrency:     s.cfg.concurrency,
			Queues:          map[string]int{queueName: 1},
			ErrorHandler:    h,
			RetryDelayFunc:  s.env.retryDelay,
			ShutdownTimeout: sendGrace,
		},
		Policies: []queue.Policy{s.cfg.policy.Policy},
		Throttle: throttle.Config{Secret: s.secret.forKeys()},
		Logger:   s.log,
		Observer: s.watch.Observer(),
	})
}

// runPool feeds a started pool if that is our role, waits for the end, and shuts
// the pool down. Its error is that of the enqueueing.
func (s *session) runPool(ctx context.Context, pool *worker.Pool) error {
	var wg sync.WaitGroup
	showing, hide := context.WithCancel(context.WithoutCancel(ctx))
	defer hide()
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { s.progress.Run(showing) })
	end := make(chan struct{})
	wg.Go(func() {
		s.backlog.Wait(waiting, s.cfg.drain)
		close(end)
	})

	var err error
	if s.cfg.role.enqueues() {
		err = s.enqueue(ctx)
	}
	if err != nil {
		stop()
	}
	s.backlog.Complete()
	<-end
	pool.Shutdown()
	_, lost := s.backlog.Look() // for the last line of the progress
	hide()
	wg.Wait()
	if ctx.Err() != nil && lost == nil {
		s.sayWhatIsLeft()
	}
	return err
}

// enqueue enqueues the messages and says how many.
func (s *session) enqueue(ctx context.Context) error {
	client, err := queue.NewClient(s.rdb, queue.ClientConfig{Policies: []queue.Policy{s.cfg.policy.Policy}})
	if err != nil {
		return err
	}
	before, err := s.backlog.Look()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	s.total.Store(int64(before.Left + len(s.msgs)))
	done, err := enqueue(ctx, client, s.msgs, s.cfg.once)
	s.total.Store(int64(before.Left + done.fresh))
	switch {
	case s.cfg.once:
		s.say("%s enqueued, %d already there", e2e.Count(done.fresh, "message"), done.there)
	case s.cfg.role == roleEnqueue || err != nil:
		s.say("%s enqueued", e2e.Count(done.fresh, "message"))
	}
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted before all was enqueued")
	}
	return err
}

// say writes a line for people.
func (s *session) say(format string, a ...any) {
	_, _ = fmt.Fprintf(s.progress, format+"\n", a...)
}

// announce says what is about to happen.
func (s *session) announce(out outlet) {
	if s.cfg.redis == nil {
		s.say("Redis    embedded")
	} else {
		s.say("Redis    %s", s.cfg.redis.Addr)
	}
	if out.own == nil {
		u, _ := url.Parse(s.cfg.gateway)            // the client has parsed it before
		s.say("gateway  %s://%s", u.Scheme, u.Host) // the rest may hold a password or a token
	} else {
		s.say("gateway  embedded, sends nothing: %s", out.own.URL())
	}
	if f := s.cfg.gwFaults; f != (e2e.Faults{}) {
		s.say("faults   %v", f) // with its seed, for whoever wants to see them again
	}
	if s.cfg.policy.PerRule {
		for _, r := range s.cfg.policy.Rules {
			s.say("rule     %s: %s", r.Name, e2e.RuleText(r))
		}
	} else {
		s.say("limit    %s per phone", strings.TrimPrefix(s.cfg.limit.String(), "sliding "))
	}
	if !s.cfg.role.enqueues() {
		return
	}
	takes := ""
	if least := s.cfg.policy.AtLeast(s.msgs); least > 0 {
		takes = fmt.Sprintf(": %v at least", least)
	}
	s.say("input    %s to %s%s", e2e.Count(len(s.msgs), "message"), e2e.Count(phoneCount(s.msgs), "phone"), takes)
	now := time.Now()
	_, held := holdUps(s.cfg.policy, s.msgs, now)
	for _, h := range held {
		s.say("waits    %s", h.text(now))
	}
}

// sayWhatIsLeft tells whoever pressed Ctrl-C how it goes on.
func (s *session) sayWhatIsLeft() {
	left := s.backlog.Left()
	switch {
	case left == 0:
	case s.cfg.redis == nil:
		s.say("interrupted: %s not sent, and lost with the embedded Redis", e2e.Count(left, "message"))
	default:
		s.say("interrupted: %s left in Redis, -role work goes on", e2e.Count(left, "message"))
	}
}

// snapshot is the present state for the progress.
func (s *session) snapshot() e2e.Snapshot {
	sent, failed := s.tally.Counts()
	total, waiting := int(s.total.Load()), s.backlog.Left()
	if total >= 0 {
		waiting = min(waiting, max(0, total-sent-failed)) // the look at the queue is older than the counters
	}
	return e2e.Snapshot{
		Total: total, Sent: sent, Failed: failed, Waiting: waiting,
		NextIn: s.watch.NextIn(time.Now()),
	}
}

// sumUp prints the summary and writes the files. A broken limit is an error.
func (s *session) sumUp(stats worker.Stats, out outlet, elapsed time.Duration) error {
	grants, err := s.grants.All()
	r, broken := e2e.SumUp(s.cfg.policy, &s.tally, grants, stats, e2e.Totals{
		Late: s.watch.Lateness(), Gateway: out.stats(), Faults: s.cfg.gwFaults, Elapsed: elapsed,
	})
	s.say("") // a line between the progress and the table, on a terminal
	errs := []error{err, r.Print(s.env.stdout)}
	if s.cfg.report != "" {
		errs = append(errs, r.WriteFile(s.cfg.report))
	}
	if s.cfg.arrivals != "" {
		errs = append(errs, writeArrivalsFile(s.cfg.arrivals, out.own.Arrivals()))
	}
	return errors.Join(append(errs, broken...)...)
}

func writeArrivalsFile(path string, log []e2e.Arrival) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("arrivals: %w", err)
	}
	return errors.Join(e2e.WriteArrivals(f, log), f.Close())
}
