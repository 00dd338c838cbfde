package throttle_test

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

var hold = throttle.Config{HoldAfterFailover: true}

// overlap is how long a master before may have gone on, and how far in the future it may have granted.
const overlap = 2 * time.Second

// pair is two servers, one of which can be the replica of the other.
type pair struct {
	*testing.T
	a, b    *redis.Client
	serverB *redistest.Server
}

func newPair(t *testing.T) pair {
	t.Helper()
	atOnce := redistest.Arg("repl-diskless-sync-delay", "0")
	b := redistest.Start(t, atOnce)
	p := pair{t, redistest.Start(t, atOnce).Client(t), b.Client(t), b}
	p.follow(p.b, p.a)
	return p
}

// follow makes one the replica of the other, and waits until it has its data.
func (p pair) follow(replica, master *redis.Client) {
	p.Helper()
	host, port, err := net.SplitHostPort(master.Options().Addr)
	if err != nil {
		p.Fatal(err)
	}
	if err := replica.ReplicaOf(p.Context(), host, port).Err(); err != nil {
		p.Fatal(err)
	}
	eventually(p.T, "the replica says that it has all", func() bool {
		// a master that had no replica yet counts no bytes: a WAIT for none of them is over before the replica has loaded anything
		linked := strings.Contains(replica.Info(p.Context(), "replication").Val(), "master_link_status:up")
		pipe := master.Pipeline()
		pipe.Set(p.Context(), "written", "now", time.Minute)
		acks := pipe.Do(p.Context(), "wait", 1, 100)
		_, _ = pipe.Exec(p.Context())
		n, err := acks.Int()
		return err == nil && n == 1 && linked
	})
}

