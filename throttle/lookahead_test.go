package throttle

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// Pools look less far ahead than InlineWait, and Lua takes so much for granted when it decides whether to tell them
// of a booking.
func TestLuaKnowsHowFarPoolsLookAhead(t *testing.T) {
	t.Parallel()
	_, text := luascripts.Library()
	m := regexp.MustCompile(`LOOKED_AHEAD = (\d+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the library has no LOOKED_AHEAD")
	}
	us, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil || time.Duration(us)*time.Microsecond < inlineWaitMax {
		t.Errorf("LOOKED_AHEAD = %d us, %v, want %v at least", us, err, inlineWaitMax)
	}
}
