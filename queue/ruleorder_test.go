package queue

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// inOrder writes "a b c | c a" as policies with limits of these names, and a
// name in capitals as a gate.
func inOrder(t *testing.T, text string) []Policy {
	t.Helper()
	var policies []Policy
	for i, names := range strings.Split(text, "|") {
		p := Policy{Type: fmt.Sprint("t", i)}
		for name := range strings.FieldsSeq(names) {
			if strings.ToUpper(name) == name {
				p.Rules = append(p.Rules, gateRule(t, name))
			} else {
				p.Rules = append(p.Rules, limitRule(name))
			}
		}
		policies = append(policies, p)
	}
	return policies
}

func TestOrder(t *testing.T) {
	t.Parallel()
	tests := []struct {
		policies string
		want     []string
	}{
		{"a b c | a b c | a c | c", nil},
		{"a b | c d | b c", nil},
		{"a b | b a", []string{`1.1: comes after "b" here, but before "b" in 0`}},
		{"a b c | c a", []string{`1.1: comes after "c" here, but before "b" in 0, which comes before "c" in 0`}},
		{"a b | b c | c a", []string{`2.1: comes after "c" here, but before "b" in 0, which comes before "c" in 1`}},
		{"a x b | a b | b a", []string{`2.1: comes after "b" here, but before "b" in 1`}}, // the shortest way
		{"a b | b a | b a", []string{
			`1.1: comes after "b" here, but before "b" in 0`,
			`2.1: comes after "b" here, but before "b" in 0`,
		}},
		{"a b c | c b a", []string{
			`1.1: comes after "c" here, but before "c" in 0`,
			`1.2: comes after "b" here, but before "b" in 0`,
		}},
		{"a b | c d | b a d c", []string{
			`2.1: comes after "b" here, but before "b" in 0`,
			`2.3: comes after "d" here, but before "d" in 1`,
		}},
		// c before x is said by the policy that has another fault
		{"b c | c b x | x c", []string{
			`1.1: comes after "c" here, but before "c" in 0`,
			`2.1: comes after "x" here, but before "x" in 1`,
		}},
		{"a G b | b G a", []string{`1.2: comes after "b" here, but before "b" in 0`}},
		{"G a | a G", nil},
		{"a b a | a b", nil}, // twice in a policy is another fault
	}
	for _, tt := range tests {
		t.Run(tt.policies, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, f := range orderFaults(inOrder(t, tt.policies), func(i int) string { return fmt.Sprint(i) }) {
				got = append(got, fmt.Sprintf("%d.%d: %v", f.policy, f.rule, f.err))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("orderFaults (-want +got):\n%s", diff)
			}
		})
	}
}

// Policies are free of faults exactly when there is one list of all rules that
// each of them follows, which is looked for in another way here: by taking away,
// again and again, a rule that no other comes before.
func TestOrderFindsACircleWhenThereIsOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		lists := rapid.SliceOfN(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 1, 4, rapid.ID), 1, 6).Draw(rt, "policies")
		var policies []Policy
		for _, names := range lists {
			policies = append(policies, policyOf("t", names...))
		}
		faults := orderFaults(policies, func(i int) string { return fmt.Sprint(i) })
		if sorted := sortable(lists); sorted != (len(faults) == 0) {
			rt.Fatalf("%d faults in %v, which has one order: %v", len(faults), lists, sorted)
		}
	})
}

func sortable(lists [][]string) bool {
	for {
		heads, left := make(map[string]bool), false
		for _, l := range lists {
			for i, name := range l {
				left = true
				if first, seen := heads[name]; i == 0 && !seen {
					heads[name] = true
				} else if i > 0 || !first {
					heads[name] = i == 0 && first
				}
			}
		}
		if !left {
			return true
		}
		taken := false
		for i, l := range lists {
			if len(l) > 0 && heads[l[0]] {
				lists[i], taken = l[1:], true
			}
		}
		if !taken {
			return false
		}
	}
}

// A ring of 400 rules, each policy with 16 of them in the order of the ring.
func TestOrderOfManyPolicies(t *testing.T) {
	t.Parallel()
	var policies []Policy
	for i := range 400 {
		p := Policy{Type: fmt.Sprint(i)}
		for n := range 16 {
			p.Rules = append(p.Rules, limitRule(fmt.Sprint((i+n)%400)))
		}
		policies = append(policies, p)
	}
	faults := orderFaults(policies, func(i int) string { return fmt.Sprint(i) })
	// rule 399 comes before rule 0 in the last 15, once each
	if len(faults) != 15 || faults[0].policy != 385 {
		t.Errorf("%d faults, the first %+v, want 15 from policy 385 on", len(faults), faults[:1])
	}
}
