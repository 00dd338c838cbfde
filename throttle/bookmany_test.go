package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// counted counts the script calls that a client makes.
type counted struct {
	redis.UniversalClient
	calls int
}

func (c *counted) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	c.calls++
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

func (c *counted) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return c.UniversalClient.Eval(ctx, text, keys, args...)
}

// Many are booked as one after another would be: the same instants, the same rules.
func TestBookManyBooksAsBookDoes(t *testing.T) {
	t.Parallel()
	s := newSceneOnOne(t, "it counts calls: a Cluster gets one for each hash slot")
	rdb := &counted{UniversalClient: s.rdb}
	policy := func(prefix string) *throttle.Policy {
		cfg := throttle.Config{Prefix: prefix}
		p, err := throttle.NewPolicy(newLimiter(t, rdb, "phone", throttle.Sliding(1, time.Minute), cfg), newLimiter(t, rdb, "provider", throttle.Sliding(10, time.Second), cfg))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	many, single := policy("many"), policy("single")
	var requests []throttle.BookRequest
	for i := range 150 {
		requests = append(requests, throttle.BookRequest{Policy: many, Request: throttle.Request{
			Key: fmt.Sprint("phone", i%40), Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: fmt.Sprint("job", i),
		}})
	}
	requests[7].Cost, requests[70].Job, requests[90].MaxWait = 2, "", time.Millisecond
	want := make([]throttle.Booking, len(requests))
	for i, w := range requests {
		want[i].Decision, want[i].Err = single.Book(t.Context(), w.Request)
	}
	rdb.calls = 0
	got := throttle.ForWorkers.BookMany(t.Context(), rdb, requests)
	if most := 9; rdb.calls > most { // two rules each: 32 a call; two that fail by themselves
		t.Errorf("%d script calls for %d bookings, want at most %d", rdb.calls, len(requests), most)
	}
	for i, w := range want {
		g := got[i]
		if fmt.Sprint(g.Err) != fmt.Sprint(w.Err) || !g.At.Equal(w.At) || g.Rule != w.Rule || g.Granted || g.Job != requests[i].Job {
			t.Errorf("booking %d = %v until %v, %v, want %v until %v, %v", i, g.Rule, g.At, g.Err, w.Rule, w.At, w.Err)
		}
	}
	for i, err := range map[int]error{7: throttle.ErrExceedsLimit, 70: throttle.ErrInvalidJob, 90: throttle.ErrTooLate} {
		if !errors.Is(got[i].Err, err) {
			t.Errorf("booking %d: %v, want %v", i, got[i].Err, err)
		}
	}
	// Again: everybody keeps the place.
	for i, g := range throttle.ForWorkers.BookMany(t.Context(), rdb, requests[:20]) {
		if g.Err == nil && (!g.At.Equal(got[i].At) || g.Promised.IsZero()) {
			t.Errorf("booking %d again = %v, want %v", i, g.At, got[i].At)
		}
	}
	if got := throttle.ForWorkers.BookMany(t.Context(), rdb, nil); len(got) != 0 {
		t.Errorf("BookMany of nothing = %v", got)
	}
}

// A limit that was changed by another process is decided by when it is found out.
func TestBookManyUnderANewLimit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	jobRequest := func(job string) throttle.BookRequest {
		return throttle.BookRequest{Policy: l.Policy(), Request: throttle.Request{Key: key, Cost: 1, Job: job}}
	}
	s.job(l, "first", 1)
	other := s.limiter("sms", throttle.Sliding(1, time.Minute))
	if err := setLimit(t.Context(), other, throttle.Sliding(1, time.Hour)); err != nil {
		t.Fatal(err)
	}
	s.at(2 * time.Hour)
	s.want(s.try(other, 1), true, 2*time.Hour) // the ledger hears of it
	for i, b := range throttle.ForWorkers.BookMany(t.Context(), s.rdb, []throttle.BookRequest{jobRequest("b"), jobRequest("c")}) {
		if want := time.Duration(3+i) * time.Hour; b.Err != nil || b.At.Sub(start) != want {
			t.Errorf("BookMany %d = %v after the start, %v, want %v", i, b.At.Sub(start), b.Err, want)
		}
	}
}

// Who only watches takes no place.
func TestBookManyInShadow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Shadow: true})
	requests := make([]throttle.BookRequest, 3)
	for i := range requests {
		requests[i] = throttle.BookRequest{Policy: l.Policy(), Request: throttle.Request{Key: key, Cost: 1, Job: fmt.Sprint("job", i)}}
	}
	for i, b := range throttle.ForWorkers.BookMany(t.Context(), s.rdb, requests) {
		if b.Err != nil || b.At.After(b.Now) {
			t.Errorf("BookMany %d = %+v, want now", i, b)
		}
	}
	if keys := redistest.Keys(t, s.raw, "hw:*"); len(keys) != 0 {
		t.Errorf("Redis holds %v, want nothing", keys)
	}
}

// mute is a Redis whose scripts never answer.
type mute struct {
	redis.UniversalClient
	calls int
}

func (m *mute) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	m.calls++
	return redis.NewCmdResult(nil, io.ErrUnexpectedEOF)
}

// Without an answer each fails as unavailable.
func TestBookManyWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb := &mute{UniversalClient: redistest.Client(t)}
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	jobRequest := throttle.BookRequest{Policy: l.Policy(), Request: throttle.Request{Key: key, Cost: 1, Job: "a"}}
	for i, b := range throttle.ForWorkers.BookMany(t.Context(), rdb, []throttle.BookRequest{jobRequest, jobRequest}) {
		if !errors.Is(b.Err, throttle.ErrUnavailable) || throttle.ForWorkers.Answered(b.Err) {
			t.Errorf("BookMany %d = %v, want ErrUnavailable", i, b.Err)
		}
	}
	if rdb.calls != 2 { // the answer alone may have been lost
		t.Errorf("asked %d times, want twice", rdb.calls)
	}
}

// On Redis Cluster they are booked in a pipeline for each node, each as Book does it
// alone; those whose keys are in several slots one by one.
func TestBookManyOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	both := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(1, time.Hour))
	// All nodes know the script, and no place is for now: one that nobody comes for within
	// 100 ms lets those behind it pass.
	for i := range 20 {
		if _, err := l.TryAcquire(t.Context(), fmt.Sprint("+", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	var requests []throttle.BookRequest
	for i := range 30 {
		requests = append(requests, throttle.BookRequest{Policy: l.Policy(), Request: throttle.Request{Key: fmt.Sprint("+", i%10), Cost: 1, Job: fmt.Sprint("job", i)}})
	}
	requests[12].Job = ""
	several := throttle.BookRequest{Policy: both, Request: clusterRequest(1)}
	several.Job = "several"
	requests = append(requests, several)
	gate := holdNodes(rdb)
	close(gate.open)
	got := throttle.ForWorkers.BookMany(t.Context(), rdb, requests)
	for i, b := range got[:30] {
		if i == 12 {
			if !errors.Is(b.Err, throttle.ErrInvalidJob) {
				t.Errorf("booking %d: %v, want %v", i, b.Err, throttle.ErrInvalidJob)
			}
			continue
		}
		n := 1 + i/10
		if i == 22 { // one ahead of it is none
			n--
		}
		want := time.Duration(n) * time.Minute
		if got := b.At.Sub(b.Now); b.Err != nil || (want-got).Abs() > 5*time.Second || b.Job != requests[i].Job {
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
