//go:build !linux

package main

import "time"

// alarm waits by Go's timers, which may come a millisecond late.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) close() {}

// wait returns after d.
func (*alarm) wait(d time.Duration) error {
	time.Sleep(d)
	return nil
}
