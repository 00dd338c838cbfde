package memory_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/limitscripts"
)

// TestTwinLongLineOfLeases: both tell the same jobs where lines are longer than what
// one call tells or parks.
func TestTwinLongLineOfLeases(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rdb, store, at := onMini(t)
			now := start
			random := rand.New(rand.NewPCG(seed, 1))
			n := []int{1, 4, 33, 60}[seed%4]
			rule := limitscripts.RuleCall{
				LimitKeys: limitscripts.NewLimitKeys("hw", "slots", "id"),
				Numbers:   limitscripts.Numbers{Kind: limitscripts.Leases, Permits: n, Window: 2 * time.Second}, Cost: 1,
			}
			rules := []limitscripts.RuleCall{rule}
			same := func(what string, got, want any, err error) {
				t.Helper()
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Fatalf("%s at %v: %v; the script (+) and the store (-) differ:\n%s", what, now.Sub(start), err, diff)
				}
			}
			var held []uint64
			told := 0
			for token := uint64(1); token < 900; token++ {
				job := fmt.Sprint(random.IntN(250))
				now = now.Add([]time.Duration{0, 0, 0, 5 * ms, 5 * ms, 40 * ms, 300 * ms, 3 * time.Second}[min(random.IntN(8), random.IntN(8))])
				at(now.Sub(start))
				var next []limitscripts.Promotion
				switch op := random.IntN(10); {
				case op < 6:
					a := limitscripts.AcquireArgs{Rules: rules, Token: token, Job: job, Mode: limitscripts.GrantOrBook, MaxWait: -1}
					got, err := limitscripts.Acquire(t.Context(), rdb, a)
					same("acquire", got, store.Acquire(a), err)
					if next = got.Promoted; got.Status == limitscripts.Granted {
						held = append(held, token)
					}
				case op < 8 && len(held) > 0:
					got, err := limitscripts.Release(t.Context(), rdb, rule, held[0])
					same("release", got, store.Release(rule, held[0]), err)
					next, held = got.Promoted, held[1:]
				case op < 9:
					a := limitscripts.RefreshArgs{Rules: rules, Job: job}
					got := limitscripts.Refresh(t.Context(), rdb, []limitscripts.RefreshArgs{a})[0]
					same("check", got, store.Refresh(a), nil)
					next = got.Promoted
				default:
					a := limitscripts.CloseArgs{Rules: rules, Rule: 1, For: time.Duration(random.IntN(3)) * 100 * ms}
					got, err := limitscripts.Close(t.Context(), rdb, a)
					same("close", got, store.Close(a), err)
					next = got.Promoted
				}
				told = max(told, len(next))
			}
			if told < min(n, 20) {
				t.Errorf("no call told more than %d jobs: the trace shows nothing", told)
			}
		})
	}
}

// TestTwinSlotsBehindAGate: both tell the same where a gate closes before the leases end that jobs wait for.
func TestTwinSlotsBehindAGate(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rdb, store, at := onMini(t)
			now := start
			random := rand.New(rand.NewPCG(seed, 2))
			slots := limitscripts.RuleCall{
				LimitKeys: limitscripts.NewLimitKeys("hw", "slots", "customer"),
				Numbers:   limitscripts.Numbers{Kind: limitscripts.Leases, Permits: 2, Window: 4 * time.Second}, Cost: 1,
			}
			rate := limitscripts.RuleCall{
				LimitKeys: limitscripts.NewLimitKeys("hw", "rate", "all"),
				Numbers:   limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 2, Window: 300 * ms}, Cost: 1,
			}
			rules := []limitscripts.RuleCall{rate, slots}
			hours := limitscripts.Gate{From: start, Until: start.Add(3 * time.Minute)}
			for opens := start; opens.Before(hours.Until); opens = opens.Add(10 * time.Second) {
				hours.Open = append(hours.Open, limitscripts.Opening{Open: opens, Close: opens.Add(6 * time.Second)})
			}
			var held []uint64
			behind := 0 // how often a job waited for a lease that ends when the gate is closed
			for token := uint64(1); token < 400; token++ {
				job := fmt.Sprint(random.IntN(8))
				now = now.Add(time.Duration(random.IntN(300)) * ms)
				at(now.Sub(start))
				switch op := random.IntN(10); {
				case op < 6:
					a := limitscripts.AcquireArgs{
						Rules: rules, Policy: "both", Token: token, Job: job,
						Mode:    []limitscripts.Mode{limitscripts.GrantOrBook, limitscripts.Book, limitscripts.Try}[random.IntN(3)],
						MaxWait: []time.Duration{-1, time.Second, 5 * time.Second}[random.IntN(3)], Gate: hours,
					}
					got, err := limitscripts.Acquire(t.Context(), rdb, a)
					if diff := cmp.Diff(store.Acquire(a), got); err != nil || diff != "" {
						t.Fatalf("acquire at %v: %v; the script (+) and the store (-) differ:\n%s", now.Sub(start), err, diff)
					}
					if got.Status == limitscripts.Granted {
						held = append(held, token)
					}
					if got.Status == limitscripts.Booked && got.Rule == 2 && got.At.Sub(start)%(10*time.Second) >= 6*time.Second {
						behind++
					}
				case op < 8 && len(held) > 0:
					got, err := limitscripts.Release(t.Context(), rdb, slots, held[0])
					if diff := cmp.Diff(store.Release(slots, held[0]), got); err != nil || diff != "" {
						t.Fatalf("release at %v: %v; the script (+) and the store (-) differ:\n%s", now.Sub(start), err, diff)
					}
					held = held[1:]
				default:
					a := limitscripts.RefreshArgs{Rules: rules, Policy: "both", Job: job}
					got := limitscripts.Refresh(t.Context(), rdb, []limitscripts.RefreshArgs{a})[0]
					if diff := cmp.Diff(store.Refresh(a), got); diff != "" {
						t.Fatalf("refresh at %v; the script (+) and the store (-) differ:\n%s", now.Sub(start), diff)
					}
				}
			}
			if behind < 5 {
				t.Errorf("%d jobs waited for a lease that ends when the gate is closed: the trace shows nothing", behind)
			}
		})
	}
}
