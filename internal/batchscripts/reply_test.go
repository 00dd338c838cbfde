package batchscripts

import (
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// A record is read as far as it is one of ours.
func TestReadBatch(t *testing.T) {
	t.Parallel()
	fields := []any{"v", "1", "state", "paused", "total", "7", "until", "5", "t0", "9"}
	reply := append([]any{int64(1), int64(2), int64(3)}, fields...)
	got, err := Claim(t.Context(), redistest.Answering{Value: reply}, queuescripts.NewQueueKeys("hw", "q"), ClaimArgs{ID: "b"})
	if err != nil || got.State != Paused || got.Total != 7 || !got.Until.Equal(time.UnixMicro(5)) || got.Unfinished != 3 {
		t.Errorf("Claim = %+v, %v, want what was answered", got, err)
	}
	for at, wrong := range map[int]any{4: "2", 8: "x", 10: "-1", 12: "1.5", 3: int64(4)} {
		broken := slices.Clone(reply)
		broken[at] = wrong
		if _, err := Claim(t.Context(), redistest.Answering{Value: broken}, queuescripts.NewQueueKeys("hw", "q"), ClaimArgs{ID: "b"}); err == nil {
			t.Errorf("%v is read as a record", broken)
		}
	}
	if _, err := Claim(t.Context(), redistest.Answering{Value: reply[:4]}, queuescripts.NewQueueKeys("hw", "q"), ClaimArgs{ID: "b"}); err == nil {
		t.Error("a field without a value is read")
	}
}
