// Package tracing makes spans of tasks, by the API of OpenTelemetry alone: which SDK takes
// them is up to the program.
//
//	tracer, err := tracing.New(otel.GetTracerProvider(), tracing.Config{})
//	client := tracer.Client(queueClient) // a span for each enqueueing call
//	mux.Use(tracer.Middleware)           // a span for each attempt
//	pool, err := worker.New(rdb, mux, worker.Config{Policies: policies, Observer: tracer.Observer()})
//
// The context of the enqueueing span travels in the headers of asynq's task. The span of an
// attempt is a trace of its own, because a task may wait for days, and is linked to the span
// that enqueued the task and to the attempt before. That a task waited is an event of the span,
// with the rule and the instant, and never an error.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// MessagingVersion is the version of OpenTelemetry's messaging conventions whose attributes
// [Config.Messaging] adds. They are still in development there: a later version of Headway
// may follow a later version of them.
const MessagingVersion = "1.44.0"

// ErrInvalidConfig says that a tracer can't be made.
var ErrInvalidConfig = errors.New("tracing: invalid configuration")

// Config are the options of a [Tracer]. The zero value is ready to use.
type Config struct {
	// Propagator writes the context into a task's headers and reads it. Defaults to
	// W3C's traceparent and tracestate.
	Propagator propagation.TextMapPropagator

	// Messaging also gives spans the attributes of the messaging conventions of
	// [MessagingVersion], such as messaging.destination.name.
	Messaging bool
}

// Tracer makes spans. It is safe for concurrent use, and may serve several clients and pools.
type Tracer struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	messaging  bool
	seen       *memory
}

// New returns a tracer.
func New(provider trace.TracerProvider, config Config) (*Tracer, error) {
	if provider == nil {
		return nil, fmt.Errorf("%w: the provider of tracers is nil", ErrInvalidConfig)
	}
	t := &Tracer{
		tracer: provider.Tracer("github.com/headwayq/headway/tracing"), propagator: config.Propagator,
		messaging: config.Messaging, seen: newMemory(),
	}
	if t.propagator == nil {
		t.propagator = propagation.TraceContext{}
	}
	return t, nil
}

// Observer notes why tasks wait, for the spans of their next attempts. It is for
// worker.Config.Observer; with event.Join it goes with others.
func (t *Tracer) Observer() event.Observer {
	return event.Observer{
		Deferred: func(_ context.Context, e event.Deferred) {
			until := e.At
			if until.IsZero() {
				until = time.Now().Add(e.Wait)
			}
			t.seen.waits(e.Task, wait{name: "headway.deferred", rule: e.Rule, reason: string(e.Reason), at: time.Now(), until: until})
		},
		Moved: func(_ context.Context, e event.Moved) {
			t.seen.waits(e.Task, wait{name: "headway.moved", rule: e.Rule, at: time.Now(), until: e.At})
		},
		Promoted: func(_ context.Context, e event.Promoted) {
			t.seen.waits(e.Task, wait{name: "headway.promoted", at: time.Now(), until: e.At})
		},
	}
}

// Middleware makes a span of each attempt that gets its permits, from when its handler starts
// until it returns. It is for asynq.ServeMux.Use, or around the handler of a pool.
func (t *Tracer) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		queue, _ := asynq.GetQueueName(ctx)
		retried, _ := asynq.GetRetryCount(ctx)
		of := event.Task{Queue: queue, Type: task.Type(), ID: id}
		known := t.seen.take(of)

		var links []trace.Link
		created := trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(task.Headers())))
		if created.IsValid() {
			links = append(links, trace.Link{SpanContext: created, Attributes: []attribute.KeyValue{attribute.String("headway.link", "enqueue")}})
		}
		if known.last.IsValid() {
			links = append(links, trace.Link{SpanContext: known.last, Attributes: []attribute.KeyValue{attribute.String("headway.link", "attempt before")}})
		}
		ctx, span := t.tracer.Start(ctx, "process "+queue, trace.WithNewRoot(), trace.WithLinks(links...), trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(t.attributes(queue, task.Type(), "process", "process")...),
			trace.WithAttributes(attribute.String("headway.task.id", id), attribute.Int("headway.attempt", retried+1)))
		if t.messaging {
			span.SetAttributes(attribute.String("messaging.message.id", id))
		}
		for _, w := range known.waits {
			w.addTo(span)
		}
		if d, ok := worker.GrantFrom(ctx); ok && !d.Promised.IsZero() {
			span.SetAttributes(attribute.String("headway.promised", stamp(d.Promised)))
		}

		err := errPanicked
		defer func() {
			t.end(span, of, err)
		}()
		err = next.ProcessTask(ctx, task)
		return err
	})
}

var errPanicked = errors.New("the handler panicked")

// end ends the span of an attempt. One that waits for a limit, or whose provider asked for a
// later attempt, has not failed.
func (t *Tracer) end(span trace.Span, of event.Task, err error) {
	defer span.End()
	if err == nil {
		return
	}
	t.seen.attempted(of, span.SpanContext())
	if later, ok := errors.AsType[*worker.RetryAfterError](err); ok {
		span.AddEvent("headway.postponed", trace.WithAttributes(attribute.String("headway.rule", later.Rule),
			attribute.Float64("headway.wait_seconds", later.After.Seconds())))
		return
	}
	if errors.Is(err, throttle.ErrThrottled) {
		return // what it waits for is in the events of the next attempt
	}
	// The text of an error may hold personal data, so only its type is told.
	span.SetStatus(codes.Error, "")
	span.SetAttributes(attribute.String("error.type", typeOf(err)))
}

// typeOf is the type of the innermost error.
func typeOf(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}

// attributes are those of each span.
func (t *Tracer) attributes(queue, taskType, operation, kind string) []attribute.KeyValue {
	all := []attribute.KeyValue{attribute.String("headway.queue", queue), attribute.String("headway.task.type", taskType)}
	if !t.messaging {
		return all
	}
	return append(all, attribute.String("messaging.system", "asynq"), attribute.String("messaging.destination.name", queue),
		attribute.String("messaging.operation.name", operation), attribute.String("messaging.operation.type", kind))
}

func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }
