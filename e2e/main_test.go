package e2e

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the test binary two programs: with [workerEnv] set it is a
// worker process of the end-to-end tests, which can be killed and frozen as a
// process; otherwise it runs the tests.
func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		os.Exit(runWorker(text))
	}
	goleak.VerifyTestMain(m)
}
