package throttle_test

import (
	"strconv"
	"testing"
	"time"

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
	if keys := allKeys(t, s.raw); len(keys) > 0 {
		t.Errorf("keys %q are left, want none", keys)
	}
}
