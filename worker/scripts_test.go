package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// answers is a Redis that answers each script with its first key, as it is told to.
type answers struct {
	trip time.Duration
	// of the n-th request: how many of its scripts are answered before the connection breaks
	breaks func(n int, keys []string) (after int, breaks bool)

	mu       sync.Mutex
	requests [][]string // the keys of each
}

func (s *answers) client(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true, PoolSize: 100, MaxRetries: -1, ReadTimeout: time.Second,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go s.serve(theirs)
			return ours, nil
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// serve answers what came together, at once after a round trip.
func (s *answers) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 1<<16)
	for {
		var keys []string
		for first := true; first || in.Buffered() > 0; first = false {
			args, err := request(in)
			if err != nil {
				return
			}
			if strings.EqualFold(args[0], "evalsha") {
				keys = append(keys, args[3])
			}
		}
		if len(keys) == 0 {
			_, _ = io.WriteString(c, "-ERR unknown command\r\n") // what go-redis says first
			continue
		}
		s.mu.Lock()
		s.requests = append(s.requests, keys)
		n, breaks := len(keys), false
		if s.breaks != nil {
			n, breaks = s.breaks(len(s.requests), keys)
		}
		s.mu.Unlock()
		time.Sleep(s.trip)
		var out strings.Builder
		for _, k := range keys[:n] {
			fmt.Fprintf(&out, "$%d\r\n%s\r\n", len(k), k)
		}
		if _, err := io.WriteString(c, out.String()); err != nil || breaks {
			return
		}
	}
}

// request reads one command as clients send it.
func request(in *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number()
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:size])
	}
	return args, nil
}

// sent is how often the script with a key was sent.
func (s *answers) sent(key string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, keys := range s.requests {
		for _, k := range keys {
			if k == key {
				n++
			}
		}
	}
	return n
}

// What comes while others are under way goes together, and each is answered what is its
// own.
func TestScriptsGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis := &answers{trip: 300 * time.Microsecond}
		x := newScripts(redis.client(t))
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				for j := range 20 {
					key := fmt.Sprint(i, "/", j)
					if got, err := x.evalSha(t.Context(), "sha", []string{key, "more"}, []any{1}).Text(); got != key || err != nil {
						t.Errorf("%q, %v; want %q", got, err, key)
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		redis.mu.Lock()
		defer redis.mu.Unlock()
		if n := len(redis.requests); n > 800/10 {
			t.Errorf("%d requests for 800 scripts of 40 callers, want them together", n)
		}
		if !x.lane.Idle() {
			t.Error("somebody waits for ever")
		}
	})
}

// A connection breaks in the middle of the answers: what was answered stands, and was
// sent once; each of the others goes again by itself.
func TestAnswersLostInTheMiddle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := 0
		redis := &answers{trip: time.Millisecond, breaks: func(_ int, keys []string) (int, bool) {
			if len(keys) < 5 || broken > 0 {
				return len(keys), false
			}
			broken = len(keys)
			return 2, true
		}}
		x := newScripts(redis.client(t))
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				key := fmt.Sprint("k", i)
				if got, err := x.evalSha(t.Context(), "sha", []string{key}, nil).Text(); got != key || err != nil {
					t.Errorf("%q, %v; want %q", got, err, key)
				}
			})
		}
		wg.Wait()
		again := 0
		for i := range 12 {
			again += redis.sent(fmt.Sprint("k", i)) - 1
		}
		if broken == 0 || again != broken-2 {
			t.Errorf("%d scripts were sent again, of a request of %d of which 2 were answered", again, broken)
		}
	})
}

// Who does not wait any more is told so, and its answer is nobody else's; what was not
// sent yet is not sent at all.
func TestScriptIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis := &answers{trip: 5 * time.Millisecond}
		x := newScripts(redis.client(t))
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { x.evalSha(t.Context(), "sha", []string{fmt.Sprint("under way ", i)}, nil) })
		}
		synctest.Wait()
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
			defer cancel()
			wg.Go(func() {
				key := fmt.Sprint("left ", i)
				if err := x.evalSha(ctx, "sha", []string{key}, nil).Err(); !errors.Is(err, context.DeadlineExceeded) || redis.sent(key) > 0 {
					t.Errorf("%v, sent %d times; want the end of the context", err, redis.sent(key))
				}
			})
		}
		wg.Wait()
		if n := redis.sent("left 0"); n > 0 {
			t.Errorf("what nobody waits for was sent %d times", n)
		}
	})
}

// While Redis hangs nobody waits for the time-out of one before: all hear within
// theirs.
func TestScriptsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis := &answers{trip: time.Minute}
		x := newScripts(redis.client(t))
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if err := x.evalSha(t.Context(), "sha", []string{fmt.Sprint(i)}, nil).Err(); err == nil {
					t.Error("an answer")
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the last of 100 heard after %v, at a time-out of a second", took)
		}
		time.Sleep(time.Minute)
	})
}
