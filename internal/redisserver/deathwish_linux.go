package redisserver

import "syscall"

// dieWithParent makes the kernel kill the server when the test process ends
// without cleaning up: a panic, a time-out of go test, an interrupt.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
