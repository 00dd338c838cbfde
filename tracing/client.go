package tracing

import (
	"context"
	"maps"
	"strings"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headwayq/headway/queue"
)

// Client enqueues as a queue.Client does, and makes a span of each call. What it puts into
// the headers of a task leads from the attempts back to that span.
type Client struct {
	client *queue.Client
	tracer *Tracer
}

// Client returns a client that traces the calls of another one.
func (t *Tracer) Client(client *queue.Client) *Client {
	if client == nil {
		panic("tracing: nil client")
	}
	return &Client{client, t}
}

// Enqueue is queue.Client.Enqueue.
func (c *Client) Enqueue(ctx context.Context, task *queue.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	ctx, span := c.begin(ctx, "enqueue", []*queue.Task{task}, opts)
	defer span.End()
	info, err := c.client.Enqueue(ctx, c.carrying(ctx, task), opts...)
	if err == nil {
		c.tells(span, info.ID)
	}
	return info, ends(span, err)
}

// Book is queue.Client.Book. The span tells the instant of the booking.
func (c *Client) Book(ctx context.Context, task *queue.Task, opts ...asynq.Option) (queue.Booked, error) {
	ctx, span := c.begin(ctx, "book", []*queue.Task{task}, opts)
	defer span.End()
	booked, err := c.client.Book(ctx, c.carrying(ctx, task), opts...)
	if err == nil && booked.Info != nil {
		c.tells(span, booked.Info.ID)
	}
	if err == nil && booked.Wait > 0 {
		span.AddEvent("headway.booked", trace.WithAttributes(attribute.String("headway.until", stamp(booked.At)), attribute.String("headway.rule", booked.Rule)))
	}
	return booked, ends(span, err)
}

// EnqueueMany is queue.Client.EnqueueMany, with one span.
func (c *Client) EnqueueMany(ctx context.Context, tasks []*queue.Task, opts ...asynq.Option) []queue.Result {
	return c.many(ctx, "enqueue", c.client.EnqueueMany, tasks, opts)
}

// BookMany is queue.Client.BookMany, with one span.
func (c *Client) BookMany(ctx context.Context, tasks []*queue.Task, opts ...asynq.Option) []queue.Result {
	return c.many(ctx, "book", c.client.BookMany, tasks, opts)
}

func (c *Client) many(ctx context.Context, operation string, do func(context.Context, []*queue.Task, ...asynq.Option) []queue.Result,
	tasks []*queue.Task, opts []asynq.Option) []queue.Result {
	ctx, span := c.begin(ctx, operation, tasks, opts)
	defer span.End()
	carrying := make([]*queue.Task, len(tasks))
	for i, task := range tasks {
		carrying[i] = c.carrying(ctx, task)
	}
	results := do(ctx, carrying, opts...)
	failed := 0
	for _, r := range results {
		if r.Err != nil {
			failed++
			_ = ends(span, r.Err)
		}
	}
	span.SetAttributes(attribute.Int("headway.tasks", len(tasks)), attribute.Int("headway.tasks.failed", failed))
	return results
}

// begin starts the span of a call, with the queue and the type that its tasks share. A nil task has
// neither: the client answers it with an error.
func (c *Client) begin(ctx context.Context, operation string, tasks []*queue.Task, opts []asynq.Option) (context.Context, trace.Span) {
	name, taskType, first := "", "", true
	for _, task := range tasks {
		if task == nil {
			continue
		}
		q := queueOf(task, opts)
		if first {
			name, taskType, first = q, task.Type(), false
		}
		if q != name {
			name = "several"
		}
		if task.Type() != taskType {
			taskType = "several"
		}
	}
	return c.tracer.tracer.Start(ctx, strings.TrimSpace(operation+" "+name), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(c.tracer.attributes(name, taskType, operation, "send")...))
}

// queueOf is the queue that a task is enqueued on: the last option counts, as in asynq.
func queueOf(task *queue.Task, opts []asynq.Option) string {
	name := "default"
	for _, o := range append(task.Options(), opts...) {
		if text, ok := o.Value().(string); ok && o.Type() == asynq.QueueOpt {
			name = text
		}
	}
	return name
}

// carrying is the task with the context of the span in its headers. A nil task stays nil, so that the
// client answers it.
func (c *Client) carrying(ctx context.Context, task *queue.Task) *queue.Task {
	if task == nil {
		return nil
	}
	headers := maps.Clone(task.Headers())
	if headers == nil {
		headers = make(map[string]string)
	}
	c.tracer.propagator.Inject(ctx, propagation.MapCarrier(headers))
	return queue.NewTaskWithHeaders(task.Type(), task.Payload(), headers, task.Options()...)
}

// tells gives a span the id of the task.
func (c *Client) tells(span trace.Span, id string) {
	span.SetAttributes(attribute.String("headway.task.id", id))
	if c.tracer.messaging {
		span.SetAttributes(attribute.String("messaging.message.id", id))
	}
}

// ends notes the error of a call, without its text: that may hold personal data.
func ends(span trace.Span, err error) error {
	if err != nil {
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String("error.type", typeOf(err)))
	}
	return err
}
