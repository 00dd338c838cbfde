package recipes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

func TestTogether(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		p, err := Together(b.rdb)
		if err != nil {
			t.Fatal(err)
		}
		if got, rules := p.String(), p.Rules(); got != "phone-minute+slots" || !rules[1].Limit().IsConcurrent() {
			t.Errorf("policy %s with %v last, want phone-minute+slots with leases", got, rules[len(rules)-1].Limit())
		}
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		p, err := Together(b.rdb)
		if err != nil {
			t.Fatal(err)
		}
		slots := p.Rules()[1]
		left := func() int {
			n, err := slots.Available(t.Context(), "acme")
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		var began []time.Time
		for range 2 {
			err := Run(t.Context(), p, "+15550100", func(ctx context.Context) error {
				began = append(began, time.Now())
				time.Sleep(31 * time.Second) // of the bubble, and longer than a lease
				if n := left(); n != 49 {
					t.Errorf("%d slots are free while it works, want 49", n)
				}
				return ctx.Err()
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := left(); n != 50 {
				t.Errorf("%d slots are free when it is done, want 50", n)
			}
		}
		if gap := began[1].Sub(began[0]); gap < time.Minute || gap > time.Minute+100*time.Millisecond {
			t.Errorf("the second began %v after the first, want 1m", gap)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Run(ctx, p, "+15550100", func(context.Context) error { return nil }); !errors.Is(err, throttle.ErrTooLate) {
			t.Errorf("with a second to wait: %v, want %v", err, throttle.ErrTooLate)
		}
	})
}

func TestMaintenance(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		b.work(done, SMS())
		operator, err := throttle.New(b.rdb, "provider", SMS().Rules[2].Limit, throttle.Config{}) // another process
		if err != nil {
			t.Fatal(err)
		}
		var opened time.Duration
		err = Maintenance(t.Context(), operator, func() error {
			time.Sleep(2 * time.Second) // of the bubble: by then everybody has heard
			b.enqueue("sms:send", "a", `{"to":"+15550100"}`)
			b.enqueue("sms:send", "b", `{"to":"+15550101"}`)
			time.Sleep(time.Minute)
			if n := len(b.ran()); n != 0 {
				t.Errorf("%d ran while it was closed, want none", n)
			}
			opened = time.Since(start)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		for _, id := range []string{"a", "b"} {
			if all := b.grants(id); len(all) != 1 || all[0] < opened || all[0] > opened+5*time.Second {
				t.Errorf("%s was granted at %v, want once, soon after %v", id, all, opened)
			}
		}
		failed := errors.New("it is still broken")
		if err := Maintenance(t.Context(), operator, func() error { return failed }); !errors.Is(err, failed) {
			t.Errorf("Maintenance = %v, want %v", err, failed)
		}
		if d, err := operator.TryAcquire(t.Context(), "acme", 1); err != nil || d.Granted || d.At.Sub(d.Now) != 4*time.Hour {
			t.Errorf("TryAcquire = %v, %v, want a refusal for four hours", d, err)
		}
	})
}

func TestComplaint(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		phone, err := throttle.New(b.rdb, "phone-minute", throttle.Sliding(1, time.Minute), throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		until, err := Complaint(t.Context(), phone, "+15550100")
		if err != nil || until.Sub(start) != 7*24*time.Hour {
			t.Errorf("closed until %v after the start, %v, want a week", until.Sub(start), err)
		}
		for key, want := range map[string]time.Duration{"+15550100": 7 * 24 * time.Hour, "+15550101": 0} {
			if d, err := phone.TryAcquire(t.Context(), key, 1); err != nil || d.Granted != (want == 0) || d.At.Sub(start) != want {
				t.Errorf("TryAcquire = %v, %v, want it %v after the start", d, err, want)
			}
		}
		if _, err := phone.OpenKey(t.Context(), "+15550100"); err != nil {
			t.Fatal(err)
		}
		if d, err := phone.TryAcquire(t.Context(), "+15550100", 1); err != nil || !d.Granted {
			t.Errorf("TryAcquire of an opened key = %v, %v, want a grant", d, err)
		}
	})
}
