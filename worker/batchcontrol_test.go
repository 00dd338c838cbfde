package worker_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// provider is a policy with one key, ten permits each tenth of a second.
func provider() queue.Policy {
	return queue.Policy{Type: "sms", Rules: []queue.Rule{
		{Name: "provider", Limit: throttle.Sliding(10, 100*ms), Constant: "acme"},
	}}
}

// A pause holds within a second, also with a thousand tasks that are pending, and what
// is resumed goes on in its order, each message once.
func TestVirtualBatchPause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policies []queue.Policy
		takes    time.Duration
		phones   int
		window   int
	}{
		"booked":       {policies: []queue.Policy{provider()}, phones: 1, window: 250},
		"pending":      {takes: 10 * ms, phones: 1},
		"on two rules": {policies: []queue.Policy{phoneAndProvider(200*ms, throttle.Sliding(10, 100*ms))}, phones: 60, window: 250},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rounds := sized(1, 2)
				n := 100 + 225*rounds
				h := virtualBatchRig(t, tt.policies...)
				h.takes = tt.takes
				h.pool(1)
				h.feed(map[string]batch.Source{"messages": messages(n, tt.phones)})
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: int64(n), Window: tt.window})
				h.until("some ran", func() bool { return len(h.seen.all()) > 50 })
				for range rounds {
					if err := h.batches.Pause(t.Context(), "default", "winter"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
					ran := len(h.seen.all())
					time.Sleep(5 * time.Second)
					if more := len(h.seen.all()) - ran; more != 0 || h.progress("winter").State != batch.Paused {
						t.Errorf("%d messages ran while it was paused, want none", more)
					}
					if err := h.batches.Resume(t.Context(), "default", "winter"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(1050 * ms) // and not at an instant at which ten of them run
					begun := len(h.seen.all())
					if begun-ran < 50 {
						t.Errorf("%d messages ran in the second after it was resumed, want at least 50", begun-ran)
					}
					time.Sleep(time.Second)
					if more := len(h.seen.all()) - begun; more < 80 { // tasks that get new instants behind late ones leave a tenth of a second or two free
						t.Errorf("%d messages ran in the next second, want 100", more)
					}
				}
				h.allDone(n, tt.phones)
				h.nothingLeft()
			})
		})
	}
}

// What is cancelled leaves nothing behind: no task, no place, no key, whatever it was
// doing, and whether its feeder is there or not.
func TestVirtualBatchCancel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ paused, unfed bool }{"running": {}, "paused": {paused: true}, "without its feeder": {unfed: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t, phoneAndProvider(time.Second, throttle.Sliding(10, 100*ms)))
				h.takes = 50 * ms
				h.pool(4)
				stop := h.feed(map[string]batch.Source{"messages": messages(5000, 300)})
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: 5000, Window: 150})
				h.until("some ran", func() bool { return len(h.seen.all()) > 100 })
				if tt.paused {
					if err := h.batches.Pause(t.Context(), "default", "winter"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(2 * time.Second)
				}
				if tt.unfed {
					stop()
				}
				p, err := h.batches.Cancel(t.Context(), "default", "winter")
				if err != nil || p.State != batch.Cancelled || p.Dropped < 50 || p.Open > 4 {
					t.Errorf("Cancel = %+v, %v, want what waited to be dropped", p, err)
				}
				ran := len(h.seen.all())
				time.Sleep(5 * time.Second)
				if more := len(h.seen.all()) - ran; more > 4 {
					t.Errorf("%d messages ran after it was cancelled", more)
				}
				if _, err := h.batches.Progress(t.Context(), "default", "winter"); !errors.Is(err, batch.ErrNotFound) {
					t.Errorf("Progress = %v, want ErrNotFound", err)
				}
				h.gone()
			})
		})
	}
}

// gone checks that no task is left, no place in any line, and no key of a batch.
func (h *batchRig) gone() {
	h.Helper()
	for _, key := range h.rdb.Keys(h.Context(), "*").Val() {
		for _, part := range []string{":batch", ":t:", ":line", ":due", ":places", ":turns", ":pending", ":scheduled", ":retry", ":active", ":archived"} {
			if strings.Contains(key, part) {
				h.Errorf("left behind: %s (%s)", key, h.rdb.Type(h.Context(), key).Val())
			}
		}
	}
}

