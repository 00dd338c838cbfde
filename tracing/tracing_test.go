package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/tracing"
	"github.com/headwayq/headway/worker"
)

// rig is a pool and a client that are traced, and the spans that have ended.
type rig struct {
	*testing.T
	spans  *tracetest.SpanRecorder
	ended  chan struct{}
	rdb    *redis.Client
	tracer *tracing.Tracer
	*tracing.Client
}

// told ends a span, and says so.
type told struct {
	sdktrace.SpanProcessor
	ended chan struct{}
}

func (s told) OnEnd(span sdktrace.ReadOnlySpan) {
	s.SpanProcessor.OnEnd(span)
	s.ended <- struct{}{}
}

func newRig(t *testing.T, cfg tracing.Config, policy queue.Policy, handler asynq.Handler) *rig {
	t.Helper()
	r := &rig{T: t, spans: tracetest.NewSpanRecorder(), ended: make(chan struct{}, 100), rdb: redistest.Start(t).Client(t)}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(told{r.spans, r.ended}))
	var err error
	if r.tracer, err = tracing.New(provider, cfg); err != nil {
		t.Fatal(err)
	}
	policies := []queue.Policy{policy}
	client, err := queue.NewClient(r.rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	r.Client = r.tracer.Client(client)
	mux := asynq.NewServeMux()
	mux.Use(r.tracer.Middleware)
	mux.Handle("sms", handler)
	pool, err := worker.New(r.rdb, mux, worker.Config{
		Policies: policies, Observer: r.tracer.Observer(), Logger: zap.NewNop(),
		Asynq: asynq.Config{Concurrency: 2, DelayedTaskCheckInterval: 50 * time.Millisecond, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 10 * time.Millisecond }},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Shutdown)
	return r
}

func perPhone(window time.Duration) queue.Policy {
	return queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, window), Key: queue.MustJSONKey("$.to")}}}
}

func sms(id string) *queue.Task {
	return queue.NewTask("sms", []byte(`{"to":"+4917012345678"}`), asynq.TaskID(id), asynq.MaxRetry(3))
}

// wait waits until so many spans have ended.
func (r *rig) wait(n int) []sdktrace.ReadOnlySpan {
	r.Helper()
	for range n {
		select {
		case <-r.ended:
		case <-time.After(time.Minute):
			r.Fatalf("%d spans have ended, want %d more", len(r.spans.Ended()), n)
		}
	}
	for _, s := range r.spans.Ended() {
		if strings.Contains(fmt.Sprint(s.Attributes(), s.Events(), s.Status(), s.Name()), "4917012345678") {
			r.Errorf("span %q holds a key: %v %v %v", s.Name(), s.Attributes(), s.Events(), s.Status())
		}
	}
	return r.spans.Ended()
}

// of are the spans of a task whose names begin so, in the order in which they ended.
func of(spans []sdktrace.ReadOnlySpan, id, name string) (all []sdktrace.ReadOnlySpan) {
	for _, s := range spans {
		if value(s, "headway.task.id") == id && strings.HasPrefix(s.Name(), name) {
			all = append(all, s)
		}
	}
	return all
}

func value(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

func links(s sdktrace.ReadOnlySpan) (ids []trace.SpanID) {
	for _, l := range s.Links() {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

// The span of an attempt is a trace of its own, linked to the span that enqueued the task and
// to the attempt before. That the task waited is an event with the rule and the instant.
func TestAttemptsAreLinked(t *testing.T) {
	t.Parallel()
	failed := errors.New("the provider of +4917012345678 failed")
	var runs atomic.Int32
	r := newRig(t, tracing.Config{}, perPhone(time.Second), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("the handler has no span in its context")
		}
		if id, _ := asynq.GetTaskID(ctx); id == "b" && runs.Add(1) == 1 {
			return failed
		}
		return nil
	}))
	ctx, root := sdktrace.NewTracerProvider().Tracer("t").Start(t.Context(), "request")
	if _, err := r.Enqueue(ctx, sms("a")); err != nil {
		t.Fatal(err)
	}
	r.wait(2) // a is enqueued and has run: b waits for it
	if _, err := r.Enqueue(ctx, sms("b")); err != nil {
		t.Fatal(err)
	}
	root.End()
	spans := r.wait(3) // b is enqueued and has run twice
	enqueued, attempts := of(spans, "b", "enqueue default"), of(spans, "b", "process default")
	if len(enqueued) != 1 || len(attempts) != 2 {
		t.Fatalf("%d enqueueings and %d attempts of b, want 1 and 2", len(enqueued), len(attempts))
	}
	if e := enqueued[0]; e.Parent().SpanID() != root.SpanContext().SpanID() || e.SpanKind() != trace.SpanKindProducer || e.Status().Code != codes.Unset {
		t.Errorf("the enqueueing has the parent %v, kind %v, status %v", e.Parent(), e.SpanKind(), e.Status())
	}
	for n, a := range attempts {
		want := []trace.SpanID{enqueued[0].SpanContext().SpanID()}
		if n == 1 {
			want = append(want, attempts[0].SpanContext().SpanID())
		}
		if !slices.Equal(links(a), want) || a.Parent().IsValid() || a.SpanContext().TraceID() == enqueued[0].SpanContext().TraceID() {
			t.Errorf("attempt %d is linked to %v with the parent %v, want %v and none", n, links(a), a.Parent(), want)
		}
		if got := value(a, "headway.attempt"); got != fmt.Sprint(n+1) || a.SpanKind() != trace.SpanKindConsumer {
			t.Errorf("attempt %d says %s, kind %v", n, got, a.SpanKind())
		}
		if value(a, "messaging.system") != "" {
			t.Error("an attribute of the messaging conventions is there, and nobody asked for it")
		}
	}
	if s := attempts[0]; s.Status().Code != codes.Error || s.Status().Description != "" || value(s, "error.type") != "*errors.errorString" {
		t.Errorf("the attempt that failed has status %+v, type %q", s.Status(), value(s, "error.type"))
	}
	if attempts[1].Status().Code != codes.Unset {
		t.Errorf("the attempt that went well has status %+v", attempts[1].Status())
	}
	waits := attempts[0].Events()
	if len(waits) == 0 || waits[0].Name != "headway.deferred" || !waits[0].Time.Before(attempts[0].StartTime()) {
		t.Fatalf("b waited, and the events are %+v", waits)
	}
	got := attribute.NewSet(waits[0].Attributes...)
	if rule, _ := got.Value("headway.rule"); rule.AsString() != "phone" {
		t.Errorf("it waited for %q, want phone", rule.AsString())
	}
	if until, _ := got.Value("headway.until"); until.AsString() == "" || value(attempts[0], "headway.promised") == "" {
		t.Error("until when it waited is not told")
	}
}

