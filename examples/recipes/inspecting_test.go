package recipes

import (
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
)

// inspected is a bed with three messages to one phone, of which a pool has sent one.
func (b *bed) inspected() *inspect.Inspector {
	b.Helper()
	policy := SMS()
	b.work(nothing, policy)
	for _, id := range []string{"first", "second", "third"} {
		b.enqueue(policy.Type, id, `{"to":"+15550100"}`)
	}
	inspector, err := inspect.New(b.rdb, inspect.Config{Policies: []queue.Policy{policy}})
	if err != nil {
		b.Fatal(err)
	}
	return inspector
}

func TestExplain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		inspector := b.inspected()
		says := func(id, want string) {
			t.Helper()
			if got, err := Explain(t.Context(), inspector, id); err != nil || got != want {
				t.Errorf("%s: %q, %v, want %q", id, got, err, want)
			}
		}
		says("first", "missing") // it has run
		says("second", "waits for phone-minute, 0 before it, for 1m0s")
		says("third", "waits for phone-minute, 1 before it, for 2m0s")
		if _, err := b.pool.Limiter("phone-minute").CloseKey(t.Context(), "+15550100", time.Hour); err != nil {
			t.Fatal(err)
		}
		says("second", "phone-minute is closed for 1h0m0s")
	})
}

func TestFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		inspector := b.inspected()
		for n, want := range [][]string{nil, {"second"}, {"second", "third"}, {"second", "third"}} {
			if got, err := First(t.Context(), inspector, "+15550100", n); err != nil || !slices.Equal(got, want) {
				t.Errorf("the first %d are %q, %v, want %q", n, got, err, want)
			}
		}
	})
}
