package recipes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

func nothing(context.Context, *asynq.Task) error { return nil }

func TestCode(t *testing.T) {
	t.Parallel()
	perPhone := queue.Policy{Type: "sms:send", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, 2*time.Minute), Key: queue.MustJSONKey("$.to")}}}
	inBubble(t, func(t *testing.T, b *bed) {
		b.enqueueing(perPhone)
		for i, want := range []time.Duration{0, 0, 0, 6 * time.Minute} {
			retry, err := Code(t.Context(), b.client, fmt.Appendf(nil, `{"to":"+15550100","code":%d}`, i))
			if err != nil || (retry-want).Abs() > time.Second {
				t.Errorf("code %d: %v, %v, want %v", i, retry, err, want)
			}
		}
		if retry, err := Code(t.Context(), b.client, []byte(`{"to":"+15550100","code":2}`)); retry != 0 || err != nil {
			t.Errorf("the same code = %v, %v, want nil", retry, err)
		}
		if n := b.rdb.ZCard(t.Context(), "hw:{default}:due").Val(); n != 2 {
			t.Errorf("%d codes wait, want two: one may be sent now, one was too late", n)
		}
	})
}

func TestRemind(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		policy := SMS()
		policy.Rules[2].Limit = throttle.GCRA(1, time.Second, 1)
		b.work(nothing, policy)
		var payloads [][]byte
		for i := range 100 {
			payloads = append(payloads, fmt.Appendf(nil, `{"to":"+1555%04d"}`, i))
		}
		left, err := Remind(t.Context(), b.client, payloads, start.Add(time.Minute))
		if err != nil || len(left) != 39 && len(left) != 40 || string(left[len(left)-1]) != string(payloads[99]) {
			t.Errorf("%d get none, %v, want the last 39 or 40", len(left), err)
		}
		time.Sleep(90 * time.Second)
		// the last may be booked for the very evening, and be some milliseconds behind it when it is its turn
		if n, most := len(b.ran()), len(payloads)-len(left); n < most-1 || n > most {
			t.Errorf("%d were reminded, want %d", n, most)
		}
		if n := b.pool.Stats().Admissions; n > 105*int64(len(b.ran()))/100 {
			t.Errorf("%d admissions for %d reminders, want one each", n, len(b.ran()))
		}
	})
}
