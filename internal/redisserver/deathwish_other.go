//go:build !linux

package redisserver

import "syscall"

// dieWithParent: only Linux ties a child to its parent. Elsewhere a process that is killed
// leaves its servers behind. Ctrl-C reaches that process alone, as on Linux.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
