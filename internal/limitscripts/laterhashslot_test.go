package limitscripts

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// slotBefore asks about a phone in one hash slot, of a policy that has a rule in a later one.
type slotBefore struct {
	*testing.T
	rdb   redistest.Timed
	rules []RuleCall
	token uint64
}

func newSlotBefore(t *testing.T, permits int) *slotBefore {
	t.Helper()
	rdb, _ := redistest.StartTimed(t)
	phone := NewLimitKeys("hw", "phone", "+49170")
	return &slotBefore{T: t, rdb: rdb, rules: one(phone, Numbers{Kind: Sliding, Permits: permits, Window: time.Minute}, 1)}
}

func (s *slotBefore) ask(policy, job string, want Status) AcquireReply {
	s.Helper()
	s.token++
	r, err := Acquire(s.Context(), s.rdb, AcquireArgs{
		Rules: s.rules, Policy: policy, Later: true, Token: s.token, Job: job, Mode: GrantOrBook, MaxWait: -1,
	})
	if err != nil || r.Status != want {
		s.Fatalf("%s: %+v, %v, want status %d", job, r, err, want)
	}
	return r
}

// back gives the newest grant back, because the later hash slot refuses the job until an instant.
func (s *slotBefore) back(job string, until time.Duration) {
	s.Helper()
	r, err := Cancel(s.Context(), s.rdb, CancelArgs{Rules: s.rules, Policy: "p", Token: s.token, Job: job, Away: start.Add(until)})
	if err != nil || r.Status != Granted {
		s.Fatalf("%s: %+v, %v, want that the grant came back", job, r, err)
	}
}

// A job that a later hash slot refuses gets back the turn that it had. One that had none stands behind the turns of others.
func TestOrderIsKeptForALaterHashSlot(t *testing.T) {
	t.Parallel()
	s := newSlotBefore(t, 3)
	for range 3 {
		s.ask("other", "", Granted)
	}
	for _, job := range []string{"a", "b", "c"} {
		s.ask("p", job, Booked)
	}
	s.rdb.SetTime(start.Add(time.Minute))
	for i, job := range []string{"b", "a", "c"} { // they may come in any order
		s.ask("p", job, Granted)
		s.back(job, 70*time.Second+time.Duration(i)*time.Second)
	}
	s.ask("other", "", Granted)
	s.ask("other", "", Granted)
	s.rdb.SetTime(start.Add(70 * time.Second))
	for _, job := range []string{"newcomer", "c", "b"} {
		s.ask("p", job, Booked)
	}
	s.ask("p", "a", Granted)
	s.rdb.SetTime(start.Add(2 * time.Minute))
	s.ask("p", "c", Granted) // two of three permits are spent: b keeps the third one
	s.ask("p", "newcomer", Booked)
	s.ask("p", "b", Granted)
}

// Who came to the line while the later hash slot was asked stands behind the job that it refused.
func TestJobOfALaterHashSlotStandsBeforeThoseWhoCameSince(t *testing.T) {
	t.Parallel()
	for _, waited := range []bool{false, true} {
		s := newSlotBefore(t, 1)
		if waited {
			s.ask("other", "", Granted)
			s.ask("p", "before", Booked)
			s.ask("p", "first", Booked)
			s.rdb.SetTime(start.Add(time.Minute))
			s.ask("p", "before", Granted)
			s.rdb.SetTime(start.Add(2 * time.Minute))
		}
		at := s.ask("p", "first", Granted).At
		asked := s.token
		s.ask("p", "second", Booked)
		s.token = asked
		s.back("first", at.Add(10*time.Second).Sub(start))
		s.token += 2
		if r := s.ask("p", "second", Booked); r.At.Before(at.Add(70 * time.Second)) {
			t.Errorf("%+v, want a place behind the first, who comes after 10 s", r)
		}
		s.ask("p", "first", Granted)
	}
}

// When the later hash slot admits the job, its ticket is forgotten: within seconds when nobody else is there, or when it comes again.
func TestTicketForALaterHashSlotIsForgotten(t *testing.T) {
	t.Parallel()
	s := newSlotBefore(t, 1)
	line := s.rules[0].line
	alone := func() {
		t.Helper()
		if life := s.rdb.PTTL(t.Context(), line).Val(); life <= 0 || life > 10*time.Second {
			t.Errorf("the line lives for %v, want a few seconds", life)
		}
	}
	s.ask("other", "", Granted)
	s.ask("p", "a", Booked)
	s.rdb.SetTime(start.Add(time.Minute))
	s.ask("p", "a", Granted)
	alone()
	s.ask("p", "b", Booked)
	s.ask("p", "c", Booked)
	if life := s.rdb.PTTL(t.Context(), line).Val(); life < time.Minute {
		t.Errorf("the line lives for %v, want longer than its jobs wait", life)
	}
	s.rdb.SetTime(start.Add(2 * time.Minute))
	s.ask("p", "b", Granted)
	s.ask("p", "c", Booked)
	s.ask("p", "b", Booked) // it comes again, for instance as a retry
	s.rdb.SetTime(start.Add(3 * time.Minute))
	s.ask("p", "b", Booked)
	s.ask("p", "c", Granted)
	s.rdb.SetTime(start.Add(4 * time.Minute))
	s.ask("p", "b", Granted)
	alone()
	s.rdb.SetTime(start.Add(6 * time.Minute))
	s.ask("p", "b", Granted) // it had no ticket
	s.ask("p", "d", Booked)
	s.token--
	s.back("b", 7*time.Minute)
	s.ask("p", "b", Granted) // before d: d joined the line after b was granted
}

