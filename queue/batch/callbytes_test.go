package batch

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// longest notes the most that the texts of one command have.
type longest struct {
	scriptsOn
	bytes []int
}

func (l *longest) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n := 0
		for _, a := range cmd.Args() {
			if message, ok := a.([]byte); ok {
				n += len(message)
			}
		}
		l.bytes = append(l.bytes, n)
		return next(ctx, cmd)
	}
}

// Elements with long payloads go in calls of a megabyte at most, in order; one that is
// longer goes alone.
func TestFeedingCallsOfLongPayloads(t *testing.T) {
	t.Parallel()
	var sizes []int
	for i := range 40 {
		sizes = append(sizes, 10_000*(i%30))
	}
	sizes[20] = 3 << 20
	rdb := redistest.Client(t)
	sent := &longest{}
	rdb.AddHook(sent)
	c := newClient(t, rdb)
	if _, err := NewControl(c).Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Sources: map[string]Source{"messages": Seq(func(Spec) iter.Seq[Element] {
		return func(yield func(Element) bool) {
			for _, n := range sizes {
				if !yield(Element{Payload: make([]byte, n)}) {
					return
				}
			}
		}
	})}})
	if err != nil {
		t.Fatal(err)
	}
	g := newFeeding(f, "default", "winter")
	if err := g.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, "all are enqueued", func() bool {
		if _, err := g.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		return g.ended
	})
	for _, n := range sent.bytes {
		if n > 1<<20 && n < 3<<20 || n > 3<<20+100 {
			t.Errorf("a call has %d bytes, want a megabyte at most, or the long one alone", n)
		}
	}
	if n := slices.Max(sent.bytes); n < 3<<20 {
		t.Errorf("the longest call has %d bytes, want the long element among them", n)
	}
	var want []string
	for i := range sizes {
		want = append(want, fmt.Sprint("batch:winter:", i))
	}
	got := rdb.LRange(t.Context(), "asynq:{default}:pending", 0, -1).Val()
	if slices.Reverse(got); !slices.Equal(got, want) {
		t.Errorf("pending are %v, want all in order", got)
	}
}
