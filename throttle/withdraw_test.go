package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// lossy is a limiter behind a proxy that loses replies, with a second one that
// looks on from outside.
type lossy struct {
	proxy      *redistest.Proxy
	rdb        *redis.Client // around the proxy
	l, outside *throttle.Limiter
}

func newLossy(t *testing.T, limit throttle.Limit, retries int) lossy {
	t.Helper()
	server := redistest.Start(t)
	rdb, proxy := redistest.Behind(t, server, func(o *redis.Options) { o.MaxRetries = retries })
	s := lossy{proxy: proxy, rdb: server.Client(t), l: newLimiter(t, rdb, "sms", limit, throttle.Config{})}
	s.outside = newLimiter(t, s.rdb, "sms", limit, throttle.Config{})
	// So that the server has the library: what follows is one call each.
	d, err := s.outside.Policy().Redeem(t.Context(), throttle.Request{Key: "other", Cost: 1, Job: "j"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.outside.Policy().Refund(t.Context(), d.Request); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s lossy) cutNext() {
	s.proxy.CutNext(redistest.RunsScript)
}

// look answers what is available and which jobs wait.
func (s lossy) look(t *testing.T, available, waiting int) {
	t.Helper()
	got, err := s.outside.Peek(t.Context(), key, 10)
	if err != nil || got.Available != available || got.Waiting != waiting {
		t.Errorf("Peek = %+v, %v, want %d available and %d waiting", got, err, available, waiting)
	}
}

// The client library sends a script again when its reply was lost: it ran
// twice, and is charged once.
func TestLostReplyIsChargedOnce(t *testing.T) {
	t.Parallel()
	s := newLossy(t, throttle.Sliding(3, time.Minute), 3)
	calls := map[string]func() error{
		"TryAcquire": func() error { _, err := s.l.TryAcquire(t.Context(), key, 1); return err },
		"Acquire":    func() error { return s.l.Acquire(t.Context(), key, 1) },
		"Redeem": func() error {
			d, err := s.l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"})
			return errors.Join(err, d.Err())
		},
	}
	used := 0
	for name, call := range calls {
		s.cutNext()
		if err := call(); err != nil {
			t.Errorf("%s = %v, want nil", name, err)
		}
		used++
		if s.proxy.Cuts() != used {
			t.Errorf("%s: %d replies lost, want %d", name, s.proxy.Cuts(), used)
		}
		s.look(t, 3-used, 0)
	}
	s.cutNext()
	d, err := s.l.Policy().Redeem(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "a"})
	if err != nil || d.Granted {
		t.Errorf("Redeem = %v, %v, want a booking", d, err)
	}
	s.look(t, 0, 1)
}

// A refund that is sent again gives back once, and leaves others alone.
func TestLostReplyOfARefund(t *testing.T) {
	t.Parallel()
	s := newLossy(t, throttle.Sliding(3, time.Minute), 3)
	grants := make([]throttle.Decision, 3)
	for i := range grants {
		var err error
		if grants[i], err = s.outside.TryAcquire(t.Context(), key, 1); err != nil {
			t.Fatal(err)
		}
	}
	s.cutNext()
	if _, err := s.l.Policy().Refund(t.Context(), grants[1].Request); err != nil {
		t.Fatal(err)
	}
	s.look(t, 1, 0)
	grants[0].Job = "a"
	s.cutNext()
	if _, err := throttle.ForWorkers.Return(t.Context(), s.l.Policy(), grants[0].Request); err != nil {
		t.Fatal(err)
	}
	// it has a place, also when this test is too slow to see it before it is late
	place := throttle.BookingRef{Policy: s.outside.Policy(), IDs: []string{s.outside.ID(key)}, Job: "a", Costs: []int{1}}
	if got := throttle.ForWorkers.Refresh(t.Context(), s.rdb, []throttle.BookingRef{place})[0]; !got.Known || got.Permits != 0 {
		t.Errorf("Refresh after Return = %+v, want the first place", got)
	}
}

// A call whose answer never comes is taken back by its token: it is not
// charged, and nothing stays in the line.
func TestCallWithoutAnswerIsTakenBack(t *testing.T) {
	t.Parallel()
	s := newLossy(t, throttle.Sliding(1, time.Minute), -1)
	s.cutNext()
	if err := s.l.Acquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Acquire = %v, want %v", err, throttle.ErrUnavailable)
	}
	s.look(t, 1, 0)
	s.cutNext()
	if _, err := s.l.TryAcquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("TryAcquire = %v, want %v", err, throttle.ErrUnavailable)
	}
	s.look(t, 1, 0)
	if err := s.l.Acquire(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	s.cutNext()
	if err := s.l.Acquire(t.Context(), key, 1); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Acquire = %v, want %v", err, throttle.ErrUnavailable)
	}
	s.look(t, 0, 0)
}

