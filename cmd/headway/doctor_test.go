package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
)

// A pool serves a queue, and so does a server of asynq without Headway. A feeder only names the
// queues that it fills. What can't be known is not bad.
func TestDoctorKnowsWhoServesAQueue(t *testing.T) {
	t.Parallel()
	queues := []inspect.QueueStatus{{Queue: "default", Pending: 3}}
	on := map[string]int{"default": 1}
	const unserved, unknown = "bad no pool serves queue default", "warn it is not known whether a pool serves queue default"
	for name, tt := range map[string]struct {
		running  []inspect.Process
		unlisted int
		served   inspect.Served
		want     string // what is said of the queue, empty for nothing
	}{
		"nothing":                       {nil, 0, inspect.Served{}, unserved},
		"a feeder":                      {[]inspect.Process{{Kind: "feeder", Queues: on}}, 0, inspect.Served{}, unserved},
		"a pool":                        {[]inspect.Process{{Kind: "feeder", Queues: on}, {Kind: "pool", Queues: on}}, 0, inspect.Served{}, ""},
		"a pool of another":             {[]inspect.Process{{Kind: "pool", Queues: map[string]int{"low": 1}}}, 0, inspect.Served{}, unserved},
		"asynq's server":                {nil, 0, inspect.Served{Queues: map[string]bool{"default": true}}, ""},
		"asynq's of another":            {nil, 0, inspect.Served{Queues: map[string]bool{"low": true}}, unserved},
		"asynq's list can't be read":    {nil, 0, inspect.Served{AsynqErr: errors.New("NOPERM")}, unknown},
		"some processes are not listed": {[]inspect.Process{{Kind: "feeder", Queues: on}}, 1, inspect.Served{Unlisted: 1}, unknown},
	} {
		e := &examination{queues: queues, running: tt.running, unlisted: tt.unlisted}
		e.served = func() (inspect.Served, error) { return tt.served, nil }
		if err := e.pools(); err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, f := range e.found {
			if before, _, of := strings.Cut(f.Says, ", where 3 tasks are pending"); of {
				said = f.Level + " " + before
			}
		}
		if said != tt.want {
			t.Errorf("%s: %+v, want of the queue: %q", name, e.found, tt.want)
		}
	}
}

// A queue that a plain server of asynq serves, in a program without Headway, is not reported.
func TestDoctorKnowsServersOfAsynq(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	// The queue is paused, so that the task stays in it.
	if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("report", nil), asynq.Queue("plain")); err != nil {
		t.Fatal(err)
	}
	if err := asynq.NewInspectorFromRedisClient(rdb).PauseQueue("plain"); err != nil {
		t.Fatal(err)
	}
	const unserved = "no pool serves queue plain"
	if said := doctor(t, "--redis", srv.Addr()); !strings.Contains(said, unserved) {
		t.Errorf("%q is missing in\n%s", unserved, said)
	}
	plain := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 1, Queues: map[string]int{"plain": 1}, LogLevel: asynq.FatalLevel})
	if err := plain.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Shutdown)
	i, err := inspect.New(rdb, inspect.Config{})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "asynq lists the server", func() bool {
		served, err := i.ServedQueues(t.Context())
		return err == nil && served.Queues["plain"]
	})
	if said := doctor(t, "--redis", srv.Addr()); strings.Contains(said, unserved) || !strings.Contains(said, "queue plain is paused") {
		t.Errorf("the queue is served, and paused:\n%s", said)
	}
	plain.Stop()
	soon(t, "a server that was stopped serves nothing", func() bool {
		served, err := i.ServedQueues(t.Context())
		return err == nil && !served.Queues["plain"]
	})
}

// Of more than 500 processes some are not listed. One of those may serve a queue.
func TestDoctorOfManyProcesses(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("report", nil), asynq.Queue("plain")); err != nil {
		t.Fatal(err)
	}
	said := make([]string, 503)
	for n := range said {
		said[n] = `{"kind":"pool","queues":{"default":1}}`
	}
	sayProcesses(t, rdb, said...)
	got := doctor(t, "--redis", srv.Addr())
	for _, want := range []string{"it is not known whether a pool serves queue plain, where 1 tasks are pending", "3 processes were not looked at", "500 pools run"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "no pool serves queue plain") {
		t.Errorf("it takes for certain what is not known:\n%s", got)
	}
}

