package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func newClient(t *testing.T, rdb redis.UniversalClient, policies ...Policy) *Client {
	t.Helper()
	client, err := NewClient(rdb, ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// both runs f with each of the two ways to enqueue a task.
func both(t *testing.T, client *Client, f func(t *testing.T, enqueue enqueueFunc)) {
	t.Run("Enqueue", func(t *testing.T) {
		f(t, func(ctx context.Context, typ, payload string, opts ...asynq.Option) (*asynq.TaskInfo, error) {
			return client.Enqueue(ctx, NewTask(typ, []byte(payload)), opts...)
		})
	})
	t.Run("EnqueueMany", func(t *testing.T) {
		f(t, func(ctx context.Context, typ, payload string, opts ...asynq.Option) (*asynq.TaskInfo, error) {
			r := client.EnqueueMany(ctx, []*Task{NewTask(typ, []byte(payload))}, opts...)[0]
			return r.Info, r.Err
		})
	})
}

type enqueueFunc func(ctx context.Context, typ, payload string, opts ...asynq.Option) (*asynq.TaskInfo, error)

func TestNewClientRefusesBadPolicies(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client, err := NewClient(rdb, ClientConfig{Policies: []Policy{smsPolicy(), smsPolicy()}})
	if client != nil || !errors.Is(err, ErrInvalidPolicy) {
		t.Errorf("NewClient = %v, %v, want ErrInvalidPolicy", client, err)
	}
	for name, rdb := range map[string]redis.UniversalClient{"nil": nil, "a nil Client": (*redis.Client)(nil), "a nil ClusterClient": (*redis.ClusterClient)(nil)} {
		if got, want := panicOf(func() { _, _ = NewClient(rdb, ClientConfig{}) }), "queue: nil Redis client"; got != want {
			t.Errorf("NewClient(%s, ClientConfig{}) panics with %v, want %s", name, got, want)
		}
	}
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	both(t, newClient(t, rdb, smsPolicy()), func(t *testing.T, enqueue enqueueFunc) {
		for _, tt := range []struct{ typ, payload string }{
			{"sms:send", `{"to":"13612345678"}`},
			{"mail:send", "no JSON, no policy"},
			{"sms:send:later", "a policy is for one type, not for a prefix"},
		} {
			info, err := enqueue(t.Context(), tt.typ, tt.payload)
			if err != nil {
				t.Fatalf("enqueue %s: %v", tt.typ, err)
			}
			stored, err := inspector.GetTaskInfo(info.Queue, info.ID)
			if err != nil {
				t.Fatal(err)
			}
			want(t, stored.Type, tt.typ)
			want(t, string(stored.Payload), tt.payload)
			want(t, stored.State, asynq.TaskStatePending)
		}
	})
}

func TestEnqueueRefusesWhatCanNeverRun(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	p := smsPolicy()
	p.Rules[0].Cost = MustJSONCost("$.n")
	both(t, newClient(t, rdb, p), func(t *testing.T, enqueue enqueueFunc) {
		for _, tt := range []struct {
			typ, payload string
			opt          asynq.Option
			want         error
		}{
			{"sms:send", `{"to":null,"n":1}`, asynq.MaxRetry(1), ErrNoKey},
			{"sms:send", `{"to":"13612345678","n":2}`, asynq.MaxRetry(1), ErrBadCost},
			{"sms:send", `{"to":"13612345678","n":1}`, asynq.Timeout(time.Millisecond), ErrInvalidOption},
			{"mail:send", `no policy`, foreignOption{asynq.MaxRetry(1)}, ErrInvalidOption},
		} {
			info, err := enqueue(t.Context(), tt.typ, tt.payload, tt.opt)
			if info != nil || !errors.Is(err, tt.want) {
				t.Errorf("enqueue %s = %v, %v, want %v", tt.payload, info, err, tt.want)
			}
		}
	})
	// not a task, not a lock, not even the name of the queue
	if n, err := rdb.DBSize(t.Context()).Result(); n != 0 || err != nil {
		t.Errorf("Redis holds %d keys, %v, want none", n, err)
	}
}

func TestEnqueueChecksTheOptionsOfATask(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	task := NewTask("mail:send", nil, asynq.Timeout(1))
	_, err := newClient(t, rdb).Enqueue(t.Context(), task, asynq.Retention(1))
	for _, text := range []string{"Timeout(1ns)", "Retention(1ns)"} {
		if !errors.Is(err, ErrInvalidOption) || !strings.Contains(err.Error(), text) {
			t.Errorf("Enqueue = %v, want ErrInvalidOption for %s", err, text)
		}
	}
	if keys := m.Keys(); len(keys) != 0 {
		t.Errorf("Redis holds %q, want nothing", keys)
	}
}

func TestAsynqErrorsStayRecognisable(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	both(t, newClient(t, rdb), func(t *testing.T, enqueue enqueueFunc) {
		for name, tt := range map[string]struct {
			opt  asynq.Option
			want error
		}{
			"unique": {asynq.Unique(time.Minute), asynq.ErrDuplicateTask},
			"id":     {asynq.TaskID(t.Name()), asynq.ErrTaskIDConflict},
		} {
			typ := t.Name() + name
			if _, err := enqueue(t.Context(), typ, "", tt.opt); err != nil {
				t.Fatal(err)
			}
			if _, err := enqueue(t.Context(), typ, "", tt.opt); !errors.Is(err, tt.want) {
				t.Errorf("second %s = %v, want %v", name, err, tt.want)
			}
		}
		for name, opt := range map[string]asynq.Option{
			"queue": asynq.Queue(" "), "task ID": asynq.TaskID(""), "group": asynq.Group(""),
		} {
			if _, err := enqueue(t.Context(), "t", "", opt); err == nil {
				t.Errorf("a blank %s was accepted", name)
			}
		}
	})
}

func TestEnqueueWithoutATask(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := newClient(t, rdb, smsPolicy())
	if _, err := client.Enqueue(t.Context(), nil); err == nil {
		t.Error("Enqueue(nil) was accepted")
	}
	if r := client.EnqueueMany(t.Context(), []*Task{nil}); r[0].Err == nil {
		t.Error("EnqueueMany of nil was accepted")
	}
	if _, err := client.Enqueue(t.Context(), &Task{}); err == nil {
		t.Error("Enqueue of the zero Task was accepted")
	}
}

func TestEnqueueWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	m.SetError("LOADING Redis is loading the dataset in memory")
	both(t, newClient(t, rdb), func(t *testing.T, enqueue enqueueFunc) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if info, err := enqueue(ctx, "t", ""); info != nil || err == nil {
			t.Errorf("enqueue = %v, %v, want an error", info, err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := enqueue(ended, "t", ""); !errors.Is(err, context.Canceled) {
			t.Errorf("enqueue with an ended context = %v, want context.Canceled", err)
		}
	})
}

// TestSharedTaskIsNoRace is about asynq's append to a task's own options: with
// room to spare in the slice, two calls overwrite each other's.
func TestSharedTaskIsNoRace(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	client := newClient(t, rdb, Policy{
		Type: "t", Rules: []Rule{{Name: "r", Limit: throttle.Sliding(1, time.Second), Key: MustJSONKey("$")}},
	})
	opts := make([]asynq.Option, 1, 10)
	opts[0] = asynq.MaxRetry(3)
	task := NewTask("t", []byte(`"key"`), opts...)

	const calls = 50
	var (
		wg    sync.WaitGroup
		infos [calls]*asynq.TaskInfo
		errs  [calls]error
	)
	for i := range calls {
		wg.Go(func() {
			infos[i], errs[i] = client.Enqueue(t.Context(), task, asynq.Queue(fmt.Sprint(i)))
		})
	}
	wg.Wait()
	for i := range calls {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		want(t, infos[i].Queue, fmt.Sprint(i))
		want(t, infos[i].MaxRetry, 3)
	}
}

func TestHeadersArrive(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	headers := map[string]string{"trace": "1"}
	info, err := newClient(t, rdb).Enqueue(t.Context(), NewTaskWithHeaders("t", nil, headers))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo(info.Queue, info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(headers, stored.Headers); diff != "" {
		t.Errorf("Headers (-want +got):\n%s", diff)
	}
}

// In shadow mode nothing is refused: not by the client either.
func TestShadowEnqueuesWhatWouldBeRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	client, err := NewClient(rdb, ClientConfig{Policies: []Policy{smsPolicy()}, Throttle: throttle.Config{Shadow: true}})
	if err != nil {
		t.Fatal(err)
	}
	both(t, client, func(t *testing.T, enqueue enqueueFunc) {
		if _, err := enqueue(t.Context(), smsPolicy().Type, `{}`); err != nil {
			t.Error(err)
		}
	})
	if b, err := client.Book(t.Context(), NewTask(smsPolicy().Type, []byte(`{}`))); err != nil || !b.At.IsZero() || b.Info.State != asynq.TaskStatePending {
		t.Errorf("Book = %+v, %v, want a task that may run now", b, err)
	}
}
