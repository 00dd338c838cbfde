package luascripts
import ("testing";"os")
func TestZZText(t *testing.T){ os.WriteFile("/tmp/w/acq.txt",[]byte(acquireText()),0o644) }
