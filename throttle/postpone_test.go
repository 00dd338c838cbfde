package throttle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
	"github.com/redis/go-redis/v9"
)

// A job whose provider said that it comes too early goes first when the key is
// open again; its grant stays spent.
func TestPostpone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(2, time.Minute))
	d := s.redeem(p, jobRequest(2, key, "a"))
	s.want(d, true, 0)
	s.want(s.redeem(p, jobRequest(2, "B", "b")), true, 0)
	s.by(s.redeem(p, jobRequest(2, "C", "c")), "provider", time.Minute)
	until, err := throttle.ForWorkers.Postpone(t.Context(), p, "provider", d.Request, 5*time.Minute)
	if err != nil || until.Sub(start) != 5*time.Minute {
		t.Errorf("Postpone = %v, %v, want until 5m", until.Sub(start), err)
	}
	s.available(p, d.Request, 0, 0)
	if got := s.ledgers(p, d.Request)[1]; got.Waiting != 2 || got.Booked[0].Job != "a" || got.Booked[1].Job != "c" || got.Closed != until {
		t.Errorf("the provider's line is %+v, want a and c, closed until %v", got, until)
	}
	s.by(s.redeem(p, jobRequest(2, "D", "d")), "provider", 5*time.Minute+time.Minute)
	s.at(time.Minute)
	s.by(s.redeem(p, jobRequest(2, "C", "c")), "provider", 5*time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "provider", 5*time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "same phone")), "phone", 6*time.Minute) // its turn at the phone was kept
	s.at(5 * time.Minute)
	s.by(s.redeem(p, jobRequest(2, "D", "d")), "provider", 6*time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 5*time.Minute)
	s.want(s.redeem(p, jobRequest(2, "C", "c")), true, 5*time.Minute)
}

// The key of the phone, too; nothing is left at the provider then.
func TestPostponeAtThePhone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.pair(throttle.Sliding(9, time.Minute))
	d := s.redeem(p, jobRequest(2, key, "a"))
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", time.Minute)
	if _, err := throttle.ForWorkers.Postpone(t.Context(), p, "phone", d.Request, 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	s.at(time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", 6*time.Minute)
	s.want(s.redeem(p, jobRequest(2, "B", "c")), true, time.Minute)
	s.at(5 * time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", 6*time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 5*time.Minute)
	s.at(6 * time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "b")), true, 6*time.Minute)
}

// It goes before those who keep their turn on the phone, too, also when they ask
// first.
func TestPostponeGoesBeforeTurns(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(1, time.Minute)), s.limiter("provider", throttle.Sliding(1, time.Second)))
	d := s.redeem(p, jobRequest(2, key, "z"))
	s.want(d, true, 0)
	s.at(time.Minute - 100*ms)
	s.want(s.redeem(p, jobRequest(2, "B", "b")), true, time.Minute-100*ms)
	s.at(time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "provider", time.Minute+900*ms)
	if _, err := throttle.ForWorkers.Postpone(t.Context(), p, "phone", d.Request, 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	s.at(time.Minute + 900*ms)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "phone", 7*time.Minute)
	s.at(6 * time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "a")), "phone", 7*time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "z")), true, 6*time.Minute)
}

// postpone postpones jobs one after the other, and checks which wait at the provider then.
func (s *scene) postpone(p *throttle.Policy, d time.Duration, want []string, jobs ...throttle.Request) {
	s.Helper()
	for _, r := range jobs {
		if _, err := throttle.ForWorkers.Postpone(s.Context(), p, "provider", r, d); err != nil {
			s.Fatal(err)
		}
	}
	var got []string
	for _, w := range s.ledgers(p, jobs[0])[1].Booked {
		got = append(got, w.Job)
	}
	if !slices.Equal(got, want) {
		s.Errorf("the provider's line is %q, want %q", got, want)
	}
}

// Several jobs of one key that are all put off come back in the order in which they
// were: one after another at the provider, and at the phone too.
func TestPostponeOneAfterAnother(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(4, time.Minute)), s.limiter("provider", throttle.Sliding(6, time.Minute)))
	job := func(phone, name string, cost int) throttle.Request {
		r := jobRequest(2, phone, name)
		r.Cost, r.More[0].Cost = cost, cost
		return r
	}
	a, b, c, d := job(key, "a", 1), job("B", "b", 1), job(key, "c", 2), job(key, "d", 1)
	for _, r := range []throttle.Request{a, b, c, d} {
		s.want(s.redeem(p, r), true, 0)
	}
	s.by(s.redeem(p, job("E", "e", 3)), "provider", time.Minute)
	s.postpone(p, 5*time.Minute, []string{"a", "b", "c", "d", "e"}, a, b, c, d)
	s.by(s.redeem(p, job("E", "f", 1)), "provider", 6*time.Minute) // tickets show all permits ahead, of those put off too

	s.at(5 * time.Minute)
	s.want(s.redeem(p, d), true, 5*time.Minute) // at an instant that is that of all before it too
	s.want(s.redeem(p, a), true, 5*time.Minute)
	s.postpone(p, time.Minute, []string{"a", "b", "c", "e", "f"}, a) // and goes first in a closing of its own
	s.at(6 * time.Minute)
	for _, r := range []throttle.Request{a, b, c} {
		s.want(s.redeem(p, r), true, 6*time.Minute)
	}
}

// Also when they are more than there is room for between two tickets of others: the
// last of them share a place.
func TestVirtualPostponeByThousands(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n, room = 4200, 4096
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(n, time.Minute)), s.limiter("provider", throttle.Sliding(n, time.Minute)))
	for i := range n {
		s.want(s.redeem(p, jobRequest(2, key, fmt.Sprintf("%04d", i))), true, 0)
	}
	s.by(s.redeem(p, jobRequest(2, "E", "e")), "provider", time.Minute)
	for i := n - 1; i >= 0; i-- { // their names do not order them
		if _, err := throttle.ForWorkers.Postpone(t.Context(), p, "provider", jobRequest(2, key, fmt.Sprintf("%04d", i)), 5*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	// Those who wait, in the order of their tickets: a line has other members too.
	line, err := s.raw.ZRangeArgs(t.Context(), redis.ZRangeArgs{
		Key: p.Rules()[1].Ledger(wider[len(wider)-1]) + ":line", ByScore: true, Start: "-inf", Stop: "(2251799813685248",
	}).Result()
	if err != nil || len(line) != n+1 || line[n] != "1:e" {
		t.Fatalf("%d wait, the last is %q, %v, want %d and e", len(line), line[len(line)-1], err, n+1)
	}
	for i, m := range line[:room-1] {
		if want := fmt.Sprintf("1:%04d", n-1-i); m != want {
			t.Fatalf("%d. in the line is %q, want %q", i, m, want)
		}
	}
}