// promote makes a replica a master. What the old master does from then on, the new one never hears of.
func (p pair) promote(replica *redis.Client) {
	p.Helper()
	if err := replica.ReplicaOf(p.Context(), "no", "one").Err(); err != nil {
		p.Fatal(err)
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// wantHeld checks that nothing is granted, and for how long.
func (p pair) wantHeld(l *throttle.Limiter, key string, want time.Duration) {
	p.Helper()
	d, err := l.TryAcquire(p.Context(), key, 1)
	if err != nil || d.Granted || d.At.Sub(d.Now) != want {
		p.Errorf("TryAcquire(%q) = granted %v at %v after now, %v, want none before %v", key, d.Granted, d.At.Sub(d.Now), err, want)
	}
}

// A grant that the new master never heard of is not made again, with HoldAfterFailover; and it is
// without. Each key is held for a window, and then as free as ever.
func TestHoldAfterFailover(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	p := newPair(t)
	const window = 2 * time.Second
	limit := throttle.Sliding(1, window)
	before := newLimiter(t, p.a, "sms", limit, throttle.Config{})
	p.promote(p.b)
	forgotten, err := before.TryAcquire(t.Context(), "forgotten", 1)
	if err != nil || !forgotten.Granted {
		t.Fatalf("TryAcquire on the old master = %+v, %v, want a grant", forgotten, err)
	}

	held, careless := newLimiter(t, p.b, "sms", limit, hold), newLimiter(t, p.b, "sms", limit, throttle.Config{})
	// Who only reads is told of the hold, and does not begin it: it may look long before others take permits.
	begins := func() time.Duration {
		s, err := held.Peek(t.Context(), "forgotten", 0)
		if err != nil || s.Available != 0 || !s.Next.Equal(s.Held) || !s.Closed.IsZero() || s.HoldUnknown {
			t.Fatalf("Peek after the failover = %+v, %v, want the key held", s, err)
		}
		return s.Held.Sub(s.Now)
	}
	for range 2 {
		if got := begins(); got != overlap+window {
			t.Errorf("Peek says that the hold takes %v more, want %v", got, overlap+window)
		}
	}
	p.wantHeld(held, "forgotten", overlap+window)
	first := time.Now()
	if d, err := held.TryAcquire(t.Context(), "another", 1); err != nil || d.Granted || d.At.Sub(d.Now) > overlap+window || d.At.Sub(d.Now) < window/2 {
		t.Errorf("TryAcquire of another key = %+v, %v, want the rest of %v", d, err, overlap+window)
	}
	if s, err := careless.Peek(t.Context(), "forgotten", 0); err != nil || s.Available != 1 || !s.Held.IsZero() {
		t.Errorf("Peek without HoldAfterFailover = %+v, %v, want a free key", s, err)
	}
	place, err := held.Policy().Book(t.Context(), throttle.Request{Key: "line", Cost: 1, Job: "job"})
	if err != nil || place.Granted {
		t.Fatalf("Book = %+v, %v, want a place", place, err)
	}
	line, err := held.List(t.Context(), "line", throttle.ListFrom{}, 1)
	if err != nil || len(line.Listed) != 1 || !line.Listed[0].At.Equal(place.At) {
		t.Errorf("List = %+v, %v, want the instant of the booking, %v", line, err, place.At)
	}
	booking := throttle.BookingRef{Policy: held.Policy(), IDs: []string{"line"}, Job: "job", Costs: []int{1}}
	if is := throttle.ForWorkers.Refresh(t.Context(), p.b, []throttle.BookingRef{booking})[0]; is.Err != nil || !is.At.Equal(place.At) {
		t.Errorf("Refresh = %+v, want the instant of the booking, %v", is, place.At)
	}
	where, err := throttle.ForWorkers.Lookup(t.Context(), throttle.BookingRef{Policy: careless.Policy(), IDs: []string{"line"}, Job: "job", Costs: []int{1}}, true)
	if err != nil || !where.At.Equal(place.At) || !where.Held.Equal(place.At) {
		t.Errorf("Lookup = %+v, %v, want it held until %v", where, err, place.At)
	}
	if d, err := held.TimeUntil(t.Context(), "a third", 1); err != nil || d < window/2 {
		t.Errorf("TimeUntil = %v, %v, want the rest of the hold", d, err)
	}
	if d, err := careless.TryAcquire(t.Context(), "forgotten", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire without HoldAfterFailover = %+v, %v, want a grant: or this test shows nothing", d, err)
	}

	for _, key := range []string{"another", "a third"} {
		err := held.Acquire(t.Context(), key, 1)
		if err != nil || time.Since(first) < overlap+window-100*time.Millisecond {
			t.Errorf("Acquire(%q) = %v after %v, want nil after %v", key, err, time.Since(first), overlap+window)
		}
	}
	if d, err := held.TryAcquire(t.Context(), "a fourth", 1); err != nil || !d.Granted {
		t.Errorf("TryAcquire after the window = %+v, %v, want a grant", d, err)
	}
}

// How long a permit may count is a matter of the limit. Calls that are merged are held, too.
func TestHoldOfEachKind(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	p := newPair(t)
	p.promote(p.b)
	since := time.Time{}
	for i, c := range []struct {
		limit throttle.Limit
		want  time.Duration
	}{
		{throttle.Sliding(3, time.Minute), time.Minute},
		{throttle.Fixed(3, time.Minute), time.Minute},
		{throttle.Bucket(3, time.Minute, 2), time.Minute},
		{throttle.Bucket(3, time.Minute, 7), 3 * time.Minute},
		{throttle.SteppedBucket(3, time.Minute, 7), 3 * time.Minute},
		{throttle.GCRA(3, time.Minute, 4), 2 * time.Minute},
		{throttle.Leaky(3, time.Minute), time.Minute},
		{throttle.Smooth(3, time.Minute, 6), 3 * time.Minute},
		{throttle.WarmUp(3, time.Minute, time.Hour, 3), time.Minute},
		{throttle.WarmUp(1, time.Minute, time.Hour, 3), 3 * time.Minute},
		{throttle.Concurrent(3, time.Minute), time.Minute},
	} {
		l := newLimiter(t, p.b, fmt.Sprint("rule", i), c.limit, hold)
		d, err := l.TryAcquire(t.Context(), key, 1)
		if s, peek := l.Peek(t.Context(), key, 0); peek != nil || !s.Held.Equal(d.At) {
			t.Errorf("%v: Peek = %+v, %v, want it held until %v", c.limit, s, peek, d.At)
		}
		if since.IsZero() {
			since = d.Now.Add(overlap)
		}
		if err != nil || d.Granted || d.At.Sub(since) != c.want {
			t.Errorf("%v: granted %v at %v after the last forgotten permit, %v, want none before %v", c.limit, d.Granted, d.At.Sub(since), err, c.want)
		}
	}
	d, err := newLimiter(t, p.b, "calendar", throttle.Calendar(3, throttle.Day, "UTC"), hold).TryAcquire(t.Context(), key, 1)
	if err != nil || d.Granted || !d.At.Equal(since.Truncate(24*time.Hour).Add(24*time.Hour)) {
		t.Errorf("calendar: granted %v at %v, %v, want none before the day that begins after %v", d.Granted, d.At, err, since)
	}

	l := newLimiter(t, p.b, "merged", throttle.Sliding(1, time.Hour), hold)
	granted := make(chan bool)
	const calls = 50
	for i := range calls {
		go func() {
			d, err := l.TryAcquire(t.Context(), strconv.Itoa(i), 1)
			granted <- err != nil || d.Granted
		}()
	}
	for range calls {
		if <-granted {
			t.Error("a call that was merged with others was granted, or failed")
		}
	}
}

// A master that was replaced, and becomes the master again, has forgotten what the one between granted.
func TestHoldOfAMasterThatComesBack(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	p := newPair(t)
	const window = time.Second
	l := newLimiter(t, p.a, "sms", throttle.Sliding(1, window), hold)
	eventually(t, "the first master grants", func() bool {
		d, err := l.TryAcquire(t.Context(), "first", 1)
		return err == nil && d.Granted
	})
	p.promote(p.b)
	p.follow(p.a, p.b)
	p.promote(p.a)
	p.wantHeld(l, "forgotten", overlap+window)
}

// A server that begins again may have lost what it had not written. One that has been
// up for longer than the window has all.
func TestHoldAfterRestart(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	s := redistest.Start(t, redistest.AOF())
	const window = 3 * time.Second
	l := newLimiter(t, s.Client(t), "sms", throttle.Sliding(1, window), hold)
	eventually(t, "it grants", func() bool {
		d, err := l.TryAcquire(t.Context(), "first", 1)
		return err == nil && d.Granted
	})
	s.Restart()
	d, err := l.TryAcquire(t.Context(), "forgotten", 1)
	if err != nil || d.Granted || d.At.Sub(d.Now) > window+time.Second {
		t.Errorf("TryAcquire after a restart = %+v, %v, want none for %v at most", d, err, window+time.Second)
	}

	other := newLimiter(t, s.Client(t), "sms", throttle.Sliding(1, 10*time.Millisecond), hold)
	eventually(t, "it is up for more than that window", func() bool {
		d, err := other.TryAcquire(t.Context(), "first", 1)
		return err == nil && d.Granted
	})
}

// Where functions can't be used each call fails: nothing is granted by guess.
func TestHoldNeedsFunctions(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	admin := s.Client(t)
	if err := admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", "-fcall").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "app", "secret"
	rdb := redis.NewClient(o)
	defer rdb.Close()
	for name, rdb := range map[string]*redis.Client{"without rights": rdb, "embedded": embedded(t)} {
		d, err := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), hold).TryAcquire(t.Context(), key, 1)
		if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "HoldAfterFailover needs") || d.Granted {
			t.Errorf("%s: TryAcquire = %+v, %v, want that functions are needed", name, d, err)
		}
		l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), hold)
		if s, err := l.Peek(t.Context(), key, 0); err != nil || !s.HoldUnknown || !s.Held.IsZero() {
			t.Errorf("%s: Peek = %+v, %v, want that a hold is not known", name, s, err)
		}
		_, few := l.Available(t.Context(), key)
		_, wait := l.TimeUntil(t.Context(), key, 1)
		for _, err := range []error{few, wait} {
			if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "HoldAfterFailover needs") {
				t.Errorf("%s: Available or TimeUntil: %v, want that functions are needed", name, err)
			}
		}
	}
}

