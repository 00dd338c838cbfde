package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/e2e"
)

func TestMain(m *testing.M) {
	redis.SetLogger(e2e.Silence{}) // as main does
	goleak.VerifyTestMain(m)
}

func TestCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"", exitUsage, "", usage},
		{"help", exitOK, usage, ""},
		{"-h", exitOK, usage, ""},
		{"proof", exitUsage, "", "headway: there is no command \"proof\"\n\n" + usage},
	} {
		var stdout, stderr bytes.Buffer
		code := command(t.Context(), strings.Fields(tt.args), env{stdout: &stdout, stderr: &stderr})
		if code != tt.code || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
			t.Errorf("headway %s: code %d, stdout %q, stderr %q", tt.args, code, stdout.String(), stderr.String())
		}
	}
}
