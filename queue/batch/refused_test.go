package batch

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// Every refused element counts for one reason, also in a record of an older or a newer
// version: the sum is always Refused.
func TestRefusedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record map[string]int64
		all    int64
		want   map[event.Reason]int64
	}{
		"none":                {nil, 0, map[event.Reason]int64{}},
		"all are known":       {map[string]int64{"invalid": 2, "id taken": 1, "duplicate": 3}, 6, map[event.Reason]int64{event.Invalid: 2, IDTaken: 1, Duplicate: 3}},
		"of an older version": {nil, 4, map[event.Reason]int64{ReasonUnknown: 4}},
		"of two versions":     {map[string]int64{"too late": 1}, 4, map[event.Reason]int64{event.TooLate: 1, ReasonUnknown: 3}},
		"of a newer version":  {map[string]int64{"exceeds limit": 1, "<b>": 2}, 3, map[event.Reason]int64{event.ExceedsLimit: 1, ReasonUnknown: 2}},
	} {
		if got := refusedFor(luascripts.Batch{Refused: c.all, RefusedFor: c.record}); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestReasonOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want event.Reason
	}{
		{fmt.Errorf("x: %w", &throttle.TooLateError{}), event.TooLate},
		{fmt.Errorf("x: %w", &throttle.ExceedsLimitError{}), event.ExceedsLimit},
		{&queue.DemandError{}, event.Invalid},
		{fmt.Errorf("x: %w", ErrInvalid), event.Invalid},
		{errors.New("x"), event.Invalid},
		{&queue.OptionError{}, event.Invalid},
		{asynq.ErrTaskNotFound, event.Invalid},
	} {
		if got := reasonOf(c.err); got != c.want {
			t.Errorf("reasonOf(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}
