package throttle_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Any key within the bounds works: braces, a leading '#', any bytes, any
// length. All keys of one rule and key share one hash tag.
func TestKeysOfAnyKind(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	for _, k := range []string{
		"a", "{", "}", "{}", "{a}", "a{b}c", "}{", "#a", "a b\r\n", "\x00\xff", "*", "mixed", "1:a", strings.Repeat("k", 64),
		strings.Repeat("k", 65), strings.Repeat("k", throttle.KeyMax), "日本",
	} {
		redistest.Flush(t, s.raw)
		s.at(0)
		for i, want := range []bool{true, false} {
			d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: k, Cost: 1, Job: "job"})
			if err != nil || d.Granted != want {
				t.Errorf("Redeem %d of %q = %v, %v, want granted = %v", i, k, d, err, want)
			}
		}
		tags := map[string]bool{}
		for _, name := range redistest.Keys(t, s.raw, "hw:*") {
			_, rest, _ := strings.Cut(name, "{")
			tag, _, ok := strings.Cut(rest, "}")
			if !ok || tag == "" || strings.Count(name, "{") != 1 || strings.Count(name, "}") != 1 {
				t.Errorf("key %q for %q: no clear hash tag", name, k)
			}
			tags[tag] = true
		}
		if len(tags) != 1 {
			t.Errorf("the keys for %q have the tags %v, want one", k, tags)
		}
	}
}

func TestKeysDoNotCollide(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first := newLimiter(t, s.rdb, "a", throttle.Sliding(1, time.Minute), throttle.Config{})
	hashed := first.ID("{a}")
	for name, l := range map[string]*throttle.Limiter{
		"rule":   s.limiter("b", throttle.Sliding(1, time.Minute)),
		"prefix": newLimiter(t, s.rdb, "a", throttle.Sliding(1, time.Minute), throttle.Config{Prefix: "hw2"}),
		"secret": newLimiter(t, s.rdb, "a", throttle.Sliding(1, time.Minute), throttle.Config{Secret: []byte("0123456789abcdef")}),
		"first":  first,
	} {
		for _, k := range []string{"{a}", hashed, "a", "a:line"} {
			if d, err := l.TryAcquire(t.Context(), k, 1); err != nil || !d.Granted {
				t.Errorf("another %s, key %q: TryAcquire = %v, %v, want granted", name, k, d, err)
			}
		}
	}
}

// With a secret no key and no value in Redis shows the key.
func TestSecretHidesTheKey(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	secret := []byte("0123456789abcdef")
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Secret: secret})
	for _, job := range []string{"a", "b", "c"} { // granted and given back, granted, booked
		d, err := l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: job})
		if err != nil {
			t.Fatal(err)
		}
		if job == "a" {
			_, _ = l.Policy().Refund(t.Context(), d.Request)
		}
	}
	keys := redistest.Keys(t, rdb, "hw:*")
	if len(keys) < 3 {
		t.Fatalf("keys = %v, want all three kinds", keys)
	}
	for _, k := range keys {
		value := rdb.Dump(t.Context(), k).Val()
		for _, clear := range []string{key, strings.TrimPrefix(key, "+"), "1234567", string(secret)} {
			if strings.Contains(k, clear) || strings.Contains(value, clear) {
				t.Errorf("key %q with value %q shows %q", k, value, clear)
			}
		}
	}
	if other := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Secret: append(secret, '!')}); other.ID(key) == l.ID(key) {
		t.Errorf("two secrets give the same ID %q", l.ID(key))
	}
}

// Every key has a life from the start, and a quarter of a second longer than it
// needs: the ledger the window, the line an hour after its last promise, tokens a
// minute.
func TestLifeOfKeys(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Second))
	const spare = 151 * ms // tokens have a tenth of a second more than the others
	life := func(part string, want time.Duration) {
		t.Helper()
		// The clock of the test stands still, that of the server does not.
		if got := s.life("hw:{" + key + "}:sms" + part); got > want+spare || got < want-time.Second {
			t.Errorf("PTTL of %q = %v, want %v and at most %v more", part, got, want, spare)
		}
	}
	d := s.job(l, "a", 1)
	life("", time.Second)
	life(":tokens", time.Minute) // a copy of the call may come when the window has passed
	s.job(l, "b", 1)
	s.job(l, "c", 1)
	life(":line", time.Hour+2*time.Second)
	if _, err := throttle.ForWorkers.Return(t.Context(), l.Policy(), d.Request); err != nil {
		t.Fatal(err)
	}
	life(":tokens", time.Minute)
	life(":line", time.Hour+2*time.Second)
	for _, job := range []string{"a", "b", "c"} {
		if _, err := l.Policy().Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: job}); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range redistest.Keys(t, s.raw, "hw:*") {
		if strings.HasSuffix(k, ":line") {
			t.Errorf("%s is left, want no line when nobody waits", k)
		}
	}
}

// A key that lost its life by somebody's PERSIST gets one again.
func TestLifeComesBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(2, time.Minute))
	do := func() {
		s.job(l, "a", 1)
		s.job(l, "b", 1)
		s.job(l, "c", 1)
	}
	do()
	for _, k := range redistest.Keys(t, s.raw, "hw:*") {
		s.raw.Persist(t.Context(), k)
	}
	s.at(time.Minute)
	do()
	do()
	for _, k := range redistest.Keys(t, s.raw, "hw:*") {
		s.life(k)
	}
}

// What a key with one permit takes, of each kind, with its newest token and the
// numbers that it was written under. The name of the key has 23 bytes.
func TestMemoryOfEachKind(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "a node of a Cluster keeps more of each key")
	limits := kindsOf(time.Minute)
	limits = append(limits, throttle.Sliding(1, time.Minute), throttle.WarmUp(3, 7*24*time.Hour, 10*24*time.Hour, 1.5))
	for _, limit := range limits {
		redistest.Flush(t, s.raw)
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
