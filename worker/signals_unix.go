//go:build unix

package worker

import (
	"os"
	"syscall"
)

// stopSignal lets a pool fetch no more tasks, as it does an asynq.Server.
var stopSignal os.Signal = syscall.SIGTSTP
