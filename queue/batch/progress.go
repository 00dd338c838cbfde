package batch

import (
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// Progress is how far a batch is.
type Progress struct {
	Spec  // with the Window, Weight and Pace in force
	State State

	Read     int64 // elements that were enqueued or refused
	Enqueued int64
	Open     int64 // enqueued, and not ended: they wait or run
	Done     int64
	Failed   int64 // archived by asynq: all their attempts failed
	Refused  int64 // never enqueued: they could never run, or their ids were taken
	Dropped  int64 // taken out because the batch was cancelled

	Rate        float64   // ended per second, over the last 10 to 20 s
	ExpectedEnd time.Time // at that rate; zero when that is not known
	Fed         bool      // a feeder has it
	Started     time.Time
	Ended       time.Time // zero until then
	Now         time.Time // Redis' clock
}

// progressOf reads a record.
func progressOf(queue string, v luascripts.BatchView) Progress {
	p := Progress{
		Spec: specOf(queue, v.Batch), State: State(v.State),
		Read: v.Enqueued + v.Refused, Enqueued: v.Enqueued, Open: int64(v.Open), Done: v.Done, Failed: v.Failed, Refused: v.Refused, Dropped: v.Dropped,
		Fed: fed(v), Started: v.Started, Ended: v.Ended, Now: v.Now,
	}
	if p.State == Ended {
		return p
	}
	p.Rate = v.Rate(v.Now)
	left := p.Open
	if !v.End {
		left = max(left, p.Total-p.Done-p.Failed-p.Dropped-p.Refused)
	}
	if p.State == Running && p.Total > 0 && p.Rate > 0 {
		const most = 10 * 365 * 24 * 3600 // seconds: further than that nothing is expected
		if seconds := float64(left) / p.Rate; seconds < most {
			p.ExpectedEnd = v.Now.Add(time.Duration(seconds * float64(time.Second)))
		}
	}
	return p
}

func specOf(queue string, b luascripts.Batch) Spec {
	return Spec{
		ID: b.ID, Name: b.Name, Queue: queue, Type: b.Type, Source: b.Source, Args: b.Args, Total: b.Total,
		Window: b.Window, Weight: b.Weight, Pace: Pace{N: b.PaceN, Per: b.PacePer},
	}
}
