package throttle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// sms is a phone of 1/1m behind a provider of 1/1s.
func sms(t *testing.T, rdb redis.UniversalClient, cfg throttle.Config) *throttle.Policy {
	t.Helper()
	p, err := throttle.NewPolicy(newLimiter(t, rdb, "phone", throttle.Sliding(1, time.Minute), cfg), newLimiter(t, rdb, "provider", throttle.Sliding(1, time.Second), cfg))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lastRuleRequest is a job for a phone that is to wait for the provider alone.
func lastRuleRequest(p *throttle.Policy, phone, job string) throttle.BookRequest {
	return throttle.BookRequest{Policy: p, LastRuleOnly: true, Request: throttle.Request{Key: phone, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: job}}
}

// inLine is how long the lines of our rules are.
func inLine(t *testing.T, p *throttle.Policy, keys ...string) (lengths []int) {
	t.Helper()
	for i, key := range keys {
		state, err := p.Rules()[i].Peek(t.Context(), key, 0)
		if err != nil {
			t.Fatal(err)
		}
		lengths = append(lengths, state.Waiting)
	}
	return lengths
}

// A phone that is busy until 10 s behind a provider's line that is 3 s long: its job is
// refused until then, and others are booked behind each other. Once the line is so long
// that its end is behind 10 s, that job is booked at its end.
func TestBookLastRuleAtAJointInstant(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "on a Cluster a job does not see the places of others for its phone")
	p := sms(t, s.rdb, throttle.Config{})
	ask := func(phone, job string) throttle.Booking {
		t.Helper()
		both := throttle.ForWorkers.BookMany(t.Context(), s.rdb, []throttle.BookRequest{lastRuleRequest(p, phone, job), {Policy: p}})
		if both[0].Err != nil || both[0].Granted {
			t.Fatalf("BookMany(%s) = %+v, %v, want no grant", job, both[0].Decision, both[0].Err)
		}
		return both[0]
	}
	want := func(b throttle.Booking, refused bool, rule string, at time.Duration) {
		t.Helper()
		if b.Refused != refused || b.Rule != rule || b.At.Sub(start) != at {
			t.Errorf("%s is refused = %v by %s until %v, want %v by %s until %v", b.Job, b.Refused, b.Rule, b.At.Sub(start), refused, rule, at)
		}
	}
	if d, err := p.Redeem(t.Context(), lastRuleRequest(p, "busy", "first").Request); err != nil || !d.Granted {
		t.Fatalf("Redeem = %v, %v, want a grant", d, err)
	}
	s.at(50 * time.Second)
	if d, err := p.Rules()[1].Policy().Redeem(t.Context(), throttle.Request{Key: "acme", Cost: 1, Job: "others"}); err != nil || !d.Granted {
		t.Fatalf("Redeem = %v, %v, want a grant", d, err)
	}
	for i := range 3 {
		want(ask(fmt.Sprint("free", i), fmt.Sprint("a", i)), false, "provider", time.Duration(51+i)*time.Second)
	}
	before := dump(t, s)
	want(ask("busy", "again"), true, "phone", time.Minute)
	if after := dump(t, s); before != after {
		t.Errorf("a job that was refused left something: %q, want %q", after, before)
	}
	for i := 3; i < 9; i++ {
		want(ask(fmt.Sprint("free", i), fmt.Sprint("a", i)), false, "provider", time.Duration(51+i)*time.Second)
	}
	want(ask("busy", "again"), false, "provider", time.Minute)
	want(ask("busy", "third"), true, "phone", 2*time.Minute)
	if got := inLine(t, p, "busy", "acme"); got[0] != 0 || got[1] != 10 {
		t.Errorf("%v wait for the phone and for the provider, want none and 10", got)
	}
	// Who is there keeps its place, also when the phone has gone to somebody else meanwhile.
	if d, err := p.Rules()[0].TryAcquire(t.Context(), "free1", 1); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	want(ask("free1", "a1"), false, "provider", 52*time.Second)
	for i := range 10 {
		s.at(time.Duration(51+i) * time.Second)
		job, phone := fmt.Sprint("a", i), fmt.Sprint("free", i)
		if i == 9 {
			job, phone = "again", "busy"
		}
		if d, err := p.Redeem(t.Context(), lastRuleRequest(p, phone, job).Request); err != nil || d.Granted == (i == 1) {
			t.Errorf("Redeem(%s) at its instant = %v, %v", job, d, err)
		}
	}
}

