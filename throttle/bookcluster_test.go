package throttle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// On Redis Cluster they are booked in a pipeline for each node, each as Book does it
// alone; those whose keys are in several slots one by one.
func TestBookManyOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	both := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(1, time.Hour))
	for i := range 20 { // all nodes know the script
		if _, err := l.TryAcquire(t.Context(), fmt.Sprint("warm", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	var wishes []throttle.BookRequest
	for i := range 30 {
		wishes = append(wishes, throttle.BookRequest{Policy: l.Policy(), Request: throttle.Request{Key: fmt.Sprint("+", i%10), Cost: 1, Job: fmt.Sprint("job", i)}})
	}
	wishes[12].Job = ""
	several := throttle.BookRequest{Policy: both, Request: clusterRequest(1)}
	several.Job = "several"
	wishes = append(wishes, several)
	gate := holdNodes(rdb)
	close(gate.open)
	got := throttle.BookMany(t.Context(), rdb, wishes)
	for i, b := range got[:30] {
		if i == 12 {
			if !errors.Is(b.Err, throttle.ErrInvalidJob) {
				t.Errorf("booking %d: %v, want %v", i, b.Err, throttle.ErrInvalidJob)
			}
			continue
		}
		n := i / 10
		if i == 22 { // one ahead of it is none
			n--
		}
		want := time.Duration(n) * time.Minute
		if got := b.At.Sub(b.Now); b.Err != nil || (want-got).Abs() > 5*time.Second || b.Job != wishes[i].Job {
			t.Errorf("booking %d = in %v, %v, want in %v", i, got, b.Err, want)
		}
	}
	if b := got[30]; b.Err != nil || b.Rule != "provider" {
		t.Errorf("the booking in several slots = %v, %v, want a place at the provider", b.Decision, b.Err)
	}
	if n := gate.pipelines.Load(); n > 6 { // before the one that fails by itself, and behind it
		t.Errorf("%d pipelines to 3 nodes, want 6 at most", n)
	}
	if n := gate.scripts.Load(); n > 20 {
		t.Errorf("%d scripts for 29 bookings on 10 keys, want 20 at most", n)
	}
}

// Who books with rules in several slots stands where Book says: in the line of the
// narrowest that holds it up, and of the widest when none does. Nothing is spent.
func TestClusterBook(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	p := clusterPolicy(t, rdb, throttle.Sliding(1, time.Minute), throttle.Sliding(1, time.Hour))
	phone, provider := p.Rules()[0], p.Rules()[1]
	book := func(number int, acme, job, rule string, in time.Duration) throttle.Decision {
		t.Helper()
		r := clusterRequest(number)
		r.Job, r.More[0].Key = job, acme
		d, err := p.Book(t.Context(), r)
		if got := d.At.Sub(d.Now); err != nil || d.Granted || d.Rule != rule || (in-got).Abs() > 5*time.Second {
			t.Errorf("Book(%q) = %v in %v, %v, want a place at %q in %v", job, d, got, err, rule, in)
		}
		return d
	}
	book(9, "idle", "nobody holds it up", "provider", 0)
	if _, err := provider.TryAcquire(t.Context(), "acme", 1); err != nil {
		t.Fatal(err)
	}
	first := book(1, "acme", "first", "provider", time.Hour)
	book(2, "acme", "second", "provider", 2*time.Hour)
	book(3, "acme", "third", "provider", 3*time.Hour)
	if n, err := phone.Available(t.Context(), "phone3"); err != nil || n != 1 {
		t.Errorf("Available of the phone = %d, %v, want 1", n, err)
	}
	if state, err := provider.Peek(t.Context(), "acme", 0); err != nil || state.Waiting != 3 {
		t.Errorf("Peek of the provider = %+v, %v, want 3 who wait", state, err)
	}
	if rdb.Exists(t.Context(), provider.Ledger("idle")).Val() != 0 {
		t.Error("a booking has spent a permit of the provider")
	}
	if again := book(1, "acme", "first", "provider", time.Hour); !again.At.Equal(first.At) {
		t.Errorf("Book again = %v, want %v", again.At, first.At)
	}
	if _, err := phone.TryAcquire(t.Context(), "phone4", 1); err != nil {
		t.Fatal(err)
	}
	book(4, "acme", "fourth", "phone", time.Minute)
}
