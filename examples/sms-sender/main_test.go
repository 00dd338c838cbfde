package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(e2e.Silence{}) // as main does
	goleak.VerifyTestMain(m)
}

// result is what a run left.
type result struct {
	code           int
	stdout, stderr string
	report         e2e.Report // with -report
}

// personal matches what nobody may see: a phone of the sample or of csvOf, or a text.
var personal = regexp.MustCompile(`1202555\d|4477009\d|6149157\d|3319900\d|4670174\d|(?i)your (code|parcel)|hello`)

// runProgram runs the program until it ends. Nothing that it writes may show a phone
// number or a text.
func runProgram(ctx context.Context, t *testing.T, e env, input string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	e.stdin, e.stdout, e.stderr = strings.NewReader(input), &stdout, &stderr
	file := filepath.Join(t.TempDir(), "report")
	if !strings.Contains(strings.Join(args, " "), "-role enqueue") {
		args = append(args, "-report", file)
	}
	r := result{code: run(ctx, args, e), stdout: stdout.String(), stderr: stderr.String()}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r.report)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	if found := personal.FindString(r.stdout + r.stderr + string(text)); found != "" {
		t.Errorf("the output shows %q:\n%s%s%s", found, r.stdout, r.stderr, text)
	}
	return r
}

func (r result) want(t *testing.T, code int, stderr ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d; stdout:\n%sstderr:\n%s", r.code, code, r.stdout, r.stderr)
	}
	for _, want := range stderr {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr has no %q:\n%s", want, r.stderr)
		}
	}
}

// csvOf returns an input with n messages, shared out over phones.
func csvOf(n, phones int) string {
	var b strings.Builder
	b.WriteString("to,text\n")
	for i := range n {
		fmt.Fprintf(&b, "+1202555%04d,hello %d\n", i%phones, i)
	}
	return b.String()
}

// urlOf leads to the database of a test.
func urlOf(srv *redistest.Server) string {
	return fmt.Sprintf("redis://%s/%d", srv.Addr(), srv.ClientOptions().DB)
}