// Two batches share a provider as their weights are to each other.
func TestVirtualBatchWeights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		policy := provider()
		policy.Rules[0].Limit = throttle.Sliding(5, 200*ms)
		h := virtualBatchRig(t, policy)
		h.pool(10)
		h.feed(map[string]batch.Source{"messages": messages(5000, 100)})
		for id, weight := range map[string]int{"heavy": 75, "light": 25} {
			h.begin(batch.Spec{ID: id, Type: "sms", Source: "messages", Weight: weight, Window: 50})
		}
		time.Sleep(5 * time.Second)
		heavy, light := h.progress("heavy").Done, h.progress("light").Done
		time.Sleep(10 * time.Second)
		heavy, light = h.progress("heavy").Done-heavy, h.progress("light").Done-light
		if all := heavy + light; all < 245 || heavy*100 < all*72 || heavy*100 > all*78 {
			t.Errorf("%d and %d messages ran, want 250 at 75 to 25", heavy, light)
		}
		if err := h.batches.SetWeight(t.Context(), "default", "light", 75); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		heavy, light = h.progress("heavy").Done, h.progress("light").Done
		time.Sleep(9 * time.Second) // three times what is in the line
		heavy, light = h.progress("heavy").Done-heavy, h.progress("light").Done-light
		if all := heavy + light; heavy*100 < all*47 || heavy*100 > all*53 {
			t.Errorf("%d and %d messages ran, want as many of each", heavy, light)
		}
	})
}

// The pace changes at run time.
func TestVirtualBatchPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		policy := provider()
		policy.Rules[0].Limit = throttle.Sliding(5, 100*ms)
		h := virtualBatchRig(t, policy)
		h.pool(10)
		h.feed(map[string]batch.Source{"messages": messages(5000, 100)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: 5000, Window: 400, Pace: batch.Pace{N: 5, Per: time.Second}})
		ran := func(d time.Duration, least, most int64) {
			t.Helper()
			before := h.progress("winter").Done
			time.Sleep(d)
			if n := h.progress("winter").Done - before; n < least || n > most {
				t.Errorf("%d ran in %v, want %d to %d", n, d, least, most)
			}
		}
		time.Sleep(time.Second)
		ran(20*time.Second, 99, 101)
		p := h.progress("winter")
		if rest := p.ExpectedEnd.Sub(p.Now).Seconds() * 5; p.Rate < 4.9 || p.Rate > 5.1 || rest < 4500 || rest > 5100 {
			t.Errorf("%.2f a second, %v left, want 5, and the rest at that", p.Rate, p.ExpectedEnd.Sub(p.Now))
		}
		for _, pace := range []batch.Pace{{N: 30, Per: time.Second}, {N: 60, Per: time.Minute}} {
			if err := h.batches.SetPace(t.Context(), "default", "winter", pace); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			each := int64(pace.N) * 8 * int64(time.Second) / int64(pace.Per)
			slack := 1 + each/200 // at either end of the time one more may have ended, or one less
			ran(8*time.Second, each-slack, each+slack)
		}
		if err := h.batches.SetPace(t.Context(), "default", "winter", batch.Pace{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		ran(4*time.Second, 196, 204)
	})
}

// A batch waits at a gate, and goes when that opens.
func TestVirtualBatchAtAGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hours, err := gate.Parse("09:00-21:00 UTC")
		if err != nil {
			t.Fatal(err)
		}
		policy := phoneAndProvider(time.Second, throttle.Sliding(10, 100*ms))
		policy.Rules = append(policy.Rules, queue.Rule{Name: "hours", Gate: hours})
		time.Sleep(time.Until(time.Now().UTC().Truncate(24 * time.Hour).Add(24*time.Hour + 9*time.Hour - 30*time.Second)))
		opens := time.Now().UTC().Truncate(time.Hour).Add(time.Hour)
		h := virtualBatchRig(t, policy)
		pool := h.pool(10)
		h.feed(map[string]batch.Source{"messages": messages(250, 100)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
		wait := time.Until(opens) - ms
		if wait < 29*time.Second { // a pool that starts may wait a little
			t.Fatalf("the gate opens in %v", wait)
		}
		time.Sleep(wait)
		if n := len(h.seen.all()); n != 0 {
			t.Fatalf("%d messages ran before the gate opened", n)
		}
		time.Sleep(10 * time.Second)
		h.allDone(250, 100)
		if n := pool.Stats().Admissions; n > 262 {
			t.Errorf("%d admissions for 250 messages, want at most 262", n)
		}
		for _, r := range h.seen.all() {
			if r.at.Before(opens) || r.at.After(opens.Add(4*time.Second)) {
				t.Errorf("%s ran at %v, want within 4 s after %v", r.id, r.at, opens)
			}
		}
	})
}