// A wait that is too long leaves no place, whichever rule it is for.
func TestBookLastRuleWithinAWait(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := sms(t, s.rdb, throttle.Config{})
	if d, err := p.Redeem(t.Context(), lastRuleRequest(p, "busy", "first").Request); err != nil || !d.Granted {
		t.Fatalf("Redeem = %v, %v, want a grant", d, err)
	}
	before := dump(t, s)
	phone, provider, soon := lastRuleRequest(p, "busy", "a"), lastRuleRequest(p, "free", "b"), lastRuleRequest(p, "free", "c")
	phone.MaxWait, provider.MaxWait, soon.MaxWait = 59*time.Second, 999*ms, time.Second
	got := throttle.ForWorkers.BookMany(t.Context(), s.rdb, []throttle.BookRequest{phone, provider})
	for i, at := range []time.Duration{time.Minute, time.Second} {
		late, ok := errors.AsType[*throttle.TooLateError](got[i].Err)
		if !ok || !late.At.Equal(start.Add(at)) {
			t.Errorf("booking %d = %v, want it too late at %v", i, got[i].Err, at)
		}
	}
	if after := dump(t, s); before != after {
		t.Errorf("who comes too late left something: %q, want %q", after, before)
	}
	if got := throttle.ForWorkers.BookMany(t.Context(), s.rdb, []throttle.BookRequest{soon})[0]; got.Err != nil || got.Refused || got.At.Sub(start) != time.Second {
		t.Errorf("BookMany = %+v, %v, want a place in a second", got.Decision, got.Err)
	}
}

// Nobody waits in a line for a gate to open, or behind one that shuts before the turn.
func TestBookLastRuleAtAGate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := sms(t, s.rdb, throttle.Config{})
	hours, err := gate.Parse("08:00-08:01,08:05-20:00 UTC")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(job string) throttle.Booking {
		w := lastRuleRequest(p, job, job)
		w.Gates = []gate.InZone{{Rule: "hours", Gate: hours}}
		return throttle.ForWorkers.BookMany(t.Context(), s.rdb, []throttle.BookRequest{w})[0]
	}
	want := func(b throttle.Booking, refused bool, at time.Duration) {
		t.Helper()
		if b.Err != nil || b.Refused != refused || b.Gated || b.At.Sub(start) != at {
			t.Errorf("%s = refused %v, parked %v until %v, %v, want %v until %v", b.Job, b.Refused, b.Gated, b.At.Sub(start), b.Err, refused, at)
		}
	}
	s.at(57 * time.Second)
	for i := range 3 {
		want(ask(fmt.Sprint("a", i)), false, time.Duration(57+i)*time.Second)
	}
	want(ask("b"), true, 5*time.Minute)
	s.at(time.Minute)
	want(ask("a1"), true, 5*time.Minute) // shut: it gives its place up
	if got := inLine(t, p, "b", "acme"); got[0] != 0 || got[1] > 2 {
		t.Errorf("%v wait, want none for the phone and two of three for the provider", got)
	}
	if keys := redistest.Keys(t, s.raw, "hw:*:opening"); len(keys) != 0 {
		t.Errorf("%v count jobs that wait for the gate, want no key", keys)
	}
	s.at(5 * time.Minute)
	want(ask("b"), false, 5*time.Minute)
}

