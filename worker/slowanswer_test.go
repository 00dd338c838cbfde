package worker_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// Redis answers an admission when asynq has given the attempt up: the handler
// does not run, whatever the answer is, and nothing stays charged.
func TestAnswerAfterTheAttemptWasGivenUp(t *testing.T) {
	t.Parallel()
	for _, booked := range []bool{false, true} {
		name := map[bool]string{false: "granted", true: "booked"}[booked]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, seen := newRig(t), &runs{}
			slow := &slowHook{call: regexp.MustCompile(`sms:line`), after: 2500 * ms}
			rdb := redis.NewClient(r.srv.ClientOptions())
			t.Cleanup(func() { _ = rdb.Close() })
			rdb.AddHook(slow)
			p, _ := r.startOn(rdb, seen.handler(), policies(phone("sms", time.Hour)))
			lim := r.limiter("sms", throttle.Sliding(1, time.Hour))
			want := 1
			if booked {
				r.take(lim, "+1")
				want = 0
			}
			// the texts of all scripts are known, so that the slow call is the one that counts
			if _, err := p.Limiter("sms").TryAcquire(t.Context(), "+2", 1); err != nil {
				t.Fatal(err)
			}
			slow.armed.Store(true)
			r.enqueue("sms", "a", to("+1"), asynq.Timeout(time.Second), asynq.MaxRetry(0))
			r.eventually("given up", func() bool { return r.is("a", asynq.TaskStateArchived) })
			never(t, 2500*ms, "a run", func() bool { return len(seen.all()) > 0 })
			if slow.hits.Load() != 1 {
				t.Fatalf("%d slow answers, want 1", slow.hits.Load())
			}
			r.eventually("nothing charged", func() bool {
				s, err := lim.Peek(t.Context(), "+1", 0)
				return err == nil && (s.Available == want || booked)
			})
			if n := p.Stats().Granted; n != 0 {
				t.Errorf("Granted = %d, want 0", n)
			}
		})
	}
}
