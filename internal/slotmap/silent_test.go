package slotmap

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server has to tell the map within a second, or within several times what the last answer took where servers are far: where
// each call takes a second, one that has to be dialled first takes four. A bound that was too short grows.
func TestSilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	var within patience
	ask := func(takes time.Duration) (time.Duration, error) {
		cmd := redis.NewClusterSlotsCmd(t.Context(), "cluster", "slots")
		began := time.Now()
		err := slotsHook{&within}.ProcessHook(func(_ context.Context, cmd redis.Cmder) error {
			time.Sleep(takes)
			cmd.(*redis.ClusterSlotsCmd).SetVal([]redis.ClusterSlot{{Start: 1}})
			return nil
		})(t.Context(), cmd)
		if !errors.Is(cmd.Err(), err) || (err == nil) != (len(cmd.Val()) == 1) {
			t.Errorf("the command has %v and %v, and the error is %v", cmd.Val(), cmd.Err(), err)
		}
		return time.Since(began), err
	}
	synctest.Test(t, func(t *testing.T) {
		for i, tc := range []struct {
			takes, want time.Duration
			err         error
		}{
			{5 * time.Second, 5 * time.Second, nil}, // the first has no bound
			{30 * time.Second, 30 * time.Second, nil},
			{time.Millisecond, time.Millisecond, nil},
			{time.Minute, time.Second, errSilent},
			{time.Minute, 2 * time.Second, errSilent},
			{3 * time.Second, 3 * time.Second, nil},
			{time.Second, time.Second, nil},
			{4 * time.Second, 4 * time.Second, nil},
		} {
			if took, err := ask(tc.takes); took != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("call %d: %v, %v, want %v, %v", i, took, err, tc.want, tc.err)
			}
		}
		time.Sleep(time.Minute) // those that were given up end
	})
}
