package mailtest

import (
	"fmt"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle/gate"
)

// ProgressText is a batch in a line.
func ProgressText(p batch.Progress, c Clock, hours gate.Gate) string {
	end := "end not known yet"
	if !p.ExpectedEnd.IsZero() {
		end = "end about " + c.ShowFrom(p.Now, p.ExpectedEnd)
	}
	if p.State == batch.Ended {
		end = "ended at " + c.ShowFrom(p.Now, p.Ended)
	}
	state := string(p.State)
	if len(hours.Openings(p.Now, p.Now.Add(time.Nanosecond), c.Zone)) == 0 && p.State == batch.Running {
		state += ", gate shut"
	}
	if !p.Fed && p.State == batch.Running {
		state += ", nobody feeds it"
	}
	bar := e2e.Bar(int(p.Done+p.Failed+p.Refused), int(p.Total))
	return fmt.Sprintf("%ssent %d of %d, %d open, %.1f/s, %s, %s", bar, p.Done, p.Total, p.Open, p.Rate, end, state)
}
