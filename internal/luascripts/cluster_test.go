package luascripts

import (
	"fmt"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// A key is in the slot that Redis says.
func TestSlotOf(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 1)
	keys := []string{"", "a", "123456789", "hw:{+49170123}:sms", "{}x", "x{}{y}", "{a}{b}", "a{b", "a}b{c}", "{\x00\xff}", "hw:{#\u00fc}:sms:line"}
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("hw:{+49170%d}:sms", i))
	}
	for _, key := range keys {
		if want, err := rdb.ClusterKeySlot(t.Context(), key).Result(); err != nil || int64(SlotOf(key)) != want {
			t.Errorf("SlotOf(%q) = %d, want %d, %v", key, SlotOf(key), want, err)
		}
	}
}
