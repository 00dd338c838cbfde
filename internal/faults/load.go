package faults

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// load is what a run enqueues, and under which limits.
type load struct {
	policies      func(phone string, rate int) string // YAML
	otherPolicies func(rate int) string               // for the same types, with lower limits and one more rule
	types         []string                            // of the client's messages, in turns
	perSecond     float64                             // of the client's messages
	batch         int                                 // elements of a batch
	again         bool                                // one batch follows the other
	faults        e2e.Faults                          // of the gateway
}

// loadOf is the load of a run. A little more comes than the provider takes, so that something always waits. On a cluster there are
// slots as well, in a third hash slot; on one server only where they are to hold messages up.
func loadOf(s Spec, cluster bool) load {
	rate := float64(s.Rate)
	refusals := e2e.Faults{TooMany: percent, After: 2 * time.Second, Unavailable: percent, Seed: s.Seed}
	if !s.Fault.Soak {
		if !s.Fault.refuses {
			refusals = e2e.Faults{}
		}
		policies, others := usualPolicies, otherPolicies
		if cluster || s.Fault.bySlots {
			policies, others = slotPolicies, otherSlotPolicies
		}
		return load{
			policies: policies, otherPolicies: others, types: []string{e2e.TaskType},
			perSecond: 0.7 * rate, batch: int(0.4 * rate * s.For.Seconds()), // a good third of all messages
			faults: refusals,
		}
	}
	shut := time.Now().Add(shutAfter).Minute()
	return load{
		policies:      func(phone string, rate int) string { return soakPolicies(phone, rate, shut) },
		otherPolicies: func(rate int) string { return otherSoakPolicies(rate, shut) },
		types:         []string{e2e.TaskType, "mail:send", "push:send", "news:send", "bulk:send", plainType},
		perSecond:     0.35 * rate,
		batch:         int(0.65 * rate * min(s.For, 20*time.Second).Seconds()), again: true, // as many as the client's messages leave room for
		faults: refusals,
	}
}

// percent is a share of the messages that the gateway gets.
const percent e2e.Share = 10_000

// So many phones get a message every four seconds each, at random: some wait for their phone, all for the provider.
const (
	phoneLimit    = "1/2s"
	phonesPerRate = 4
	tenants       = 5
)

func usualPolicies(phone string, rate int) string {
	return fmt.Sprintf(`
rules:
  phone:    {limit: %s, key: $.to}
  provider: {limit: %d/1s, key: =all}
policies:
  sms:send: {rules: [phone, provider]}
`, phone, rate)
}

func otherPolicies(rate int) string {
	return fmt.Sprintf(`
rules:
  phone:    {limit: 1/3s, key: $.to}
  tenant:   {limit: gcra 1000/1s burst 1000, key: =acme}
  provider: {limit: %d/1s, key: =all}
policies:
  sms:send: {rules: [phone, tenant, provider]}
`, lower(rate))
}

func slotPolicies(phone string, rate int) string {
	return fmt.Sprintf(`
rules:
  phone:    {limit: %s, key: $.to}
  provider: {limit: %d/1s, key: =all}
  slots:    {limit: concurrent %d lease 20s, key: =line}
policies:
  sms:send: {rules: [phone, provider, slots]}
`, phone, rate, slotsOf(rate))
}

func otherSlotPolicies(rate int) string {
	return fmt.Sprintf(`
rules:
  phone:    {limit: 1/3s, key: $.to}
  tenant:   {limit: gcra 1000/1s burst 1000, key: =acme}
  provider: {limit: %d/1s, key: =all}
  slots:    {limit: concurrent %d lease 20s, key: =line}
policies:
  sms:send: {rules: [phone, tenant, provider, slots]}
`, lower(rate), slotsOf(rate))
}

// slotsOf is how many messages may be at work at once. All of what the provider takes in a second would be more.
func slotsOf(rate int) int { return max(8, rate/2) }

// lower is a lower limit of the provider.
func lower(rate int) int { return max(1, rate*9/10) }

// plainType is a task type of a soak that has no policy.
const plainType = "plain:send"

func plainPolicy() e2e.Policy {
	return e2e.Policy{Policy: queue.Policy{Type: plainType}, PerRule: true}
}

// One minute in five the gate of a soak is shut, the first time so long after its begin: a short run never meets it shut.
const (
	shutEach  = 5
	shutAfter = 3 * time.Minute
)

// soakRules has a limit of each kind, and a gate that is shut in the minute `shut` and each fifth one after it. Each limit holds
// messages up now and then, and none of them for longer than the provider or the gate does. A lease is longer than any strike.
func soakRules(phone string, rate, provider, shut int) string {
	return fmt.Sprintf(`
rules:
  phone:    {limit: %s, key: $.to}
  tenant:   {limit: gcra %d/1s burst %[2]d, key: $.text}
  minute:   {limit: calendar %d/minute UTC, key: $.text}
  bucket:   {limit: bucket %d/1s burst %d, key: $.text}
  fixed:    {limit: fixed %d/3s, key: $.text}
  warmup:   {limit: warmup %d/1s over 2s cold 3, key: $.text}
  pace:     {limit: leaky %d/1s, key: =all}
  smooth:   {limit: smooth %[8]d/1s burst 5, key: =all}
  hours:    {gate: 'cron "%[9]d-59/%[11]d * * * *" to "%[10]d-59/%[11]d * * * *" UTC'}
  provider: {limit: %[12]d/1s, key: =all}
  slots:    {limit: concurrent %[13]d lease 20s, key: =all}
`, phone, max(1, rate/tenants), max(1, rate*17/25), max(1, rate/50), max(2, rate/25), max(1, rate/16), max(1, rate/20), max(1, rate/5),
		(shut+1)%shutEach, shut%shutEach, shutEach, provider, slotsOf(rate))
}

