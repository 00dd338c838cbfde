package worker

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// answers is a Redis that answers each script with its first key, unless a field says otherwise.
type answers struct {
	trip    time.Duration
	retries int
	// of the n-th time that a script with a key comes, where it is not the key; "" for that
	instead func(key string, n int) string
	// of the n-th request: how many of its scripts are answered before the connection breaks
	breaks func(n int, keys []string) (after int, breaks bool)

	mu       sync.Mutex
	requests [][]string // the keys of each
	times    map[string]int
}

// text is what is answered to a script with a key.
func (s *answers) text(key string) string {
	if s.times == nil {
		s.times = make(map[string]int)
	}
	s.times[key]++
	if s.instead != nil {
		if text := s.instead(key, s.times[key]); text != "" {
			return text + "\r\n"
		}
	}
	return fmt.Sprintf("$%d\r\n%s\r\n", len(key), key)
}

func (s *answers) client(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true, PoolSize: 100, MaxRetries: cmp.Or(s.retries, 3), ReadTimeout: time.Second,
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
		var out strings.Builder
		for _, k := range keys[:n] {
			out.WriteString(s.text(k))
		}
		s.mu.Unlock()
		time.Sleep(s.trip)
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

// Scripts that come while others are under way share a pipeline, and each gets its own
// answer.
func TestScriptsShareAPipeline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &answers{trip: 300 * time.Microsecond}
		p := newFinishPipeline(server.client(t))
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				for j := range 20 {
					key := fmt.Sprint(i, "/", j)
					if got, err := p.evalSha(t.Context(), "sha", []string{key, "more"}, []any{1}, unknown).Text(); got != key || err != nil {
						t.Errorf("%q, %v; want %q", got, err, key)
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		server.mu.Lock()
		defer server.mu.Unlock()
		if n := len(server.requests); n > 800/10 {
			t.Errorf("%d requests for 800 scripts of 40 callers, want them together", n)
		}
		if waiting, inFlight := p.batcher.Calls(); waiting > 0 || inFlight > 0 {
			t.Errorf("%d calls wait and %d requests are in flight still, want none", waiting, inFlight)
		}
	})
}

// A connection breaks in the middle of the answers: what was answered stands, and was
// sent once; each of the others goes again by itself.
func TestAnswersLostInTheMiddle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := 0
		server := &answers{trip: time.Millisecond, breaks: func(_ int, keys []string) (int, bool) {
			if len(keys) < 5 || broken > 0 {
				return len(keys), false
			}
			broken = len(keys)
			return 2, true
		}}
		p := newFinishPipeline(server.client(t))
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				key := fmt.Sprint("k", i)
				if got, err := p.evalSha(t.Context(), "sha", []string{key}, nil, unknown).Text(); got != key || err != nil {
					t.Errorf("%q, %v; want %q", got, err, key)
				}
			})
		}
		wg.Wait()
		again := 0
		for i := range 12 {
			again += server.sent(fmt.Sprint("k", i)) - 1
		}
		if broken == 0 || again != broken-2 {
			t.Errorf("%d scripts were sent again, of a request of %d of which 2 were answered", again, broken)
		}
	})
}

// A caller whose context ends gets that error, and its answer goes to no other caller. A
// script that was not sent yet is not sent at all.
func TestScriptIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &answers{trip: 5 * time.Millisecond}
		p := newFinishPipeline(server.client(t))
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { p.evalSha(t.Context(), "sha", []string{fmt.Sprint("under way ", i)}, nil, unknown) })
		}
		synctest.Wait()
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
			defer cancel()
			wg.Go(func() {
				key := fmt.Sprint("left ", i)
				if err := p.evalSha(ctx, "sha", []string{key}, nil, unknown).Err(); !errors.Is(err, context.DeadlineExceeded) || server.sent(key) > 0 {
					t.Errorf("%v, sent %d times; want the end of the context", err, server.sent(key))
				}
			})
		}
		wg.Wait()
		if n := server.sent("left 0"); n > 0 {
			t.Errorf("what nobody waits for was sent %d times", n)
		}
	})
}

