//go:build !unix

package worker

import "os"

// stopSignal is the signal that lets a pool fetch no more tasks: there is none here.
var stopSignal os.Signal
