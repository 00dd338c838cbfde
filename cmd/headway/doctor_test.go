package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/redistest"
)

// Only pools serve a queue: a feeder names the queues that it fills.
func TestDoctorKnowsWhoServesAQueue(t *testing.T) {
	t.Parallel()
	queues := []inspect.QueueStatus{{Queue: "default", Pending: 3}}
	on := map[string]int{"default": 1}
	for name, tt := range map[string]struct {
		running []inspect.Process
		bad     bool
	}{
		"a feeder": {[]inspect.Process{{Kind: "feeder", Queues: on}}, true},
		"a pool":   {[]inspect.Process{{Kind: "feeder", Queues: on}, {Kind: "pool", Queues: on}}, false},
	} {
		e := &examination{queues: queues, running: tt.running}
		e.pools()
		bad := slices.ContainsFunc(e.found, func(f finding) bool {
			return f.Level == "bad" && strings.HasPrefix(f.Says, "no pool serves queue default")
		})
		if bad != tt.bad {
			t.Errorf("%s: %+v, want that no pool serves the queue: %t", name, e.found, tt.bad)
		}
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