// While Redis hangs no caller waits for the time-out of one before it: each has its error
// within its own.
func TestScriptsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &answers{trip: time.Minute, retries: -1}
		p := newFinishPipeline(server.client(t))
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if err := p.evalSha(t.Context(), "sha", []string{fmt.Sprint(i)}, nil, unknown).Err(); err == nil {
					t.Error("an answer")
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("the last of 100 had its error after %v, at a time-out of a second", took)
		}
		time.Sleep(time.Minute)
	})
}

// unknown is for scripts of which nothing says whether they took effect.
func unknown(context.Context) bool { return false }

// among runs several scripts while two others are under way, so that they share a pipeline.
func among(t *testing.T, p *finishPipeline, n int) []*redis.Cmd {
	t.Helper()
	var wg sync.WaitGroup
	answered := make([]*redis.Cmd, n)
	for i := range 2 {
		wg.Go(func() { p.evalSha(t.Context(), "sha", []string{fmt.Sprint("before ", i)}, nil, unknown) })
	}
	synctest.Wait()
	for i := range n {
		wg.Go(func() { answered[i] = p.evalSha(t.Context(), "sha", []string{fmt.Sprint("k", i)}, nil, unknown) })
		synctest.Wait() // one behind the other
	}
	wg.Wait()
	return answered
}

// An error, or nothing, is the answer of the one that it is for. What a server refuses for
// a while is asked for again, as go-redis does it.
func TestEachScriptHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &answers{trip: time.Millisecond, instead: func(key string, n int) string {
			switch {
			case key == "k0":
				return "$-1"
			case key == "k1":
				return "-NOT FOUND"
			case key == "k2" && n == 1:
				return "-LOADING Redis is loading the dataset in memory"
			case key == "k3" && n == 1:
				return "-ERR max number of clients reached"
			}
			return ""
		}}
		got := among(t, newFinishPipeline(server.client(t)), 5)
		if err := got[0].Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("nothing is answered as %v", err)
		}
		if err := got[1].Err(); !isNotFound(err) {
			t.Errorf("NOT FOUND is answered as %v", err)
		}
		for i, cmd := range got[2:] {
			if key, err := cmd.Text(); key != fmt.Sprint("k", 2+i) || err != nil {
				t.Errorf("k%d is answered as %q, %v", 2+i, key, err)
			}
		}
		for i, want := range []int{1, 1, 2, 2, 1} {
			if n := server.sent(fmt.Sprint("k", i)); n != want {
				t.Errorf("k%d was sent %d times, want %d", i, n, want)
			}
		}
	})
}

// A client that repeats nothing repeats no script.
func TestScriptsOfAClientThatRepeatsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &answers{trip: time.Millisecond, retries: -1, breaks: func(_ int, keys []string) (int, bool) {
			return min(len(keys), 1), len(keys) > 1
		}}
		for i, cmd := range among(t, newFinishPipeline(server.client(t)), 3) {
			if n := server.sent(fmt.Sprint("k", i)); n != 1 || (cmd.Err() == nil) != (i == 0) {
				t.Errorf("k%d was sent %d times: %v", i, n, cmd.Err())
			}
		}
	})
}

// hook is one of a pipeline.
type hook struct {
	redis.Hook
	pipeline func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

func (h hook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.pipeline(ctx, cmds, next) }
}

// Whatever a hook makes of a pipeline: a script that was not answered is not taken for one
// that went well.
func TestScriptsBehindHooks(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, pipeline := range map[string]func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error{
		"refuses":  func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return broken },
		"swallows": func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return nil },
		"repeats": func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if err := next(ctx, cmds); err == nil {
				return nil
			}
			for _, cmd := range cmds {
				cmd.SetErr(nil)
			}
			return next(ctx, cmds)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &answers{trip: time.Millisecond, retries: -1, breaks: func(_ int, keys []string) (int, bool) {
					return min(len(keys), 1), len(keys) > 1
				}}
				rdb := server.client(t)
				var seen atomic.Int64
				rdb.AddHook(hook{pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
					seen.Add(1)
					return pipeline(ctx, cmds, next)
				}})
				for i, cmd := range among(t, newFinishPipeline(rdb), 3) {
					if cmd.Err() == nil && cmd.Val() == nil {
						t.Errorf("k%d has neither an answer nor an error", i)
					}
				}
				if seen.Load() == 0 {
					t.Error("no pipeline was sent")
				}
			})
		})
	}
}
