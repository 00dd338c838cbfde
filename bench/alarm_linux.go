package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm waits by a timer of the kernel. It is not safe for concurrent use.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "alarm")}, nil
}

func (a *alarm) close() { _ = a.file.Close() }

// wait returns after d.
func (a *alarm) wait(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(a.fd, 0, &at, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var times [8]byte
	_, err := a.file.Read(times[:])
	return err
}
