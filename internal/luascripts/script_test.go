package luascripts

import (
	"testing"
	"time"
)

func TestMicrosRoundUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, 1000: 1, 1001: 2, time.Second: 1e6, -1: 0, -1500: -1} {
		if got := Micros(d); got != want {
			t.Errorf("Micros(%d) = %d, want %d", d, got, want)
		}
	}
}
