package throttletest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/throttletest"
)

// The limiters here are the real one with one fault each.
type (
	oneTooMany   struct{ *broken }
	wrongWait    struct{ *broken }
	early        struct{ *broken }
	passesLine   struct{ *broken }
	stays        struct{ *broken }
	refundsTwice struct{ *broken }
	chargesTwice struct{ *broken }
	spendsLook   struct{ *broken }
	leavesPlace  struct{ *broken }
	waitsItOut   struct{ *broken }
	showsKey     struct{ *broken }
	looksFirst   struct{ *broken }
	forgets      struct{ *broken }
)

type broken struct {
	throttletest.Limiter
	mu   sync.Mutex
	seen map[any]int
}

// count is how often it was called with a value.
func (b *broken) count(v any) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen[v]++
	return b.seen[v]
}

func (l oneTooMany) TryAcquire(ctx context.Context, key string, n int) (throttle.Decision, error) {
	d, err := l.Limiter.TryAcquire(ctx, key, n)
	d.Granted = d.Granted || err == nil && l.count(key) == 6 // examples hold five
	return d, err
}

func (l wrongWait) TryAcquire(ctx context.Context, key string, n int) (throttle.Decision, error) {
	d, err := l.Limiter.TryAcquire(ctx, key, n)
	if !d.Granted {
		d.At = d.At.Add(time.Microsecond)
	}
	return d, err
}

func (l early) TryAcquire(ctx context.Context, key string, n int) (throttle.Decision, error) {
	d, err := l.Limiter.TryAcquire(ctx, key, n)
	d.Granted = d.Granted || err == nil && d.At.Sub(d.Now) <= time.Microsecond
	return d, err
}

func (l passesLine) Redeem(ctx context.Context, r throttle.Request) (throttle.Decision, error) {
	if _, err := l.Cancel(ctx, r); err != nil {
		return throttle.Decision{}, err
	}
	return l.TryAcquire(ctx, r.Key, r.Cost)
}

func (l stays) Cancel(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error) {
	if s, err := l.Peek(ctx, r.Key, 1); err == nil && len(s.Booked) > 0 && s.Booked[0].Job == r.Job {
		return nil, nil
	}
	return l.Limiter.Cancel(ctx, r)
}

func (l refundsTwice) Refund(ctx context.Context, r throttle.Request) ([]throttle.Promotion, error) {
	if l.count(r.Token) > 1 {
		return l.Reset(ctx, r.Key)
	}
	return l.Limiter.Refund(ctx, r)
}

func (l chargesTwice) Redeem(ctx context.Context, r throttle.Request) (throttle.Decision, error) {
	r.Token = throttle.NewToken()
	return l.Limiter.Redeem(ctx, r)
}

func (l spendsLook) Available(ctx context.Context, key string) (int, error) {
	n, err := l.Limiter.Available(ctx, key)
	if n > 0 {
		_, err = l.TryAcquire(ctx, key, 1)
	}
	return n, err
}

func (l leavesPlace) Acquire(ctx context.Context, key string, n int) error {
	err := l.Limiter.Acquire(ctx, key, n)
	if ctx.Err() != nil {
		_, _ = l.Book(context.WithoutCancel(ctx), throttle.Request{Key: key, Cost: n, Job: fmt.Sprint("left", l.count("left"))})
	}
	return err
}

func (l waitsItOut) AcquireWithin(ctx context.Context, key string, n int, d time.Duration) error {
	err := l.Limiter.AcquireWithin(ctx, key, n, d)
	if err != nil && d > 0 {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		<-ctx.Done()
	}
	return err
}

func (l showsKey) TryAcquire(ctx context.Context, key string, n int) (throttle.Decision, error) {
	d, err := l.Limiter.TryAcquire(ctx, key, n)
	if err != nil {
		err = fmt.Errorf("%s: %w", key, err)
	}
	return d, err
}

