package throttle_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// On Redis Cluster they are booked one by one, each in the slots of its keys.
func TestBookManyOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	var wishes []throttle.Wish
	for i := range 30 {
		wishes = append(wishes, throttle.Wish{Policy: l.Policy(), Request: throttle.Request{Key: fmt.Sprint("+", i%10), Cost: 1, Job: fmt.Sprint("job", i)}})
	}
	for i, b := range throttle.BookMany(t.Context(), rdb, wishes) {
		want := time.Duration(i/10) * time.Minute
		if got := b.At.Sub(b.Now); b.Err != nil || (want-got).Abs() > 5*time.Second {
			t.Errorf("booking %d = in %v, %v, want in %v", i, got, b.Err, want)
		}
	}
}