func soakPolicies(phone string, rate, shut int) string {
	return soakRules(phone, rate, rate, shut) + `
policies:
  sms:send:  {rules: [phone, tenant, provider, slots]}
  mail:send: {rules: [phone, minute, provider, slots]}
  push:send: {rules: [phone, bucket, pace, provider, slots]}
  news:send: {rules: [hours, phone, fixed, provider, slots]}
  bulk:send: {rules: [phone, warmup, smooth, provider, slots]}
`
}

func otherSoakPolicies(rate, shut int) string {
	return soakRules("1/3s", rate, lower(rate), shut) + `
  more:      {limit: gcra 1000/1s burst 1000, key: =acme}
policies:
  sms:send:  {rules: [phone, tenant, more, provider, slots]}
  mail:send: {rules: [phone, minute, more, provider, slots]}
  push:send: {rules: [phone, bucket, pace, provider, slots]}
  news:send: {rules: [hours, phone, fixed, more, provider, slots]}
  bulk:send: {rules: [phone, warmup, smooth, provider, slots]}
`
}

// startBatch starts the next batch.
func (r *run) startBatch(ctx context.Context, client *queue.Client) error {
	n, id := r.load.batch, "load-"+strconv.Itoa(len(r.batches))
	_, err := batch.NewControl(client).Start(ctx, batch.Spec{
		ID: id, Type: e2e.TaskType, Source: source, Args: strconv.Itoa(n), Total: int64(n), Window: max(1, r.spec.Rate),
	})
	if err != nil {
		return err
	}
	r.batches = append(r.batches, id)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range n {
		r.accepted[elementID(id, i)] = time.Time{}
	}
	return nil
}

// feed notes when the elements of a batch are in the queue, until the load ends. Elements that come later have a zero time: nothing
// strikes any more. When all of a batch are there, the next one is started, if there is to be one. A start that fails may have been
// done: it is repeated until it is answered.
func (r *run) feed(load context.Context, client *queue.Client) error {
	control, fed := batch.NewControl(client), 0
	for {
		select {
		case <-load.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		id := r.batches[len(r.batches)-1]
		p, err := control.Progress(load, queueName, id)
		if err != nil {
			continue
		}
		r.mu.Lock()
		for ; fed < int(p.Read); fed++ { // after a failover less may be read than before
			r.accepted[elementID(id, fed)] = time.Now()
		}
		r.mu.Unlock()
		if p.Read < p.Total {
			continue
		}
		if !r.load.again {
			return nil
		}
		fed = 0
		var failed error
		err = r.until(context.WithoutCancel(load), "a batch is started", func() bool {
			failed = r.startBatch(context.WithoutCancel(load), client)
			return failed == nil
		})
		if err != nil {
			return errors.Join(err, failed)
		}
	}
}

// newTask is a message of the client, its type, and which of the [ways] it is enqueued.
type newTask struct {
	kind    string
	message e2e.Message
	way     int
}

// ways are how the client enqueues its messages, in turns: as they are, booked before that, and as unique ones.
var ways = []func(ctx context.Context, client *queue.Client, task *queue.Task, opts ...asynq.Option) error{
	func(ctx context.Context, client *queue.Client, task *queue.Task, opts ...asynq.Option) error {
		_, err := client.Enqueue(ctx, task, opts...)
		return err
	},
	func(ctx context.Context, client *queue.Client, task *queue.Task, opts ...asynq.Option) error {
		_, err := client.Book(ctx, task, opts...)
		return err
	},
	func(ctx context.Context, client *queue.Client, task *queue.Task, opts ...asynq.Option) error {
		_, err := client.Enqueue(ctx, task, append(opts, asynq.Unique(remembers))...)
		return err
	},
}

// enqueue enqueues messages of the client. What fails it tries again under the same id.
func (r *run) enqueue(ctx context.Context, client *queue.Client) {
	random := mathrand.New(mathrand.NewPCG(r.spec.Seed, 2))
	ticker := time.NewTicker(time.Duration(float64(time.Second) / r.load.perSecond))
	defer ticker.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	calls := make(chan newTask, 100*r.spec.Rate)
	defer close(calls)
	for range 20 {
		wg.Go(func() {
			for t := range calls {
				r.accept(ctx, client, t)
			}
		})
	}
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		kind, prefix := r.load.types[i%len(r.load.types)], clientPrefix
		if kind == plainType {
			prefix = plainPrefix
		}
		select {
		case calls <- newTask{kind, newMessage(prefix+strconv.Itoa(i), random.IntN(r.crew.spec.Phones)), i / len(r.load.types) % len(ways)}:
		default: // Redis was away for so long that nobody would have waited
		}
	}
}

// remembers is how long asynq keeps a message that was sent, so that a call whose answer was lost
// is not done again: longer than any strike.
const remembers = 5 * time.Minute

// accept enqueues a message until that is answered, or the load ends.
func (r *run) accept(ctx context.Context, client *queue.Client, t newTask) {
	m := t.message
	payload, err := m.Encode()
	if err != nil {
		panic(err) // it is ours
	}
	for ctx.Err() == nil {
		call, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		err := ways[t.way](call, client, queue.NewTask(t.kind, payload), asynq.TaskID(m.ID), asynq.Retention(remembers))
		stop()
		r.mu.Lock()
		// A conflict is with the message itself: it was accepted, and the answer lost.
		if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask) {
			r.accepted[m.ID] = time.Now()
			r.mu.Unlock()
			return
		}
		r.refused++
		r.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
	}
}
