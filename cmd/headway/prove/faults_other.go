//go:build !unix

package prove

import (
	"context"
	"fmt"
)

// Worker says that this is no worker process.
func Worker() (code int, is bool) { return 0, false }

// runFaults needs signals that only a Unix has.
func runFaults(_ context.Context, _ []string, e env) int {
	_, _ = fmt.Fprintln(e.stderr, "headway prove: faults need a Unix: processes are stopped and killed by its signals")
	return exitUsage
}