// What a provider or a limit asks a handler to wait for is no error, and the messaging
// attributes are there for those who ask.
func TestWaitingIsNoError(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	r := newRig(t, tracing.Config{Messaging: true}, perPhone(time.Millisecond), asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if runs.Add(1) == 1 {
			return &worker.RetryAfterError{Err: errors.New("429"), After: 200 * time.Millisecond}
		}
		return nil
	}))
	if b, err := r.Book(t.Context(), sms("a")); err != nil || b.Info == nil {
		t.Fatal(b, err)
	}
	attempts := of(r.wait(3), "a", "process default")
	if len(attempts) != 2 || attempts[0].Status().Code != codes.Unset || len(attempts[0].Events()) != 1 || attempts[0].Events()[0].Name != "headway.postponed" {
		t.Fatalf("the attempts are %+v", attempts)
	}
	for key, want := range map[attribute.Key]string{
		"messaging.system": "asynq", "messaging.destination.name": "default", "messaging.operation.name": "process", "messaging.message.id": "a",
	} {
		if got := value(attempts[1], key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

// A handler that panics ends its span.
func TestPanicEndsTheSpan(t *testing.T) {
	t.Parallel()
	r := newRig(t, tracing.Config{}, perPhone(time.Millisecond), asynq.HandlerFunc(func(context.Context, *asynq.Task) error { panic("+4917012345678") }))
	if _, err := r.Enqueue(t.Context(), sms("a"), asynq.MaxRetry(0)); err != nil {
		t.Fatal(err)
	}
	if a := of(r.wait(2), "a", "process"); len(a) != 1 || a[0].Status().Code != codes.Error {
		t.Errorf("the spans are %v", a)
	}
}

// One span stands for a call about many tasks, and a call that is refused has an error.
func TestManyTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t, tracing.Config{}, perPhone(time.Millisecond), asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	for _, res := range r.EnqueueMany(t.Context(), []*queue.Task{sms("a"), sms("b")}) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	results := r.BookMany(t.Context(), []*queue.Task{queue.NewTask("sms", []byte(`{}`)), sms("c")}, asynq.Queue("default"))
	if results[0].Err == nil || results[1].Err != nil {
		t.Fatalf("%+v", results)
	}
	var many []sdktrace.ReadOnlySpan
	for _, s := range r.wait(5) {
		if s.SpanKind() == trace.SpanKindProducer {
			many = append(many, s)
		}
	}
	if len(many) != 2 || value(many[0], "headway.tasks") != "2" || many[0].Status().Code != codes.Unset || many[1].Status().Code != codes.Error || value(many[1], "headway.tasks.failed") != "1" {
		t.Errorf("the spans are %+v", many)
	}
}

// A nil task is answered as the client answers it, with an error and not with a panic. The others of
// its call are enqueued.
func TestNilTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, tracing.Config{}, perPhone(time.Millisecond), asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	if info, err := r.Enqueue(t.Context(), nil); err == nil {
		t.Errorf("Enqueue(nil) = %v, nil, want an error", info)
	}
	if booked, err := r.Book(t.Context(), nil, asynq.Queue("low")); err == nil {
		t.Errorf("Book(nil) = %+v, nil, want an error", booked)
	}
	for name, results := range map[string][]queue.Result{
		"EnqueueMany": r.EnqueueMany(t.Context(), []*queue.Task{nil, sms("a")}),
		"BookMany":    r.BookMany(t.Context(), []*queue.Task{sms("b"), nil}),
	} {
		failed := 0
		for _, res := range results {
			if res.Err != nil {
				failed++
			}
		}
		if len(results) != 2 || failed != 1 {
			t.Errorf("%s of a task and nil = %+v, want one error", name, results)
		}
	}
	var names []string
	for _, s := range r.wait(6) { // four calls, and two attempts
		if s.SpanKind() == trace.SpanKindProducer {
			names = append(names, s.Name())
			if s.Status().Code != codes.Error {
				t.Errorf("span %q has status %v, want an error", s.Name(), s.Status())
			}
		}
	}
	slices.Sort(names)
	if want := []string{"book", "book default", "enqueue", "enqueue default"}; !slices.Equal(names, want) {
		t.Errorf("the spans are %q, want %q", names, want)
	}
}

// A tracer needs a provider.
func TestNewIsChecked(t *testing.T) {
	t.Parallel()
	if _, err := tracing.New(nil, tracing.Config{}); !errors.Is(err, tracing.ErrInvalidConfig) {
		t.Errorf("New(nil) = %v", err)
	}
}
