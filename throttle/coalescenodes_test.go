package throttle

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// silent is a Redis that does not answer for an hour.
type silent struct{ redis.UniversalClient }

func (silent) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	time.Sleep(time.Hour)
	return redis.NewCmdResult(nil, context.DeadlineExceeded)
}

// Nodes of a Cluster may come and go, each with an address of its own. The batchers of nodes
// that are gone are dropped. A batcher with a call in flight is kept.
func TestBatchersOfNodesThatAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBatchersOfNodes)
}

func testBatchersOfNodes(t *testing.T) {
	m := newCoalescer(silent{}, false)
	busy := m.batcherTo("busy:6379")
	var wg sync.WaitGroup
	defer wg.Wait()
	call := &luascripts.Call{AcquireArgs: luascripts.AcquireArgs{MaxWait: -1, Token: 1, Rules: []luascripts.RuleCall{{
		LimitKeys: luascripts.NewLimitKeys("hw", "sms", "1"),
		Numbers:   luascripts.Numbers{Kind: luascripts.Sliding, Permits: 1, Window: time.Minute}, Cost: 1,
	}}}}
	wg.Go(func() { _ = busy.Do(t.Context(), call) }) // for an hour of the bubble
	synctest.Wait()
	for i := range 20 * batchersMax {
		addr := fmt.Sprintf("10.0.%d.%d:6379", i/256, i%256)
		if l := m.batcherTo(addr); l != m.batcherTo(addr) {
			t.Fatalf("two batchers to %s", addr)
		}
	}
	n := 0
	m.nodes.Range(func(any, any) bool {
		n++
		return true
	})
	if n > batchersMax || int64(n) != m.known.Load() {
		t.Errorf("%d batchers are kept, of which %d are counted, want at most %d", n, m.known.Load(), batchersMax)
	}
	if m.batcherTo("busy:6379") != busy {
		t.Error("the batcher with a call in flight was dropped")
	}
}
