package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/childprocess"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// crew is the worker processes of one test, and the file that they record to.
// It is used by the test's own goroutine.
type crew struct {
	tb    testing.TB
	dir   string
	spec  workerSpec
	lives []*life
}

// life is one worker process, from its start to its end.
type life struct {
	*childprocess.Process
	tb     testing.TB
	number int
	log    string
	killed bool
}

func newCrew(tb testing.TB, spec workerSpec) *crew {
	tb.Helper()
	c := &crew{tb: tb, dir: tb.ArtifactDir(), spec: spec}
	c.spec.Records = filepath.Join(c.dir, "records.jsonl")
	tb.Cleanup(c.clear)
	return c
}

// start starts n worker processes and returns when they work.
func (c *crew) start(n int) []*life {
	c.tb.Helper()
	started := make([]*life, n)
	for i := range started {
		started[i] = c.launch()
	}
	return started
}

// launch starts one worker process and waits until it works.
func (c *crew) launch() *life {
	c.tb.Helper()
	l := &life{tb: c.tb, number: len(c.lives) + 1}
	l.log = filepath.Join(c.dir, fmt.Sprintf("worker-%d.log", l.number))
	spec := c.spec
	spec.Life = l.number
	text, err := json.Marshal(spec)
	if err != nil {
		c.tb.Fatal(err)
	}
	if l.Process, err = childprocess.Start(workerEnv, string(text), l.log); err != nil {
		c.tb.Fatalf("worker process %d: %v", l.number, err)
	}
	c.lives = append(c.lives, l)
	return l
}

// kill ends the process as a crash would.
func (l *life) kill() {
	l.killed = true
	l.Kill()
}

// freeze stops the process where it stands, until resume.
func (l *life) freeze() {
	l.tb.Helper()
	l.signal(syscall.SIGSTOP)
}

func (l *life) resume() {
	l.tb.Helper()
	l.signal(syscall.SIGCONT)
}

func (l *life) signal(sig syscall.Signal) {
	l.tb.Helper()
	if err := l.Signal(sig); err != nil {
		l.tb.Fatalf("worker process %d: %v: %v", l.number, sig, err)
	}
}

// end lets the process shut down gracefully.
func (l *life) end() {
	l.tb.Helper()
	if l.Over() {
		return
	}
	if err := l.Stop(); err != nil {
		l.tb.Errorf("worker process %d: %v", l.number, err)
	}
}

// lines is how many lines the process has logged.
func (l *life) lines() int {
	text, err := os.ReadFile(l.log)
	if err != nil {
		l.tb.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

// end shuts all processes down that still run.
func (c *crew) end() {
	c.tb.Helper()
	for _, l := range c.lives {
		l.end()
	}
}

// clear ends what a failed test left, and shows what it logged.
func (c *crew) clear() {
	for _, l := range c.lives {
		if !l.Over() {
			l.kill() // frozen ones too
		}
		if c.tb.Failed() {
			c.tb.Logf("worker process %d logged last:\n%s", l.number, l.Tail())
		}
	}
}

// records is what all processes have written so far.
func (c *crew) records() []record {
	c.tb.Helper()
	all, err := readRecords(c.spec.Records)
	if err != nil {
		c.tb.Fatal(err)
	}
	return all
}

// life returns a process by its number.
func (c *crew) life(number int) *life { return c.lives[number-1] }

const (
	// workerEnv holds a [workerSpec] and makes the test binary a worker process.
	workerEnv = "HEADWAY_TEST_WORKER"

	typeSMS   = "sms:send"
	typeOther = "other" // has no rule
	ruleSMS   = "sms"
)

// workerSpec is all that a worker process is told.
type workerSpec struct {
	Redis       redisAddr     `json:"redis"`
	Gateway     string        `json:"gateway"`  // URL to POST to, or "" to send nothing
	Policies    string        `json:"policies"` // YAML
	Concurrency int           `json:"concurrency"`
	Servers     int           `json:"servers"`
	Takes       time.Duration `json:"takes"`   // how long a handler takes beside the POST
	Records     string        `json:"records"` // the file to append to
	Phones      int           `json:"phones"`  // of the batches that it feeds; 0 for a process that works, and feeds none
	Life        int           `json:"life"`
}

// redisAddr is how to reach a Redis.
type redisAddr struct {
	Addr, Username, Password string
	DB                       int
}

func (a redisAddr) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: a.Addr, Username: a.Username, Password: a.Password, DB: a.DB})
}

// smsPolicy counts messages by the phone that they go to.
func smsPolicy(limit throttle.Limit) queue.Policy {
	return queue.Policy{Type: typeSMS, Rules: []queue.Rule{{Name: ruleSMS, Limit: limit, Key: queue.MustJSONKey("$.to")}}}
}

// workerProcess is what the handlers of a worker process share.
type workerProcess struct {
	spec workerSpec
	out  *recorder
	http *http.Client
}

// runWorker is a whole worker process: it works until SIGTERM, and returns its
// exit code. It ends with the process that started it.
func runWorker(text string) int {
	if err := work(text); err != nil {
		fmt.Fprintln(os.Stderr, "worker process:", err)
		return 1
	}
	return 0
}

