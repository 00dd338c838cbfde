package worker

import (
	"sync"
	"testing"
	"time"
)

// An entry counts until its time is over, and not at that instant. A new value lives anew.
func TestTTLMapExpires(t *testing.T) {
	t.Parallel()
	m, start := newTTLMap[string, int](time.Minute), time.Unix(1, 0)
	m.put("a", 1, start)
	m.put("b", 2, start)
	for _, tt := range []struct {
		key   string
		after time.Duration
		want  bool
	}{{"a", 0, true}, {"a", time.Minute - 1, true}, {"a", time.Minute, false}, {"a", time.Hour, false}, {"c", 0, false}} {
		if got := m.has(tt.key, start.Add(tt.after)); got != tt.want {
			t.Errorf("has(%q) after %v = %v, want %v", tt.key, tt.after, got, tt.want)
		}
	}
	m.put("a", 3, start.Add(30*time.Second))
	m.purge(start.Add(time.Minute))
	if len(m.entries) != 1 || !m.has("a", start.Add(time.Minute)) {
		t.Errorf("%d entries after a purge, want the one that was put again", len(m.entries))
	}
}

// What is taken is forgotten, and what has expired can't be taken.
func TestTTLMapTake(t *testing.T) {
	t.Parallel()
	m, start := newTTLMap[string, int](time.Minute), time.Unix(1, 0)
	m.put("a", 1, start)
	m.put("b", 2, start)
	if v, ok := m.take("a", start.Add(time.Minute-1)); v != 1 || !ok {
		t.Errorf("take = %d, %v, want 1", v, ok)
	}
	for _, key := range []string{"a", "b", "c"} {
		if v, ok := m.take(key, start.Add(time.Minute)); v != 0 || ok {
			t.Errorf("take(%q) = %d, %v, want nothing", key, v, ok)
		}
	}
	if len(m.entries) != 0 {
		t.Errorf("%d entries are left, want none", len(m.entries))
	}
}

// With nobody to purge it holds at most about twice what lives, and loses nothing of that.
func TestTTLMapIsBounded(t *testing.T) {
	t.Parallel()
	m, start := newTTLMap[int, struct{}](time.Minute), time.Unix(1, 0)
	const perMinute = 3 * ttlMapLeast
	var now time.Time
	for i := range 10 * perMinute {
		now = start.Add(time.Duration(i) * time.Minute / perMinute)
		m.put(i, struct{}{}, now)
		if len(m.entries) > 2*perMinute+ttlMapLeast {
			t.Fatalf("%d entries after %d puts, want at most twice the %d that live", len(m.entries), i, perMinute)
		}
	}
	for i := 9*perMinute + 1; i < 10*perMinute; i++ {
		if !m.has(i, now) {
			t.Fatalf("entry %d is lost", i)
		}
	}
}

// Fetches, handlers and the purge use a map at the same time; the race detector watches.
func TestTTLMapConcurrentUse(t *testing.T) {
	t.Parallel()
	m, start := newTTLMap[int, int](time.Minute), time.Unix(1, 0)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				key := g*1000 + i
				m.put(key, i, start)
				m.purge(start)
				if v, ok := m.take(key, start); v != i || !ok || m.has(key, start) {
					t.Errorf("take(%d) = %d, %v", key, v, ok)
				}
			}
		})
	}
	wg.Wait()
}
