package tracing

import (
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/headwayq/headway/event"
)

const (
	tasksMax = 1 << 16 // tasks that are remembered at once; of more, the oldest are forgotten
	waitsMax = 32      // events of one task
)

// wait is why and until when a task waits.
type wait struct {
	name, rule, reason string
	at, until          time.Time
}

func (w wait) addTo(span trace.Span) {
	attributes := []attribute.KeyValue{attribute.String("headway.until", stamp(w.until))}
	if w.rule != "" {
		attributes = append(attributes, attribute.String("headway.rule", w.rule))
	}
	if w.reason != "" {
		attributes = append(attributes, attribute.String("headway.reason", w.reason))
	}
	span.AddEvent(w.name, trace.WithTimestamp(w.at), trace.WithAttributes(attributes...))
}

// known is what is remembered of a task between two attempts.
type known struct {
	waits []wait
	last  trace.SpanContext // the attempt before
}

type taskKey struct{ queue, id string }

// memory remembers tasks between their attempts in this process.
type memory struct {
	mu    sync.Mutex
	tasks map[taskKey]known
	order []taskKey // in which they came, some of which are gone
}

func newMemory() *memory { return &memory{tasks: make(map[taskKey]known)} }

func (m *memory) change(of event.Task, f func(*known)) {
	key := taskKey{of.Queue, of.ID}
	m.mu.Lock()
	defer m.mu.Unlock()
	k, old := m.tasks[key]
	f(&k)
	m.tasks[key] = k
	if old {
		return
	}
	m.order = append(m.order, key)
	for len(m.tasks) > tasksMax || len(m.order) > 2*tasksMax {
		delete(m.tasks, m.order[0])
		m.order = m.order[1:]
	}
}

// waits notes why a task waits.
func (m *memory) waits(of event.Task, w wait) {
	m.change(of, func(k *known) {
		if len(k.waits) == waitsMax {
			k.waits = append(k.waits[:1], k.waits[2:]...) // the first and the last ones say most
		}
		k.waits = append(k.waits, w)
	})
}

// attempted notes the span of an attempt that did not end the task.
func (m *memory) attempted(of event.Task, span trace.SpanContext) {
	m.change(of, func(k *known) { k.last = span })
}

// take returns what is known of a task, and forgets it.
func (m *memory) take(of event.Task) known {
	key := taskKey{of.Queue, of.ID}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.tasks[key]
	delete(m.tasks, key)
	return k
}
