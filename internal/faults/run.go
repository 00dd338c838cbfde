package faults

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
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
	Dir     string        // empty; servers keep their files there, and histories stay there
	Log     func(format string, a ...any)

	phone string // for tests: another limit per phone than the one by which it is judged
}

// The limits of a run: one per phone, and the provider's for all of them. So many phones get a
// message every four seconds each, at random: some wait for their phone, all for the provider.
const (
	phoneLimit     = "1/2s"
	phonesPerRate  = 4
	policyTemplate = `
rules:
  phone:    {limit: %s, key: $.to}
  provider: {limit: %d/1s, key: =all}
policies:
  sms:send: {rules: [phone, provider]}
`
	// Another policy for the same tasks, with one more rule and lower limits.
	otherTemplate = `
rules:
  phone:    {limit: 1/3s, key: $.to}
  tenant:   {limit: gcra 1000/1s burst 1000, key: =acme}
  provider: {limit: %d/1s, key: =all}
policies:
  sms:send: {rules: [phone, tenant, provider]}
`
)

// run is a run under way.
type run struct {
	spec                    Spec
	system                  *system
	client                  *redis.ClusterClient // of a cluster; nil for others
	crew                    *crew
	gateway                 *e2e.Gateway
	policy                  e2e.Policy     // by which it is judged
	policies, otherPolicies string         // YAML that is deployed, and that may be deployed instead
	deployed                int            // how many deploys there were; after an odd one the other release runs
	seen                    sightings      // of releases that worked at the same time
	random                  *mathrand.Rand // of the strikes
	began                   time.Time

	strikes []Strike
	forgot  bool // a strike did not go by the recipe, and Redis may have forgotten
	unfed   int  // elements of the batch that nobody enqueued in time

	mu       sync.Mutex
	accepted map[string]time.Time // by the id of a message that must be sent: when it was accepted; zero for not known
	refused  int                  // calls that failed; each was made again
}

// Strike is a fault that happened.
type Strike struct {
	What string    `json:"what"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"` // when it was healed
}

// ErrInterrupted says that a run was ended early, and so can't be judged.
var ErrInterrupted = errors.New("interrupted")

// Run leads a load through the faults of a spec, and reports what came of it. There is no report
// when ctx ends, or when a fault can't be made: the error says so.
func Run(ctx context.Context, spec Spec) (Report, error) {
	r := &run{spec: spec, random: mathrand.New(mathrand.NewPCG(spec.Seed, 1)), accepted: map[string]time.Time{}}
	if err := r.start(); err != nil {
		return Report{}, errors.Join(err, r.close())
	}
	err := r.play(ctx)
	var rep Report
	if err == nil && ctx.Err() != nil {
		err = ErrInterrupted
	}
	if err == nil {
		rep, err = r.judge(ctx)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", spec.Fault.Name, err)
	}
	return rep, errors.Join(err, r.keep(), r.close())
}

// start starts Redis, the gateway, and the processes.
func (r *run) start() error {
	system, err := startIn(r.spec.Fault.start, r.spec.Dir)
	if err != nil {
		return err
	}
	r.system = system
	if system.cluster != nil {
		r.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: system.address.Addrs})
	}
	if r.policy, err = readPolicy(fmt.Sprintf(policyTemplate, phoneLimit, r.spec.Rate)); err != nil {
		return err
	}
	r.policies = fmt.Sprintf(policyTemplate, cmp.Or(r.spec.phone, phoneLimit), r.spec.Rate)
	r.otherPolicies = fmt.Sprintf(otherTemplate, max(1, r.spec.Rate*9/10))
	r.allowForSlots()
	secret := make([]byte, 32)
	rand.Read(secret) // never fails since Go 1.24
	if r.gateway, err = e2e.StartGateway(context.Background(), r.policy, e2e.Faults{}, secret); err != nil {
		return err
	}
	r.gateway.SetTakes(gatewayTakes)
	r.crew = &crew{dir: r.spec.Dir, spec: workerSpec{
		Redis: system.address, Gateway: r.gateway.URL(), Policies: r.policies, Secret: secret,
		Grants: filepath.Join(r.spec.Dir, "grants.jsonl"), Phones: r.spec.Rate * phonesPerRate,
		Hold: r.spec.Fault.limits.HoldAfterFailover, Replicas: r.spec.Fault.limits.Replicas,
	}}
	for range r.spec.Workers {
		if err := r.crew.start(); err != nil {
			return err
		}
	}
	return nil
}

// gatewayTakes is how long the gateway works on a message: a handler that is killed is at work now and then.
const gatewayTakes = 50 * time.Millisecond

// allowForSlots judges windows that are shorter by what docs/guarantees.md says of rules whose keys
// lie in several hash slots: by a tenth.
func (r *run) allowForSlots() {
	if r.client == nil {
		return
	}
	for i, rule := range r.policy.Rules {
		window := rule.Limit.Window()
		r.policy.Rules[i].Limit = throttle.Sliding(rule.Limit.Permits(), window-window/10)
	}
}

