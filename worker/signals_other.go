//go:build !unix

package worker

import "os"

// stopSignal would let a pool fetch no more tasks. This system has no such signal.
var stopSignal os.Signal
