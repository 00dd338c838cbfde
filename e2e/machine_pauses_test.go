//go:build accept

package e2e

import (
	"fmt"
	"time"
)

// machine watches how long a goroutine that sleeps a millisecond really sleeps.
// What it sees happens to worker processes and to Redis too: figures of
// lateness and shares mean little when others use the machine.
type machine struct {
	stop, over chan struct{}
	stalls     int
	sum, most  time.Duration
}

// stallLeast is what counts as standing still.
const stallLeast = 10 * time.Millisecond

func watchMachine() *machine {
	m := &machine{stop: make(chan struct{}), over: make(chan struct{})}
	go func() {
		defer close(m.over)
		for {
			select {
			case <-m.stop:
				return
			default:
			}
			before := time.Now()
			time.Sleep(time.Millisecond)
			if stall := time.Since(before) - time.Millisecond; stall >= stallLeast {
				m.stalls++
				m.sum += stall
				m.most = max(m.most, stall)
			}
		}
	}()
	return m
}

// end stops watching and says what was seen.
func (m *machine) end() string {
	close(m.stop)
	<-m.over
	return fmt.Sprintf("%d times, %v in all, at most %v", m.stalls, m.sum.Round(time.Millisecond), m.most.Round(time.Millisecond))
}