// A slot that is taken now says nothing about later; a key that is closed does.
func TestBookLastRuleBehindALease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	cfg := throttle.Config{}
	slots := newLimiter(t, s.rdb, "slots", throttle.Concurrent(1, time.Minute), cfg)
	p, err := throttle.NewPolicy(newLimiter(t, s.rdb, "provider", throttle.Sliding(1, time.Second), cfg), slots)
	if err != nil {
		t.Fatal(err)
	}
	jobRequest := func(p *throttle.Policy, job string, more ...throttle.KeyCost) throttle.Booking {
		w := throttle.BookRequest{Policy: p, LastRuleOnly: true, Request: throttle.Request{Key: "acme", Cost: 1, More: more, Job: job}}
		return throttle.ForWorkers.BookMany(t.Context(), s.rdb, []throttle.BookRequest{w})[0]
	}
	both := throttle.KeyCost{Key: "acme", Cost: 1}
	s.want(func() throttle.Decision { d, _ := slots.TryAcquire(t.Context(), "acme", 1); return d }(), true, 0)
	if b := jobRequest(p, "a", both); b.Err != nil || b.Refused || b.Rule != "provider" || !b.At.Equal(start) {
		t.Errorf("BookMany = %+v, %v, want a place at the provider now", b.Decision, b.Err)
	}
	if b := jobRequest(slots.Policy(), "b"); b.Err != nil || b.Refused || b.Rule != "slots" {
		t.Errorf("BookMany = %+v, %v, want a place in the only line there is", b.Decision, b.Err)
	}
	if _, err := slots.CloseKey(t.Context(), "acme", time.Hour); err != nil {
		t.Fatal(err)
	}
	if b := jobRequest(p, "c", both); b.Err != nil || !b.Refused || b.Rule != "slots" || b.At.Sub(start) != time.Hour {
		t.Errorf("BookMany = %+v, %v, want it refused for an hour", b.Decision, b.Err)
	}
}

// Whatever decides, it refuses and books alike.
func TestBookLastRuleElsewhere(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	away := &mute{UniversalClient: redistest.Client(t)}
	for name, p := range map[string]*throttle.Policy{
		"cluster": sms(t, cluster, throttle.Config{}),
		"local":   sms(t, away, throttle.Config{OnUnavailable: throttle.FailLocal}),
	} {
		t.Run(name, func(t *testing.T) {
			rdb := map[string]redis.UniversalClient{"cluster": cluster, "local": away}[name]
			if d, err := p.Redeem(t.Context(), lastRuleRequest(p, "busy", "first").Request); err != nil || !d.Granted {
				t.Fatalf("Redeem = %v, %v, want a grant", d, err)
			}
			late := lastRuleRequest(p, "busy", "c")
			late.MaxWait = 10 * time.Second
			got := throttle.ForWorkers.BookMany(t.Context(), rdb, []throttle.BookRequest{lastRuleRequest(p, "busy", "a"), lastRuleRequest(p, "free", "b"), late, lastRuleRequest(p, "free", "b")})
			if b := got[0]; b.Err != nil || !b.Refused || b.Rule != "phone" || b.At.Sub(b.Now) < 50*time.Second {
				t.Errorf("a busy phone = %+v, %v, want it refused for a minute", b.Decision, b.Err)
			}
			for _, i := range []int{1, 3} {
				if b := got[i]; b.Err != nil || b.Refused || b.Rule != "provider" || b.Granted || b.At.Sub(b.Now) > time.Second {
					t.Errorf("a free phone = %+v, %v, want a place within a second", b.Decision, b.Err)
				}
			}
			if !errors.Is(got[2].Err, throttle.ErrTooLate) {
				t.Errorf("a busy phone within 10 s = %+v, %v, want it too late", got[2].Decision, got[2].Err)
			}
			if name == "local" {
				return // it can't be looked at
			}
			if waiting := inLine(t, p, "busy", "acme"); waiting[0] != 0 || waiting[1] > 1 {
				t.Errorf("%v wait, want none for the phone and one for the provider", waiting)
			}
		})
	}
}

// Without Redis, and where limits are only watched, there is nothing to wait for.
func TestBookLastRuleWithoutALine(t *testing.T) {
	t.Parallel()
	away := &mute{UniversalClient: redistest.Client(t)}
	for name, cfg := range map[string]throttle.Config{"shadow": {Shadow: true}, "away": {OnUnavailable: throttle.FailOpen}} {
		p := sms(t, away, cfg)
		for i, b := range throttle.ForWorkers.BookMany(t.Context(), away, []throttle.BookRequest{lastRuleRequest(p, "x", "a"), lastRuleRequest(p, "x", "b")}) {
			if b.Err != nil || b.Refused || b.Granted || b.At.After(time.Now()) {
				t.Errorf("%s: booking %d = %+v, %v, want it now", name, i, b.Decision, b.Err)
			}
		}
	}
}
