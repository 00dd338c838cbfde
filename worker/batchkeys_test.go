package worker_test

import (
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// doneWithin checks how many elements are done after a time.
func (h *batchRig) doneWithin(d time.Duration, n int64) {
	h.Helper()
	time.Sleep(d)
	if p := h.progress("winter"); p.Done != n {
		h.Fatalf("after %v %d are done and %d open, want %d done", d, p.Done, p.Open, n)
	}
}

// A lease is free as soon as its handler ends, and not only when it would end by itself.
func TestVirtualBatchBehindLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		h := virtualBatchRig(t, queue.Policy{Type: "sms", Rules: []queue.Rule{
			{Name: "slots", Limit: throttle.Concurrent(3, 30*time.Second), Constant: "x"},
		}})
		h.takes = 20 * ms
		pool := h.pool(10)
		h.feed(map[string]batch.Source{"messages": messages(n, 20)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 50})
		h.doneWithin(2*time.Second, n)
		h.allDone(n, 20)
		h.share(pool, n, 150, 50) // three at a time, 20 ms each
	})
}

// A rate on each phone and a few slots for all: nobody waits for an instant that came
// nearer when a slot was given back.
func TestVirtualBatchOfPhonesBehindLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, phones = 140, 20
		h := virtualBatchRig(t, queue.Policy{Type: "sms", Rules: []queue.Rule{
			{Name: "phone", Limit: throttle.Sliding(1, 500*ms), Key: queue.MustJSONKey("$.to")},
			{Name: "slots", Limit: throttle.Concurrent(3, 30*time.Second), Constant: "x"},
		}})
		h.takes = 20 * ms
		h.pool(10)
		h.feed(map[string]batch.Source{"messages": messages(n, phones)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 50})
		h.doneWithin(5600*ms, n) // seven messages a phone
		h.allDone(n, phones)
	})
}

// What was shut for an hour is opened after five seconds: the batch goes on at once.
func TestVirtualBatchThatIsOpenedEarly(t *testing.T) {
	t.Parallel()
	const n, phones = 250, 30
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fast, slow := throttle.Sliding(10, 100*ms), throttle.Sliding(10, time.Hour)
	for _, tc := range []struct {
		name     string
		per      time.Duration // of the phone
		provider throttle.Limit
		shut     func(t *testing.T, h *batchRig)
		open     func(t *testing.T, h *batchRig)
	}{
		{"a key", 100 * ms, fast, func(t *testing.T, h *batchRig) {
			t.Helper()
			_, err := h.limiter("provider", fast).CloseKey(t.Context(), "acme", time.Hour)
			must(t, err)
		}, func(t *testing.T, h *batchRig) {
			t.Helper()
			_, err := h.limiter("provider", fast).OpenKey(t.Context(), "acme")
			must(t, err)
		}},
		{"a rule", 100 * ms, fast, func(t *testing.T, h *batchRig) {
			t.Helper()
			_, err := h.limiter("provider", fast).CloseRule(t.Context(), time.Hour)
			must(t, err)
		}, func(t *testing.T, h *batchRig) {
			t.Helper()
			must(t, h.limiter("provider", fast).OpenRule(t.Context()))
		}},
		{"the provider's limit", 100 * ms, slow, nil, func(t *testing.T, h *batchRig) {
			t.Helper()
			setLimit(t, h.limiter("provider", slow), fast)
		}},
		{"the phones' limit", time.Hour, fast, nil, func(t *testing.T, h *batchRig) {
			t.Helper()
			setLimit(t, h.limiter("phone", throttle.Sliding(1, time.Hour)), throttle.Sliding(1, 100*ms))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := virtualBatchRig(t, phoneAndProvider(tc.per, tc.provider))
				h.pool(5)
				h.feed(map[string]batch.Source{"messages": messages(n, phones)})
				h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 100})
				time.Sleep(time.Second)
				if tc.shut != nil {
					tc.shut(t, h)
				}
				time.Sleep(5 * time.Second)
				most := n / 2
				if tc.shut != nil {
					most = 220 // 100 in the first second, and 100 in the next one, until which each has heard of it
				}
				if ran := len(h.seen.all()); ran > most {
					t.Fatalf("%d ran, want it to be shut", ran)
				}
				tc.open(t, h)
				h.moved = true
				h.doneWithin(15*time.Second, n)
				h.allDone(n, phones)
			})
		})
	}
}

// The provider's line was long, and gets short: the phones of what ran by then are free
// although it was to run later.
func TestVirtualBatchWhoseLineGetsShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, phones = 200, 30
		slow := throttle.Sliding(10, 5*time.Second)
		h := virtualBatchRig(t, phoneAndProvider(50*ms, slow))
		h.pool(5)
		h.feed(map[string]batch.Source{"messages": messages(n, phones)})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: n, Window: 100})
		time.Sleep(3 * time.Second)
		setLimit(t, h.limiter("provider", slow), throttle.Sliding(2, 100*ms))
		h.moved = true
		h.doneWithin(14*time.Second, n)
		h.allDone(n, phones)
	})
}

// Two of the messages are to one phone, which may have one a minute: the others
// do not wait for the second.
func TestVirtualBatchWithABusyPhone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const per = time.Minute
		n := sized(200, 1300)
		h := virtualBatchRig(t, phoneAndProvider(per, throttle.Sliding(20, 100*ms)))
		pool := h.pool(5)
		source := batch.Seq(func(batch.Spec) iter.Seq[batch.Element] {
			return func(yield func(batch.Element) bool) {
				for i := range n {
					if !yield(batch.Element{Payload: []byte(to(fmt.Sprint("+", max(i, 1))))}) {
						return
					}
				}
			}
		})
		h.feed(map[string]batch.Source{"messages": source})
		h.begin(batch.Spec{ID: "winter", Type: "sms", Source: "messages", Total: int64(n), Window: 40})
		began := time.Now()
		h.doneWithin(15*time.Second, int64(n-1))
		if most := int64(1200); h.rdb.ZCard(t.Context(), "hw:{default}:batch:winter:ahead").Val() > most {
			t.Errorf("over %d elements are ahead", most)
		}
		h.allDone(n, n)
		if p := time.Since(began); p < per || p > per+time.Minute {
			t.Errorf("it ended after %v, want %v", p, per)
		}
		if a := pool.Stats().Admissions; a > int64(n)*105/100 {
			t.Errorf("%d admissions for %d messages, want hardly more", a, n)
		}
		h.nothingLeft()
	})
}

func setLimit(t *testing.T, l *throttle.Limiter, limit throttle.Limit) {
	t.Helper()
	if _, err := l.SetLimit(t.Context(), limit, throttle.SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
}
