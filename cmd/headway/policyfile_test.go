package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// A policy of the file that no pool runs is a difference, and so is another charge. Schedulers and
// feeders are no pools.
func TestPolicyDiff(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "rules:\n  phone: {limit: 1/20m, key: $.to}\npolicies:\n  sms: {rules: [phone], charge: success}\n  mail: {rules: [phone]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const (
		rules     = `"rules":[{"name":"phone","limit":"sliding 1/20m"}]`
		sms       = `{"type":"sms","charge":"success",` + rules + `}`
		mail      = `{"type":"mail","charge":"every attempt",` + rules + `}`
		both      = `{"kind":"pool","host":"app","pid":1,"policies":[` + sms + `,` + mail + `]}`
		onlySMS   = `{"kind":"pool","host":"app","pid":1,"policies":[` + sms + `]}`
		feeder    = `{"kind":"feeder","host":"app","pid":1}`
		scheduler = `{"kind":"scheduler","host":"app","pid":1}`
	)
	many := func(text string) (all []string) {
		for range 501 {
			all = append(all, text)
		}
		return all
	}
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	for name, tt := range map[string]struct {
		running []string
		code    int
		want    string // on stdout, or on stderr when nothing is compared
	}{
		"as the file says":       {[]string{both, feeder, scheduler}, exitOK, "1 pool runs as the files say\n"},
		"by two pools":           {[]string{onlySMS, both}, exitOK, "2 pools run as the files say\n"},
		"a charge is not said":   {[]string{strings.ReplaceAll(both, `"charge":"success",`, "")}, exitOK, "1 pool runs as the files say\n"},
		"no pool of a policy":    {[]string{onlySMS, scheduler}, exitRun, "-     policy of mail  (no pool)  phone\n"},
		"another charge":         {[]string{strings.ReplaceAll(both, `"success"`, `"every attempt"`)}, exitRun, "app:1  policy of sms  charge: every attempt  charge: success\n"},
		"no pool":                {[]string{feeder, scheduler}, exitMissing, "no pool runs: not found"},
		"more than 500":          {many(onlySMS), exitOK, "500 pools run as the files say\n1 process more was not compared\n"},
		"more than 500, no pool": {many(feeder), exitMissing, "none of the 500 processes that are listed is a pool: not found"},
	} {
		sayProcesses(t, rdb, tt.running...)
		var stdout, stderr bytes.Buffer
		code := command(t.Context(), []string{"policy", "diff", file, "--redis", srv.Addr()}, env{stdout: &stdout, stderr: &stderr})
		got := stdout.String()
		if tt.code == exitMissing {
			got += stderr.String()
		}
		if code != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("%s: exit code %d, want %d, %q, want %q; %s", name, code, tt.code, got, tt.want, &stderr)
		}
	}
}

// A payload on stdin that is too long is an error, and not cut.
func TestLongPayloadOnStdin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules:\n  all: {limit: 1/20m, key: =acme}\npolicies:\n  sms: {rules: [all]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for length, want := range map[int]int{stdinMost: exitOK, stdinMost + 1: exitUsage} {
		var stdout, stderr bytes.Buffer
		code := command(t.Context(), []string{"policy", "check", file, "--payload", "-"},
			env{stdin: strings.NewReader(strings.Repeat("x", length)), stdout: &stdout, stderr: &stderr})
		if long := strings.Contains(stderr.String(), "--payload: stdin has more than 1048576 bytes"); code != want || long != (want == exitUsage) {
			t.Errorf("%d bytes: exit code %d, want %d: %s%s", length, code, want, &stdout, &stderr)
		}
	}
}
