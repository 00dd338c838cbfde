package recipes

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

func TestAsk(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, "What it really cost")
	inBubble(t, func(t *testing.T, b *bed) {
		used := map[string]int{"little": 10_000, "much": 100_000}
		b.work(Ask(func(_ context.Context, payload []byte) (int, error) {
			for word, n := range used {
				if strings.Contains(string(payload), word) {
					return n, nil
				}
			}
			return 0, errors.New("no answer")
		}), policies...)
		b.enqueue("llm:ask", "a", `{"model":"m","max_tokens":60000,"prompt":"little"}`)
		if left := b.left("tokens", "m"); left < 80_000 || left > 81_000 {
			t.Errorf("%d tokens are left, want little more than 80,000: 10,000 of 60,000 were used", left)
		}
		b.enqueue("llm:ask", "b", `{"model":"m","max_tokens":60000,"prompt":"much"}`)
		if left := b.left("tokens", "m"); left > 200 {
			t.Errorf("%d tokens are left, want no more than came in since: more were used than there were", left)
		}
		time.Sleep(time.Minute)
		if left := b.left("requests", "m"); left != 10 {
			t.Errorf("%d requests are left, want all 10: only tokens are adjusted, and a minute has passed", left)
		}
		for _, r := range b.ran() {
			if n := len(b.grants(r.id)); n != 1 {
				t.Errorf("%s ran %d times, want once", r.id, n)
			}
		}
	})
}

// TestOverspent: a bill above the limit uses it up; some kinds owe all of it.
func TestOverspent(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		for text, want := range map[string]time.Duration{
			"sliding 10/1m": time.Minute, "fixed 10/1m": time.Minute, "bucket 10/1m": 6 * time.Second, "gcra 10/1m burst 10": 6 * time.Second,
			"bucket 10/1m step": time.Minute, "leaky 10/1m": 3 * time.Minute, "smooth 10/1m": 3 * time.Minute, "warmup 10/1m over 1m": 3*time.Minute + 30*time.Second,
		} {
			limit, err := throttle.ParseLimit(text)
			if err != nil {
				t.Fatal(err)
			}
			prefix := strings.NewReplacer(" ", "-", "/", "-").Replace(text) // a ledger each
			l, err := throttle.New(b.rdb, "bill", limit, throttle.Config{Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			d, err := l.TryAcquire(t.Context(), "k", 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Policy().Charge(d).Adjust(t.Context(), map[string]int{l.Rule(): 30}); err != nil {
				t.Fatal(err)
			}
			if next, err := l.TryAcquire(t.Context(), "k", 1); err != nil || next.Granted || next.At.Sub(d.At) != want {
				t.Errorf("%s, adjusted to 30: the next goes %v after it, %v, want %v", text, next.At.Sub(d.At), err, want)
			}
		}
	})
}

// perDay is a policy of 3 a day for all; what is put off waits for a narrower key.
func perDay(pay queue.ChargePolicy) queue.Policy {
	return queue.Policy{Type: "job", Charge: pay, Rules: []queue.Rule{
		{Name: "narrow", Limit: throttle.Sliding(100, 24*time.Hour), Constant: "one"},
		{Name: "day", Limit: throttle.Sliding(3, 24*time.Hour), Constant: "all"},
	}}
}

func TestSend(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		answers := []error{&net.OpError{Op: "dial", Err: errors.New("refused")}, &net.OpError{Op: "read", Err: errors.New("reset")}, nil}
		b.work(Send(func(context.Context, []byte) error {
			err := answers[0]
			answers = answers[1:]
			return err
		}), perDay(queue.ChargeEveryAttempt))
		b.enqueue("job", "a", "")
		if left := b.left("day", "all"); left != 3 {
			t.Errorf("%d are left when nobody was reached, want 3", left)
		}
		time.Sleep(20 * time.Second)
		if left := b.left("day", "all"); left != 1 || len(b.grants("a")) != 3 {
			t.Errorf("%d are left after %d attempts, want 1 after 3: two have paid", left, len(b.grants("a")))
		}
	})
}

func TestChargeSuccess(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, "Paying for success only")
	inBubble(t, func(t *testing.T, b *bed) {
		fails := 4
		b.work(func(context.Context, *asynq.Task) error {
			if fails--; fails >= 0 {
				return errors.New("it failed")
			}
			return nil
		}, policies...)
		b.enqueue("report:make", "a", `{"customer":"c"}`)
		time.Sleep(time.Minute)
		if left := b.left("report", "c"); left != 2 || len(b.grants("a")) != 5 {
			t.Errorf("%d are left after %d attempts, want 2 after 5: one has paid", left, len(b.grants("a")))
		}
	})
}

// TestWhichAttemptsAreCharged holds the table of the page, but for a process that dies.
func TestWhichAttemptsAreCharged(t *testing.T) {
	t.Parallel()
	failed := errors.New("it failed")
	for name, tc := range map[string]struct {
		handler        asynq.HandlerFunc
		every, success int // permits that one attempt pays
	}{
		"nil":        {done, 1, 1},
		"error":      {func(context.Context, *asynq.Task) error { return failed }, 1, 0},
		"NotCharged": {func(context.Context, *asynq.Task) error { return worker.NotCharged(failed) }, 0, 0},
		"RetryAfter": {func(context.Context, *asynq.Task) error { return worker.RetryAfter(failed, time.Hour) }, 1, 0},
		"both": {func(context.Context, *asynq.Task) error {
			return worker.RetryAfter(worker.NotCharged(failed), time.Hour)
		}, 0, 0},
		"panic": {func(context.Context, *asynq.Task) error { panic("it failed") }, 1, 0},
	} {
		for pay, want := range map[queue.ChargePolicy]int{queue.ChargeEveryAttempt: tc.every, queue.ChargeSuccess: tc.success} {
			t.Run(name+", pays for "+pay.String(), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(t *testing.T, b *bed) {
					b.work(tc.handler, perDay(pay))
					b.enqueue("job", "a", "")
					if paid := 3 - b.left("day", "all"); len(b.ran()) != 1 || paid != want {
						t.Errorf("%d attempts have paid %d permits, want 1 attempt to pay %d", len(b.ran()), paid, want)
					}
				})
			})
		}
	}
}

