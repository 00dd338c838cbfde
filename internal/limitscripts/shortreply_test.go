package limitscripts

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// A call's answer may be one integer.
func TestShortReplies(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000_000_000
	at := time.UnixMicro(now)
	for _, c := range []struct {
		short  any
		status Status
		at     time.Time
		from   time.Time
		fails  bool
	}{
		{short: int64(0), status: Granted, at: at, from: at},
		{short: int64(1_500_000), status: Granted, at: at, from: at.Add(-1500 * time.Millisecond)},
		{short: int64(now), status: Granted, at: at},
		{short: int64(-1), status: Granted, at: at},
		{short: int64(-2), status: askAlone},
		{short: []any{int64(-1)}, status: askAlone},
		{short: []any{int64(1), int64(0), int64(now), int64(now - 5)}, status: Granted, at: at, from: at.Add(-5 * time.Microsecond)},
		{short: int64(-3), fails: true},
		{short: int64(now + 1), fails: true},
		{short: int64(math.MaxInt64), fails: true},
		{short: int64(math.MinInt64), fails: true},
		{short: "0", fails: true},
	} {
		// the last is answered whatever the first is
		calls := []*Call{{AcquireArgs: sample()}, {AcquireArgs: sample()}}
		calls[1].WantLeft = true
		if err := AcquireMany(t.Context(), redistest.Answering{Value: []any{int64(now), c.short, int64(3)}}, calls); err != nil {
			t.Fatalf("%v: %v", c.short, err)
		}
		got := calls[0]
		switch _, broken := errors.AsType[*luascripts.ReplyError](got.Err); {
		case c.fails != broken:
			t.Errorf("%v: the error is %v", c.short, got.Err)
		case c.fails:
		case errors.Is(got.Err, ErrRetrySingly) != (c.status == askAlone):
			t.Errorf("%v: the error is %v, the status %d", c.short, got.Err, got.Status)
		case got.Status != c.status || !got.At.Equal(c.at) || !got.From.Equal(c.from) || !got.Now.Equal(at) || len(got.Worth) != 2 || len(got.Left) != 2:
			t.Errorf("%v: read as %+v, want status %d at %v from %v", c.short, got.AcquireReply, c.status, c.at, c.from)
		}
		if last := calls[1]; last.Err != nil || last.Status != Granted || !last.From.Equal(at.Add(-3*time.Microsecond)) || len(last.Left) != 2 {
			t.Errorf("%v: the next is read as %+v, %v", c.short, last.AcquireReply, last.Err)
		}
	}
}
