package limitscripts

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// Bookings of one template are asked about in few calls, each gets the answer that it gets
// alone, and a key that holds something else is the trouble of nobody but its own.
func TestRefreshOfMany(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx := t.Context()
	n := Numbers{Kind: Sliding, Permits: 1, Window: time.Second}
	wide := Numbers{Kind: Sliding, Permits: 10, Window: time.Second}
	var all []RefreshArgs
	for i := range 3 * refreshMax {
		rules := []RuleCall{
			{LimitKeys: NewLimitKeys("hw", "phone", fmt.Sprint(i%5)), Numbers: n, Cost: 1},
			{LimitKeys: NewLimitKeys("hw", "provider", "acme"), Numbers: wide, Cost: 1},
		}
		b := RefreshArgs{Rules: rules, Policy: "p", Job: fmt.Sprint("job", i)}
		if i%7 == 3 {
			b.Rules, b.Policy = rules[:1], ""
		}
		all = append(all, b)
		if r, err := Acquire(ctx, rdb, AcquireArgs{Rules: b.Rules, Policy: b.Policy, Mode: Book, Token: uint64(i + 1), Job: b.Job, MaxWait: -1}); err != nil || r.Status != Booked {
			t.Fatalf("Acquire = %+v, %v, want a booking", r, err)
		}
	}
	all = append(all, RefreshArgs{Rules: all[0].Rules, Policy: "p", Job: "nobody"})
	for i, together := range Refresh(ctx, rdb, all) {
		alone := Refresh(ctx, rdb, all[i:i+1])[0]
		if together.Err != nil || together.Status != alone.Status || !together.At.Equal(alone.At) || together.Rule != alone.Rule || together.Before != alone.Before {
			t.Errorf("%s among others = %+v, alone = %+v, want the same", all[i].Job, together, alone)
		}
		if want := map[bool]Status{true: Booked, false: Refused}[all[i].Job != "nobody"]; together.Status != want || !together.Now.Equal(start) {
			t.Errorf("%s = %+v, want %v at %v", all[i].Job, together, want, start)
		}
	}

	broken := all[2].Rules[0].line
	raw.Del(ctx, broken)
	raw.Set(ctx, broken, "text", time.Minute)
	for i, r := range Refresh(ctx, rdb, all) {
		if bad := all[i].Rules[0].line == broken; bad != (r.Err != nil) {
			t.Errorf("%s = %+v, want an error: %v", all[i].Job, r, bad)
		}
	}
	if crowds := refreshBatches(raw, all); len(crowds) > 5 {
		t.Errorf("%d bookings take %d calls, want 5 at most", len(all), len(crowds))
	}
}