// A copy may come when a short window is long over: it is the same grant, and
// not another one.
func TestTokenOutlivesAShortWindow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, 10*ms))
	first := s.job(l, "a", 1)
	s.raw.Del(t.Context(), "hw:{"+key+"}:sms") // as its expiry does
	s.at(59 * time.Second)
	again, err := l.Policy().Redeem(t.Context(), first.Request)
	if err != nil || !again.Granted || !again.At.Equal(first.At) {
		t.Errorf("the copy = %v, %v, want the grant of %v", again, err, first.At)
	}
	if n := s.raw.Exists(t.Context(), "hw:{"+key+"}:sms").Val(); n != 0 {
		t.Error("the copy was charged, want nothing written")
	}
}

// What was withdrawn before it arrived is refused when it does.
func TestWithdrawnCallIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	l := s.limiter("sms", throttle.Sliding(1, time.Minute))
	r := throttle.Request{Key: key, Cost: 1, Job: "a", Token: throttle.NewToken()}
	if _, err := l.Policy().Refund(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	s.at(59 * time.Second)
	if d, err := l.Policy().Redeem(t.Context(), r); !errors.Is(err, throttle.ErrWithdrawn) || d.Granted {
		t.Errorf("Redeem of a withdrawn token = %v, %v, want %v", d, err, throttle.ErrWithdrawn)
	}
	s.want(s.try(l, 1), true, 59*time.Second)
}

// withConnections opens so many connections and leaves them to the client's pool.
func withConnections(t *testing.T, rdb *redis.Client, n int) {
	t.Helper()
	for range n {
		c := rdb.Conn()
		defer func() { _ = c.Close() }()
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// A Redis that hangs: the caller's time-out ends the call where the client is
// told to respect it, and the permit is not lost.
func TestDeadlineDuringTheCall(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := server.ClientOptions()
	o.ContextTimeoutEnabled, o.MaxRetries = true, -1
	rdb := redis.NewClient(o)
	defer rdb.Close()
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	if _, err := l.Peek(t.Context(), key, 0); err != nil {
		t.Fatal(err)
	}
	withConnections(t, rdb, 2) // a new one can't be used before the server answers
	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
	defer cancel()
	err := l.Acquire(ctx, key, 1) // its refund times out too, after a second
	if !errors.Is(err, throttle.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire = %v, want %v or %v", err, throttle.ErrUnavailable, context.DeadlineExceeded)
	}
	server.Resume()
	// Both calls reach Redis, in this order or not at all.
	waitFor(t, "the call is taken back", func() bool { return acquireWithin(t.Context(), l, key, 1, 0) == nil })
}

// A limit of a wider rule has changed, in another process, a moment ago: on Redis
// Cluster its slot says so when the narrower one has granted already.
func TestClusterHearsOfAChangedLimit(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	here := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(5, time.Hour))
	there := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(5, time.Hour))
	if d, err := here.TryAcquire(t.Context(), clusterRequest(1)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	if err := setLimit(t.Context(), there.Rules()[1], throttle.Sliding(6, time.Hour)); err != nil {
		t.Fatal(err)
	}
	if d, err := there.TryAcquire(t.Context(), clusterRequest(2)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	if d, err := here.TryAcquire(t.Context(), clusterRequest(3)); err != nil || !d.Granted {
		t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
	}
	for i, want := range []int{4, 3} {
		if n, err := here.Rules()[i].Available(t.Context(), []string{"phone3", "acme"}[i]); err != nil || n != want {
			t.Errorf("rule %d has %d left, %v, want %d", i, n, err, want)
		}
	}
}

// lostHook loses the answer of one script that a client runs on a key.
type lostHook struct {
	armed atomic.Bool
	tag   string
}

func (h *lostHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lostHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *lostHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && redistest.IsScript(cmd) && strings.Contains(fmt.Sprint(cmd.Args()[3]), h.tag) && h.armed.CompareAndSwap(true, false) {
			err = &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}
			cmd.SetErr(err)
		}
		return err
	}
}

// The wider slot has granted, and its answer is lost: nothing stays charged there
// that nobody uses.
func TestClusterLostAnswerOfTheSecondSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	p := clusterPolicy(t, rdb, throttle.Sliding(5, time.Minute), throttle.Sliding(5, time.Hour))
	if d, err := p.TryAcquire(t.Context(), clusterRequest(1)); err != nil || !d.Granted {
		t.Fatalf("TryAcquire = %v, %v, want a grant", d, err)
	}
	lost := &lostHook{tag: "{acme}"}
	rdb.AddHook(lost)
	lost.armed.Store(true)
	r := clusterRequest(2)
	r.Job, r.Token = "job", throttle.NewToken()
	if _, err := p.Redeem(t.Context(), r); !errors.Is(err, throttle.ErrUnavailable) || lost.armed.Load() {
		t.Fatalf("Redeem = %v, want %v", err, throttle.ErrUnavailable)
	}
	for i, want := range []int{5, 4} {
		if n, err := p.Rules()[i].Available(t.Context(), []string{"phone2", "acme"}[i]); err != nil || n != want {
			t.Errorf("rule %d has %d left, %v, want %d", i, n, err, want)
		}
	}
}
