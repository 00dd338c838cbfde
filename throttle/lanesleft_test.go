package throttle

import (
	"fmt"
	"testing"
)

// A Cluster whose nodes come and go, each with an address of its own, leaves no lane for
// each behind; one on which somebody is stays.
func TestLanesOfNodesThatAreGone(t *testing.T) {
	t.Parallel()
	m := newMerger(nil, false)
	busy := m.laneTo("busy:6379")
	busy.flights = 1
	for i := range 20 * nodesMax {
		addr := fmt.Sprintf("10.0.%d.%d:6379", i/256, i%256)
		if l := m.laneTo(addr); l != m.laneTo(addr) {
			t.Fatalf("two lanes to %s", addr)
		}
	}
	n := 0
	m.nodes.Range(func(any, any) bool {
		n++
		return true
	})
	if n > nodesMax || int64(n) != m.known.Load() {
		t.Errorf("%d lanes are kept, of which %d are counted, want at most %d", n, m.known.Load(), nodesMax)
	}
	if m.laneTo("busy:6379") != busy {
		t.Error("the lane on which somebody is was dropped")
	}
}