func (l looksFirst) TryAcquire(ctx context.Context, key string, n int) (throttle.Decision, error) {
	free, err := l.Available(ctx, key)
	if err != nil || n > free {
		return l.Limiter.TryAcquire(ctx, key, n)
	}
	time.Sleep(time.Microsecond) // all others look meanwhile
	d, err := l.Limiter.TryAcquire(ctx, key, n)
	d.Granted = err == nil
	return d, err
}

func (l forgets) SetLimit(ctx context.Context, limit throttle.Limit) error {
	if _, err := l.Reset(ctx, "+49 170 1234567"); err != nil {
		return err
	}
	return l.broken.SetLimit(ctx, limit)
}

func (b *broken) SetLimit(ctx context.Context, limit throttle.Limit) error {
	return b.Limiter.(interface {
		SetLimit(ctx context.Context, limit throttle.Limit) error
	}).SetLimit(ctx, limit)
}

// faulty are these limiters, and where the suite must find each of them.
var faulty = []struct {
	name, found string
	limiter     func(*broken) throttletest.Limiter
}{
	{"oneTooMany", "tight/sliding", func(b *broken) throttletest.Limiter { return oneTooMany{b} }},
	{"wrongWait", "numbers/sliding", func(b *broken) throttletest.Limiter { return wrongWait{b} }},
	{"early", "tight/gcra", func(b *broken) throttletest.Limiter { return early{b} }},
	{"passesLine", "line/order", func(b *broken) throttletest.Limiter { return passesLine{b} }},
	{"stays", "line/cancel_place_1_of_4", func(b *broken) throttletest.Limiter { return stays{b} }},
	{"refundsTwice", "grants/a_refund_counts_once", func(b *broken) throttletest.Limiter { return refundsTwice{b} }},
	{"chargesTwice", "grants/the_same_token_gets_the_same_grant", func(b *broken) throttletest.Limiter { return chargesTwice{b} }},
	{"spendsLook", "looks/they_spend_and_book_nothing", func(b *broken) throttletest.Limiter { return spendsLook{b} }},
	{"leavesPlace", "blocking/Acquire_ends_with_its_context", func(b *broken) throttletest.Limiter { return leavesPlace{b} }},
	{"waitsItOut", "refusals/AcquireWithin_fails_at_once", func(b *broken) throttletest.Limiter { return waitsItOut{b} }},
	{"showsKey", "refusals/cost_above_the_limit", func(b *broken) throttletest.Limiter { return showsKey{b} }},
	{"looksFirst", "crowd/never_over/sliding", func(b *broken) throttletest.Limiter { return looksFirst{b} }},
	{"forgets", "change/it_rises,_and_counts_what_was_spent", func(b *broken) throttletest.Limiter { return forgets{b} }},
	{"sound", "", func(b *broken) throttletest.Limiter { return b }},
}

const playBroken = "THROTTLETEST_BROKEN"

// The suite fails for each limiter with a fault, where it should, and not for
// the same wrapper without one. It fails in a process of its own.
func TestSuiteFindsFaults(t *testing.T) {
	if os.Getenv(playBroken) != "" {
		for _, f := range faulty {
			t.Run(f.name, func(t *testing.T) {
				throttletest.RunInBubble(t, func(t *testing.T, limit throttle.Limit) throttletest.Limiter {
					return f.limiter(&broken{Limiter: local(t, limit), seen: make(map[any]int)})
				})
			})
		}
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuiteFindsFaults$", "-test.v")
	cmd.Env = append(os.Environ(), playBroken+"=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || strings.Contains(string(out), "panic:") {
		t.Fatalf("the suite ended with %v, want failed tests:\n%s", err, out)
	}
	for _, f := range faulty {
		failed := "--- FAIL: TestSuiteFindsFaults/" + f.name
		switch {
		case f.found == "" && !strings.Contains(string(out), "--- PASS: TestSuiteFindsFaults/"+f.name+" "):
			t.Errorf("%s has failed, want it to pass", f.name)
		case f.found != "" && !strings.Contains(string(out), failed+"/"+f.found+" "):
			t.Errorf("%s has passed %s, want it to fail", f.name, f.found)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}
