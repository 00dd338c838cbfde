package redisserver

import "syscall"

// dieWithParent makes the kernel kill the server when the process that started it ends without
// cleaning up: a panic, a time-out of go test. A Ctrl-C at the terminal reaches that process
// alone, which ends its servers when it is done with them.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
