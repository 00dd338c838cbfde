package faults

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// Spec says how a run goes.
type Spec struct {
	Fault   Fault
	For     time.Duration // how long messages are enqueued and faults happen
	Drain   time.Duration // how long what waits may take after that
	Seed    uint64        // decides what happens, and when
	Workers int           // processes
	Others  int           // runs that share the machine at the same time
	Rate    int           // messages per second that the provider's limit lets through
	Dir     string        // empty; servers keep their files there, and what the run is judged by stays there
	Log     func(format string, a ...any)

	phone string // for tests: another limit per phone than the one by which it is judged

	keysGoWithin time.Duration // for tests: how long a soak waits for keys

	turns int // for tests: the ways to strike come one after the other, and so many at least

	// leaveOrphans is for tests: messages that were sent, and whose end Redis forgot, are left to asynq's
	// recoverer. It would run them again after a minute or two.
	leaveOrphans bool
}

// run is a run under way.
type run struct {
	spec                    Spec
	system                  *system
	client                  *redis.ClusterClient // of a cluster; nil for others
	clocked                 *clockedWorkers      // what the worker processes run; nil for this program
	crew                    *crew
	gateway                 *e2e.Gateway
	load                    load
	judged                  []e2e.Policy   // by which it is judged
	policies, otherPolicies string         // YAML that is deployed, and that may be deployed instead
	deployed                int            // how many deploys there were; after an odd one the other release runs
	seen                    sightings      // of releases that worked at the same time
	random                  *mathrand.Rand // of the strikes
	began                   time.Time

	strikes []Strike
	turn    int      // how many ways to strike were chosen in turn
	forgot  bool     // the strike under way does not go by the recipe, and Redis may have forgotten
	batches []string // their ids
	unfed   int      // elements of batches that nobody enqueued in time
	leaks   *Leaks   // of a soak

	mu       sync.Mutex
	accepted map[string]time.Time // by the id of a message that must be sent: when it was accepted; zero for after the load
	refused  int                  // calls that failed; each was made again
}

// Strike is a fault that happened.
type Strike struct {
	What string    `json:"what"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"` // when it was healed

	AtWorkers bool `json:"at_workers,omitempty"` // it touched no reply of Redis
	Forgot    bool `json:"forgot,omitempty"`     // Redis may have forgotten what it had accepted just before
}

// ErrInterrupted says that a run was ended early, and so can't be judged.
var ErrInterrupted = errors.New("interrupted")

// Run leads a load through the faults of a spec, and reports what came of it. There is no report
// when ctx ends, or when a fault can't be made: the error says so.
func Run(ctx context.Context, spec Spec) (Report, error) {
	r := &run{spec: spec, random: mathrand.New(mathrand.NewPCG(spec.Seed, 1)), accepted: map[string]time.Time{}}
	if err := r.start(ctx); err != nil {
		return Report{}, errors.Join(err, r.close())
	}
	err := r.play(ctx)
	if err == nil && ctx.Err() != nil {
		err = ErrInterrupted
	}
	kept := keep(ctx, r, err)
	var rep Report
	if err == nil && kept == nil {
		rep, err = Judge(spec.Dir)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", spec.Fault.Name, err)
	}
	return rep, errors.Join(err, kept, r.close())
}

