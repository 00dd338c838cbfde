package throttle

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/limitscripts"
)

// silent is a Redis that does not answer for an hour.
type silent struct{ redis.UniversalClient }

func (silent) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	time.Sleep(time.Hour)
	return redis.NewCmdResult(nil, context.DeadlineExceeded)
}

// Nodes of a Cluster may come and go, each with an address of its own. Nodes
// that are gone are dropped. One with a call in flight is kept.
func TestNodesThatAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNodesThatAreGone)
}

func testNodesThatAreGone(t *testing.T) {
	m := newCoalescer(silent{}, false)
	busy := m.nodeAt("busy:6379")
	var wg sync.WaitGroup
	defer wg.Wait()
	call := &limitscripts.Call{AcquireArgs: limitscripts.AcquireArgs{MaxWait: -1, Token: 1, Rules: []limitscripts.RuleCall{{
		LimitKeys: limitscripts.NewLimitKeys("hw", "sms", "1"),
		Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Minute}, Cost: 1,
	}}}}
	wg.Go(func() { _ = busy.Do(t.Context(), call) }) // for an hour of the bubble
	synctest.Wait()
	for i := range 20 * nodesMax {
		addr := fmt.Sprintf("10.0.%d.%d:6379", i/256, i%256)
		if l := m.nodeAt(addr); l != m.nodeAt(addr) {
			t.Fatalf("two nodes at %s", addr)
		}
	}
	n := 0
	m.nodes.Range(func(any, any) bool {
		n++
		return true
	})
	if n > nodesMax || int64(n) != m.known.Load() {
		t.Errorf("%d nodes are kept, of which %d are counted, want at most %d", n, m.known.Load(), nodesMax)
	}
	if m.nodeAt("busy:6379") != busy {
		t.Error("the node with a call in flight was dropped")
	}
}
