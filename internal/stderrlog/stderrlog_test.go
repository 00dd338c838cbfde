package stderrlog_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/stderrlog"
)

// written is what f writes to stderr.
func written(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = before }()
	f()
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWithoutALoggerWarningsGoToStderr(t *testing.T) {
	got := written(t, func() {
		log := stderrlog.Or(nil)
		log.Info("nobody asked")
		log.With(zap.String("component", "a")).Warn("look here", zap.Int("n", 1))
	})
	var line struct {
		Level, Msg, Component string
		N                     int
	}
	if err := json.Unmarshal([]byte(got), &line); err != nil || line.Level != "warn" || line.Msg != "look here" || line.Component != "a" || line.N != 1 {
		t.Errorf("stderr = %q (%v), want the one line of the warning", got, err)
	}
}

// People read these lines: an error has no stack trace, and its time is a date.
func TestLinesAreForPeople(t *testing.T) {
	got := written(t, func() { stderrlog.Or(nil).Error("Redis is away") })
	var line struct{ TS, Stacktrace string }
	if err := json.Unmarshal([]byte(got), &line); err != nil || line.Stacktrace != "" {
		t.Errorf("stderr = %q (%v), want no stack trace", got, err)
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000Z0700", line.TS); err != nil {
		t.Errorf("the time is %q, want ISO 8601: %v", line.TS, err)
	}
}

func TestAGivenLoggerIsKept(t *testing.T) {
	got := written(t, func() { stderrlog.Or(zap.NewNop()).Error("silenced") })
	if got != "" {
		t.Errorf("stderr = %q, want nothing", got)
	}
}

// No package silences what nobody asked it to silence.
func TestNobodyDefaultsToSilence(t *testing.T) {
	const root = "../.."
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "examples" || d.Name() == "bench" || d.Name() == "asynqwire" || // that always gets one
			strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for n, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			if strings.Contains(code, "zap.NewNop()") {
				t.Errorf("%s:%d silences what nobody asked it to silence, want stderrlog.Or", name, n+1)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
