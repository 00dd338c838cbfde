package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// 2: a caller gives up, and its permit stays charged.
func TestPitfall02PermitOfOneWhoGaveUp(t *testing.T) { TestDeadlineDuringTheCall(t) }

// 9: a limit that is changed by one client is changed for that client only.
func TestPitfall09ChangeByOneClient(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	of := func(client string) *throttle.Limiter {
		return newLimiter(t, s.rdb, "sms", throttle.Sliding(2, time.Minute), throttle.Config{PerClient: true, Client: client})
	}
	s.want(s.try(of("a"), 2), true, 0)
	s.want(s.try(of("b"), 2), true, 0)
	if err := of("a").SetLimit(t.Context(), throttle.Sliding(3, time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, client := range []string{"a", "b"} { // what each has spent counts
		s.want(s.try(of(client), 2), false, time.Minute)
		s.want(s.try(of(client), 1), true, 0)
	}
}

// 37: each round of waiting goes one deeper, until the stack is full.
func TestPitfall37WaitingGoesDeeper(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const rounds = 100
	var c calls
	var first, deepest int
	c.after = func() {
		depth := runtime.Callers(0, make([]uintptr, 10_000))
		deepest = max(deepest, depth)
		switch c.n.Load() {
		case 2:
			first = depth
		case rounds: // the clock stood still until now
			s.at(time.Second)
		}
	}
	l := newLimiter(t, s.rdb, "sms", throttle.Sliding(1, ms), throttle.Config{InlineWait: throttle.InlineWaitNone})
	s.try(l, 1)
	s.raw.AddHook(&c)
	if err := l.Acquire(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if c.n.Load() <= rounds || deepest > first+10 {
		t.Errorf("%d rounds, %d calls deep at first and %d at most", c.n.Load(), first, deepest)
	}
}

// 46: a place stays taken by one who was interrupted.
func TestPitfall46AbandonedPlace(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for i, limit := range kindsOf(time.Second) {
		l := s.limiter(strings.Repeat("r", i+1), limit)
		s.at(0)
		next := s.drain(l).At
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("stopped")
		var c calls
		c.after = func() {
			if c.n.Load() == 1 { // it is in the line
				cancel(stopped)
			}
		}
		raw := redis.NewClient(s.raw.Options())
		raw.AddHook(&c)
		rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, s.now)
		if err != nil {
			t.Fatal(err)
		}
		waiting := newLimiter(t, rdb, l.Rule(), limit, throttle.Config{})
		if err := waiting.Acquire(ctx, key, 1); !errors.Is(err, stopped) {
			t.Errorf("%v: Acquire = %v, want %v", limit, err, stopped)
		}
		cancel(nil)
		raw.Close()
		if got, err := l.Peek(t.Context(), key, 1); err != nil || got.Waiting != 0 || !got.Next.Equal(next) {
			t.Errorf("%v: %d wait, the next at %v, %v, want none, %v", limit, got.Waiting, got.Next, err, next)
		}
	}
}

// commandNames are the names of the commands that a client sends, with the key
// of a GET.
type commandNames struct {
	mu   sync.Mutex
	seen []string
}

func (c *commandNames) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandNames) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.add(cmd)
		return next(ctx, cmd)
	}
}

func (c *commandNames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.add(cmds...)
		return next(ctx, cmds)
	}
}

func (c *commandNames) add(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		name := cmd.Name()
		if name == "get" {
			name += " " + fmt.Sprint(cmd.Args()[1])
		}
		c.seen = append(c.seen, name)
	}
}

// 48: a client that reads from replicas is told what was. Only commands that
// may write are sent, looks too: no client takes these to a replica. What
// an operator stored, a limit or a closing, is the exception: it is looked at now
// and then only.
func TestPitfall48ReplicaReads(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var names commandNames
	s.raw.AddHook(&names)
	l := newLimiter(t, s.raw, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	d := s.job(l, "a", 1)
	s.job(l, "b", 1)
	s.try(l, 1)
	_, book := l.Book(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "c"})
	_, peek := l.Peek(t.Context(), key, 10)
	check := throttle.Refresh(t.Context(), s.raw, []throttle.BookingRef{{Policy: l.Policy(), IDs: []string{l.ID(key)}, Job: "b", Costs: []int{1}}})[0].Err
	_, cancel := l.Cancel(t.Context(), throttle.Request{Key: key, Cost: 1, Job: "b"})
	_, refund := l.Refund(t.Context(), d.Request)
	_, reset := l.Reset(t.Context(), key)
	if err := errors.Join(book, peek, check, cancel, refund, reset); err != nil {
		t.Fatal(err)
	}
	if len(names.seen) < 9 {
		t.Errorf("%q: want a command for each of 9 calls", names.seen)
	}
	for _, name := range names.seen {
		if !slices.Contains([]string{"eval", "evalsha", "script", "hello", "client", "get hw:limit:sms", "get hw:closed:{hw:limit:sms}"}, name) {
			t.Errorf("%q is sent", name)
		}
	}
}
