package throttle

import (
	"testing"
	"time"
)

// What a call was decided by stays what it was, in memory that calls share while
// nothing changes.
func TestLimitsInForceAreSharedAndKept(t *testing.T) {
	t.Parallel()
	l, err := NewLocal("sms", Sliding(2, time.Minute), Config{})
	if err != nil {
		t.Fatal(err)
	}
	limits := func() []limitInForce {
		in, err := l.policy.limitsInForce(t.Context(), byID("k"))
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	first := limits()
	if second := limits(); &first[0] != &second[0] {
		t.Error("nothing changed, and the next call has limits of its own")
	}
	caught, err := l.policy.rules.catchUp(t.Context(), first, byID("k"), 0, 7)
	if err != nil || caught[0].version != 7 || first[0].version != 0 {
		t.Errorf("caught up with version %d, %v, the call before has %d; want 7 and 0", caught[0].version, err, first[0].version)
	}
	if _, err := l.SetLimit(t.Context(), Sliding(5, time.Minute), SetLimitOptions{}); err != nil {
		t.Fatal(err)
	}
	if last := limits(); last[0].Limit != Sliding(5, time.Minute) || first[0].Limit != Sliding(2, time.Minute) {
		t.Errorf("the limit in force is %v, that of the first call %v", last[0].Limit, first[0].Limit)
	}
}
