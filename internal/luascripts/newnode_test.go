package luascripts_test

import (
	"testing"
	"time"

	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/redistest"
)

// The first slot moves to a master that had none. go-redis does not count that master among those which get the library, and
// sends the calls about keys that are there already on to it.
func TestLibraryIsLoadedOnAMasterThatGetsItsFirstSlot(t *testing.T) {
	redistest.NeedFunctions(t)
	t.Parallel()
	rdb, nodes, empty := redistest.StartWithEmpty(t, 1)
	here, there := nodes[0].Client(t), empty.Client(t)
	keys := []string{"hw:closed:{hw:limit:rule}", limitscripts.StoredLimitKey("hw", "rule")}
	slot := here.ClusterKeySlot(t.Context(), keys[0]).Val()
	from, to := here.Do(t.Context(), "cluster", "myid").Val(), there.Do(t.Context(), "cluster", "myid").Val()
	if err := there.Do(t.Context(), "cluster", "setslot", slot, "importing", from).Err(); err != nil {
		t.Fatal(err)
	}
	if err := here.Do(t.Context(), "cluster", "setslot", slot, "migrating", to).Err(); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys { // a node that has not all keys of a call asks to try again later
		pipe := there.Pipeline()
		pipe.Do(t.Context(), "asking")
		pipe.Set(t.Context(), key, "1 0", time.Minute)
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	until, _, err := limitscripts.CloseRule(t.Context(), rdb, "hw", "rule", time.Minute)
	if err != nil || until.IsZero() {
		t.Errorf("CloseRule = %v, %v, want it closed", until, err)
	}
}
