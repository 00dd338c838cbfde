package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	// leadDefault is how many seconds after the start the gate opens, and tickAt when
	// the schedule ticks.
	leadDefault = 12
	tickAt      = 2

	cancelFor  = 10 * time.Second
	windowMost = 100
)

// errUsage is about what was asked for, before anything was done.
var errUsage = errors.New("this can't be shown")

// session is one run with good flags and a good input.
type session struct {
	cfg    config
	env    env
	mails  []Mail
	screen *screen
	log    *zap.Logger

	redis    *redis.Options
	rdb      *redis.Client
	queue    string // of this run alone
	secret   []byte
	clock    Clock
	tick     time.Time
	server   *MailServer
	batches  *batch.Control
	replicas []*replica

	mu      sync.Mutex
	batch   string      // its id, when it was started
	feeders []feederRun // who fed it, one after the other
	killed  bool        // one of them was stopped
}

// feederRun is a replica that began to feed the batch.
type feederRun struct {
	r    *replica
	from int64
}

func newSession(cfg config, e env, mails []Mail) *session {
	s := &session{cfg: cfg, env: e, mails: mails, screen: newScreen(e.stderr), queue: "mails-" + rand.Text()[:8], secret: make([]byte, 32)}
	s.log = newLogger(s.screen)
	rand.Read(s.secret) // never fails since Go 1.24
	return s
}

// run does all of it, and returns what went wrong.
func (s *session) run(ctx context.Context) (err error) {
	closeRedis, err := s.openRedis()
	if err != nil {
		return err
	}
	defer closeRedis()
	if err := s.setClock(ctx); err != nil {
		return err
	}
	if s.server, err = StartMailServer(s.log, s.env.refuse); err != nil {
		return err
	}
	defer s.server.Close()
	s.announce()
	last, err := s.runReplicas(ctx)
	if err != nil {
		return err
	}
	if err := s.tidy(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if last.ID == "" { // Ctrl-C was faster
		return nil
	}
	return s.sumUp(last)
}

// openRedis connects to the Redis of the flags, or embeds one.
func (s *session) openRedis() (closeRedis func(), err error) {
	s.redis = s.cfg.redis
	stop := func() {}
	if s.redis == nil {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // else nothing in it ever expires
		if err := m.Start(); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		s.redis, stop = &redis.Options{Addr: m.Addr()}, m.Close
	}
	s.rdb = redis.NewClient(s.redis)
	return func() {
		_ = s.rdb.Close()
		stop()
	}, nil
}

// setClock sets the clock of the demonstration by Redis', which decides about gates and
// ticks.
func (s *session) setClock(ctx context.Context) error {
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if s.clock, err = NewClock(now, s.cfg.gate, s.cfg.scale, s.env.lead); err != nil {
		return fmt.Errorf("%w: -gate: %w", errUsage, err)
	}
	s.tick = s.clock.Begin.Add(tickAt * time.Second)
	need, open := s.cfg.atLeast(s.mails), s.clock.OpenFor(s.cfg.gate)
	if need > open {
		return fmt.Errorf("%w: %s take %v at least, and the gate is open for %v of the %v that the clock runs; want fewer, or another -rate, -gate or -scale",
			errUsage, count(len(s.mails), "mail"), need, open, s.clock.Until.Sub(s.clock.Begin))
	}
	return nil
}

// announce says what is about to happen.
func (s *session) announce() {
	recipients, _ := recipientsOf(s.mails)
	where := "embedded"
	if s.cfg.redis != nil {
		where = s.cfg.redis.Addr
	}
	s.say("Redis      %s", where)
	s.say("server     embedded, sends nothing: smtp://%s", s.server.addr)
	s.say("clock      %d times as fast as ours; the batch starts at %s, the gate opens at %s", s.cfg.scale, s.clock.Show(s.tick), s.clock.Show(s.clock.Opens))
	s.say("gate       %s", gateText(s.cfg.gate))
	s.say("provider   %d in any %v", s.cfg.rate.Permits(), s.cfg.rate.Window())
	s.say("recipient  1 in any %v, an hour of the clock", s.cfg.perRecipient())
	s.say("input      %s to %s", count(len(s.mails), "mail"), count(recipients, "recipient"))
}

// spec is the batch of a day.
func (s *session) spec(tick time.Time) batch.Spec {
	return batch.Spec{
		ID: "nightly-" + tick.In(s.clock.Zone).Format(time.DateOnly), Queue: s.queue, Type: typeSend, Source: sourceName, Total: int64(len(s.mails)),
		// Little, so that the feeder works as long as the batch does.
		Window: min(max(len(s.mails)/4, 10), windowMost),
	}
}

// began notes that the batch was started.
func (s *session) began(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch = id
}

// batchID is the id of the batch, "" before it was started.
func (s *session) batchID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batch
}

// fedBy notes who feeds the batch.
func (s *session) fedBy(r *replica, from int64) {
	s.mu.Lock()
	again := len(s.feeders) > 0 && s.feeders[len(s.feeders)-1].r == r
	if !again {
		s.feeders = append(s.feeders, feederRun{r, from})
	}
	s.mu.Unlock()
	if !again {
		s.say("%s: feeds the batch from mail %d on", r.name, from+1)
	}
}

// say writes a line for people.
func (s *session) say(format string, a ...any) {
	s.screen.say(s.clock.Show(time.Now()), fmt.Sprintf(format, a...))
}

// runReplicas runs two of them until the batch is over, and returns what it was then.
func (s *session) runReplicas(ctx context.Context) (last batch.Progress, err error) {
	defer func() {
		for _, r := range s.replicas {
			r.finish()
			err = errors.Join(err, r.close())
		}
		s.screen.end()
	}()
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // Ctrl-C cancels the batch first
	defer stop()
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
	client, err := queue.NewClient(s.rdb, queue.ClientConfig{Policies: []queue.Policy{policyOf(s.cfg, s.clock)}, Throttle: throttle.Config{Secret: s.secret}})
	if err != nil {
		return last, err
	}
	s.batches = batch.NewControl(client)
	return s.watch(ctx)
}

// tidy deletes the queue of this run, and what asynq has counted for it.
func (s *session) tidy() error {
	ctx, stop := context.WithTimeout(context.Background(), cancelFor)
	defer stop()
	err := asynq.NewInspectorFromRedisClient(s.rdb).DeleteQueue(s.queue, true)
	if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		return err
	}
	keys := s.rdb.Scan(ctx, 0, "asynq:{"+s.queue+"}:*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := s.rdb.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// stats are those of both pools.
func (s *session) stats() (sum worker.Stats) {
	for _, r := range s.replicas {
		one := r.pool.Stats()
		sum.Admissions += one.Admissions
		sum.Granted += one.Granted
		sum.Deferred += one.Deferred
		sum.Postponed += one.Postponed
	}
	return sum
}