// start starts Redis, the gateway, and the processes.
func (r *run) start(ctx context.Context) error {
	if r.spec.Fault.clocksWorkers {
		r.spec.Log("builds the program of the worker processes, whose clock can be set: the first time this takes minutes")
		var err error
		if r.clocked, err = buildClockedWorkers(ctx, r.spec.Dir); ctx.Err() != nil {
			return ErrInterrupted // and the go command may have failed for that
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.spec.Fault.Name, err)
		}
	}
	system, err := startIn(r.spec.Fault.start, r.spec.Dir)
	if err != nil {
		return err
	}
	r.system = system
	if system.cluster != nil {
		r.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: system.address.Addrs})
	}
	r.load = loadOf(r.spec, system.cluster != nil)
	if r.judged, err = readJudged(r.load.policies(phoneLimit, r.spec.Rate), system.cluster != nil); err != nil {
		return err
	}
	r.policies = r.load.policies(cmp.Or(r.spec.phone, phoneLimit), r.spec.Rate)
	r.otherPolicies = r.load.otherPolicies(r.spec.Rate)
	secret := make([]byte, 32)
	rand.Read(secret) // never fails since Go 1.24
	if r.gateway, err = e2e.StartGateway(context.WithoutCancel(ctx), r.judged[0], r.load.faults, secret); err != nil {
		return err
	}
	for _, p := range append(r.judged[1:], plainPolicy()) {
		r.gateway.Also(p)
	}
	r.gateway.SetTakes(cmp.Or(r.spec.Fault.takes, gatewayTakes))
	r.crew = &crew{dir: r.spec.Dir, cutOff: system.cutOff, clocked: r.clocked, spec: workerSpec{
		Redis: system.address, Gateway: r.gateway.URL(), Policies: r.policies, Secret: secret,
		Grants: filepath.Join(r.spec.Dir, grantsFile), Phones: r.spec.Rate * phonesPerRate,
		Hold: r.spec.Fault.limits.HoldAfterFailover, Replicas: r.spec.Fault.limits.Replicas, TickLateMax: tickLateMax,
	}}
	if r.spec.Fault.jumpsForGood {
		r.crew.spec.TickLateMax = tickLateMaxAfterJump
	}
	if r.spec.Fault.Soak {
		if err := r.crew.startSpared(vitalsFile(r.spec.Dir), r.spec.For); err != nil {
			return err
		}
	}
	for range r.spec.Workers {
		if err := r.crew.start(); err != nil {
			return err
		}
	}
	return nil
}

// gatewayTakes is how long the gateway works on a message: a handler that is killed is at work now and then.
const gatewayTakes = 50 * time.Millisecond

// readJudged reads the policies by which a run is judged. Of two rules they say what is promised, and not what is kept mostly:
//   - A window of a `fixed` limit begins with a grant that a killed process may not have shown. Of any window twice the
//     limit is promised.
//   - On a cluster the keys of the rules lie in several hash slots. Then docs/guarantees.md promises windows that are a tenth shorter.
func readJudged(text string, cluster bool) ([]e2e.Policy, error) {
	judged, err := readPolicies(text)
	for _, p := range judged {
		for i, rule := range p.Rules {
			window := windowOf(rule)
			if rule.Limit.Kind() == "fixed" {
				p.Rules[i].Limit = throttle.Sliding(2*rule.Limit.Permits(), window)
			}
			if cluster && window > 0 {
				p.Rules[i].Limit = throttle.Sliding(p.Rules[i].Limit.Permits(), window-window/10)
			}
		}
	}
	return judged, err
}

// play enqueues and strikes for as long as the spec says, then lets all that waits run, and
// ends the processes.
func (r *run) play(ctx context.Context) error {
	rdb := r.system.address.client()
	defer rdb.Close()
	policies, err := queue.ReadPolicies("policies of the client", strings.NewReader(r.policies))
	if err != nil {
		return err
	}
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		return err
	}
	if err := r.startBatch(ctx, client); err != nil {
		return err
	}
	r.began = time.Now()
	load, stop := context.WithTimeout(ctx, r.spec.For)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { r.enqueue(load, client) })
	var feeding error
	wg.Go(func() { feeding = r.feed(load, client) })
	if err = r.strikeUntil(ctx, load); err != nil {
		stop()
	}
	wg.Wait()
	if err = errors.Join(err, feeding); err != nil {
		return err
	}
	r.spec.Log("%s after %v; what waits runs now", e2e.Count(len(r.strikes), "strike"), time.Since(r.began).Round(time.Second))
	r.drain(ctx, rdb, client)
	if err := errors.Join(r.crew.check(), r.crew.end()); err != nil || !r.spec.Fault.Soak {
		return err
	}
	r.leaks, err = findLeaks(ctx, r, rdb)
	return err
}

