//go:build !linux

package redisserver

import "syscall"

// dieWithParent: only Linux ties a child to its parent. Elsewhere a test
// process that is killed leaves its servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