// A call that can't be held is refused by itself: those of other limiters that are sent with it are not.
func TestHoldThatCantBeHad(t *testing.T) {
	t.Parallel()
	redistest.NeedFunctions(t)
	s := redistest.Start(t, redistest.Own())
	if err := s.Client(t).Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	o := s.ClientOptions()
	o.Username, o.Password = "app", "secret"
	rdb := redis.NewClient(o)
	defer rdb.Close()
	limit := throttle.Sliding(1, time.Minute)
	l, careless := newLimiter(t, rdb, "sms", limit, hold), newLimiter(t, rdb, "careless", limit, throttle.Config{})
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			if i%2 == 0 {
				d, err := l.TryAcquire(t.Context(), fmt.Sprint(i), 1)
				if !errors.Is(err, throttle.ErrUnavailable) || !strings.Contains(err.Error(), "+info") || d.Granted {
					t.Errorf("TryAcquire = %+v, %v, want that +info is missing", d, err)
				}
			} else if d, err := careless.TryAcquire(t.Context(), fmt.Sprint(i), 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire without HoldAfterFailover = %+v, %v, want a grant", d, err)
			}
		})
	}
	wg.Wait()
}

func embedded(t *testing.T) *redis.Client {
	rdb, _ := redistest.Mini(t)
	return rdb
}