// play enqueues and strikes for as long as the spec says, then lets all that waits run, and
// ends the processes.
func (r *run) play(ctx context.Context) error {
	rdb := r.system.address.client()
	defer rdb.Close()
	policy, err := readPolicy(r.crew.spec.Policies)
	if err != nil {
		return err
	}
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{policy.Policy}})
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
	if err = r.strikeUntil(ctx, load); err != nil {
		stop()
	}
	wg.Wait()
	if err != nil {
		return err
	}
	r.spec.Log("%s after %v; what waits runs now", e2e.Count(len(r.strikes), "strike"), time.Since(r.began).Round(time.Second))
	r.drain(ctx, rdb, client)
	return errors.Join(r.crew.check(), r.crew.end())
}

const batchID = "load"

// batchElements are a good third of all messages.
func (r *run) batchElements() int {
	return int(float64(r.spec.Rate) * r.spec.For.Seconds() * 0.4)
}

func (r *run) startBatch(ctx context.Context, client *queue.Client) error {
	n := r.batchElements()
	_, err := batch.NewControl(client).Start(ctx, batch.Spec{
		ID: batchID, Type: e2e.TaskType, Source: source, Args: strconv.Itoa(n), Total: int64(n), Window: max(1, r.spec.Rate),
	})
	for i := range n {
		r.accepted[batchPrefix+strconv.Itoa(i)] = time.Time{}
	}
	return err
}

// enqueue enqueues a little less than the provider takes: with the batch and the schedule it is
// a little more, so that something always waits. What fails it tries again under the same id.
func (r *run) enqueue(ctx context.Context, client *queue.Client) {
	random := mathrand.New(mathrand.NewPCG(r.spec.Seed, 2))
	every := time.Second * 10 / time.Duration(7*r.spec.Rate)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	calls := make(chan e2e.Message, 100*r.spec.Rate)
	defer close(calls)
	for range 20 {
		wg.Go(func() {
			for m := range calls {
				r.accept(ctx, client, m)
			}
		})
	}
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		select {
		case calls <- newMessage(clientPrefix+strconv.Itoa(i), random.IntN(r.crew.spec.Phones)):
		default: // Redis was away for so long that nobody would have waited
		}
	}
}

// accept enqueues a message until that is answered, or the load ends.
func (r *run) accept(ctx context.Context, client *queue.Client, m e2e.Message) {
	payload, err := m.Encode()
	if err != nil {
		panic(err) // it is ours
	}
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		_, err := client.Enqueue(call, queue.NewTask(e2e.TaskType, payload), asynq.TaskID(m.ID), asynq.Retention(time.Hour))
		stop()
		r.mu.Lock()
		if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) { // it was accepted, and the answer lost
			r.accepted[m.ID] = time.Now()
			r.mu.Unlock()
			return
		}
		r.refused++
		r.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
	}
}

// strikeUntil strikes at random until the load ends.
func (r *run) strikeUntil(ctx, load context.Context) error {
	if r.spec.Fault.strike == nil {
		<-load.Done()
		return nil
	}
	for {
		pause := r.spec.Fault.every/2 + r.upTo(r.spec.Fault.every)
		select {
		case <-load.Done():
			return nil
		case <-time.After(pause):
		}
		s := Strike{From: time.Now()}
		var err error
		if s.What, err = r.spec.Fault.strike(ctx, r); err == nil {
			err = r.crew.check()
		}
		if err != nil {
			return fmt.Errorf("a strike %v after the begin: %w", s.From.Sub(r.began).Round(time.Millisecond), err)
		}
		s.To = time.Now()
		r.strikes = append(r.strikes, s)
		r.spec.Log("%6.1f s  %s, for %v", s.From.Sub(r.began).Seconds(), s.What, s.To.Sub(s.From).Round(time.Millisecond))
	}
}

// drain waits until the batch is at its end and nothing is left in the queue.
func (r *run) drain(ctx context.Context, rdb redis.UniversalClient, client *queue.Client) {
	ctx, stop := context.WithTimeout(ctx, r.spec.Drain)
	defer stop()
	control := batch.NewControl(client)
	for ctx.Err() == nil {
		p, err := control.Progress(ctx, queueName, batchID)
		if errors.Is(err, batch.ErrNotFound) || err == nil && p.State == batch.Ended { // Redis may have forgotten it
			r.unfed = 0
			break
		}
		if err == nil {
			r.unfed = int(p.Total - p.Read)
		}
		time.Sleep(100 * time.Millisecond)
	}
	b := e2e.NewBacklog(rdb, queueName, false)
	b.Complete()
	b.Wait(ctx, true)
}

// keep writes what happened beside the grants, so that what went wrong can be looked into.
func (r *run) keep() error {
	if r.gateway == nil {
		return nil
	}
	arrivals, err := os.Create(filepath.Join(r.spec.Dir, "arrivals.jsonl"))
	if err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	err = errors.Join(e2e.WriteArrivals(arrivals, r.gateway.Arrivals()), arrivals.Close())
	text, jsonErr := json.MarshalIndent(r.strikes, "", "  ")
	return errors.Join(err, jsonErr, os.WriteFile(filepath.Join(r.spec.Dir, "strikes.json"), text, 0o600))
}

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
	return errors.Join(errs...)
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
