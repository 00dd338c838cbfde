package schedule

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/internal/schedulescripts"
	"github.com/headwayq/headway/queue/internal/backend"
)

// scheduleWorld is a Redis whose clock is moved by hand, replicas of a schedule
// with clocks of their own, and the workers of its tasks.
type scheduleWorld struct {
	*testing.T
	rng      *rand.Rand
	raw      redis.UniversalClient
	timed    redistest.Timed
	entry    Entry
	now      time.Time
	replicas [3]*replica
	tasks    []*worldTask // not ended
	ids      map[string]bool
	model    *scheduleModel
	got      []decision
	lives    []life
}

// worldTask is a task on its way: pending until begins, active until ends.
type worldTask struct {
	id           string
	begins, ends time.Time
	running      bool
}

func newScheduleWorld(t *testing.T, seed uint64, entry Entry) *scheduleWorld {
	t.Helper()
	w := &scheduleWorld{T: t, rng: rand.New(rand.NewPCG(seed, 6)), entry: entry, ids: make(map[string]bool)} // #nosec G404
	w.raw = redistest.Client(t)
	timed := redistest.NewTimed(w.raw, time.Unix(0, 0))
	w.timed = timed
	ready, faults := entry.ready(backend.Of(newClient(t, w.raw)))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	w.model = &scheduleModel{entry: ready.Entry, took: func(tick time.Time) time.Duration {
		pends, runs, _ := w.life(tick)
		return pends + runs
	}}
	for i := range w.replicas {
		w.replicas[i] = &replica{
			world: w, skew: time.Duration(w.rng.IntN(16)-8) * time.Second,
			drift: time.Duration(w.rng.IntN(100)-50) * time.Microsecond,
		}
	}
	return w
}

// life is how long the task of a tick is pending and active, and its last state.
func (w *scheduleWorld) life(tick time.Time) (pends, runs time.Duration, last string) {
	h := fnv.New64a()
	fmt.Fprint(h, tick.Unix())
	rng := rand.New(rand.NewPCG(h.Sum64(), 7)) // #nosec G404
	odd := time.Duration(rng.IntN(1e6)) * time.Microsecond
	return time.Duration(rng.IntN(20)) * time.Second, time.Duration(rng.IntN(40))*time.Second + odd,
		[]string{"archived", "completed", "gone", "gone"}[rng.IntN(4)]
}

// decided notes what the script did, whoever hears of it.
func (w *scheduleWorld) decided(tick time.Time, code int64) {
	outcome := outcomes[code]
	if outcome == "" || outcome == OutcomeHeld && len(w.got) > 0 && slices.ContainsFunc(w.got, func(d decision) bool {
		return d.tick.Equal(tick) && d.outcome == OutcomeHeld
	}) {
		return // it is still held
	}
	w.got = append(w.got, decision{tick, outcome, w.now})
	if outcome != OutcomeEnqueued {
		return
	}
	id := tickID(w.entry.Name, tick)
	if w.ids[id] {
		w.Errorf("%v: %s is enqueued again", w.now, id)
	}
	w.ids[id] = true
	pends, runs, _ := w.life(tick)
	w.tasks = append(w.tasks, &worldTask{id: id, begins: w.now.Add(pends), ends: w.now.Add(pends + runs)})
}

// start starts a replica.
func (w *scheduleWorld) start(r *replica) {
	client := newClient(w.T, replicaRedis{w.raw, r})
	s, err := New(client, Config{}, w.entry)
	if err != nil {
		w.Fatal(err)
	}
	s.now, s.held = r.clock, 4*time.Second // or it would be most of what happens
	r.ticker = &ticker{schedule: s, scheduled: s.all[0]}
	r.wake, r.since = w.now, w.now
}

// kill ends a replica.
func (w *scheduleWorld) kill(r *replica) {
	r.ticker = nil
	w.lives = append(w.lives, life{r.since, w.now})
}

// pass lets a replica do what is due; now and then it is killed on the way.
func (w *scheduleWorld) pass(r *replica, killed bool) {
	r.calls, r.lost, r.tried = 1<<30, false, 0
	if killed {
		r.calls, r.lost = w.rng.IntN(4), w.rng.IntN(2) == 0
	}
	budget := r.calls
	before := len(w.got)
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	wait := r.ticker.pass(ctx)
	switch {
	case killed && r.calls == 0:
		if budget > 0 {
			w.model.look(w.now, r.tried)
		}
		w.kill(r)
	default:
		n := 1 << 30
		if wait < 5*time.Millisecond {
			n = r.tried // by its clock it is a little early for the next, and it comes back
		}
		w.model.look(w.now, n)
		r.wake = w.now.Add(wait - wait*r.drift/(time.Second+r.drift) + 2*time.Microsecond)
	}
	w.compare(before)
}

