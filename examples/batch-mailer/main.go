package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/term"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/queue/batch"
)

// Exit codes.
const (
	exitOK    = 0
	exitRun   = 1 // the run failed, or a mail went wrong
	exitUsage = 2 // a flag or the input is wrong; nothing was done
)

const (
	// leadDefault is how many seconds after the start the gate opens, and tickAt when
	// the schedule ticks.
	leadDefault = 12
	tickAt      = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process at once
	redis.SetLogger(e2e.Silence{})
	e := env{stdout: os.Stdout, stderr: os.Stderr}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		e.keys = os.Stdin
	}
	os.Exit(run(ctx, os.Args[1:], e))
}

// env is what a run has of the world around it.
type env struct {
	stdout, stderr io.Writer
	keys           io.Reader // lines "p" and "r" pause and resume; nil for none

	// For tests; zero means leadDefault, asynq's delays and a server that takes all.
	lead       int
	retryDelay asynq.RetryDelayFunc
	refuse     func(to string) error
}

// run is the program: it returns the exit code. Ending ctx ends it gracefully.
func run(ctx context.Context, args []string, e env) int {
	fail := func(code int, err error) int {
		_, _ = fmt.Fprintf(e.stderr, "batch-mailer: %v\n", err)
		return code
	}
	cfg, err := parseFlags(args, e.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return fail(exitUsage, fmt.Errorf("%w\n-h lists the flags", err))
	}
	mails := mailtest.Sample(cfg.batch)
	if cfg.input != "" {
		if mails, err = mailtest.ReadMails(cfg.input); err != nil {
			return fail(exitUsage, err)
		}
	}
	s := newSession(cfg, e, mails)
	if err := s.run(ctx); errors.Is(err, errUsage) {
		return fail(exitUsage, err)
	} else if err != nil {
		return fail(exitRun, err)
	}
	return exitOK
}

// errUsage is about what was asked for, before anything was done.
var errUsage = errors.New("this can't be shown")

// session is one run with good flags and a good input: a server, a clock, and two
// replicas that do the work.
type session struct {
	cfg   config
	env   env
	mails []mailtest.Mail
	watch *mailtest.Watch
	log   *zap.Logger

	rdb      *redis.Client
	queue    string // of this run alone
	secret   []byte // of the keys in Redis, which are mail addresses
	clock    mailtest.Clock
	tick     time.Time
	server   *mailtest.Server
	replicas []*replica
}

func newSession(cfg config, e env, mails []mailtest.Mail) *session {
	if e.lead == 0 {
		e.lead = leadDefault
	}
	s := &session{cfg: cfg, env: e, mails: mails, queue: "mails-" + rand.Text()[:8], secret: []byte(rand.Text())}
	s.watch = mailtest.NewWatch(e.stderr)
	s.watch.Queue, s.watch.Mails, s.watch.Gate, s.watch.Keys, s.watch.Kill = s.queue, len(mails), cfg.gate, e.keys, cfg.killFeeder
	s.log = e2e.NewLogger(s.watch.Progress)
	return s
}

// run does all of it, and returns what went wrong.
func (s *session) run(ctx context.Context) error {
	rdb, closeRedis, err := e2e.OpenRedis(s.cfg.redis)
	if err != nil {
		return err
	}
	defer closeRedis()
	s.rdb = rdb
	if err := s.setClock(ctx); err != nil {
		return err
	}
	if s.server, err = mailtest.Start(s.log, s.env.refuse); err != nil {
		return err
	}
	defer s.server.Close()
	s.announce()
	last, err := s.runReplicas(ctx)
	if err != nil {
		return err
	}
	if err := e2e.DeleteQueue(rdb, s.queue); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if last.ID == "" { // Ctrl-C was faster
		return nil
	}
	return s.sumUp(last)
}

// setClock sets the clock of the demonstration by Redis', which decides about gates and
// ticks.
func (s *session) setClock(ctx context.Context) error {
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if s.clock, err = mailtest.NewClock(now, s.cfg.gate, s.cfg.scale, s.env.lead); err != nil {
		return fmt.Errorf("%w: -gate: %w", errUsage, err)
	}
	s.tick = s.clock.Begin.Add(tickAt)
	s.watch.Clock, s.watch.Tick = s.clock, s.tick
	if need, open := s.cfg.atLeast(s.mails), s.clock.OpenFor(s.cfg.gate); need > open {
		return fmt.Errorf("%w: %s take %v at least, and the gate is open for %v of the %v that the clock runs; want fewer, or another -rate, -gate or -scale",
			errUsage, e2e.Count(len(s.mails), "mail"), need, open, s.clock.Until.Sub(s.clock.Begin))
	}
	return nil
}

// announce says what is about to happen.
func (s *session) announce() {
	recipients, _ := mailtest.Recipients(s.mails)
	where := "embedded"
	if s.cfg.redis != nil {
		where = s.cfg.redis.Addr
	}
	s.watch.Say("Redis      %s", where)
	s.watch.Say("server     embedded, sends nothing: smtp://%s", s.server.Addr())
	s.watch.Say("clock      %d times as fast as ours; the batch starts at %s, the gate opens at %s", s.cfg.scale, s.clock.Show(s.tick),
		s.clock.Show(s.clock.Opens))
	s.watch.Say("gate       %s", s.rules().Hours())
	s.watch.Say("provider   %d in any %v", s.cfg.rate.Permits(), s.cfg.rate.Window())
	s.watch.Say("recipient  1 in any %v, an hour of the clock", s.cfg.perRecipient())
	s.watch.Say("input      %s to %s", e2e.Count(len(s.mails), "mail"), e2e.Count(recipients, "recipient"))
}

// runReplicas runs two of them until the batch is over, and returns what it was then.
func (s *session) runReplicas(ctx context.Context) (last batch.Progress, err error) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // Ctrl-C cancels the batch first
	showing, hide := context.WithCancel(running)
	var shows sync.WaitGroup
	shows.Go(func() { s.watch.Progress.Run(showing) })
	defer func() {
		for _, r := range s.replicas {
			err = errors.Join(err, r.close())
		}
		hide()
		shows.Wait()
		stop()
	}()
	for _, name := range []string{"replica 1", "replica 2"} {
		r, err := newReplica(s, name)
		s.replicas = append(s.replicas, r)
		if err != nil {
			return last, err
		}
		if err := r.start(running); err != nil {
			return last, err
		}
	}
	s.watch.Control = s.replicas[0].batches // any replica's can pause the batch
	return s.watch.Run(ctx)
}
