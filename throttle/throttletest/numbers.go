package throttletest

import (
	"time"

	"github.com/headwayq/headway/throttle"
)

// step is one line of a script: a try, a refund, or a look.
type step struct {
	at     time.Duration
	cost   int
	wait   time.Duration // 0: granted
	refund int           // instead: of the step with this number, from 1
	free   int           // instead, when cost and refund are 0
}

// numberCases are scripts with worked numbers of every kind of limit.
func numberCases() []scenario {
	const s = time.Second
	script := func(name string, limit throttle.Limit, steps ...step) scenario {
		return scenario{name: "numbers/" + name, limit: limit, moves: true, play: func(st *testbed) { follow(st, steps) }}
	}
	return append([]scenario{
		script("sliding", throttle.Sliding(3, 10*s),
			step{at: 0, cost: 2}, step{at: s, cost: 1}, step{at: 2 * s, free: 0}, step{at: 2 * s, cost: 2, wait: 8 * s},
			step{at: 2 * s, cost: 3, wait: 9 * s}, step{at: 2 * s, refund: 2}, step{at: 2 * s, free: 1}, step{at: 2 * s, cost: 1},
			step{at: 10 * s, cost: 3, wait: 2 * s}, step{at: 10 * s, cost: 2}, step{at: 12 * s, free: 1}),
		script("fixed", throttle.Fixed(2, 10*s),
			step{at: 3 * s, cost: 1}, step{at: 8 * s, cost: 1}, step{at: 9 * s, cost: 1, wait: 4 * s}, step{at: 9 * s, refund: 2},
			step{at: 9 * s, free: 1}, step{at: 9 * s, cost: 2, wait: 4 * s}, step{at: 13 * s, free: 2}, step{at: 17 * s, cost: 2},
			step{at: 26 * s, cost: 1, wait: s}, step{at: 27 * s, cost: 1}),
		script("bucket", throttle.Bucket(10, s, 3),
			step{at: 0, cost: 3}, step{at: 99 * ms, cost: 1, wait: ms}, step{at: 99 * ms, cost: 3, wait: 201 * ms},
			step{at: 250 * ms, free: 2}, step{at: 250 * ms, cost: 2}, step{at: 250 * ms, cost: 1, wait: 50 * ms}, step{at: 10 * s, free: 3}),
		script("stepped bucket", throttle.SteppedBucket(2, 10*s, 3),
			step{at: 4 * s, cost: 3}, step{at: 5 * s, cost: 1, wait: 9 * s}, step{at: 5 * s, cost: 3, wait: 19 * s}, step{at: 14*s - us, free: 0},
			step{at: 14 * s, free: 2}, step{at: 23 * s, cost: 2}, step{at: 24 * s, cost: 2}, step{at: 24 * s, cost: 3, wait: 20 * s},
			step{at: 100 * s, free: 3}),
		script("gcra", throttle.GCRA(3, s, 1), // thirds of a second do not add up to an error
			step{at: 0, cost: 1}, step{at: 0, cost: 1, wait: 333_334 * us}, step{at: 333_334 * us, cost: 1},
			step{at: 666_668 * us, cost: 1}, step{at: 666_668 * us, cost: 1, wait: 333_334 * us}, step{at: 999_999 * us, cost: 1, wait: 3 * us}),
		script("leaky", throttle.Leaky(2, s),
			step{at: 0, cost: 5}, step{at: 0, cost: 1, wait: 2500 * ms}, step{at: 2499 * ms, cost: 3, wait: ms}, step{at: 2500 * ms, cost: 3},
			step{at: 3 * s, cost: 1, wait: s}, step{at: 10 * s, free: 1}),
		script("smooth", throttle.Smooth(5, s, 5),
			step{at: 0, cost: 1}, step{at: 0, cost: 1, wait: 200 * ms}, step{at: 1200 * ms, free: 5}, step{at: 2 * s, cost: 1},
			step{at: 2 * s, cost: 1}, step{at: 2 * s, cost: 3}, step{at: 2 * s, cost: 1}, step{at: 2 * s, cost: 1, wait: 200 * ms}),
		script("warmup", throttle.WarmUp(2, s, 4*s, 3),
			step{at: 0, cost: 1}, step{at: 0, cost: 1, wait: 1375 * ms}, step{at: 1375 * ms, cost: 1}, step{at: 1375 * ms, cost: 1, wait: 1125 * ms},
			step{at: 2500 * ms, cost: 1}, step{at: 2500 * ms, cost: 1, wait: 875 * ms}, step{at: 3 * s, free: 0}),
		{name: "numbers/calendar", limit: throttle.Calendar(2, throttle.Minute, "UTC"), moves: true, play: func(st *testbed) {
			st.startAt(time.Minute)
			follow(st, []step{
				{at: 59 * s, cost: 2}, {at: 59 * s, cost: 1, wait: s}, {at: 60 * s, cost: 1}, {at: 61 * s, cost: 2, wait: 59 * s},
				{at: 61 * s, refund: 3}, {at: 61 * s, free: 2}, {at: 100 * s, cost: 2}, {at: 120*s - us, free: 0}, {at: 120 * s, free: 2},
			})
		}},
	}, backwardCases()...)
}

// backwardCases: time that goes backward credits nothing.
func backwardCases() []scenario {
	return []scenario{{name: "numbers/clock goes back", limit: throttle.Sliding(2, time.Minute), moves: true, back: true, play: func(st *testbed) {
		follow(st, []step{
			{at: time.Minute, cost: 1}, {at: 30 * time.Second, free: 0}, {at: 30 * time.Second, cost: 1, wait: 30 * time.Second},
			{at: 0, cost: 2, wait: 2 * time.Minute}, {at: time.Minute, cost: 1}, {at: time.Minute, cost: 1, wait: time.Minute},
		})
	}}}
}

// follow plays a script.
func follow(s *testbed, steps []step) {
	s.Helper()
	granted := make([]throttle.Decision, len(steps))
	for i, step := range steps {
		s.at(step.at)
		switch {
		case step.refund > 0:
			s.refund(granted[step.refund-1].Request)
		case step.cost > 0:
			granted[i] = s.try(step.cost, step.wait)
		default:
			s.free(step.free)
		}
	}
}
