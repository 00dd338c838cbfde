package asynqwire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// What identifies the asynq that is pinned here.
const (
	modulePath = "github.com/hibiken/asynq"
	moduleSum  = "h1:1Zxr92MlDnb1Zt/QR5g2vSCqUS03i95lUfqx5X7/wrw="
)

// Identify says why the asynq of this program is not the one that is pinned here, or may not
// be, or nil.
func Identify() error { return identify(debug.ReadBuildInfo()) }

func identify(info *debug.BuildInfo, ok bool) error {
	if !ok {
		return errors.New("the program has no build information")
	}
	i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == modulePath })
	if i < 0 {
		if len(info.Deps) == 0 && strings.HasSuffix(info.Path, ".test") {
			return nil // go test names no modules; SelfCheck says whether it is as pinned
		}
		return fmt.Errorf("the build information of the program does not name %s", modulePath)
	}
	m := info.Deps[i]
	if r := m.Replace; r != nil {
		if r.Path != modulePath {
			return fmt.Errorf("%s is replaced by %s %s", modulePath, r.Path, r.Version)
		}
		m = r
	}
	switch {
	case m.Version != Version:
		return fmt.Errorf("it is %s %s, and %s is known", modulePath, m.Version, Version)
	case m.Sum != moduleSum && m.Sum != "": // a vendored module has no sum
		return fmt.Errorf("%s %s has the sum %s, and the one that is known has %s", modulePath, m.Version, m.Sum, moduleSum)
	}
	return nil
}

const (
	selfCheckQueue  = "headway-self-check"
	selfCheckID     = "headway-self-check-task"
	selfCheckWithin = 10 * time.Second // some milliseconds are usual
)

// SelfCheck lets the asynq of this program fetch a task that has one attempt, which is
// throttled, and looks at what asynq writes then. It returns why a deferral could not be told
// from a failure by that, or nil. Nothing is sent to Redis: asynq is given a client that
// answers by itself. It runs once in a process.
var SelfCheck = sync.OnceValue(func() error { return selfCheck(func(c redis.UniversalClient) redis.UniversalClient { return c }) })

// selfCheck gives asynq the client that between returns.
func selfCheck(between func(redis.UniversalClient) redis.UniversalClient) error {
	message, err := selfCheckMessage()
	if err != nil {
		return err
	}
	// Many lines of a cause, and at the end what a deferral is found by.
	want := errors.New(strings.Repeat("a cause that is as long as causes are; ", 30) + "[token]")
	silent := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	silent.AddHook(nowhere{})
	defer func() { _ = silent.Close() }()
	stand := &standIn{UniversalClient: silent, message: string(message), want: want.Error(), verdict: make(chan error, 1), over: make(chan struct{})}
	srv := asynq.NewServerFromRedisClient(between(stand), asynq.Config{
		Concurrency: 1, Queues: map[string]int{selfCheckQueue: 1}, ShutdownTimeout: time.Second, TaskCheckInterval: time.Millisecond,
		IsFailure:      func(error) bool { return false },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
		Logger:         NewLogger(zap.NewNop(), nil),
	})
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return want })); err != nil {
		return err
	}
	t := time.NewTimer(selfCheckWithin)
	defer t.Stop()
	select {
	case err = <-stand.verdict:
	case <-t.C:
		err = fmt.Errorf("asynq did not end the attempt by a script within %v", selfCheckWithin)
	}
	close(stand.over)
	srv.Shutdown()
	return err
}

// selfCheckMessage is a task with one attempt, as asynq writes it.
func selfCheckMessage() ([]byte, error) {
	var r Recording
	c := asynq.NewClientFromRedisClient(Recorder{})
	_, err := c.EnqueueContext(Record(context.Background(), &r), asynq.NewTask("self-check", nil),
		asynq.Queue(selfCheckQueue), asynq.TaskID(selfCheckID), asynq.MaxRetry(0))
	return r.Task.Message, err
}

// standIn is a Redis client that hands out one task, and looks at the script that ends it.
type standIn struct {
	redis.UniversalClient
	message string
	want    string
	verdict chan error
	over    chan struct{} // closed at the end

	mu    sync.Mutex
	given bool
}

func (s *standIn) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	return s.EvalSha(ctx, SHA(text), keys, args...)
}

func (s *standIn) EvalSha(_ context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	op, call := Recognise(sha, keys, args)
	switch {
	case op == OpDequeue:
		if s.give() {
			return redis.NewCmdResult(s.message, nil)
		}
		<-s.over // asynq's loop does not spin
		return redis.NewCmdResult(nil, redis.Nil)
	case op == OpUnknown, op == OpOther && names(args, selfCheckID):
		s.tell(fmt.Errorf("asynq fetches or ends a task by a script that is not known, %s", sha))
	case op == OpRetry, op == OpArchive:
		m, err := DecodeMessage(call.Message)
		switch {
		case err != nil:
			s.tell(err)
		case call.TaskID != selfCheckID || m.ID != selfCheckID || m.Queue != selfCheckQueue:
			s.tell(errors.New("asynq ends another task than it fetched"))
		case m.ErrorMsg != s.want:
			s.tell(fmt.Errorf("asynq changes the text of an error: of %d bytes it writes %d", len(s.want), len(m.ErrorMsg)))
		default:
			s.tell(nil)
		}
	case op != OpOther:
		s.tell(fmt.Errorf("asynq ends an attempt that failed by %q", op))
	}
	return redis.NewCmdResult("OK", nil)
}

// give says whether the task is still to be given.
func (s *standIn) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.given
	s.given = true
	return first
}

// tell takes the first verdict.
func (s *standIn) tell(err error) {
	select {
	case s.verdict <- err:
	default:
	}
}

// names says whether a task is named by the arguments of a script.
func names(args []any, id string) bool {
	return slices.ContainsFunc(args, func(a any) bool { return a == any(id) })
}

var errNowhere = errors.New("asynqwire: no server stands behind the self-check")

// nowhere keeps a client from any server.
type nowhere struct{}

func (nowhere) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errNowhere }
}

func (nowhere) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.SetErr(errNowhere)
		return errNowhere
	}
}

func (nowhere) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(errNowhere)
		}
		return errNowhere
	}
}
