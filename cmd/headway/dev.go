package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/headwayq/headway/dashboard"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/metrics"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// devPolicies are the rules of the demonstration.
const devPolicies = `rules:
  phone:       {limit: 1/10s, key: $.to}
  provider:    {limit: gcra 20/1s burst 20, key: =acme}
  connections: {limit: concurrent 3 lease 5s, key: =acme}
policies:
  sms:send: {rules: [phone, provider, connections]}
`

const (
	devEvery   = 250 * time.Millisecond // a message comes so often
	devWaits   = 100                    // none comes while more wait
	devBatch   = 150                    // messages of a batch
	devTakes   = 100 * time.Millisecond // the gateway works on each so long
	devCleanup = 10 * time.Second
)

func devCommand(a *app) *cobra.Command {
	listen := "127.0.0.1:8411"
	c := &cobra.Command{
		Use: "dev", Short: "a demonstration: a Redis, tasks that wait for their limits, the dashboard and Prometheus' text", Args: cobra.NoArgs,
		Long: `dev shows Headway at work until Ctrl-C: an embedded Redis, a pool, messages that wait for the limit
of their phone, batches, a gateway that sends nothing, and the dashboard with /metrics for Prometheus.

With --redis or --url it uses that server, with keys and a queue of its own, which it deletes at
the end. It does not look at the environment for one.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := loopback(listen)
			if err != nil {
				return err
			}
			given := func(flag string) bool { return cmd.Flags().Changed(flag) } // the environment may be that of another application
			if a.watch != 0 || a.output.format != "table" || slices.ContainsFunc([]string{"policy", "prefix", "queue", "secret-file"}, given) {
				return badUsage("dev has no --watch, --output, --policy, --prefix, --queue and --secret-file")
			}
			rdb, name, err := devRedis(a, cmd)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return fmt.Errorf("dev: %w", err)
			}
			d, err := startDemo(cmd.Context(), rdb, name, e2e.NewLogger(a.stderr))
			if err != nil {
				return errors.Join(err, l.Close())
			}
			board, err := d.handler(dashboard.Config{AllowWrites: a.write, ShowKeys: a.showKeys, Who: func(*http.Request) string { return a.name() }})
			if err == nil {
				d.announce(a.stdout, l.Addr())
				err = serve(cmd.Context(), l, board)
			} else {
				err = errors.Join(err, l.Close())
			}
			return errors.Join(err, d.close())
		},
	}
	c.Flags().StringVar(&listen, "listen", listen, "`ADDRESS` of this machine; port 0 takes a free one")
	return c
}

// devRedis is an embedded Redis, or the one of the flags with a name for what the
// demonstration writes there.
func devRedis(a *app, cmd *cobra.Command) (rdb *redis.Client, name string, err error) {
	if !cmd.Flags().Changed("redis") && !cmd.Flags().Changed("url") {
		rdb, stop, err := e2e.OpenRedis(nil)
		a.stop = stop
		return rdb, "", err
	}
	given, err := a.open()
	if err != nil {
		return nil, "", err
	}
	rdb, single := given.(*redis.Client)
	if !single {
		return nil, "", badUsage("dev needs a single Redis server, and no cluster")
	}
	if err := rdb.Ping(cmd.Context()).Err(); err != nil {
		return nil, "", errAway(err)
	}
	return rdb, "headway-dev-" + strings.ToLower(rand.Text()[:8]), nil
}

// demo is the demonstration at work.
type demo struct {
	rdb     *redis.Client
	name    string // of its queue and its keys on a server that is not embedded
	cfg     throttle.Config
	queue   string
	policy  e2e.Policy
	gateway *e2e.Gateway
	client  *e2e.GatewayClient
	pool    *worker.Pool
	metrics *prometheus.Registry

	inspector *inspect.Inspector
	stopLoad  func() // and waits for its end
	stopPool  func()
}

// startDemo starts a gateway, a pool and the load.
func startDemo(ctx context.Context, rdb *redis.Client, name string, log *zap.Logger) (*demo, error) {
	d := &demo{rdb: rdb, name: name, cfg: throttle.Config{Prefix: name}, queue: name, metrics: prometheus.NewRegistry(), stopLoad: func() {}, stopPool: func() {}}
	if name == "" {
		d.queue = "default"
	}
	all, err := queue.ReadPolicies("demonstration", strings.NewReader(devPolicies))
	if err != nil {
		return nil, err
	}
	d.policy = e2e.Policy{Policy: all[0], PerRule: true}
	if err := d.start(ctx, all, log); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *demo) start(ctx context.Context, policies []queue.Policy, log *zap.Logger) (err error) {
	m, err := metrics.New(d.metrics)
	if err != nil {
		return err
	}
	d.rdb.AddHook(m.Hook())
	if d.inspector, err = inspect.New(d.rdb, inspect.Config{Policies: policies, Throttle: d.cfg}); err != nil {
		return err
	}
	if err := metrics.RegisterQueues(d.metrics, d.inspector); err != nil {
		return err
	}
	if d.gateway, err = e2e.StartGateway(ctx, d.policy, e2e.Faults{}, []byte(rand.Text())); err != nil {
		return err
	}
	d.gateway.SetTakes(devTakes)
	if d.client, err = e2e.NewGatewayClient(d.gateway.URL(), 0); err != nil {
		return err
	}
	d.pool, err = worker.New(d.rdb, asynq.HandlerFunc(d.send), worker.Config{
		Asynq:    asynq.Config{Concurrency: 10, Queues: map[string]int{d.queue: 1}, ShutdownTimeout: e2e.GatewayTimeoutDefault + time.Second},
		Policies: policies, Throttle: d.cfg, Logger: log, Observer: m.Observer(),
	})
	if err == nil {
		err = d.pool.Start(context.WithoutCancel(ctx)) // it ends after the load
	}
	if err != nil {
		return err
	}
	d.stopPool = sync.OnceFunc(d.pool.Shutdown)
	return d.startLoad(ctx, policies, log)
}

// send is the handler of a task: it posts the message to the gateway.
func (d *demo) send(ctx context.Context, task *asynq.Task) error {
	m, err := e2e.DecodeMessage(task.Payload())
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	grant, _ := worker.GrantFrom(ctx)
	return d.client.Send(ctx, m, grant.At.UnixMicro())
}

// startLoad enqueues messages now and then, and feeds one batch after the other.
func (d *demo) startLoad(ctx context.Context, policies []queue.Policy, log *zap.Logger) error {
	client, err := queue.NewClient(d.rdb, queue.ClientConfig{Policies: policies, Throttle: d.cfg})
	if err != nil {
		return err
	}
	feeder, err := batch.NewFeeder(client, batch.FeederConfig{
		Queues: []string{d.queue}, Sources: map[string]batch.Source{"newsletter": batch.Seq(newsletter)}, Logger: log,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = feeder.Run(ctx) })
	running.Go(func() { d.enqueue(ctx, client) })
	d.stopLoad = func() {
		stop()
		running.Wait()
	}
	return nil
}

// enqueue enqueues until ctx ends. What fails is tried again with the next message.
func (d *demo) enqueue(ctx context.Context, client *queue.Client) {
	batches, samples := batch.NewControl(client), e2e.Sample()
	tick := time.NewTicker(devEvery)
	defer tick.Stop()
	letter := 0
	for {
		if p, err := batches.Progress(ctx, d.queue, letterID(letter)); letter == 0 || err == nil && p.State != batch.Running {
			spec := batch.Spec{
				ID: letterID(letter + 1), Name: "newsletter", Queue: d.queue, Type: e2e.TaskType, Source: "newsletter", Total: devBatch, Window: devWaits / 2,
			}
			if _, err := batches.Start(ctx, spec); err == nil {
				letter++
			}
		}
		if left, err := d.inspector.Left(ctx, d.queue); err == nil && left < devWaits {
			msgs := samples[mathrand.IntN(len(samples)):][:1:1] // #nosec G404: any will do
			e2e.SetRandomIDs(msgs)
			if payload, err := msgs[0].Encode(); err == nil {
				_, _ = client.Enqueue(ctx, queue.NewTask(e2e.TaskType, payload, asynq.Queue(d.queue), asynq.TaskID(msgs[0].ID)))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func letterID(n int) string { return fmt.Sprintf("letter-%d", n) }

// newsletter has messages to numbers that belong to nobody. The sample has none of them: its
// messages keep the lines of its phones long, and elements that wait there would hold up the batch.
func newsletter(spec batch.Spec) iter.Seq[batch.Element] {
	return func(yield func(batch.Element) bool) {
		for i := range devBatch {
			m := e2e.Message{ID: fmt.Sprintf("%s-%d", spec.ID, i), To: fmt.Sprintf("+1303555%04d", 100+i%100), Text: "The news of today."}
			payload, err := m.Encode()
			if err != nil || !yield(batch.Element{Payload: payload}) {
				return
			}
		}
	}
}

// handler is the dashboard, and beside it Prometheus' text.
func (d *demo) handler(cfg dashboard.Config) (http.Handler, error) {
	cfg.Policies, cfg.Throttle = []queue.Policy{d.policy.Policy}, d.cfg
	board, err := dashboard.New(d.rdb, cfg)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", board)
	mux.Handle("/metrics", promhttp.HandlerFor(d.metrics, promhttp.HandlerOpts{}))
	return mux, nil
}

// announce says where everything is.
func (d *demo) announce(w io.Writer, addr net.Addr) {
	redisAddr, how := d.rdb.Options().Addr, "embedded"
	flags := "--redis " + redisAddr
	if d.rdb.Options().Network == "unix" {
		flags = "--url unix://" + redisAddr
	}
	if d.name != "" {
		how = "as " + d.name
		flags += " --prefix " + d.name + " --queue " + d.name
	}
	_, _ = fmt.Fprintf(w, "dashboard  http://%s/\nmetrics    http://%s/metrics\n", addr, addr)
	_, _ = fmt.Fprintf(w, "Redis      %s, %s\ntry        headway %s status\n", redisAddr, how, flags)
	for line := range strings.Lines(devPolicies) {
		_, _ = fmt.Fprintf(w, "           %s", line)
	}
	_, _ = fmt.Fprintln(w, "Ctrl-C ends it")
}

// close ends the load, then what runs, and deletes what was written to a server that goes on.
func (d *demo) close() error {
	d.stopLoad()
	d.stopPool()
	ctx, cancel := context.WithTimeout(context.Background(), devCleanup)
	defer cancel()
	var errs []error
	if d.client != nil {
		d.client.Close()
	}
	if d.gateway != nil {
		errs = append(errs, d.gateway.Shutdown(ctx))
	}
	if d.name != "" {
		errs = append(errs, e2e.DeleteQueue(d.rdb, d.queue))
		keys := d.rdb.Scan(ctx, 0, d.name+":*", 1000).Iterator()
		for keys.Next(ctx) {
			errs = append(errs, d.rdb.Del(ctx, keys.Val()).Err())
		}
		errs = append(errs, keys.Err())
	}
	return errors.Join(errs...)
}
