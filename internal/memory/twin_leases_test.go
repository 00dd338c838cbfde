package memory_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/luascripts"
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
			rule := luascripts.RuleCall{
				LimitKeys: luascripts.NewLimitKeys("hw", "slots", "id"),
				Numbers:   luascripts.Numbers{Kind: luascripts.Leases, Permits: n, Window: 2 * time.Second}, Cost: 1,
			}
			rules := []luascripts.RuleCall{rule}
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
				var next []luascripts.Promotion
				switch op := random.IntN(10); {
				case op < 6:
					a := luascripts.AcquireArgs{Rules: rules, Token: token, Job: job, Mode: luascripts.GrantOrBook, MaxWait: -1}
					got, err := luascripts.Acquire(t.Context(), rdb, a)
					same("acquire", got, store.Acquire(a), err)
					if next = got.Promoted; got.Status == luascripts.Granted {
						held = append(held, token)
					}
				case op < 8 && len(held) > 0:
					got, err := luascripts.Release(t.Context(), rdb, rule, held[0])
					same("release", got, store.Release(rule, held[0]), err)
					next, held = got.Promoted, held[1:]
				case op < 9:
					a := luascripts.RefreshArgs{Rules: rules, Job: job}
					got := luascripts.Refresh(t.Context(), rdb, []luascripts.RefreshArgs{a})[0]
					same("check", got, store.Refresh(a), nil)
					next = got.Promoted
				default:
					a := luascripts.CloseArgs{Rules: rules, Rule: 1, For: time.Duration(random.IntN(3)) * 100 * ms}
					got, err := luascripts.Close(t.Context(), rdb, a)
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