// Of very many jobs that are granted the last tickets are kept.
func TestFewTicketsForALaterHashSlotAreKept(t *testing.T) {
	t.Parallel()
	s := newSlotBefore(t, 1)
	s.ask("other", "", Granted)
	for i := range 200 {
		s.ask("p", fmt.Sprint(i), Booked)
	}
	for i := range 150 {
		s.rdb.SetTime(start.Add(time.Duration(i+1) * time.Minute))
		s.ask("p", fmt.Sprint(i), Granted)
	}
	if n := s.rdb.ZCount(t.Context(), s.rules[0].line, "144115188075855872", "+inf").Val(); n != 64 {
		t.Errorf("%d tickets are kept, want 64", n)
	}
	s.back("149", 150*time.Minute)
	s.ask("p", "150", Booked)
	s.ask("p", "149", Granted)
}

// On a key that is never without anybody, those who had not waited come back in their order, too, and behind those before them.
func TestNewcomersKeepTheirOrderForALaterHashSlot(t *testing.T) {
	t.Parallel()
	s := newSlotBefore(t, 200)
	for range 200 {
		s.ask("other", "", Granted)
	}
	const more = 80 // than the tickets that are kept
	for i := range more {
		s.ask("p", fmt.Sprint(i), Booked)
	}
	s.rdb.SetTime(start.Add(time.Minute))
	for i := range more {
		s.ask("p", fmt.Sprint(i), Granted)
	}
	back := []string{"79", "old", "x", "y"}
	s.back("79", 10*time.Minute)
	for _, job := range back[1:] {
		s.ask("p", job, Granted)
		s.back(job, 10*time.Minute)
	}
	var tickets []float64
	for _, job := range back {
		tickets = append(tickets, s.rdb.ZScore(t.Context(), s.rules[0].line, "#1:"+job).Val())
	}
	if !slices.IsSorted(tickets) || tickets[0] == 0 {
		t.Errorf("tickets %v of %q, want them in this order", tickets, back)
	}
}

// A grant that comes back after its job has come again leaves the job the place that it has by now, and tells it to come.
func TestLateRefundOfALaterHashSlotLeavesThePlace(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]CancelArgs{"with a turn": {Away: start.Add(2 * time.Second)}, "parked": {Park: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlotBefore(t, 1)
			s.ask("p", "a", Granted)
			back.Rules, back.Policy, back.Token, back.Job = s.rules, "p", s.token, "a"
			s.rdb.SetTime(start.Add(3 * time.Second))
			if r := s.ask("p", "a", Booked); !r.At.Equal(start.Add(time.Minute)) {
				t.Fatalf("%+v, want a place after a minute", r)
			}
			r, err := Cancel(t.Context(), s.rdb, back)
			if err != nil || r.Status != Granted || len(r.Promoted) != 1 || r.Promoted[0].Job != "a" || !r.Promoted[0].At.Equal(start.Add(3*time.Second)) {
				t.Errorf("%+v, %v, want that the grant came back, and that a is told to come now", r, err)
			}
			s.ask("p", "b", Booked) // behind a, which is not parked
			s.ask("p", "a", Granted)
		})
	}
}

// Whoever gets the first ticket meanwhile stands before a job that may come back, and not beside it.
func TestFirstTicketIsBeforeThoseOfALaterHashSlot(t *testing.T) {
	t.Parallel()
	s := newSlotBefore(t, 2)
	s.ask("other", "", Granted)
	s.ask("other", "", Granted)
	for _, job := range []string{"z", "b", "w"} {
		s.ask("p", job, Booked)
	}
	s.rdb.SetTime(start.Add(time.Minute))
	s.ask("p", "z", Granted)
	z := CancelArgs{Rules: s.rules, Policy: "p", Token: s.token, Job: "z", Back: true}
	s.ask("p", "b", Granted)
	if r, err := Cancel(t.Context(), s.rdb, z); err != nil || r.Status != Granted {
		t.Fatalf("%+v, %v, want that the grant of z came back", r, err)
	}
	s.back("b", 61*time.Second)
	tickets := map[string]float64{}
	for _, v := range s.rdb.ZRangeWithScores(t.Context(), s.rules[0].line, 0, -1).Val() {
		tickets[v.Member.(string)] = v.Score
	}
	if z, b, w := tickets["1:z"], tickets["#1:b"]/8-1<<52, tickets["1:w"]; !(z < b && b < w) {
		t.Errorf("tickets %v of z, %v of b and %v of w, want them in this order", z, b, w)
	}
}
