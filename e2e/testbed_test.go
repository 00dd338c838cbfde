package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// defaultQueue is the only queue of these tests.
const defaultQueue = "default"

// throttleDefaults is what an empty throttle.Config means.
var throttleDefaults = throttle.ForWorkers.FillConfig(throttle.Config{})

// testbed is what an end-to-end test runs on: a Redis, a gateway, and a crew of
// worker processes in between.
type testbed struct {
	testing.TB
	server  *redistest.Server
	rdb     *redis.Client
	policy  queue.Policy
	rules   map[string]*throttle.Limiter // the limits among the rules, by name
	gateway gateway
	crew    *crew
	client  *queue.Client
	tasks   *asynq.Inspector

	limit   throttle.Limit // of a testbed with one rule
	limiter *throttle.Limiter

	sent     int                // messages enqueued
	phones   map[string]string  // by message id
	messages map[string]message // the same, whole
	tenants  int                // who send them, in turns; 0 for nobody
}

// newTestbed sets a testbed up whose messages are counted by the phone that they go
// to; the processes are started by the test. spec needs no more than what differs
// from one server with four workers.
func newTestbed(tb testing.TB, limit string, spec workerSpec, opts ...redistest.Option) *testbed {
	tb.Helper()
	s := newPolicyTestbed(tb, []string{ruleSMS + ": {limit: " + limit + ", key: $.to}"}, spec, opts...)
	s.limiter = s.rules[ruleSMS]
	s.limit = s.limiter.Limit()
	return s
}

// newPolicyTestbed is newTestbed with several rules, narrowest key first, each a line
// as in a policy file.
func newPolicyTestbed(tb testing.TB, rules []string, spec workerSpec, opts ...redistest.Option) *testbed {
	tb.Helper()
	server := redistest.Start(tb, opts...)
	s := &testbed{
		TB: tb, server: server, rdb: server.Client(tb), gateway: newGateway(tb),
		rules: make(map[string]*throttle.Limiter), phones: make(map[string]string), messages: make(map[string]message),
	}
	spec.Policies = policyFile(typeSMS, rules)
	policies, err := queue.ReadPolicies("spec", strings.NewReader(spec.Policies))
	if err != nil {
		tb.Fatal(err)
	}
	s.policy = policies[0]
	if s.client, err = queue.NewClient(s.rdb, queue.ClientConfig{Policies: policies}); err != nil {
		tb.Fatal(err)
	}
	for _, r := range s.policy.Rules {
		if r.Gate != (gate.Gate{}) {
			continue
		}
		if s.rules[r.Name], err = throttle.New(s.rdb, r.Name, r.Limit, throttle.Config{}); err != nil {
			tb.Fatal(err)
		}
	}
	s.tasks = asynq.NewInspectorFromRedisClient(s.rdb)
	o := server.ClientOptions()
	spec.Redis = redisAddr{Addr: o.Addr, Username: o.Username, Password: o.Password, DB: o.DB}
	spec.Gateway = s.gateway.URL()
	if spec.Concurrency == 0 {
		spec.Concurrency = 4
	}
	if spec.Servers == 0 {
		spec.Servers = 1
	}
	s.crew = newCrew(tb, spec)
	return s
}

// message is an SMS: the payload of a task, and what is sent to the gateway.
type message struct {
	e2e.Message
	Tenant string `json:"tenant,omitempty"`
}

func newMessage(id, to string) message {
	return message{Message: e2e.Message{ID: id, To: to, Text: "."}}
}

// gateway is the provider at the end of the way. It takes everything, but for
// phones that it closes.
type gateway struct{ *e2e.Gateway }

func newGateway(tb testing.TB) gateway {
	tb.Helper()
	g, err := e2e.StartGateway(tb.Context(), e2e.Policy{}, e2e.Faults{}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = g.Shutdown(ctx)
	})
	return gateway{g}
}

// keyOf is the key of a phone in the gateway's log.
func keyOf(to string) string { return e2e.PhoneKey(nil, to) }

// since is how many messages arrived after t.
func (g gateway) since(t time.Time) int {
	from := t.UnixMicro()
	return g.Count(func(a *e2e.Arrival) bool { return a.ArrivedUs > from })
}

// sentTo is how many messages to a phone were taken.
func (g gateway) sentTo(to string) int {
	key := keyOf(to)
	return g.Count(func(a *e2e.Arrival) bool { return a.Key == key })
}

// policyFile is a policy file with one policy, of all rules.
func policyFile(typ string, rules []string) string {
	var names []string
	for _, r := range rules {
		name, _, _ := strings.Cut(r, ":")
		names = append(names, name)
	}
	return fmt.Sprintf("rules:\n  %s\npolicies:\n  %s: {rules: [%s]}\n", strings.Join(rules, "\n  "), typ, strings.Join(names, ", "))
}

// phone is the n-th phone number.
func phone(n int) string { return fmt.Sprintf("+86139%08d", n) }

// enqueue enqueues n messages to the given number of phones, in turns.
func (s *testbed) enqueue(n, phones int) {
	s.Helper()
	if err := s.send(s.write(n, phones)); err != nil {
		s.Fatal(err)
	}
}

