package luascripts

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A walk sees each task once, in portions, also where more of them than a
// portion holds have one instant, and some move on the way.
func TestWalk(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	var want []string
	for i := range 25 {
		id := fmt.Sprintf("t%02d", i)
		want = append(want, id)
		a.put("active", id)
		a.deferTask(id, time.Duration(i/10)*minute, "") // 10 at once, 10 at minute 1, 5 at minute 2
	}
	var seen []string
	from, skip := time.Time{}, 0
	for {
		r, err := ScanDeferred(t.Context(), a.rdb, a.q, from, skip, 4)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Last.Equal(start.Add(2*minute)) && !r.Last.Equal(start.Add(9*minute)) || !r.Now.Equal(start) {
			t.Errorf("Walk = now %v, last %v", r.Now, r.Last)
		}
		if len(r.Tasks) == 0 {
			break
		}
		for _, task := range r.Tasks {
			if seen = append(seen, task.ID); task.Record != "sms 1 key" {
				t.Errorf("%s waits for %q", task.ID, task.Record)
			}
			if !task.At.Equal(from) {
				from, skip = task.At, 0
			}
			if task.ID == "t12" && skip > 0 { // it moves away: it is not to be skipped
				if _, err := Retime(t.Context(), a.rdb, a.q, []Retiming{{ID: "t12", At: start.Add(9 * minute)}}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			skip++
		}
	}
	if again := append(want, "t12"); !slices.Equal(seen, again) && !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v, and t12 once more", seen, want)
	}
	r, err := ScanDeferred(t.Context(), a.rdb, NewQueueKeys("hw", "empty"), time.Time{}, 0, 4)
	if err != nil || !r.Last.IsZero() || len(r.Tasks) > 0 {
		t.Errorf("Walk of an empty queue = %+v, %v", r, err)
	}
}

func TestClaimAndPlanned(t *testing.T) {
	t.Parallel()
	a := newQueue(t)
	claim := func(owner string, claimed bool, open []int64, rules ...RuleVersion) {
		t.Helper()
		got, codes, err := Claim(t.Context(), a.rdb, a.q, owner, minute, rules)
		if err != nil || got != claimed || !slices.Equal(codes, open) {
			t.Errorf("Claim(%s, %v) = %v, %v, %v, want %v, %v", owner, rules, got, codes, err, claimed, open)
		}
		keysHaveALife(t, a.raw)
	}
	planned := func(owner string, want bool, rules ...RuleVersion) {
		t.Helper()
		if got, err := ReplanDone(t.Context(), a.rdb, a.q, owner, rules); err != nil || got != want {
			t.Errorf("ReplanDone(%s, %v) = %v, %v, want %v", owner, rules, got, err, want)
		}
		keysHaveALife(t, a.raw)
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
