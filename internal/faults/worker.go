package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/childprocess"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	// workerEnv holds a [workerSpec], and makes a program that calls [Worker] a worker process.
	workerEnv = "HEADWAY_FAULTS_WORKER"

	queueName = "default"
	source    = "messages"    // of the batch
	tick      = "each-second" // the entry of the schedule
)

// workerSpec is all that a worker process is told.
type workerSpec struct {
	Redis    address `json:"redis"`
	Gateway  string  `json:"gateway"`  // URL to POST to
	Policies string  `json:"policies"` // YAML
	Grants   string  `json:"grants"`   // the file to append to
	Secret   []byte  `json:"secret"`   // of the keys in that file
	Phones   int     `json:"phones"`
	Hold     bool    `json:"hold"`     // limits are kept also when Redis forgets grants
	Replicas int     `json:"replicas"` // that must have a grant
	Process  int     `json:"process"`  // its number

	TickLateMax time.Duration `json:"tick_late_max"` // of the schedule

	AnotherRelease bool `json:"another_release"` // it acts as a process of another release

	Vitals    string        `json:"vitals,omitempty"`     // the file to note in what the process needs
	VitalsFor time.Duration `json:"vitals_for,omitempty"` // how long the run lasts
}

// Worker runs a worker process if the environment asks for one, and says whether it did. A
// program that starts runs calls it first of all, and exits with the code.
func Worker() (code int, is bool) {
	text := os.Getenv(workerEnv)
	if text == "" {
		return 0, false
	}
	if err := work(text); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "worker process:", err)
		return 1, true
	}
	return 0, true
}

// workerProcess is what the handlers of a worker process share.
type workerProcess struct {
	spec     workerSpec
	policies []queue.Policy
	types    map[string]taskType
	grants   *e2e.GrantWriter
}

// taskType is how a process sends the messages of a type.
type taskType struct {
	policy  e2e.Policy
	gateway *e2e.GatewayClient
}

// work works until SIGTERM, or until the process that started it is gone.
func work(text string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	childprocess.EndWithStarter()
	p := &workerProcess{}
	if err := json.Unmarshal([]byte(text), &p.spec); err != nil {
		return err
	}
	if p.spec.AnotherRelease {
		luascripts.ActAsAnotherRelease()
	}
	var err error
	if err = p.readTypes(); err != nil {
		return err
	}
	if p.grants, err = e2e.OpenGrants(p.spec.Grants); err != nil {
		return err
	}
	rdb := p.spec.Redis.client()
	defer rdb.Close()
	log, err := zap.NewProduction()
	if err != nil {
		return err
	}
	pool, err := worker.New(rdb, asynq.HandlerFunc(p.send), worker.Config{
		Asynq: asynq.Config{
			Concurrency:    10,
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second }, // what died comes back soon
		},
		Policies: p.policies, WaitForRedis: true, Logger: log,
		Throttle: throttle.Config{HoldAfterFailover: p.spec.Hold, Replicas: p.spec.Replicas},
	})
	if err != nil {
		return err
	}
	if err := pool.Start(ctx); err != nil {
		return err
	}
	childprocess.Ready()
	var vitals sync.WaitGroup
	if p.spec.Vitals != "" {
		vitals.Go(func() { p.noteVitals(ctx, rdb) })
	}
	err = p.feedAndTick(ctx, rdb, log)
	pool.Shutdown()
	vitals.Wait()
	return err
}

// readTypes reads the policies, and adds the type without one.
func (p *workerProcess) readTypes() error {
	all, err := readPolicies(p.spec.Policies)
	if err != nil {
		return err
	}
	p.types = map[string]taskType{}
	for _, policy := range append(all, plainPolicy()) {
		gateway, err := e2e.NewGatewayClient(p.spec.Gateway+policy.Type, 0)
		if err != nil {
			return err
		}
		gateway.Sender = p.spec.Process
		p.types[policy.Type] = taskType{policy, gateway}
		if policy.Type != plainType {
			p.policies = append(p.policies, policy.Policy)
		}
	}
	return nil
}

