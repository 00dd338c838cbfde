package throttle

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A Cluster whose nodes come and go, each with an address of its own, leaves no lane for
// each behind; one on which somebody is stays.
func TestLanesOfNodesThatAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLanesOfNodes)
}

func testLanesOfNodes(t *testing.T) {
	m := newCoalescer(&distant{trip: after(time.Hour)}, false)
	busy := m.batcherTo("busy:6379")
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = busy.Do(t.Context(), one(1)) }) // for an hour of the bubble
	synctest.Wait()
	for i := range 20 * batchersMax {
		addr := fmt.Sprintf("10.0.%d.%d:6379", i/256, i%256)
		if l := m.batcherTo(addr); l != m.batcherTo(addr) {
			t.Fatalf("two lanes to %s", addr)
		}
	}
	n := 0
	m.nodes.Range(func(any, any) bool {
		n++
		return true
	})
	if n > batchersMax || int64(n) != m.known.Load() {
		t.Errorf("%d lanes are kept, of which %d are counted, want at most %d", n, m.known.Load(), batchersMax)
	}
	if m.batcherTo("busy:6379") != busy {
		t.Error("the lane on which somebody is was dropped")
	}
}
