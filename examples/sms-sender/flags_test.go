package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	c, err := parseFlags(nil, new(bytes.Buffer))
	if err != nil || c.redis != nil || c.policy.Rules[0].Limit != throttle.Sliding(1, time.Minute) || c.concurrency != 10 || c.role != roleAll || !c.drain {
		t.Errorf("defaults = %+v, %v", c, err)
	}
	c, err = parseFlags(strings.Fields("-role work -redis redis://u:p@host:1/3"), new(bytes.Buffer))
	if err != nil || c.redis.Addr != "host:1" || c.drain {
		t.Errorf("a worker: %+v, %v", c, err)
	}
	for args, want := range map[string]string{
		"more":                                 "1 argument that no flag asks for",
		"-nothing":                             "-h lists the flags",
		"-limit 1":                             "-limit: ",
		"-limit gcra:1":                        "-limit: ",
		"-limit concurrent:2:lease:30s":        "-limit: ",
		"-concurrency 0":                       "want 1 to 10000",
		"-role boss":                           `-role is "boss"`,
		"-role work":                           "-role work needs -redis",
		"-role work -redis h:1 -once":          "-once has no effect with -role work",
		"-role enqueue -redis h:1 -drain":      "-drain has no effect with -role enqueue",
		"-policy a -limit 1/1s":                "exclude each other",
		"-redis host":                          "-redis: want host:port",
		"-redis ftp://u:secret@host":           "-redis: want a URL like",
		"-gateway ftp://u:secret@host":         "-gateway: gateway: want a URL like",
		"-input a -report a":                   "a file that is not the input",
		"-policy none.yaml":                    "none.yaml",
		"-concurrency 0 -role work -limit 0/x": "-limit: ",
	} {
		_, err := parseFlags(strings.Fields(args), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q and no password", args, err, want)
		}
	}
	if code := run(t.Context(), []string{"-report", t.TempDir() + "/no/file"}, env{stdout: new(bytes.Buffer), stderr: new(bytes.Buffer)}); code != exitUsage {
		t.Errorf("a report that cannot be written: exit code %d", code)
	}
	var help bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, env{stdout: &help}); code != exitOK {
		t.Errorf("-h: exit code %d", code)
	}
	for _, f := range []string{"redis ADDR", "input FILE", "gateway URL", "limit", "policy FILE", "concurrency N", "role", "drain", "report FILE", "skip-invalid", "once"} {
		if !strings.Contains(help.String(), "  -"+f) {
			t.Errorf("help lacks -%s:\n%s", f, help.String())
		}
	}
}
