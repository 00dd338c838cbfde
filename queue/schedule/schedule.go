package schedule

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/filewatch"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/stderrlog"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
)

// Schedule enqueues a task at each tick of its entries' cron specs, exactly once
// over all processes that run the same entries. A tick is a pair of entry and instant.
// One script in Redis decides each tick and enqueues its task. There is no
// leader. Whether a tick is due is decided by Redis' clock; a process waits for
// it by its own, which may be wrong by any amount.
//
// Nothing older blocks a tick: its task has an id of its own, so it may be
// enqueued while the task of an earlier tick runs, or is archived or kept as
// completed. See [Overlap] for the other choices, and [Missed] for ticks at which
// no process was there, or Redis was not. While Redis is away each entry tries
// again after 1 s, 2 s, 4 s and at most 15 s.
//
// An entry is known by its name and its queue:
//
//   - A new one begins with its first tick after a process has first asked for it.
//   - When its spec changes, the ticks of the new one count from then on. While
//     processes with both run, each instant of either ticks once; a late one is passed
//     over when a later one of the other spec came before it.
//   - One that no process has any more stops. When it comes back it goes on as if
//     all processes had been down: ticks in between were missed. A month after its
//     last tick it is new again.
//   - In another queue it is another entry: while processes with both run, a tick
//     is done in each.
//
// A Schedule is safe for concurrent use. The zero Schedule is not usable.
type Schedule struct {
	client backend.Client
	cfg    Config
	log    *zap.Logger
	now    func() time.Time
	held   time.Duration // heldLook

	reach    sync.Mutex
	away     bool      // Redis is: it is logged once
	answered time.Time // when it answered last

	changed chan struct{} // holds one when Run has not seen the entries in force
	running atomic.Bool

	mu   sync.Mutex
	code []Entry
	file scheduleFile
	all  []*scheduled // in force, in the order of their names
}

// Config are the options of a [Schedule]; the zero value is ready to use.
type Config struct {
	// File is the path of a YAML file with more entries, see docs/schedules.md. It
	// must be there and right when the Schedule is made. While that runs it looks
	// every second whether the file has changed; one with faults changes nothing,
	// and they are logged. Defaults to none.
	File string

	// TaskFuncs are the functions that the file names: "task: func campaign" is
	// TaskFuncs["campaign"].
	TaskFuncs map[string]TaskFunc

	// Logger takes a line when Redis is away or back, when the file was read, and
	// when a tick was given up. Defaults to zap's production lines on stderr, warnings
	// and errors only; zap.NewNop() silences them.
	Logger *zap.Logger

	// TickFunc hears each tick that this process decided, after Redis has it; it
	// does not hear of one whose answer was lost. It must not block, and be safe
	// for concurrent use. Defaults to none.
	TickFunc func(Tick)
}

// Tick is what became of a tick.
type Tick struct {
	Entry   string
	At      time.Time // in the zone of the spec
	TaskID  string    // of the task, see [ParseTaskID]
	Outcome Outcome
}

// Outcome says what became of a tick.
type Outcome string

// The outcomes.
const (
	OutcomeEnqueued Outcome = "enqueued"
	OutcomeSkipped  Outcome = "skipped"  // the task of an earlier tick is unfinished
	OutcomeHeld     Outcome = "held"     // until that is finished
	OutcomeGivenUp  Outcome = "given up" // there is no task, or one that could never run
)

// New returns a schedule of entries, to which those of cfg.File are
// added. It enqueues through client, by whose policies its tasks are checked.
// The error has all that is wrong with the entries, joined: each fault is an
// [*EntryError], or a [*FileError] in the file. New does not ask Redis. It
// panics when client is nil.
func New(client *queue.Client, cfg Config, entries ...Entry) (*Schedule, error) {
	if client == nil {
		panic("schedule: nil client")
	}
	cfg.Logger = stderrlog.Or(cfg.Logger)
	s := &Schedule{
		client: backend.Of(client), cfg: cfg, now: time.Now, held: heldLook,
		log:     cfg.Logger.With(zap.String("component", "schedule")),
		changed: make(chan struct{}, 1),
	}
	if cfg.File != "" {
		s.file = readScheduleFile(cfg.File, cfg.TaskFuncs, s.client)
	}
	if err := s.set(entries, s.file); err != nil {
		return nil, err
	}
	return s, nil
}

