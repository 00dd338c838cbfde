package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

const (
	// workerEnv holds a [workerSpec] and makes the test binary a worker process.
	workerEnv = "HEADWAY_TEST_WORKER"

	typeSMS   = "sms:send"
	typeOther = "other" // has no rule
	ruleSMS   = "sms"
	readyLine = "ready"
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
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // whoever started us is gone
	}()
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
		Servers: p.spec.Servers, Policies: policies, Logger: log, Observer: p.out,
	})
	if err != nil {
		return err
	}
	if err := pool.Start(ctx); err != nil {
		return err
	}
	fmt.Println(readyLine)
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
	m.Life, m.Granted = p.spec.Life, micros(d.At)
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.spec.Gateway, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
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
