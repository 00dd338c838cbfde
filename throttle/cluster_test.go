package throttle_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// clusterPolicy is phone and provider, whose keys are in other slots.
func clusterPolicy(t *testing.T, rdb redis.UniversalClient, phone, provider throttle.Limit) *throttle.Policy {
	t.Helper()
	// each slot has an instant of its own, and one may grant so far ahead of the other
	cfg := throttle.Config{InlineWait: 10 * time.Millisecond}
	p, err := throttle.NewPolicy(newLimiter(t, rdb, "phone", phone, cfg), newLimiter(t, rdb, "provider", provider, cfg))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func clusterRequest(phone int) throttle.Request {
	return throttle.Request{Key: fmt.Sprint("phone", phone), Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}}
}

// On Redis Cluster each slot is a script of its own: what the narrow rule spent is
// given back when the wide one refuses, and the job keeps its turn.
func TestClusterAllOrNothing(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	p := clusterPolicy(t, rdb, throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour))
	phone, provider := p.Rules()[0], p.Rules()[1]
	available := func(key string, l *throttle.Limiter, want int) {
		t.Helper()
		if got, err := l.Available(t.Context(), key); err != nil || got != want {
			t.Errorf("rule %q on %s: %d available, %v, want %d", l.Rule(), key, got, err, want)
		}
	}
	if d, err := p.TryAcquire(t.Context(), clusterRequest(1)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	available("phone1", phone, 0)
	available("acme", provider, 0)

	d, err := p.TryAcquire(t.Context(), clusterRequest(2))
	if err != nil || d.Granted || d.Rule != "provider" || d.At.Sub(d.Now) < 59*time.Minute {
		t.Fatalf("TryAcquire = %v, %v, want the provider to refuse for an hour", d, err)
	}
	available("phone2", phone, 1)

	r := clusterRequest(2)
	r.Job = "job"
	d, err = p.Redeem(t.Context(), r)
	if err != nil || d.Granted || d.Rule != "provider" {
		t.Fatalf("Redeem = %v, %v, want a place at the provider", d, err)
	}
	available("phone2", phone, 1) // a turn holds up nobody of another policy
	place := throttle.ForWorkers.Ref(p, r)
	if now := throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{place})[0]; now.Err != nil || !now.Known || now.Rule != "provider" || !now.At.Equal(d.At) {
		t.Errorf("Refresh = %+v, want %v by the provider", now, d.At)
	}
	second := clusterRequest(2)
	second.Job = "second"
	if d, err := p.Redeem(t.Context(), second); err != nil || d.Granted || d.Rule != "phone" || d.At.Sub(d.Now) < time.Hour {
		t.Errorf("Redeem = %v, %v, want it to come behind the first on its phone", d, err)
	}
	if _, err := throttle.ForWorkers.CancelBooking(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	if now := throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{place})[0]; now.Err != nil || now.Known {
		t.Errorf("Refresh = %+v, want nothing known of it", now)
	}
	late := clusterRequest(3)
	late.MaxWait = time.Second
	if _, err := p.Acquire(t.Context(), late); !errors.Is(err, throttle.ErrTooLate) {
		t.Errorf("Acquire = %v, want %v", err, throttle.ErrTooLate)
	}
	available("phone3", phone, 1)
}