// Set replaces the entries that are in code; those of the file stay. An error has
// all that is wrong, as from [New], and nothing is changed then.
func (s *Schedule) Set(entries ...Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(entries, s.file)
}

// Reload reads the file again. An error has all that is wrong with it, and
// nothing is changed then. Without a file it does nothing.
func (s *Schedule) Reload() error {
	if s.cfg.File == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set(s.code, readScheduleFile(s.cfg.File, s.cfg.TaskFuncs, s.client))
}

// set puts entries in force unless one has a fault.
func (s *Schedule) set(code []Entry, file scheduleFile) error {
	all, err := file.join(code, s.client)
	if err != nil {
		return err
	}
	s.code, s.file, s.all = slices.Clone(code), file, all
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return nil
}

// Next returns the next tick of each entry in force, in the order of their names,
// by this machine's clock; what becomes of it is not known yet. It does not ask
// Redis.
func (s *Schedule) Next() []Tick {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Tick
	for _, e := range s.all {
		at := e.cron.Next(now)
		out = append(out, Tick{Entry: e.Name, At: at, TaskID: e.taskID(at)})
	}
	return out
}

// entriesMax bounds how many entries a process says that it has.
const entriesMax = 500

// entries are what an operator is told of the entries in force.
func (s *Schedule) entries() []presence.Entry {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	said := make([]presence.Entry, 0, min(len(s.all), entriesMax))
	for _, e := range s.all[:min(len(s.all), entriesMax)] {
		entry := presence.Entry{Name: e.Name, Queue: e.Queue, Spec: e.cron.String(), Next: e.cron.Next(now)}
		if e.Task != nil {
			entry.Type = e.Task.Type()
		}
		said = append(said, entry)
	}
	return said
}

// Run does what the entries say until ctx ends, and returns nil then. It panics
// when it is called while it runs.
func (s *Schedule) Run(ctx context.Context) error {
	if s.running.Swap(true) {
		panic("schedule: Schedule.Run is called while it runs")
	}
	defer s.running.Store(false)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	watcher.Go(func() {
		presence.Run(ctx, s.client.Redis(), s.client.Prefix(), presence.New(presence.Scheduler), func(p *presence.Process) { p.Entries = s.entries() })
	})
	if s.cfg.File != "" {
		watcher.Go(func() { s.watch(ctx) })
	}
	for ctx.Err() == nil {
		s.follow(ctx)
	}
	return nil
}

// follow runs the entries in force until they change.
func (s *Schedule) follow(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var tickers sync.WaitGroup
	defer tickers.Wait()
	defer stop()
	select {
	case <-s.changed: // those that we are about to run
	default:
	}
	s.mu.Lock()
	for _, e := range s.all {
		t := &ticker{schedule: s, scheduled: e}
		tickers.Go(func() { t.run(ctx) })
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-s.changed:
	}
}

// watch reads the file again when it has changed.
func (s *Schedule) watch(ctx context.Context) {
	s.mu.Lock()
	read := s.file.stamps
	s.mu.Unlock()
	filewatch.Run(ctx, filewatch.Poll, read, func() {
		if err := s.Reload(); err != nil {
			s.log.Error("the schedule's file is wrong: its entries stay as they were", zap.Error(err))
			return
		}
		s.log.Info("the schedule's file was read")
	}, s.cfg.File)
}

// reached notes whether Redis answers one who began to ask then, and logs when that
// changes. A failure from before the last answer, to another entry, is no news.
func (s *Schedule) reached(began time.Time, err error) {
	s.reach.Lock()
	defer s.reach.Unlock()
	away := err != nil
	if away && !began.After(s.answered) {
		return
	}
	if !away {
		s.answered = later(s.answered, s.now())
	}
	if away == s.away {
		return
	}
	if s.away = away; away {
		s.log.Warn("the schedule can't reach Redis", zap.Error(err))
		return
	}
	s.log.Info("the schedule reaches Redis again")
}
