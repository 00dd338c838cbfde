package throttle_test

import (
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// What a key with one permit takes, of each kind, with its newest token and the
// numbers that it was written under. The name of the key has 23 bytes.
func TestMemoryOfEachKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limits := kindsOf(time.Minute)
	limits = append(limits, throttle.Sliding(1, time.Minute), throttle.WarmUp(3, 7*24*time.Hour, 10*24*time.Hour, 1.5))
	for _, limit := range limits {
		s.raw.FlushDB(t.Context())
		s.at(0)
		l := s.limiter("sms", limit)
		s.at(12345 * us)
		if d, err := l.TryAcquire(t.Context(), "13612345678", 1); err != nil || !d.Granted {
			t.Fatal(d, err)
		}
		name := l.Ledger("13612345678")
		got, err := s.raw.MemoryUsage(t.Context(), name).Result()
		if err != nil {
			t.Fatal(err)
		}
		most := int64(200)
		switch limit.Kind() {
		case "sliding":
			most = 110
		case "warmup":
			most = 240 // two doubles as text
		}
		t.Logf("%-32v %3d bytes, of which %d of name and value", limit, got, len(name)+int(s.raw.StrLen(t.Context(), name).Val()))
		if got > most {
			t.Errorf("%v: %d bytes, want %d at most", limit, got, most)
		}
		// More permits take no more, but for the log.
		if limit.Kind() == "sliding" {
			continue
		}
		for i := range 50 {
			s.at(time.Duration(i) * time.Hour * 24)
			if _, err := l.TryAcquire(t.Context(), "13612345678", 1); err != nil {
				t.Fatal(err)
			}
		}
		if again := s.raw.MemoryUsage(t.Context(), name).Val(); again > most {
			t.Errorf("%v: %d bytes after 50 permits, want %d at most", limit, again, most)
		}
	}
}
