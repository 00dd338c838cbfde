package worker

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// A pool that was given no logger tells warnings to stderr, and one that was given
// zap.NewNop tells nobody.
func TestWithoutALoggerAPoolWarnsOnStderr(t *testing.T) { //nolint:paralleltest // it replaces os.Stderr
	file, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = before }()
	Config{}.fill().Logger.Warn("another pool has other numbers")
	Config{Logger: zap.NewNop()}.fill().Logger.Error("silenced")
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if got := string(text); err != nil || !strings.Contains(got, `"level":"warn"`) || !strings.Contains(got, "other numbers") || strings.Contains(got, "silenced") {
		t.Errorf("stderr = %q, %v, want the warning alone", got, err)
	}
}
