package event_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/headwayq/headway/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fire calls every function of an observer with a zero event, and returns the kinds.
func fire(t *testing.T, o event.Observer) (kinds []string) {
	t.Helper()
	v := reflect.ValueOf(o)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsNil() {
			t.Fatalf("no function for %s", v.Type().Field(i).Name)
		}
		kind := f.Type().In(1)
		if kind.Name() != v.Type().Field(i).Name {
			t.Errorf("the function %s takes a %s", v.Type().Field(i).Name, kind)
		}
		kinds = append(kinds, kind.String())
		f.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.Zero(kind)})
	}
	return kinds
}

// seen notes the kinds of events that it hears, and can be held up.
type seen struct {
	mu    sync.Mutex
	kinds []string
	gate  sync.Mutex
}

func (s *seen) note(_ context.Context, e event.Event) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = append(s.kinds, fmt.Sprintf("%T", e))
}

// Every kind of event reaches every observer: no way of putting them together forgets one.
func TestAllAndJoinPassEveryKind(t *testing.T) {
	t.Parallel()
	var a, b seen
	kinds := fire(t, event.Join(event.Observer{}, event.All(a.note), event.All(b.note), event.Observer{}))
	if !slices.Equal(a.kinds, kinds) || !slices.Equal(b.kinds, kinds) {
		t.Errorf("heard %q and %q of %q", a.kinds, b.kinds, kinds)
	}
	none := reflect.ValueOf(event.Join(event.Observer{}, event.Observer{}))
	for i := range none.NumField() {
		if !none.Field(i).IsNil() {
			t.Errorf("%s costs a call though nobody hears it", none.Type().Field(i).Name)
		}
	}
}

// A buffer passes every kind on, in order; Close waits for what came before it.
func TestBufferPassesEveryKind(t *testing.T) {
	t.Parallel()
	var s seen
	b := event.NewBuffer(100, event.All(s.note))
	kinds := fire(t, b.Observer())
	b.Close()
	b.Close()
	if !slices.Equal(s.kinds, kinds) || b.Dropped() != 0 {
		t.Errorf("heard %q of %q, dropped %d", s.kinds, kinds, b.Dropped())
	}
	fire(t, b.Observer())
	if got := b.Dropped(); got != uint64(len(kinds)) {
		t.Errorf("%d dropped after the end, want %d", got, len(kinds))
	}
	if o := event.NewBuffer(0, event.Observer{}); o.Observer().Granted != nil {
		t.Error("a buffer hears what nobody behind it hears")
	} else {
		o.Close()
	}
}

// An observer that hangs holds up nobody: what finds no room is dropped, and counted.
func TestBufferNeverBlocks(t *testing.T) {
	t.Parallel()
	var s seen
	const room, sent = 3, 50
	b := event.NewBuffer(room, event.Observer{Granted: func(ctx context.Context, e event.Granted) { s.note(ctx, e) }})
	s.gate.Lock() // it hangs
	ctx, cancel := context.WithCancel(t.Context())
	for range sent {
		b.Observer().Granted(ctx, event.Granted{})
	}
	cancel()
	s.gate.Unlock()
	b.Close()
	if heard := len(s.kinds); uint64(heard)+b.Dropped() != sent || heard < room || heard > room+1 {
		t.Errorf("%d heard and %d dropped of %d, want %d or one more heard", heard, b.Dropped(), sent, room)
	}
}

func ExampleAll() {
	o := event.All(func(_ context.Context, e event.Event) {
		switch e := e.(type) {
		case event.Deferred:
			fmt.Println(e.Task.Type, "waits for", e.Rule)
		case event.LeaseLost:
			fmt.Println(e.Task.Type, "lost its lease of", e.Rule)
		}
	})
	// a pool calls it: worker.Config{Observer: o}
	o.Deferred(context.Background(), event.Deferred{Task: event.Task{Type: "sms:send"}, Rule: "phone"})
	// Output:
	// sms:send waits for phone
}

func ExampleBuffer() {
	b := event.NewBuffer(1024, event.Observer{
		LeaseLost: func(_ context.Context, e event.LeaseLost) {
			fmt.Println("page somebody:", e.Rule) // takes as long as it takes
		},
	})
	o := b.Observer() // worker.Config{Observer: b.Observer()}
	o.LeaseLost(context.Background(), event.LeaseLost{Rule: "slots"})
	b.Close() // after the pool's Shutdown
	fmt.Println("dropped:", b.Dropped())
	// Output:
	// page somebody: slots
	// dropped: 0
}