// feedAndTick feeds the batch and ticks the schedule until ctx ends.
func (p *workerProcess) feedAndTick(ctx context.Context, rdb redis.UniversalClient, log *zap.Logger) error {
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: p.policies})
	if err != nil {
		return err
	}
	feeder, err := batch.NewFeeder(client, batch.FeederConfig{
		Queues: []string{queueName}, Sources: map[string]batch.Source{source: batch.Seq(p.elements)}, Logger: log,
	})
	if err != nil {
		return err
	}
	each := schedule.Entry{Name: tick, Spec: "@every 1s", LateMax: p.spec.TickLateMax, TaskFunc: p.tickTask}
	ticks, err := schedule.New(client, schedule.Config{Logger: log}, each)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var feeding, ticking error
	wg.Go(func() { feeding = feeder.Run(ctx) })
	wg.Go(func() { ticking = ticks.Run(ctx) })
	wg.Wait()
	return errors.Join(feeding, ticking)
}

// elements are those of a batch whose Args say how many.
func (p *workerProcess) elements(b batch.Spec) iter.Seq[batch.Element] {
	return func(yield func(batch.Element) bool) {
		n, _ := strconv.Atoi(b.Args)
		random := rand.New(rand.NewPCG(1, 2)) // each feeder yields the same
		for i := range n {
			m := newMessage(elementID(b.ID, i), random.IntN(p.spec.Phones))
			payload, err := m.Encode()
			if err != nil || !yield(batch.Element{ID: m.ID, Payload: payload}) {
				return
			}
		}
	}
}

func (p *workerProcess) tickTask(_ context.Context, at time.Time) (*queue.Task, error) {
	m := newMessage(tickPrefix+strconv.FormatInt(at.Unix(), 10), int(at.Unix())%p.spec.Phones)
	payload, err := m.Encode()
	return queue.NewTask(e2e.TaskType, payload), err
}

// send is the handler of a message.
func (p *workerProcess) send(ctx context.Context, task *asynq.Task) error {
	m, err := e2e.DecodeMessage(task.Payload())
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	t := p.types[task.Type()]
	if task.Type() == plainType {
		return t.gateway.Send(ctx, m, rightClock().UnixMicro())
	}
	d, ok := worker.GrantFrom(ctx)
	if !ok {
		return fmt.Errorf("no grant: %w", asynq.SkipRetry)
	}
	g, err := t.policy.GrantOf(m, task.Payload(), p.spec.Secret, d.Token.String(), d.Promised, d.At)
	if err != nil {
		return err
	}
	if err := p.grants.Write(g); err != nil { // before it is used: a process that dies has shown it
		return err
	}
	err = t.gateway.Send(ctx, m, g.GrantedUs)
	if later, ok := errors.AsType[*e2e.RetryLaterError](err); ok {
		return worker.RetryAfter(err, later.After)
	}
	return err
}

// How late a tick may be. Redis may be away for a minute and more, and no tick is to be missed for that. After a jump of
// the clock for good, all ticks of so long come at once.
const (
	tickLateMax          = 5 * time.Minute
	tickLateMaxAfterJump = 10 * time.Second
)

// What the ids of messages begin with says where they come from.
const (
	clientPrefix = "c"
	batchPrefix  = "b"
	tickPrefix   = "t"
	plainPrefix  = "p" // of the client, without a policy
)

func elementID(batch string, n int) string { return batchPrefix + batch + "-" + strconv.Itoa(n) }

// newMessage is a message to a phone. Its text names the tenant that sends it.
func newMessage(id string, phone int) e2e.Message {
	return e2e.Message{ID: id, To: fmt.Sprintf("+49151%07d", phone), Text: fmt.Sprintf("tenant-%d", phone%tenants)}
}

// readPolicies reads the policies of a run, whose grants say what each rule was charged.
func readPolicies(text string) ([]e2e.Policy, error) {
	all, err := queue.ReadPolicies("policies of the run", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	var policies []e2e.Policy
	for _, p := range all {
		policies = append(policies, e2e.Policy{Policy: p, PerRule: true})
	}
	return policies, nil
}