// A source that fails goes on behind the last element that it gave, and the batch does
// not end before it has really ended.
func TestVirtualBatchOfASourceThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t)
		h.pool(1)
		broken := errors.New("no more of +4917012345678 today")
		var mu sync.Mutex
		var began []batch.Position
		source := func(_ context.Context, _ batch.Spec, from batch.Position) iter.Seq2[batch.Element, error] {
			mu.Lock()
			began = append(began, from)
			mu.Unlock()
			return func(yield func(batch.Element, error) bool) {
				for i := from.Read; i < 100; i++ {
					if i%10 == 5 && !yield(batch.Element{}, broken) { // and it goes on
						return
					}
					if !yield(batch.Element{Mark: fmt.Sprint("m", i)}, nil) {
						return
					}
					if i == 30 || i == 31 || i == 99 && from.Read < 99 {
						yield(batch.Element{}, broken)
						return
					}
				}
			}
		}
		h.feed(map[string]batch.Source{"messages": source})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
		h.allDone(100, 1)
		want := []batch.Position{{}, {Read: 31, Mark: "m30"}, {Read: 32, Mark: "m31"}, {Read: 100, Mark: "m99"}}
		if !slices.Equal(began, want) {
			t.Errorf("the source began at %v, want %v", began, want)
		}
		for _, line := range h.logs.All() {
			if text := fmt.Sprint(line.Message, line.ContextMap()); strings.Contains(text, "4917012345678") {
				t.Errorf("a log line quotes an element: %s", text)
			}
		}
	})
}

// A channel feeds as elements come, and ends the batch when it is closed.
func TestVirtualBatchOfAChannel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t)
		h.pool(4)
		ch := make(chan batch.Element)
		h.feed(map[string]batch.Source{"orders": batch.Channel(ch)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "orders"})
		for i := range 20 {
			ch <- batch.Element{Payload: fmt.Append(nil, i)}
			before := time.Now()
			h.eventually("it runs", func() bool { return len(h.seen.all()) == i+1 })
			if took := time.Since(before); took > 400*ms { // the longer the pool was idle, the less often it looks
				t.Errorf("element %d ran %v after it came", i, took)
			}
			time.Sleep(time.Duration(i) * 100 * ms)
		}
		if p := h.progress("winter"); p.State != batch.Running || p.Done != 20 {
			t.Errorf("it is %+v, want it to run on", p)
		}
		close(ch)
		h.ends()
	})
}

// An element that can never run is refused, reported, and counted; the batch goes on.
func TestVirtualBatchRefusesElements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := virtualBatchRig(t, phone("sms", ms))
		h.pool(1)
		elements := []batch.Element{
			{Payload: []byte(to("+1"))},
			{Payload: []byte(`{"to":""}`)},
			{ID: "a b", Payload: []byte(to("+1"))},
			{ID: "x", Payload: []byte(to("+1"))},
			{ID: "x", Payload: []byte(to("+1"))},
			{Payload: []byte(to("+1")), Options: []asynq.Option{asynq.Queue("other")}},
			{Payload: []byte(to("+1")), Options: []asynq.Option{asynq.Deadline(time.Now().Add(-time.Minute))}},
			{Payload: []byte(to("+1")), Mark: strings.Repeat("m", 300)},
			{Payload: []byte(to("+1"))},
		}
		var mu sync.Mutex
		refused := make(map[string]error)
		c, err := queue.NewClient(h.connect(), queue.ClientConfig{Policies: h.policies})
		if err != nil {
			t.Fatal(err)
		}
		f, err := batch.NewFeeder(c, batch.FeederConfig{
			Queues:  []string{"default"},
			Sources: map[string]batch.Source{"messages": batch.Seq(func(batch.Spec) iter.Seq[batch.Element] { return slices.Values(elements) })},
			Refused: func(batch string, e batch.Element, err error) {
				mu.Lock()
				defer mu.Unlock()
				refused[batch+"/"+e.ID] = err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		h.run(f)
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages"})
		p := h.ends()
		if p.Done != 3 || p.Refused != 6 || p.Read != 9 {
			t.Errorf("it ended as %+v, want 3 done and 6 refused", p)
		}
		if want := map[event.Reason]int64{event.Invalid: 4, event.TooLate: 1, batch.IDTaken: 1}; !maps.Equal(p.RefusedFor, want) {
			t.Errorf("elements were refused for %v, want %v", p.RefusedFor, want)
		}
		mu.Lock()
		defer mu.Unlock()
		for id, want := range map[string]error{
			"1": queue.ErrNoKey, "a b": batch.ErrInvalid, "x": asynq.ErrTaskIDConflict, "5": queue.ErrInvalidOption, "6": throttle.ErrTooLate, "7": batch.ErrInvalid,
		} {
			if got := refused["winter/"+id]; !errors.Is(got, want) {
				t.Errorf("element %q: %v, want %v", id, got, want)
			}
		}
		if len(refused) != 6 {
			t.Errorf("%d elements are reported as refused, want 6: %v", len(refused), refused)
		}
	})
}