// enqueuePaced enqueues n messages to one phone, one every pace. Between the
// fetch of a message and its booking a process may lose its processor; how many
// others book meanwhile depends on how fast they come.
func (s *testbed) enqueuePaced(n int, pace time.Duration) {
	s.Helper()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for range n {
		<-tick.C
		s.enqueue(1, 1)
	}
}

// write makes n more messages to the given number of phones, in turns. They
// count as sent from now on.
func (s *testbed) write(n, phones int) []message {
	messages := make([]message, n)
	for i := range messages {
		messages[i] = s.message(phone(i % phones))
	}
	return messages
}

func messageID(n int) string { return fmt.Sprintf("m%05d", n) }

// message makes one more message. Ids count up.
func (s *testbed) message(to string) message {
	m := newMessage(messageID(s.sent), to)
	if s.tenants > 0 {
		m.Tenant = fmt.Sprintf("tenant-%d", s.sent%s.tenants)
	}
	s.phones[m.ID], s.messages[m.ID] = to, m
	s.sent++
	return m
}

// send enqueues messages, again and again while Redis is away. It may run
// beside the test.
func (s *testbed) send(messages []message) error {
	for _, m := range messages {
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		task := queue.NewTask(typeSMS, body, asynq.TaskID(m.ID))
		poll(s.Context(), 30*time.Second, func() bool {
			_, err = s.client.Enqueue(s.Context(), task)
			if errors.Is(err, asynq.ErrTaskIDConflict) {
				err = nil // the one before was taken, and its answer lost
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eventually waits until cond holds.
func (s *testbed) eventually(within time.Duration, what string, cond func() bool) {
	s.Helper()
	if !poll(s.Context(), within, cond) {
		s.Fatalf("not within %v: %s; %s", within, what, s.where())
	}
}

// poll asks cond until it holds, or time is over.
func poll(ctx context.Context, within time.Duration, cond func() bool) bool {
	end := time.NewTimer(within)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return false
		case <-end.C:
			return cond()
		case <-tick.C:
		}
	}
	return true
}

// allSent waits until every message arrived, and ends the processes.
func (s *testbed) allSent(within time.Duration) {
	s.Helper()
	s.eventually(within, "every message is sent", func() bool { return s.gateway.Answered() == s.sent })
	s.crew.end()
}

// where says where the tasks are, for a test that fails.
func (s *testbed) where() string {
	q, err := s.tasks.GetQueueInfo(defaultQueue)
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%d of %d messages arrived, tasks: %d pending, %d active, %d scheduled, %d retry, %d archived",
		s.gateway.Answered(), s.sent, q.Pending, q.Active, q.Scheduled, q.Retry, q.Archived)
	archived, err := s.tasks.ListArchivedTasks(defaultQueue)
	for _, task := range archived[:min(len(archived), maxFaults)] {
		text += fmt.Sprintf("; %s archived: %s", task.ID, task.LastErr)
	}
	if err != nil {
		text += "; " + err.Error()
	}
	return text
}

// queueInfo is asynq's own view of the queue. It answers false while Redis is
// away.
func (s *testbed) queueInfo() (*asynq.QueueInfo, bool) {
	q, err := s.tasks.GetQueueInfo(defaultQueue)
	return q, err == nil
}

// settled waits until no task waits for anything but the recovery of what the
// ended processes had: at most `running` tasks are active.
func (s *testbed) settled(within time.Duration, running int) {
	s.Helper()
	var since time.Time
	s.eventually(within, fmt.Sprintf("nothing waits, and at most %d tasks are active", running), func() bool {
		q, ok := s.queueInfo()
		if !ok || q.Pending+q.Retry+q.Scheduled != 0 || q.Active > running {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) > 4*throttleDefaults.InlineWait // a task that waits for its instant in its slot is not through
	})
}

// missing are the messages that have not arrived and that asynq has to recover:
// they are active. One that a shutdown handed back waits for the next process
// and is not missing; one that is nowhere is lost.
func (s *testbed) missing() []string {
	s.Helper()
	arrived := make(map[string]bool)
	for _, a := range s.gateway.Arrivals() {
		arrived[a.ID] = true
	}
	active, err := s.rdb.LRange(s.Context(), "asynq:{"+defaultQueue+"}:active", 0, -1).Result()
	if err != nil {
		s.Fatal(err)
	}
	held := make(map[string]bool)
	for _, id := range active {
		held[id] = true
	}
	var out []string
	for id := range s.phones {
		switch {
		case arrived[id]:
		case held[id]:
			out = append(out, id)
		case !s.waits(id):
			s.Errorf("message %s is lost: it did not arrive, it does not wait, and asynq will not recover it", id)
		}
	}
	return out
}

// waits says whether the next process will find a message.
func (s *testbed) waits(id string) bool {
	info, err := s.tasks.GetTaskInfo(defaultQueue, id)
	return err == nil && (info.State == asynq.TaskStatePending || info.State == asynq.TaskStateRetry)
}

// TestMain makes the test binary two programs: with [workerEnv] set it is a
// worker process of the end-to-end tests, which can be killed and frozen as a
// process; otherwise it runs the tests.
func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		os.Exit(runWorker(text))
	}
	goleak.VerifyTestMain(m)
}