// A server that can't answer for one of a booking's keys makes a Refresh fail, whichever
// server answers last.
func TestClusterRefreshTellsTheErrorOfEachSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	for _, broken := range []string{"hw:{phone1}:phone", "hw:{acme}:provider"} {
		t.Run(broken, func(t *testing.T) {
			p := clusterPolicy(t, rdb, throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour))
			r := clusterRequest(1)
			for _, r.Job = range []string{"granted", "booked"} {
				if _, err := p.Redeem(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			place := throttle.ForWorkers.Ref(p, r)
			if now := throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{place})[0]; now.Err != nil || !now.Known {
				t.Fatalf("Refresh = %+v, want where it waits", now)
			}
			kept := rdb.Dump(t.Context(), broken).Val()
			if n, err := rdb.Del(t.Context(), broken).Result(); n != 1 {
				t.Fatalf("%d ledgers, %v, want 1", n, err)
			}
			if err := rdb.LPush(t.Context(), broken, "no ledger").Err(); err != nil {
				t.Fatal(err)
			}
			if now := throttle.ForWorkers.Refresh(t.Context(), rdb, []throttle.BookingRef{place})[0]; now.Err == nil {
				t.Errorf("Refresh = %+v, want the error of the server", now)
			}
			if err := rdb.RestoreReplace(t.Context(), broken, 0, kept).Err(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A crowd on a cluster: neither limit is broken, and everybody goes. The narrow window is so long that
// a tenth of it is the documented bound: by so much a grant may start later than the phone's slot counted it.
func TestClusterCrowd(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	const phones, messages = 10, 4
	narrow, wide := 500*time.Millisecond, 25*time.Millisecond
	p := clusterPolicy(t, rdb, throttle.Sliding(1, narrow), throttle.Sliding(1, wide))
	var mu sync.Mutex
	grants := make(map[int][]time.Time)
	var all []time.Time
	var wg sync.WaitGroup
	for i := range phones * messages {
		wg.Go(func() {
			d, err := p.Acquire(t.Context(), clusterRequest(i%phones))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			grants[i%phones] = append(grants[i%phones], d.At)
			all = append(all, d.At)
		})
	}
	wg.Wait()
	if len(all) != phones*messages {
		t.Fatalf("%d grants, want %d", len(all), phones*messages)
	}
	for i, of := range grants {
		apart(t, fmt.Sprint("phone ", i), of, narrow-narrow/10)
	}
}

// apart says when two instants are closer than a window.
func apart(t *testing.T, what string, at []time.Time, window time.Duration) {
	t.Helper()
	slices.SortFunc(at, time.Time.Compare)
	for i := 1; i < len(at); i++ {
		if gap := at[i].Sub(at[i-1]); gap < window {
			t.Errorf("%s: two grants are %v apart, want %v", what, gap, window)
		}
	}
}

// A job that came for its lease, and is refused by the limit of its phone, leaves the line for leases:
// the next one gets the lease at once.
func TestClusterJobThatWaitsForItsPhoneHoldsNoLease(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	phone := newLimiter(t, rdb, "phone", throttle.Sliding(1, time.Hour), throttle.Config{})
	p, err := throttle.NewPolicy(phone, newLimiter(t, rdb, "slots", throttle.Concurrent(1, time.Minute), throttle.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(job string, granted bool, rule string) throttle.Decision {
		t.Helper()
		d, err := p.Redeem(t.Context(), throttle.Request{Key: job, Cost: 1, Job: job, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}})
		if err != nil || d.Granted != granted || !granted && d.Rule != rule {
			t.Fatalf("%s: granted %v by rule %q, %v, want %v and %q", job, d.Granted, d.Rule, err, granted, rule)
		}
		return d
	}
	a := ask("a", true, "")
	ask("b", false, "slots")
	if d, err := phone.TryAcquire(t.Context(), "b", 1); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v", d, err)
	}
	ask("c", false, "slots")
	if _, err := p.Refund(t.Context(), a.Request); err != nil {
		t.Fatal(err)
	}
	ask("b", false, "phone")
	ask("c", true, "")
}

// Jobs of a phone that the provider refuses, in another slot, keep their order there, in whatever order they come.
func TestClusterKeepsTheOrderOfAPhone(t *testing.T) {
	t.Parallel()
	s := sceneOn(t, redistest.StartCluster(t, 3))
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(3, time.Minute)), s.limiter("provider", throttle.Sliding(3, time.Minute)))
	phone := p.Rules()[0]
	s.want(s.try(phone, 3), true, 0)
	for _, job := range []string{"a", "b", "c"} {
		s.by(s.redeem(p, jobRequest(2, key, job)), "phone", time.Minute)
	}
	s.at(50 * time.Second)
	for range 3 {
		s.want(s.redeem(p, jobRequest(2, "B", "spends the provider")), true, 50*time.Second)
	}
	s.at(time.Minute)
	for _, job := range []string{"a", "c", "b"} {
		s.by(s.redeem(p, jobRequest(2, key, job)), "provider", 110*time.Second)
	}
	s.at(105 * time.Second)
	s.want(s.try(phone, 2), true, 105*time.Second) // one is left
	s.at(110 * time.Second)
	s.by(s.redeem(p, jobRequest(2, key, "newcomer")), "phone", 170*time.Second)
	s.by(s.redeem(p, jobRequest(2, key, "c")), "phone", 165*time.Second)
	s.by(s.redeem(p, jobRequest(2, key, "b")), "phone", 165*time.Second)
	s.want(s.redeem(p, jobRequest(2, key, "a")), true, 110*time.Second)
}

// A job that fails because the provider's server is away keeps its ticket at its phone.
func TestClusterKeepsThePlaceOfAJobThatFails(t *testing.T) {
	t.Parallel()
	raw, away := redistest.StartCluster(t, 3), &unreachable{tag: "{provider}"}
	raw.AddHook(away)
	s := sceneOn(t, raw)
	p := s.pair(throttle.Sliding(100, time.Minute))
	phone := p.Rules()[0]
	s.want(s.try(phone, 1), true, 0)
	s.by(s.redeem(p, jobRequest(2, key, "fails")), "phone", time.Minute)
	s.at(time.Minute)
	away.on.Store(true)
	if _, err := p.Redeem(t.Context(), jobRequest(2, key, "fails")); !errors.Is(err, throttle.ErrUnavailable) {
		t.Fatalf("Redeem = %v, want %v", err, throttle.ErrUnavailable)
	}
	away.on.Store(false)
	s.want(s.try(phone, 1), true, time.Minute) // it holds up nobody
	s.by(s.redeem(p, jobRequest(2, key, "newcomer")), "phone", 2*time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "fails")), "phone", 2*time.Minute)
	s.at(2 * time.Minute)
	s.by(s.redeem(p, jobRequest(2, key, "newcomer")), "phone", 3*time.Minute)
	s.want(s.redeem(p, jobRequest(2, key, "fails")), true, 2*time.Minute)
}

