package recipes

import (
	"context"
	"iter"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
	"github.com/headwayq/headway/worker"
)

// generalised names a key as docs/redis-keys.md does.
var generalised = strings.NewReplacer("{+15550100}", "{<id>}", "{acme}", "{<id>}", "{default}", "{<queue>}",
	":phone-minute", ":<rule>", ":phone-day", ":<rule>", ":provider", ":<rule>", ":slots", ":<rule>", ":beat", ":<entry>",
	":promo", ":<batch>", ":greeting", ":<batch>")

var (
	policyHash = regexp.MustCompile(`:turns:[0-9a-f]{16}$`)
	process    = regexp.MustCompile(`:process:[0-9a-f]{16}$`)
	fetchedBy  = regexp.MustCompile(`:fetched:[0-9a-f]{16}$`)
	callToken  = regexp.MustCompile(`:sent:[0-9a-f]{16}$`)
	historyOf  = regexp.MustCompile(`^hw:history:\{[^}]+\}`)
	historyAt  = regexp.MustCompile(`^(hw:history:.*:)(busy:1:|busy:60:|hours:|minutes:)\d+$`)
	period     = map[string]string{"busy:1:": "<minute>", "busy:60:": "<hour>", "hours:": "<day>", "minutes:": "<hour>"}
	keyRow     = regexp.MustCompile("(?m)^\\| `(hw:[^`]+)` \\| ([a-z ]+) \\|")
	redisType  = map[string]string{"sorted set": "zset", "string": "string", "hash": "hash", "list": "list"}
)

// TestRedisKeys: docs/redis-keys.md lists the keys that a pool leaves in Redis, with
// their types, and no others.
func TestRedisKeys(t *testing.T) {
	t.Parallel()
	documented := map[string]string{}
	for _, m := range keyRow.FindAllStringSubmatch(read(t, filepath.Join("..", "..", "docs", "redis-keys.md")), -1) {
		documented[m[1]] = redisType[m[2]]
	}
	shut, err := gate.Parse("09:00-10:00 UTC")
	if err != nil {
		t.Fatal(err)
	}
	p := SMS()
	p.Rules = append(p.Rules, queue.Rule{Name: "slots", Limit: throttle.Concurrent(1, 30*time.Second), Constant: "acme"})
	gated := queue.Policy{Type: "sms:ad", Rules: append(slices.Clone(p.Rules), queue.Rule{Name: "night", Gate: shut})}
	inBubble(t, func(t *testing.T, b *bed) {
		seen := map[string]string{}
		var mu sync.Mutex
		look := func() {
			mu.Lock()
			defer mu.Unlock()
			keys, err := b.rdb.Keys(t.Context(), "hw:*").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				name := process.ReplaceAllString(key, ":process:<process>")
				name = fetchedBy.ReplaceAllString(name, ":fetched:<pool>")
				name = callToken.ReplaceAllString(policyHash.ReplaceAllString(name, ":turns:<policy>"), ":sent:<call>")
				name = historyOf.ReplaceAllString(generalised.Replace(name), "hw:history:{<rule>}")
				if m := historyAt.FindStringSubmatch(name); m != nil {
					name = m[1] + m[2] + period[m[2]]
				}
				if kind := b.rdb.Type(t.Context(), key).Val(); kind != "none" { // it has gone meanwhile
					seen[name] = kind
				}
			}
		}
		b.work(func(ctx context.Context, task *asynq.Task) error {
			if task.Type() == "beat" {
				return nil
			}
			look()
			if id, _ := asynq.GetTaskID(ctx); id == "off" && len(b.grants(id)) == 1 {
				return worker.RetryAfter(nil, time.Second)
			}
			return worker.Adjust(ctx, 2, "phone-day")
		}, p, gated)
		b.enqueue("sms:send", "a", `{"to":"+15550100"}`)
		b.enqueue("sms:send", "b", `{"to":"+15550100"}`)
		b.enqueue("sms:ad", "ad", `{"to":"+15550100"}`)
		b.enqueue("sms:send", "off", `{"to":"+15550101"}`)
		if _, err := b.client.Book(t.Context(), queue.NewTask("sms:send", []byte(`{"to":"+15550100"}`))); err != nil {
			t.Fatal(err)
		}
		schedule, err := schedule.New(b.client, schedule.Config{}, schedule.Entry{Name: "beat", Spec: "@every 1s", Task: queue.NewTask("beat", nil)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = schedule.Run(ctx) })
		defer running.Wait()
		defer stop()
		feed(ctx, t, b, &running)
		for range 100 { // before the provider is closed
			time.Sleep(10 * time.Millisecond)
			look()
		}
		provider := b.pool.Limiter("provider")
		if _, err := provider.CloseRule(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		operator, err := inspect.New(b.rdb, inspect.Config{Policies: []queue.Policy{p}})
		if err != nil {
			t.Fatal(err)
		}
		if err := operator.PauseQueue(t.Context(), "other", inspect.Reason{Who: "ann", Why: "a test"}); err != nil {
			t.Fatal(err)
		}
		if _, err := provider.SetLimit(t.Context(), throttle.GCRA(50, time.Second, 10), throttle.SetLimitOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 500 {
			time.Sleep(10 * time.Millisecond) // of the bubble: some keys are there for moments
			look()
		}
		for name := range maps.Clone(seen) {
			if strings.Contains(name, "{+15550") { // the same as of the other phone
				delete(seen, name)
			}
		}
		if diff := cmp.Diff(documented, seen); diff != "" {
			t.Errorf("keys of docs/redis-keys.md (-) and those in Redis (+):\n%s", diff)
		}
	})
}

// feed feeds a batch of which an element is held back while another of its phone runs,
// and one that ends at once.
func feed(ctx context.Context, t *testing.T, b *bed, running *sync.WaitGroup) {
	t.Helper()
	source := batch.Seq(func(spec batch.Spec) iter.Seq[batch.Element] {
		return func(yield func(batch.Element) bool) {
			for phone := range strings.FieldsSeq(spec.Args) {
				if !yield(batch.Element{Payload: []byte(`{"to":"` + phone + `"}`)}) {
					return
				}
			}
		}
	})
	feeder, err := batch.NewFeeder(b.client, batch.FeederConfig{Queues: []string{"default"}, Sources: map[string]batch.Source{"phones": source}})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []batch.Spec{
		{ID: "promo", Type: "sms:send", Source: "phones", Args: "+15550102 +15550102 +15550103"},
		{ID: "greeting", Type: "beat", Source: "phones", Args: "+15550104"},
	} {
		if _, err := batch.NewControl(b.client).Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	running.Go(func() { _ = feeder.Run(ctx) })
}