// strikeUntil strikes at random until the load ends, and all ways to strike that a test wants have had their turn.
func (r *run) strikeUntil(ctx, load context.Context) error {
	kinds := r.spec.Fault.kinds()
	if len(kinds) == 0 {
		<-load.Done()
		return nil
	}
	for {
		pause := r.spec.Fault.every/2 + r.upTo(r.spec.Fault.every)
		over := load.Done()
		if len(r.strikes) < r.spec.turns {
			over = ctx.Done()
		}
		select {
		case <-over:
			return nil
		case <-time.After(pause):
		}
		kind := kinds[0]
		if len(kinds) > 1 {
			kind = kinds[r.random.IntN(len(kinds))]
		}
		s := Strike{From: time.Now(), AtWorkers: kind.atWorkers}
		var err error
		if s.What, err = kind.strike(ctx, r); err == nil {
			err = r.crew.check()
		}
		if err != nil {
			return fmt.Errorf("a strike %v after the begin: %w", s.From.Sub(r.began).Round(time.Millisecond), maskedError{err})
		}
		s.To, s.Forgot = time.Now(), r.spec.Fault.Forgets || r.forgot
		r.forgot = false
		r.strikes = append(r.strikes, s)
		r.spec.Log("%6.1f s  %s, for %v", s.From.Sub(r.began).Seconds(), s.What, s.To.Sub(s.From).Round(time.Millisecond))
	}
}

// maskedError is an error of a server, whose words may hold keys, and so phone numbers.
type maskedError struct{ err error }

func (e maskedError) Error() string { return maskPhones(e.err.Error()) }
func (e maskedError) Unwrap() error { return e.err }

// drain waits until all batches are at their end and nothing is left in the queue.
func (r *run) drain(ctx context.Context, rdb redis.UniversalClient, client *queue.Client) {
	ctx, stop := context.WithTimeout(ctx, r.spec.Drain)
	defer stop()
	// A Redis that began again without its data does not list the queue until its pools have noticed that.
	for ctx.Err() == nil && queuescripts.NameQueue(ctx, rdb, queueName) != nil {
		time.Sleep(100 * time.Millisecond)
	}
	control := batch.NewControl(client)
	for _, id := range r.batches {
		unfed := 0
		for ctx.Err() == nil {
			p, err := control.Progress(ctx, queueName, id)
			ended := err == nil && (p.State == batch.Ended || r.spec.leaveOrphans && p.Read == p.Total)
			if errors.Is(err, batch.ErrNotFound) || ended { // Redis may have forgotten it
				unfed = 0
				break
			}
			if err == nil {
				unfed = int(p.Total - p.Read)
			}
			time.Sleep(100 * time.Millisecond)
		}
		r.unfed += unfed
	}
	// Twice in a row, because one look reads one list after another: it overlooks a message that moves to a list that it has read.
	backlog := e2e.NewBacklog(rdb, queueName, false)
	for empty := 0; ctx.Err() == nil && empty < 2; time.Sleep(100 * time.Millisecond) {
		if s, err := backlog.Look(); err != nil || s.Left > listedMost && !r.spec.leaveOrphans {
			empty = 0
			continue
		}
		if l, err := r.left(); err != nil || l.Waiting > 0 {
			empty = 0
		} else {
			empty++
		}
	}
}

// listedMost is how many messages are few enough to be looked at one by one, again and again.
const listedMost = 200

func (r *run) close() error {
	if r.crew != nil {
		r.crew.clear()
	}
	var errs []error
	if r.gateway != nil {
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		errs = append(errs, r.gateway.Shutdown(ctx))
	}
	if r.client != nil {
		errs = append(errs, r.client.Close())
	}
	if r.system != nil {
		errs = append(errs, r.system.close())
	}
	if r.clocked != nil {
		errs = append(errs, r.clocked.remove())
	}
	return errors.Join(errs...)
}

// kind is one of n ways to strike, at random, or in turn.
func (r *run) kind(n int) int {
	if r.spec.turns > 0 {
		r.turn++
		return (r.turn - 1) % n
	}
	return r.random.IntN(n)
}

// upTo is a time below most, at random.
func (r *run) upTo(most time.Duration) time.Duration {
	return time.Duration(r.random.Int64N(int64(most)))
}

// until waits until something is so.
func (r *run) until(ctx context.Context, what string, so func() bool) error {
	for end := time.Now().Add(settlesWithin); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("waited %v in vain until %s", settlesWithin, what)
		}
	}
	return nil
}