// A job that is granted without Redis, because the provider's server can't write, leaves no place at its phone.
func TestClusterFailOpenLeavesNoPlace(t *testing.T) {
	t.Parallel()
	raw, full := redistest.StartCluster(t, 3), &unreachable{tag: "{provider}", says: fullError{}}
	raw.AddHook(full)
	s := sceneOn(t, raw)
	cfg := throttle.Config{OnUnavailable: throttle.FailOpen}
	phone := newLimiter(t, s.rdb, "phone", throttle.Sliding(1, time.Minute), cfg)
	p := newPolicy(t, phone, newLimiter(t, s.rdb, "provider", throttle.Sliding(100, time.Minute), cfg))
	s.want(s.try(phone, 1), true, 0)
	s.by(s.redeem(p, jobRequest(2, key, "job")), "phone", time.Minute)
	s.at(time.Minute)
	full.on.Store(true)
	if d := s.redeem(p, jobRequest(2, key, "job")); !d.Granted {
		t.Fatalf("%v, want a grant without Redis", d)
	}
	eventually(t, "no line is left", func() bool { return len(linesLeft(t, raw)) == 0 })
}

// A job gets a lease offered. It passes the jobs that wait for the provider, because the provider had admitted it before. When the provider
// has no permit for it now, it keeps its place for the lease, and the next job is told to come.
func TestClusterJobsThatWaitForLeasesAreNotHeldUpByALineForARate(t *testing.T) {
	t.Parallel()
	s := sceneOn(t, redistest.StartCluster(t, 3))
	provider, slots := s.limiter("provider", throttle.Sliding(1, 10*time.Second)), s.limiter("slots", throttle.Concurrent(1, 2*time.Hour))
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(1, time.Second)), provider, slots)
	ask := func(job string, granted bool, by string) throttle.Decision {
		t.Helper()
		d := s.redeem(p, throttle.Request{Key: "phone of " + job, Cost: 1, Job: job, More: []throttle.KeyCost{{Key: "acme", Cost: 1}, {Key: "line", Cost: 1}}})
		if d.Granted != granted || !granted && d.Rule != by {
			t.Fatalf("%s after %v: granted %v by rule %q at %v, want %v and %q", job, s.now.Sub(start), d.Granted, d.Rule, d.At.Sub(start), granted, by)
		}
		return d
	}
	hold := func() throttle.Decision {
		t.Helper()
		d, err := slots.TryAcquire(t.Context(), "line", 1)
		if err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a lease", d, err)
		}
		return d
	}
	release := func(d throttle.Decision, next string) {
		t.Helper()
		turns, err := slots.Policy().Release(t.Context(), d)
		if turn := soleTurn(t, turns); err != nil || turn.Job != next {
			t.Fatalf("Release = %+v, %v, want that %s is told to come", turns, err, next)
		}
	}
	spend := func() {
		t.Helper()
		if d, err := provider.TryAcquire(t.Context(), "acme", 1); err != nil || !d.Granted {
			t.Fatalf("TryAcquire = %v, %v, want a permit", d, err)
		}
	}
	held := hold()
	ask("a", false, "slots")
	ask("b", false, "slots")
	spend()
	ask("c", false, "provider")
	s.at(10 * time.Second)
	release(held, "a")
	a := ask("a", true, "")
	ask("c", false, "provider") // until 20 s
	s.at(15 * time.Second)
	turns, err := p.Release(t.Context(), a)
	if turn := soleTurn(t, turns); err != nil || turn.Job != "b" {
		t.Fatalf("Release = %+v, %v, want that b is told to come", turns, err)
	}
	b := ask("b", false, "provider")
	if want := start.Add(20 * time.Second); !b.At.Equal(want) {
		t.Fatalf("b is told %v, want 20 s: it is before c", b.At.Sub(start))
	}
	other := throttle.Request{Key: "line", Cost: 1, Job: "of another policy"}
	held = s.redeem(slots.Policy(), other)
	s.want(held, true, 15*time.Second)
	other.Job = "behind b"
	s.by(s.redeem(slots.Policy(), other), "slots", 15*time.Second+2*time.Hour)
	s.at(20 * time.Second)
	ask("b", false, "slots")
	release(held, "b")
	ask("b", true, "")
	ask("c", false, "provider")
}