// compare holds what the script did since some decision against the model.
func (w *scheduleWorld) compare(before int) {
	w.Helper()
	want := w.model.decided
	if len(w.got) < len(want) || len(w.got) > len(want) {
		w.Fatalf("%v: decided %v, want %v", w.now, w.got[min(before, len(w.got)):], want[min(before, len(want)):])
	}
	for i := before; i < len(want); i++ {
		if !w.got[i].tick.Equal(want[i].tick) || w.got[i].outcome != want[i].outcome {
			w.Fatalf("%v: decided %v, want %v", w.now, w.got[i], want[i])
		}
	}
}

// kept holds what is kept of the last ticks against all that the script did.
func (w *scheduleWorld) kept() {
	w.Helper()
	records, err := schedulescripts.ReadTicks(w.Context(), w.raw, backend.Of(newClient(w.T, w.raw)).Keys(w.entry.Queue), []string{w.entry.Name})
	if err != nil {
		w.Fatal(err)
	}
	outcome := make(map[int64]Outcome) // the last of each tick
	var ticks []int64                  // in the order in which they were decided first
	for _, d := range w.got {
		if _, known := outcome[d.tick.Unix()]; !known {
			ticks = append(ticks, d.tick.Unix())
		}
		outcome[d.tick.Unix()] = d.outcome
	}
	got := records[0].Ticks
	if len(got) != min(len(ticks), 10) {
		w.Fatalf("%d of %d ticks are kept, want 10", len(got), len(ticks))
	}
	for i, d := range got {
		if at := ticks[len(ticks)-1-i]; d.At.Unix() != at || outcomes[d.Code] != outcome[at] {
			w.Errorf("of the last ticks %v is kept as %q, want %v as %q", d.At, outcomes[d.Code], time.Unix(at, 0), outcome[at])
		}
	}
}

// work moves tasks to their next state.
func (w *scheduleWorld) work() {
	var rest []*worldTask
	for _, task := range w.tasks {
		key := "asynq:{" + w.entry.Queue + "}:t:" + task.id
		if !task.running && !w.now.Before(task.begins) {
			task.running = true
			if n := w.raw.LRem(w.Context(), "asynq:{"+w.entry.Queue+"}:pending", 0, task.id).Val(); n != 1 {
				w.Errorf("%v: %s is %d times pending, want once", w.now, task.id, n)
			}
			w.raw.HSet(w.Context(), key, "state", "active")
		}
		if w.now.Before(task.ends) {
			rest = append(rest, task)
			continue
		}
		_, tick, _ := ParseTaskID(task.id)
		if _, _, last := w.life(tick); last == "gone" {
			w.raw.Del(w.Context(), key)
		} else {
			w.raw.HSet(w.Context(), key, "state", last)
		}
	}
	w.tasks = rest
}

// run lets time pass until an instant, from event to event.
func (w *scheduleWorld) run(from, until time.Time) {
	w.now = from
	for _, r := range w.replicas {
		r.ticker, r.change = nil, from.Add(w.span(time.Minute))
	}
	for {
		next := until
		consider := func(at time.Time) {
			if at.Before(next) {
				next = at
			}
		}
		for _, task := range w.tasks {
			if !task.running {
				consider(task.begins)
			}
			consider(task.ends)
		}
		for _, r := range w.replicas {
			consider(r.change)
			if r.ticker != nil {
				consider(r.wake)
			}
		}
		if next.Before(w.now) {
			next = w.now // what was to happen while all were away
		}
		w.now = next
		if !next.Before(until) {
			for _, r := range w.replicas {
				if r.ticker != nil {
					w.kill(r)
				}
			}
			w.kept()
			return
		}
		w.timed.SetTime(next)
		w.work()
		for _, i := range w.rng.Perm(len(w.replicas)) {
			w.step(w.replicas[i])
		}
	}
}

// step does what is to happen to a replica now.
func (w *scheduleWorld) step(r *replica) {
	if !w.now.Before(r.change) {
		if r.ticker == nil {
			w.start(r)
			r.change = w.now.Add(w.span(6 * time.Minute))
		} else if w.rng.IntN(2) == 0 { // between two calls, or within its next pass
			w.kill(r)
			r.change = w.now.Add(w.span(4 * time.Minute))
		} else {
			r.change = w.now.Add(w.span(4 * time.Minute))
			w.pass(r, true)
		}
	}
	if r.ticker != nil && !w.now.Before(r.wake) {
		w.pass(r, w.rng.IntN(40) == 0)
		if r.ticker == nil {
			r.change = w.now.Add(w.span(time.Minute))
		}
	}
}

func (w *scheduleWorld) span(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most/time.Microsecond))) * time.Microsecond
}
