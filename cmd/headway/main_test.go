package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/e2e"
)

func TestMain(m *testing.M) {
	redis.SetLogger(e2e.Silence{}) // as main does
	testscript.Main(withoutLeaks{m}, map[string]func(){"headway": main})
}

// withoutLeaks fails when goroutines are left after all tests.
type withoutLeaks struct{ *testing.M }

func (m withoutLeaks) Run() int {
	code := m.M.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"help", exitOK, "what waits, why, until when", ""},
		{"-h", exitOK, "  prove ", ""},
		{"prove -h", exitOK, "headway prove sends at most", ""},
		{"proof", exitUsage, "", `unknown command "proof"`},
	} {
		var stdout, stderr bytes.Buffer
		code := command(t.Context(), strings.Fields(tt.args), env{stdout: &stdout, stderr: &stderr})
		if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("headway %s: code %d, stdout %q, stderr %q", tt.args, code, stdout.String(), stderr.String())
		}
	}
}
