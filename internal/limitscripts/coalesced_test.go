package limitscripts

import (
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// The tokens of a key that is never idle do not grow: what is older than RESENT_WITHIN and
// the window goes as fast as new ones come, also when calls are coalesced.
func TestCoalescedCallsForgetOldTokens(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx, n, k := t.Context(), Numbers{Kind: Sliding, Permits: 1_000_000, Window: time.Second}, NewLimitKeys("hw", "rule", "id")
	token := uint64(0)
	var sizes []int64
	for minute := range 6 {
		rdb.SetTime(start.Add(time.Duration(minute) * 2 * time.Minute))
		for range 20 {
			calls := make([]*Call, CallsMax)
			for i := range calls {
				token++
				calls[i] = &Call{AcquireArgs: AcquireArgs{Rules: one(k, n, 1), Token: token, Mode: Try, MaxWait: -1}}
			}
			if err := AcquireMany(ctx, rdb, calls); err != nil {
				t.Fatal(err)
			}
			for _, a := range calls {
				if a.Err != nil || a.Status != Granted {
					t.Fatal(a.Status, a.Err)
				}
			}
		}
		sizes = append(sizes, raw.ZCard(ctx, k.tokens).Val())
	}
	if last := sizes[len(sizes)-1]; last > 2*20*CallsMax {
		t.Errorf("tokens after each 2 minutes of 1,280 grants: %v, all are older than 1m but the last 1,280", sizes)
	}
}

// A provider has answered 429. When all who waited for that have gone, nothing of it is left: not even the closing, which is over.
func TestClosingThatIsOverIsForgotten(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	ctx, k := t.Context(), NewLimitKeys("hw", "rule", "id")
	rules := one(k, Numbers{Kind: Sliding, Permits: 10, Window: time.Second}, 1)
	ask := func(token uint64, job string) AcquireReply {
		t.Helper()
		r, err := Acquire(ctx, rdb, AcquireArgs{Rules: rules, Token: token, Job: job, Mode: GrantOrBook, MaxWait: -1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := Close(ctx, rdb, CloseArgs{Rules: rules, Rule: 1, Job: "a", For: time.Second}); err != nil {
		t.Fatal(err)
	}
	if r := ask(1, "b"); r.Status != Booked {
		t.Fatalf("%+v, want a booking: the key is closed", r)
	}
	rdb.SetTime(start.Add(time.Second))
	for i, job := range []string{"a", "b"} {
		if r := ask(uint64(2+i), job); r.Status != Granted {
			t.Fatalf("%s: %+v, want a grant", job, r)
		}
	}
	if left := rdb.ZRange(ctx, k.line, 0, -1).Val(); len(left) > 0 {
		t.Errorf("the line still has %q", left)
	}
}

// What a newcomer is told does not grow with how often a key was closed and jobs
// put off, while somebody waits all the time and costs differ.
func TestPostponesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	ctx, n, k := t.Context(), Numbers{Kind: Sliding, Permits: 10, Window: time.Second}, NewLimitKeys("hw", "rule", "id")
	token, now := uint64(0), start
	ask := func(job string, cost int, mode Mode) AcquireReply {
		t.Helper()
		token++
		r, err := Acquire(ctx, rdb, AcquireArgs{Rules: one(k, n, cost), Token: token, Job: job, Mode: mode, MaxWait: -1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	at := func(d time.Duration) {
		t.Helper()
		now = now.Add(d)
		rdb.SetTime(now)
	}
	at(0)
	ask("wait 0", 1, Book)
	for i := range 100 {
		jobs := []string{fmt.Sprint("x", i), fmt.Sprint("y", i), fmt.Sprint("z", i)}
		for _, job := range jobs { // a provider answered 429 to three that were under way
			if _, err := Close(ctx, rdb, CloseArgs{Rules: one(k, n, 2), Rule: 1, Job: job, For: time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		ask(fmt.Sprint("wait ", i+1), 1, Book) // somebody waits all the time
		at(2 * time.Second)
		for _, job := range jobs {
			if r := ask(job, 2, GrantOrBook); r.Status != Granted {
				t.Fatalf("%s: %+v", job, r)
			}
		}
		if r := ask(fmt.Sprint("wait ", i), 1, GrantOrBook); r.Status != Granted {
			t.Fatalf("wait %d: %+v", i, r)
		}
	}
	at(2 * time.Second)
	ask("wait 100", 1, Book)
	r := ask("newcomer", 2, Book)
	if wait := r.At.Sub(now); wait > time.Second {
		t.Errorf("with one permit ahead and ten free a newcomer of two is told to come in %v, want at once", wait)
	}
	if r := ask("impatient", 1, GrantOrBook); r.Status != Booked || r.At.Sub(now) > time.Second {
		t.Errorf("the next is told %v", r.At.Sub(now))
	}
}

// Of coalesced calls of one template, on one key or on several, none has to be asked again.
func TestCoalescedCallsOnOneKeyAndOnOthers(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	n := Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}
	var calls []*Call
	for i, id := range []string{"a", "a", "b", "c", "c", "d"} {
		calls = append(calls, &Call{AcquireArgs: AcquireArgs{Rules: one(NewLimitKeys("hw", "rule", id), n, 1), Token: uint64(i + 1), Mode: Try, MaxWait: -1}})
	}
	if err := AcquireMany(t.Context(), rdb, calls); err != nil {
		t.Fatal(err)
	}
	for i, want := range []Status{Granted, Refused, Granted, Granted, Refused, Granted} {
		if a := calls[i]; a.Err != nil || a.Status != want {
			t.Errorf("call %d: status %d, %v, want %d", i+1, a.Status, a.Err, want)
		}
	}
}

// A call that was taken back before it arrived is refused also when it comes together with others,
// on keys that nobody has used.
func TestWithdrawnCallAmongOthersIsRefused(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	ctx, n := t.Context(), Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}
	calls := make([]*Call, 2)
	for i := range calls {
		k := NewLimitKeys("hw", "rule", fmt.Sprint("phone ", i))
		calls[i] = &Call{AcquireArgs: AcquireArgs{Rules: one(k, n, 1), Token: uint64(i + 1), Mode: Try, MaxWait: -1}}
	}
	if _, err := Cancel(ctx, rdb, CancelArgs{Rules: calls[1].Rules, Token: calls[1].Token}); err != nil {
		t.Fatal(err)
	}
	if err := AcquireMany(ctx, rdb, calls); err != nil {
		t.Fatal(err)
	}
	if calls[0].Status != Granted || calls[1].Status != Withdrawn {
		t.Errorf("status %d and %d, want %d and %d", calls[0].Status, calls[1].Status, Granted, Withdrawn)
	}
}

// On Redis Cluster each slot is asked about its own rule alone, by the short cut where nobody waits. A job
// that another slot made wait has its turn there all the same, whether those behind it come alone or together.
func TestTurnForAnotherSlotIsKept(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	ctx, token := t.Context(), uint64(0)
	rules := one(NewLimitKeys("hw", "phone", "+49170"), Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}, 1)
	call := func(job string) *Call {
		token++
		return &Call{AcquireArgs: AcquireArgs{Rules: rules, Policy: "p", Token: token, Job: job, Mode: GrantOrBook, MaxWait: -1}}
	}
	a := call("a")
	if err := AcquireMany(ctx, rdb, []*Call{a}); err != nil || a.Status != Granted {
		t.Fatalf("%+v, %v, want a grant", a.AcquireReply, err)
	}
	back := CancelArgs{Rules: rules, Policy: "p", Token: a.Token, Job: "a", Away: start.Add(10 * time.Second)}
	if r, err := Cancel(ctx, rdb, back); err != nil || r.Status != Granted || len(r.Promoted) > 0 {
		t.Fatalf("%+v, %v, want that the grant came back, and that a is not told to come", r, err)
	}
	for _, calls := range [][]*Call{{call("b")}, {call("c"), call("d")}} {
		if err := AcquireMany(ctx, rdb, calls); err != nil {
			t.Fatal(err)
		}
		for _, c := range calls {
			if c.Err != nil || c.Status != Booked || c.At.Before(start.Add(70*time.Second)) {
				t.Errorf("%s: %+v, %v, want a place behind a, who comes after 10 s", c.Job, c.AcquireReply, c.Err)
			}
		}
	}
}

// A job that waits in another slot is parked here: those behind it are told to come, and it keeps its ticket. So is one whose grant comes back,
// before all others.
func TestParkedForAnotherSlot(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.StartTimed(t)
	rules := one(NewLimitKeys("hw", "provider", "p"), Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}, 1)
	token := uint64(0)
	call := func(job string, want Status, at time.Duration) {
		t.Helper()
		token++
		r, err := Acquire(t.Context(), rdb, AcquireArgs{Rules: rules, Policy: "p", Token: token, Job: job, Mode: GrantOrBook, MaxWait: -1})
		if err != nil || r.Status != want || !r.At.Equal(start.Add(at)) {
			t.Errorf("%s: %+v, %v, want status %d after %v", job, r, err, want, at)
		}
	}
	park := func(token uint64, job string, promoted string) {
		t.Helper()
		r, err := Cancel(t.Context(), rdb, CancelArgs{Rules: rules, Policy: "p", Token: token, Job: job, Park: true})
		if err != nil || len(r.Promoted) > 1 || promoted != "" && (len(r.Promoted) == 0 || r.Promoted[0].Job != promoted) {
			t.Errorf("%s: %+v, %v, want that %q is told to come", job, r, err, promoted)
		}
	}
	call("spends", Granted, 0)
	call("a", Booked, time.Minute)
	call("b", Booked, 2*time.Minute)
	rdb.SetTime(start.Add(time.Minute))
	park(0, "a", "b")
	park(0, "nobody", "")
	call("b", Granted, time.Minute)
	call("c", Booked, 2*time.Minute)
	call("a", Booked, 2*time.Minute) // before c
	call("c", Booked, 3*time.Minute)
	rdb.SetTime(start.Add(2 * time.Minute))
	call("a", Granted, 2*time.Minute)
	park(token, "a", "c")
	call("c", Granted, 2*time.Minute) // it is not held up
	call("d", Booked, 3*time.Minute)
	call("a", Booked, 3*time.Minute) // before d
	call("d", Booked, 4*time.Minute)
}
