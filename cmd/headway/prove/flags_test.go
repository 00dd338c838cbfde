package prove

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"

	"github.com/headwayq/headway/internal/e2e"
)

func TestFlagDefaults(t *testing.T) {
	t.Parallel()
	c, err := parseFlags(nil, new(bytes.Buffer))
	if err != nil {
		t.Fatal(err)
	}
	if c.redis != nil || c.input != "" || c.gateway != "" || c.limit != throttle.Sliding(1, time.Minute) || c.concurrency != 10 || c.role != roleAll || !c.drain {
		t.Errorf("defaults = %+v", c)
	}
	for _, tt := range []struct {
		args string
		want bool
	}{
		{"-drain=false", false},
		{"-role work -redis a:1", false},
		{"-role work -redis a:1 -drain", true},
	} {
		c, err := parseFlags(strings.Fields(tt.args), new(bytes.Buffer))
		if err != nil || c.drain != tt.want {
			t.Errorf("%s: drain = %v, %v, want %v", tt.args, c.drain, err, tt.want)
		}
	}
}

func TestFlagRedis(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ addr, want string }{
		{"localhost:6379", "localhost:6379"},
		{":6379", ":6379"},
		{"redis://u:p@host:1/3", "host:1"},
		{"redis://host", "host:6379"},
	} {
		c, err := parseFlags([]string{"-redis", tt.addr}, new(bytes.Buffer))
		if err != nil || c.redis.Addr != tt.want {
			t.Errorf("-redis %s = %v, %v, want %s", tt.addr, c.redis, err, tt.want)
		}
	}
}

// Without a seed each run draws its own, and says which.
func TestFlagGatewayFaults(t *testing.T) {
	t.Parallel()
	c, err := parseFlags([]string{"-gateway-faults", "5xx=1%,seed=7"}, new(bytes.Buffer))
	if want := (e2e.Faults{Unavailable: 10_000, Seed: 7}); err != nil || c.gwFaults != want {
		t.Errorf("faults = %+v, %v, want %+v", c.gwFaults, err, want)
	}
	seeds := map[uint64]bool{}
	for range 10 {
		c, err := parseFlags([]string{"-gateway-faults", "5xx=0%"}, new(bytes.Buffer))
		if err != nil || c.gwFaults.Seed == 0 {
			t.Errorf("faults = %+v, %v, want a seed", c.gwFaults, err)
		}
		seeds[c.gwFaults.Seed] = true
	}
	if len(seeds) < 9 { // one pair of ten is equal once in 10^8 runs
		t.Errorf("%d seeds in 10 runs", len(seeds))
	}
}

func TestFlagFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		want []string // in the error
	}{
		{"-boss", []string{"-boss"}},
		{"-concurrency many", []string{"-concurrency"}},
		{"-concurrency 0", []string{"-concurrency is 0, want 1 to 10000"}},
		{"file.csv", []string{"1 argument that no flag asks for"}},
		{"-limit 1/x -role boss -redis 6379 -gateway ftp://x", []string{`-limit: throttle: invalid limit: "1/x": window "x", want a duration`, `-role is "boss"`, "want host:port", "want a URL like"}},
		{"-redis redis://u:s3cret@host:x/", []string{"-redis: want a URL like"}},
		{"-gateway http://u:s3cret@/", []string{"want a URL like"}},
		{"-role work", []string{"-role work needs -redis"}},
		{"-role enqueue", []string{"-role enqueue needs -redis"}},
		{"-role work -redis a:1 -input f -once -skip-invalid", []string{"-input has no effect", "-once has no effect", "-skip-invalid has no effect"}},
		{"-role enqueue -redis a:1 -drain -grants g -gateway http://x", []string{"-drain has no effect", "-grants has no effect", "-gateway has no effect"}},
		{"-gateway http://x -arrivals f", []string{"-arrivals has no effect with -gateway"}},
		{"-gateway http://x -gateway-faults 5xx=1%", []string{"-gateway-faults has no effect with -gateway"}},
		{"-role enqueue -redis a:1 -gateway-faults 5xx=1%", []string{"-gateway-faults has no effect with -role enqueue"}},
		{"-concurrency 0 -gateway-faults 429=5,boss=1,after=1ms", []string{"-concurrency is 0", `429 is "5"`, `"boss" is none of`, `after is "1ms"`}},
		{"-gateway-faults=", []string{"want at least one of 429, 5xx and timeout"}},
		{"-report f -grants f", []string{"-report and -grants name the same file"}},
		{"-policy f -limit 1/60s", []string{"-policy and -limit exclude each other"}},
		{"-policy f -input f", []string{"-input and -policy name the same file"}},
		{"-policy=", []string{"-policy is empty"}},
		{"-report=", []string{"-report is empty"}},
		{"-redis=", []string{"want host:port"}},
	} {
		_, err := parseFlags(strings.Fields(tt.args), new(bytes.Buffer))
		if err == nil {
			t.Errorf("%s: no error", tt.args)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q lacks %q", tt.args, err, want)
			}
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %q shows a password", tt.args, err)
		}
		r := (&program{t: t, args: strings.Fields(tt.args), dir: t.TempDir()}).run(t.Context())
		r.want(t, exitUsage)
		if r.stdout != "" {
			t.Errorf("%s: stdout = %q, want none", tt.args, r.stdout)
		}
	}
}

// A limit of another kind may be kept, and yet look broken to the gateway.
func TestLimitKinds(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"fixed 10/1h", "calendar 10/day", "bucket 10/1s", "bucket 10/1s step", "gcra 10/1s", "leaky 10/1s", "smooth 10/1s", "warmup 2/1s over 4s"} {
		_, err := parseFlags([]string{"-limit", limit, "-concurrency", "0"}, new(bytes.Buffer))
		kind, _, _ := strings.Cut(limit, " ")
		for _, want := range []string{"-limit: ", " is a " + kind + " limit, want a sliding one", "-concurrency is 0"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("-limit %q: error %v lacks %q", limit, err, want)
			}
		}
	}
	for _, limit := range []string{"3/1m", "sliding 3/1m"} {
		if c, err := parseFlags([]string{"-limit", limit}, new(bytes.Buffer)); err != nil || c.limit != throttle.Sliding(3, time.Minute) {
			t.Errorf("-limit %q = %v, %v, want 3 in any minute", limit, c.limit, err)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	r := (&program{t: t, args: []string{"-h"}, dir: t.TempDir()}).run(t.Context())
	r.want(t, exitOK)
	for _, f := range []string{
		"redis ADDR", "input FILE", "gateway URL", "limit", "policy FILE", "concurrency N", "role", "drain", "report FILE", "grants FILE",
		"arrivals FILE", "gateway-faults SPEC", "skip-invalid", "once",
	} {
		if !strings.Contains(r.stdout, "  -"+f) {
			t.Errorf("help lacks -%s:\n%s", f, r.stdout)
		}
	}
}

// A file that cannot be written is a wrong flag: it is refused before two minutes of work.
func TestFilesAreOpenedFirst(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"-report", "-grants", "-arrivals", "-input"} {
		p := &program{t: t, args: []string{flag, filepath.Join(t.TempDir(), "no", "file")}, dir: t.TempDir()}
		r := p.run(t.Context())
		r.want(t, exitUsage)
		if !strings.Contains(r.stderr, "no such file") {
			t.Errorf("%s: stderr = %q, want that there is no such folder", flag, r.stderr)
		}
	}
}
