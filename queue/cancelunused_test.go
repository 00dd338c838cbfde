package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// failingScripts makes scripts fail as if their server could not be reached: each of a name, where a key has a tag.
type failingScripts map[string]string

func (failingScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (failingScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f failingScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		name := fmt.Sprint(cmd.Args()[min(1, len(cmd.Args())-1)])
		for script, tag := range f {
			if strings.HasSuffix(name, "_"+script) && slices.ContainsFunc(cmd.Args(), func(a any) bool { return strings.Contains(fmt.Sprint(a), tag) }) {
				err := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// Tasks that can't be enqueued give their places back. One whose server does not answer keeps none of the others
// from doing so.
func TestBookGivesOtherPlacesBackBesideAServerThatIsAway(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	rdb := redistest.StartCluster(t, 3)
	rdb.AddHook(failingScripts{"enqueue": "", "cancel": "{+1}"})
	c := newClient(t, rdb, perMinute())
	var tasks []*Task
	for i := range 4 {
		tasks = append(tasks, smsTo(fmt.Sprint("+", i)))
	}
	for _, r := range c.BookMany(t.Context(), tasks) {
		if r.Err == nil {
			t.Fatal("a task was enqueued, want none")
		}
	}
	for i := range tasks {
		want := int64(0)
		if i == 1 {
			want = 1
		}
		key := fmt.Sprintf("hw:{+%d}:phone:line", i)
		if n := rdb.ZCount(t.Context(), key, "-inf", "(2251799813685248").Val(); n != want {
			t.Errorf("%d places are left on +%d, want %d", n, i, want)
		}
	}
}