func work(text string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	childprocess.EndWithStarter()
	p := &workerProcess{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 10 * time.Second}}
	if err := json.Unmarshal([]byte(text), &p.spec); err != nil {
		return err
	}
	policies, err := queue.ReadPolicies("spec", strings.NewReader(p.spec.Policies))
	if err != nil {
		return err
	}
	if p.out, err = openRecorder(p.spec.Records, p.spec.Life); err != nil {
		return err
	}
	logged := zap.NewProductionConfig()
	logged.Sampling = nil // the lines are counted
	log, err := logged.Build(zap.WithCaller(false))
	if err != nil {
		return err
	}
	rdb := p.spec.Redis.client()
	defer rdb.Close()
	if p.spec.Phones > 0 {
		return p.feed(ctx, rdb, policies, log)
	}
	rdb.AddHook(ackHook{p.out})
	mux := asynq.NewServeMux()
	mux.HandleFunc(typeSMS, p.send)
	mux.HandleFunc(typeOther, p.other)
	pool, err := worker.New(rdb, mux, worker.Config{
		Asynq: asynq.Config{
			Concurrency: p.spec.Concurrency,
			// what asynq recovers of a killed process is to come back soon
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second },
		},
		Servers: p.spec.Servers, Policies: policies, Logger: log, Observer: p.out.observer(),
	})
	if err != nil {
		return err
	}
	if err := pool.Start(ctx); err != nil {
		return err
	}
	childprocess.Ready()
	<-ctx.Done()
	pool.Shutdown()
	s := pool.Stats()
	p.out.write(record{Kind: kindStats, Stats: &s})
	return nil
}

// send is the handler of a message.
func (p *workerProcess) send(ctx context.Context, task *asynq.Task) error {
	start := time.Now().UnixMicro()
	d, ok := worker.GrantFrom(ctx)
	if !ok {
		return fmt.Errorf("no grant: %w", asynq.SkipRetry)
	}
	var m message
	if err := json.Unmarshal(task.Payload(), &m); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	p.out.write(record{
		Kind: kindStart, Wrote: start, Task: m.ID, To: m.To,
		At: micros(d.At), From: micros(d.From), Promised: micros(d.Promised),
	})
	if err := p.post(ctx, m, d); err != nil {
		return err
	}
	if err := p.busy(ctx); err != nil {
		p.out.write(record{Kind: kindLost, Task: m.ID, To: m.To})
		return err
	}
	p.out.write(record{Kind: kindDone, Task: m.ID, To: m.To})
	return nil
}

func (p *workerProcess) post(ctx context.Context, m message, d throttle.Decision) error {
	if p.spec.Gateway == "" {
		return nil
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.spec.Gateway, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(e2e.SenderHeader, strconv.Itoa(p.spec.Life))
	req.Header.Set(e2e.GrantedHeader, strconv.FormatInt(micros(d.At), 10))
	res, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode == http.StatusAccepted {
		return nil
	}
	err = fmt.Errorf("gateway: %s", res.Status)
	if d, ok := worker.RetryAfterFrom(res, 0); ok {
		return worker.RetryAfter(err, d)
	}
	return err
}

// busy takes its time, unless the lease of the task is lost meanwhile.
func (p *workerProcess) busy(ctx context.Context) error {
	if p.spec.Takes == 0 {
		return nil
	}
	timer := time.NewTimer(p.spec.Takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// other is the handler of a task without a rule.
func (p *workerProcess) other(context.Context, *asynq.Task) error {
	time.Sleep(p.spec.Takes)
	p.out.write(record{Kind: kindOther})
	return nil
}

// ackHook records when Redis has taken a finished task out of asynq's active
// list: from then on nobody will run it again.
type ackHook struct{ out *recorder }

func (ackHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (ackHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h ackHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if id, ok := finishes(cmd.Args()); ok && err == nil {
			h.out.write(record{Kind: kindAcked, Task: id})
		}
		return err
	}
}

// finishes says whether a command is asynq's "done", and of which task: its
// keys are active, lease, the task and the counter of the day.
func finishes(args []any) (id string, ok bool) {
	if len(args) < 7 {
		return "", false
	}
	key := func(i int) string { s, _ := args[3+i].(string); return s }
	_, id, ok = strings.Cut(key(2), "}:t:")
	return id, ok && strings.HasSuffix(key(0), ":active") && strings.Contains(key(3), ":processed:")
}

// sourceMessages is the source of numbered messages to phones in turns, as
// [testbed.write] writes them; its Args say how many.
const sourceMessages = "messages"

// feed is a whole process that feeds batches. Each half second it records what memory
// it has had at most.
func (p *workerProcess) feed(ctx context.Context, rdb redis.UniversalClient, policies []queue.Policy, log *zap.Logger) error {
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		return err
	}
	feeder, err := batch.NewFeeder(client, batch.FeederConfig{
		Queues: []string{defaultQueue}, Sources: map[string]batch.Source{sourceMessages: batch.Seq(p.elements)}, Logger: log,
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- feeder.Run(ctx) }()
	childprocess.Ready()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		resident, err := residentMost()
		if err != nil {
			return err
		}
		p.out.write(record{Kind: kindMemory, Bytes: resident})
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
	}
}

func (p *workerProcess) elements(b batch.Spec) iter.Seq[batch.Element] {
	return func(yield func(batch.Element) bool) {
		n, _ := strconv.Atoi(b.Args)
		for i := range n {
			m := numbered(i, p.spec.Phones)
			body, err := json.Marshal(m)
			if err != nil {
				panic(err)
			}
			if !yield(batch.Element{ID: m.ID, Payload: body}) {
				return
			}
		}
	}
}

// numbered is the i-th message of all, to phones in turns.
func numbered(i, phones int) message { return newMessage(messageID(i), phone(i%phones)) }

// residentMost is the most memory that this process has had.
func residentMost() (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/self/status")
}
