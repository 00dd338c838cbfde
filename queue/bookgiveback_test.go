package queue

import (
	"fmt"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// Tasks that can't be enqueued give their places back. One whose server does not answer keeps none of the others
// from doing so.
func TestBookGivesOtherPlacesBackBesideAServerThatIsAway(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	rdb := redistest.StartCluster(t, 3)
	rdb.AddHook(redistest.FailingScripts{"enqueue": "", "cancel": "{+1}"})
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
