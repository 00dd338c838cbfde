package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// runs says that a process runs, as it would itself.
func runs(t *testing.T, rdb redis.Cmdable, id, text string) {
	t.Helper()
	if err := presence.Say(t.Context(), rdb, "hw", id, time.Now(), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// An inspector with another Secret than the pools, or none, would find nothing by a key in clear, close a key
// that no pool uses, and write a phone number to Redis. It refuses, and leaves nothing.
func TestKeyWithAnotherSecret(t *testing.T) {
	t.Parallel()
	secret := []byte("sixteen bytes at least")
	for name, c := range map[string]struct {
		pools []string // forms of keys
		mine  []byte
		want  error
	}{
		"the same":             {[]string{presence.KeyForm(secret, false)}, secret, nil},
		"none":                 {[]string{presence.KeyForm(nil, false)}, nil, nil},
		"forgotten":            {[]string{presence.KeyForm(secret, false)}, nil, ErrOtherSecret},
		"one too many":         {[]string{presence.KeyForm(nil, false)}, secret, ErrOtherSecret},
		"another":              {[]string{presence.KeyForm(secret, false)}, []byte("sixteen other bytes"), ErrOtherSecret},
		"of one of two":        {[]string{presence.KeyForm(secret, false), presence.KeyForm(nil, false)}, secret, nil},
		"not said":             {[]string{""}, secret, nil},
		"no pool":              {nil, secret, nil},
		"keys of each process": {[]string{presence.KeyForm(secret, true)}, secret, throttle.ErrInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			for n, form := range c.pools {
				text, err := json.Marshal(presence.Process{ID: fmt.Sprint(n), Kind: presence.Pool, KeyForm: form})
				if err != nil {
					t.Fatal(err)
				}
				runs(t, rdb, fmt.Sprint(n), string(text))
			}
			i, err := New(rdb, Config{Policies: []queue.Policy{perMinute()}, Throttle: throttle.Config{Secret: c.mine}})
			if err != nil {
				t.Fatal(err)
			}
			_, closing := i.CloseKey(t.Context(), "phone", "+15550100", time.Hour, because)
			_, peek := i.Key(t.Context(), "phone", "+15550100")
			_, list := i.LinePage(t.Context(), "phone", "+15550100", "", 10)
			_, id := i.IDOf(t.Context(), "phone", "+15550100")
			_, cancel := i.CancelKey(t.Context(), "default", "phone", "+15550100", because)
			_, explain := i.ExplainNew(t.Context(), "sms", []byte(`{"to":"+15550100"}`))
			for what, err := range map[string]error{
				"CloseKey": closing, "OpenKey": i.OpenKey(t.Context(), "phone", "+15550100", because), "Key": peek, "LinePage": list, "IDOf": id, "CancelKey": cancel,
				"ExplainNew": explain,
			} {
				if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
					t.Errorf("%s = %v, want %v", what, err, c.want)
				}
			}
			if c.want == nil {
				return
			}
			for _, key := range redistest.Keys(t, rdb, "*") {
				if strings.Contains(key, "+15550100") || key == "hw:audit" {
					t.Errorf("%s is left", key)
				}
			}
		})
	}
}

// With PerClient no key of the pools is known here: nothing is said to be closed.
func TestKeyPerClient(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	i, err := New(rdb, Config{Policies: []queue.Policy{perMinute()}, Throttle: throttle.Config{PerClient: true}})
	if err != nil {
		t.Fatal(err)
	}
	_, closing := i.CloseKey(t.Context(), "phone", "+15550100", time.Hour, because)
	for what, err := range map[string]error{"CloseKey": closing, "OpenKey": i.OpenKey(t.Context(), "phone", "+15550100", because)} {
		if !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("%s = %v, want ErrInvalidConfig", what, err)
		}
	}
	if keys := redistest.Keys(t, rdb, "*"); len(keys) != 0 {
		t.Errorf("%v are left, want nothing", keys)
	}
}

// What a process of another version says of itself hides no other process.
func TestProcessThatCantBeRead(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	runs(t, rdb, "newer", `{"pid":"a"}`)
	runs(t, rdb, "ours", `{"id":"ours","kind":"pool","pid":7}`)
	i, err := New(rdb, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if running, all, err := i.Processes(t.Context()); err != nil || all != 2 || len(running) != 1 || running[0].PID != 7 {
		t.Errorf("Processes = %+v of %d, %v, want the one that can be read of 2", running, all, err)
	}
}

// endsAt ends a context at its n-th deletion of a task.
type endsAt struct {
	redis.UniversalClient
	left atomic.Int64
	end  context.CancelFunc
}

func (c *endsAt) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if len(keys) == 2 && strings.HasSuffix(keys[1], ":groups") && c.left.Add(-1) == 0 { // asynq's script
		c.end()
	}
	return c.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// Whoever stops a long cancellation stops it: what was not cancelled by then stays, with its place.
func TestCancelKeyThatIsStopped(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	const n = 20
	for k := range n {
		d.booked("+1", time.Duration(k)*time.Minute, asynq.TaskID(fmt.Sprintf("t%02d", k)))
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	rdb := &endsAt{UniversalClient: d.timed, end: end}
	rdb.left.Store(3)
	i, err := New(rdb, Config{Policies: []queue.Policy{perMinute()}})
	if err != nil {
		t.Fatal(err)
	}
	cancelled, err := i.CancelKey(ctx, "default", "phone", "+1", because)
	if !errors.Is(err, context.Canceled) || cancelled != 3 {
		t.Errorf("CancelKey = %d, %v, want 3 and that it was stopped", cancelled, err)
	}
	if left := d.onTheKey(d.inspector(throttle.Config{}, perMinute())); len(left) != n-1-3 { // the first is pending
		t.Errorf("%q are left", left)
	}
}