// sayProcesses lists processes as if they ran, in place of those that were listed.
func sayProcesses(t *testing.T, rdb *redis.Client, said ...string) {
	t.Helper()
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), "hw:processes")
		for n, text := range said {
			id := fmt.Sprint("p", n)
			p.Set(t.Context(), "hw:process:"+id, text, time.Hour)
			p.ZAdd(t.Context(), "hw:processes", redis.Z{Score: float64(time.Now().UnixMicro()), Member: id})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// doctor runs the doctor, and returns what it says.
func doctor(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := command(t.Context(), append([]string{"doctor"}, args...), env{stdout: &stdout, stderr: &stderr}); code != exitOK && code != exitRun {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	return stdout.String()
}

// A version that can't be read is not told as right, and queues that were left out are named.
func TestDoctorSaysWhatItDidNotSee(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	for n := range 104 {
		if err := rdb.SAdd(t.Context(), "asynq:queues", fmt.Sprintf("queue-%03d", n)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := rdb.Do(t.Context(), "acl", "setuser", "blind", "on", ">secret", "~*", "&*", "+@all", "-info", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	said := doctor(t, "--redis", srv.Addr(), "--user", "blind", "--pass", "secret")
	for _, want := range []string{"warn  version  ", "warn  queues   4 queues were not looked at"} {
		if !strings.Contains(strings.Join(strings.Fields(said), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("%q is missing in\n%s", want, said)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := command(t.Context(), []string{"status", "--redis", srv.Addr()}, env{stdout: &stdout, stderr: &stderr}); code != exitOK ||
		!strings.Contains(stdout.String(), "4 queues more not looked at") {
		t.Errorf("status: exit code %d, %s, want that 4 queues were left out of\n%s", code, &stderr, &stdout)
	}
	stdout.Reset()
	if code := command(t.Context(), []string{"status", "-o", "json", "--redis", srv.Addr()}, env{stdout: &stdout, stderr: &stderr}); code != exitOK ||
		!strings.Contains(stdout.String(), `"queues_left_out": 4`) {
		t.Errorf("status -o json: exit code %d, %s, want that 4 queues were left out", code, &stderr)
	}
}

// On Redis Cluster every master is asked, what is wrong with one is told of that one, and nothing is
// right that is wrong on one.
func TestDoctorAsksAllOfACluster(t *testing.T) {
	t.Parallel()
	_, nodes := redistest.StartNodes(t, 3)
	for n, node := range nodes {
		if n == 1 {
			continue
		}
		if err := node.Client(t).ConfigSet(t.Context(), "maxmemory", "1gb").Err(); err != nil {
			t.Fatal(err)
		}
	}
	middle := nodes[1].Client(t)
	for n := 0; middle.Set(t.Context(), fmt.Sprint("hw:{", n, "}:phone"), "x", 0).Err() != nil; n++ { // a key of another node is refused
		if n == 100 {
			t.Fatal("no key is of this node")
		}
	}
	for range 3 {
		said := doctor(t, "--cluster", "--redis", nodes[0].Addr())
		for _, want := range []string{"node " + nodes[1].Addr() + ": maxmemory is not set", "node " + nodes[1].Addr() + ": 1 key of Headway never expires"} {
			if strings.Count(said, want) != 1 {
				t.Errorf("%q is missing in\n%s", want, said)
			}
		}
		for _, not := range []string{nodes[0].Addr() + ": maxmemory", nodes[2].Addr() + ": maxmemory", "the keys that were looked at expire"} {
			if strings.Contains(said, not) {
				t.Errorf("%q is said, which is not so, in\n%s", not, said)
			}
		}
		if strings.Count(said, "the append-only file is off") != len(nodes) && strings.Count(said, "the append-only file is on") != 1 {
			t.Errorf("it does not say of each node whether the append-only file is on:\n%s", said)
		}
	}
}
