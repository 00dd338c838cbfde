package throttle

import (
	"slices"
	"testing"

	"github.com/headwayq/headway/internal/limitscripts"
)

// Rules count as having one key while no call has shown two, and never again after that.
func TestOneKeyRulesAreLearnt(t *testing.T) {
	t.Parallel()
	var o oneKeyRules
	mark := func(ids ...string) (numbers []int) {
		calls := make([]limitscripts.RuleCall, len(ids))
		for i, id := range ids {
			calls[i].ID = id
		}
		o.mark(calls)
		for _, c := range calls {
			numbers = append(numbers, c.OneKey)
		}
		return numbers
	}
	for _, step := range []struct {
		ids  []string
		want []int
	}{
		{[]string{"7", "7", "7", "7", "acme"}, []int{0, 0, 0, 0, 4}},
		{[]string{"7", "7", "42", "42", "acme"}, []int{0, 0, 2, 2, 4}}, // phone, phone, tenant, tenant
		{[]string{"42", "42", "42", "42", "acme"}, []int{0, 0, 2, 2, 4}},
		{[]string{"acme", "acme", "acme", "acme", "acme"}, []int{0, 0, 2, 2, 4}},
		{[]string{"7", "7", "7", "8", "8"}, []int{0, 0, 2, 3, 4}},
	} {
		if got := mark(step.ids...); !slices.Equal(got, step.want) {
			t.Errorf("%v gives %v, want %v", step.ids, got, step.want)
		}
	}
}