// provider answers as a test wants.
type provider struct {
	mu      sync.Mutex
	answers []*http.Response
}

func answer(status int, retryAfter string) *http.Response {
	r := &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
	if retryAfter != "" {
		r.Header.Set("Retry-After", retryAfter)
	}
	return r
}

func (p *provider) post(context.Context, []byte) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) == 0 {
		return answer(http.StatusOK, ""), nil
	}
	next := p.answers[0]
	p.answers = p.answers[1:]
	return next, nil
}

func TestPost(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer *http.Response
		first  time.Duration // when what was put off goes, after its first attempt
		other  time.Duration // when another phone goes
	}{
		"the phone":    {answer(http.StatusTooManyRequests, "60"), time.Minute, 0},
		"the provider": {answer(http.StatusServiceUnavailable, "60"), time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, b *bed) {
				gateway := &provider{answers: []*http.Response{tc.answer}}
				b.work(Post(gateway.post), SMS())
				b.enqueue("sms:send", "first", `{"to":"+15550100"}`)
				b.enqueue("sms:send", "second", `{"to":"+15550100"}`)
				b.enqueue("sms:send", "other", `{"to":"+15550101"}`)
				time.Sleep(3 * time.Minute)
				first := b.grants("first")
				if len(first) != 2 {
					t.Fatalf("first ran %d times, want twice", len(first))
				}
				if gap := first[1] - first[0]; gap < tc.first || gap > tc.first+200*time.Millisecond {
					t.Errorf("it came again after %v, want %v", gap, tc.first)
				}
				second := b.grants("second")
				if len(second) != 1 || second[0] < first[1]+time.Minute {
					t.Errorf("the second was granted at %v, want once, a minute behind the first at %v", second, first[1])
				}
				if other := b.grants("other"); len(other) != 1 || other[0] < first[0]+tc.other || other[0] > first[0]+tc.other+time.Second {
					t.Errorf("the other phone was granted at %v, want once, %v after %v", other, tc.other, first[0])
				}
				if s := b.pool.Stats(); s.Postponed != 1 {
					t.Errorf("%d were put off, want 1", s.Postponed)
				}
			})
		})
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, "At most so many at once")
	inBubble(t, func(t *testing.T, b *bed) {
		var fences []int64
		var ends []error
		b.work(Export(func(ctx context.Context, fence int64) error {
			fences = append(fences, fence)
			if len(fences) == 1 {
				b.server.SetError("LOADING an outage") // as long as the lease
				<-ctx.Done()
				ends = append(ends, context.Cause(ctx))
				b.server.SetError("")
			}
			return nil
		}), policies...)
		b.enqueue("sms:send", "a", `{"to":"+15550100"}`)
		time.Sleep(90 * time.Second)
		if len(ends) != 1 || !errors.Is(ends[0], throttle.ErrLeaseLost) {
			t.Errorf("the context ended with %v, want %v", ends, throttle.ErrLeaseLost)
		}
		if len(fences) != 2 || fences[1] <= fences[0] {
			t.Errorf("fences = %v, want two, the second higher", fences)
		}
	})
}

// TestSlots: never more at once than there are slots, and the next one follows at once.
func TestSlots(t *testing.T) {
	t.Parallel()
	slots := policiesOf(t, "At most so many at once")[0].Rules[2]
	slots.Limit = throttle.Concurrent(2, slots.Limit.Window()) // 50 need more workers than a test has
	inBubble(t, func(t *testing.T, b *bed) {
		var mu sync.Mutex
		now, most := 0, 0
		b.work(func(context.Context, *asynq.Task) error {
			count := func(by int) {
				mu.Lock()
				defer mu.Unlock()
				now += by
				most = max(most, now)
			}
			count(1)
			time.Sleep(40 * time.Second) // of the bubble, and longer than a lease
			count(-1)
			return nil
		}, queue.Policy{Type: "job", Rules: []queue.Rule{slots}})
		ids := []string{"a", "b", "c", "d", "e"}
		for _, id := range ids {
			b.enqueue("job", id, `{"to":"+15550100"}`)
		}
		time.Sleep(130 * time.Second)
		if most != 2 {
			t.Errorf("%d ran at once, want 2", most)
		}
		for i, id := range ids {
			all := b.grants(id)
			want := time.Duration(i/2) * 40 * time.Second
			if len(all) != 1 || all[0] < want || all[0] > want+2*time.Second {
				t.Errorf("%s began at %v, want once at %v: when another ended", id, all, want)
			}
		}
		if left := b.left("slots", "acme"); left != 2 {
			t.Errorf("%d slots are free at the end, want 2", left)
		}
		if s := b.pool.Stats(); s.LeasesLost != 0 {
			t.Errorf("%d leases were lost, want none", s.LeasesLost)
		}
	})
}
