package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// TestRefused: what is wrong is told, all of it, with exit code 2, and nothing is in
// Redis then.
func TestRefused(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	bad := filepath.Join(t.TempDir(), "bad.csv")
	if err := os.WriteFile(bad, []byte("to,subject,text\njane,Hello,Secret\njane@example.com,,Secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"flags", []string{"-gate", "9-21", "-scale", "1441", "-rate", "gcra 10/1s", "-batch", "0", "extra"},
			[]string{"-gate: ", "-scale is 1441", "-rate is a gcra limit", "-batch is 0", "1 argument that no flag asks for", "-h lists the flags"}},
		{"rate", []string{"-rate", "fast", "-input", ""}, []string{"-rate: ", "-input is empty"}},
		{"zone", []string{"-gate", "09:00-21:00 UTC"}, []string{"-gate: "}},
		{"no such flag", []string{"-fast"}, []string{"-fast"}},
		{"redis", []string{"-redis", "redis://user:secret@host:port"}, []string{"-redis: want a URL like"}},
		{"sample and input", []string{"-batch", "9", "-input", bad}, []string{"-batch has no effect with -input"}},
		{"input", []string{"-input", bad}, []string{"input: 2 faults", "line 2: to is no mail address", "line 3: subject is empty"}},
		{"no file", []string{"-input", bad + ".gone"}, []string{"input: open"}},
		{"always open", []string{"-gate", "00:00-24:00"}, []string{"-gate: want hours that open once"}},
		{"too many", []string{"-batch", "100000"}, []string{"100000 mails take 2h46m39s at least", "open for"}},
		{"too slow", []string{"-scale", "10"}, []string{"240 mails take 18m0s at least"}},
	} {
		args := test.args
		if test.name != "redis" {
			args = append([]string{"-redis", urlOf(srv)}, args...)
		}
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, env{stdout: &stdout, stderr: &stderr}); code != exitUsage {
			t.Errorf("%s: exit code %d, want %d", test.name, code, exitUsage)
		}
		for _, want := range test.want {
			if !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: stderr lacks %q:\n%s", test.name, want, &stderr)
			}
		}
		checkPersonal(t, test.name, stdout.String()+stderr.String())
	}
	if n := srv.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys in Redis, want none", n)
	}
}

// TestHelp: -h lists all flags.
func TestHelp(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	if code := run(t.Context(), []string{"-h"}, env{stdout: &stdout, stderr: &stdout}); code != exitOK {
		t.Errorf("exit code %d, want 0", code)
	}
	for _, flag := range []string{"-redis", "-input", "-batch", "-gate", "-scale", "-rate", "-kill-feeder"} {
		if !strings.Contains(stdout.String(), "  "+flag) {
			t.Errorf("%s is not in the help:\n%s", flag, &stdout)
		}
	}
}
