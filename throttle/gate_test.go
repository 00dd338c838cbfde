package throttle_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// A gate that stays shut for longer than anybody looks ahead: the jobs ask again,
// and leave nothing behind meanwhile, however many they are.
func TestGateThatOpensFarAway(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.limiter("all", throttle.Sliding(1000, time.Second)).Policy()
	hours, err := gate.Parse(`cron "0 9 1 7 *" to "0 10 1 7 *" UTC`)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		s.at(time.Duration(i) * ms)
		d := s.redeem(p, throttle.Request{Key: key, Cost: 1, Job: strconv.Itoa(i), Gates: []gate.InZone{{Rule: "summer", Gate: hours}}})
		if d.Granted || !d.Gated || d.Rule != "summer" || d.At.Before(s.now.Add(24*time.Hour)) || d.At.After(s.now.Add(31*24*time.Hour)) {
			t.Fatalf("job %d: %v, want it to ask again in some days", i, d)
		}
	}
	if keys := redistest.Keys(t, s.raw, "hw:*"); len(keys) > 0 {
		t.Errorf("keys %q are left, want none", keys)
	}
}

// A gate that opens by the recipient's zone and comes without one would never open: a call
// that waits for it would wait for ever.
func TestGateWithoutTheRecipientsZone(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := s.limiter("all", throttle.Sliding(1000, time.Second)).Policy()
	hours, err := gate.Parse("00:00-24:00 recipient")
	if err != nil {
		t.Fatal(err)
	}
	r := throttle.Request{Key: key, Cost: 1, Job: "a", Gates: []gate.InZone{{Rule: "day", Gate: hours}}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, call := range map[string]func(context.Context, throttle.Request) (throttle.Decision, error){"TryAcquire": p.TryAcquire, "Acquire": p.Acquire} {
		_, err := call(ctx, r)
		if fault, ok := errors.AsType[*gate.Error](err); !ok || !errors.Is(err, gate.ErrInvalid) || fault.Field != "zone" {
			t.Errorf("%s = %v, want a gate.Error about the zone", name, err)
		}
	}
	r.Gates[0].In = time.UTC
	if d, err := p.TryAcquire(ctx, r); err != nil || !d.Granted {
		t.Errorf("TryAcquire with a zone = %v, %v, want a grant", d, err)
	}
}
