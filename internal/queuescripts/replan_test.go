package queuescripts

import (
	"slices"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

func TestClaimAndPlanned(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	claim := func(owner string, claimed bool, open []int64, rules ...RuleVersion) {
		t.Helper()
		got, codes, err := ReplanClaim(t.Context(), a.rdb, a.q, owner, minute, rules)
		if err != nil || got != claimed || !slices.Equal(codes, open) {
			t.Errorf("ReplanClaim(%s, %v) = %v, %v, %v, want %v, %v", owner, rules, got, codes, err, claimed, open)
		}
		redistest.KeysHaveALife(t, a.raw)
	}
	planned := func(owner string, want bool, rules ...RuleVersion) {
		t.Helper()
		if got, err := ReplanDone(t.Context(), a.rdb, a.q, owner, rules); err != nil || got != want {
			t.Errorf("ReplanDone(%s, %v) = %v, %v, want %v", owner, rules, got, err, want)
		}
		redistest.KeysHaveALife(t, a.raw)
	}
	sms, tenant, never := RuleVersion{"sms", 7}, RuleVersion{"tenant", 3}, RuleVersion{"never", 0}
	claim("a", false, []int64{0}, never)
	claim("a", true, []int64{1, 0}, sms, never)
	claim("a", true, []int64{1, 0}, sms, never) // renewed
	claim("b", false, []int64{1, 1}, sms, tenant)
	planned("b", false, tenant)
	planned("a", true, sms)
	claim("b", true, []int64{0, 1}, sms, tenant)
	planned("b", true, tenant)
	claim("a", false, []int64{0, 0}, RuleVersion{"sms", 6}, tenant) // it has yet to hear of 7
	claim("a", true, []int64{1}, RuleVersion{"sms", 0})             // 7 has ended by itself
	planned("a", true, RuleVersion{"sms", 0})
	claim("b", false, []int64{0}, RuleVersion{"sms", 0})
	// a claim whose owner died expires
	claim("a", true, []int64{1}, sms)
	a.raw.Del(t.Context(), a.q.claim)
	claim("b", true, []int64{1}, sms)
	planned("a", false, sms)
	planned("b", true) // given back: nothing is planned
	claim("a", true, []int64{1}, sms)
}
