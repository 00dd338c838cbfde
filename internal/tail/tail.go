// Package tail shows what pools decide to a reader, as it happens. A reader is a "headway tail".
//
// Most of the time there is no reader, and then it costs Redis nothing: a pool only listens to one
// channel more, in the subscription that it has anyway. A reader publishes an [Ask] on that
// channel every 2 s, and pools publish lines on a channel of that reader. They stop 5 s
// after the last Ask. No key is written, so nothing can be left over, and on Redis Cluster
// Pub/Sub reaches every node.
//
// All of it is bounded: a process serves 4 readers, tells each of them at most 100 lines a
// second, and keeps 256 lines for a Redis that is slow. A fifth reader is told that there is no
// room for it. A line that finds no room is counted and not told. A worker never waits for any
// of it.
package tail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/event"
)

// Bounds of what one process tells.
const (
	RateMax    = 100 // lines a second to each reader
	ViewersMax = 4   // readers at the same time; others are told that there is no room
	room       = 256 // lines that wait for Redis
	askBytes   = 4096
)

const (
	askEvery = 2 * time.Second
	askFor   = 5 * time.Second // how long an Ask counts
	callMost = time.Second
)

// askChannel is where pools listen.
func askChannel(prefix string) string { return prefix + ":tail" }

func viewerChannel(prefix, viewer string) string { return askChannel(prefix) + ":" + viewer }

// Ask says that there is a reader, and what it wants to see.
type Ask struct {
	Viewer string `json:"viewer"`          // 16 hex digits, random
	Rate   int    `json:"rate"`            // lines a second from each process, up to [RateMax]; 0 for no more
	Queue  string `json:"queue,omitempty"` // only of this one
	Rule   string `json:"rule,omitempty"`
}

var viewerName = regexp.MustCompile(`^[0-9a-f]{16}$`)

// Line is one decision. It holds no key and no payload.
type Line struct {
	At      time.Time     `json:"at"` // by the clock of the process
	Process string        `json:"process"`
	Queue   string        `json:"queue,omitempty"`
	Type    string        `json:"type,omitempty"` // empty where only the id is known
	Task    string        `json:"task,omitempty"`
	Outcome string        `json:"outcome"`
	Rules   []string      `json:"rules,omitempty"`   // all that granted, or the one that holds the task
	Reason  string        `json:"reason,omitempty"`  // why it was deferred or refused, or how it was granted without permits
	Until   time.Time     `json:"until,omitzero"`    // its instant
	Wait    time.Duration `json:"wait_ns,omitempty"` // until then
	Late    time.Duration `json:"late_ns,omitempty"` // how long after its instant its handler started
	// Skipped is how many decisions of this process that were asked for were not told since
	// its last line.
	Skipped int `json:"not_shown,omitempty"`
}

// The outcomes of a [Line].
const (
	Granted   = "granted"
	Refused   = "refused"
	Deferred  = "deferred"
	Moved     = "moved"
	Postponed = "postponed"
	LeaseLost = "lease lost"

	// Full is no decision: the process has [ViewersMax] readers, and shows nothing to this one.
	Full = "full"
)

// viewer is a reader, on the side of a pool.
type viewer struct {
	Ask
	channel string
	until   atomic.Int64 // nanoseconds since 1970

	mu      sync.Mutex
	second  int64
	sent    int // lines, in that second
	skipped int
}

// Teller is the side of a pool. It is safe for concurrent use.
type Teller struct {
	rdb     redis.UniversalClient
	prefix  string
	process string
	viewers atomic.Pointer[[]*viewer] // nil while there is no reader
	hearing sync.Mutex
	lines   chan message
}

// message is a line on its way to a reader.
type message struct {
	channel string
	line    Line
}

// NewTeller returns one for a process. It asks Redis nothing.
func NewTeller(rdb redis.UniversalClient, prefix string) *Teller {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Teller{rdb: rdb, prefix: prefix, process: fmt.Sprintf("%s:%d", host, os.Getpid()), lines: make(chan message, room)}
}

// Channel is the one to listen to.
func (t *Teller) Channel() string { return askChannel(t.prefix) }

// Hear takes what was published on the channel. What is no Ask is ignored: anybody may
// publish there.
func (t *Teller) Hear(text string) {
	var a Ask
	if len(text) > askBytes || json.Unmarshal([]byte(text), &a) != nil || !viewerName.MatchString(a.Viewer) {
		return
	}
	a.Rate = min(a.Rate, RateMax)
	now := time.Now()
	t.hearing.Lock()
	defer t.hearing.Unlock()
	var all []*viewer
	if old := t.viewers.Load(); old != nil {
		for _, v := range *old {
			if v.until.Load() > now.UnixNano() && (v.Viewer != a.Viewer || v.Ask == a) {
				all = append(all, v)
			}
		}
	}
	n := slices.IndexFunc(all, func(v *viewer) bool { return v.Viewer == a.Viewer })
	switch {
	case n >= 0 || a.Rate <= 0:
	case len(all) == ViewersMax:
		select {
		case t.lines <- message{viewerChannel(t.prefix, a.Viewer), Line{At: now, Process: t.process, Outcome: Full}}:
		default: // it asks again
		}
	default:
		all = append(all, &viewer{Ask: a, channel: viewerChannel(t.prefix, a.Viewer)})
		n = len(all) - 1
	}
	if n >= 0 {
		all[n].until.Store(now.Add(askFor).UnixNano())
	}
	t.set(all)
}

func (t *Teller) set(all []*viewer) {
	if len(all) == 0 {
		t.viewers.Store(nil)
		return
	}
	t.viewers.Store(&all)
}

// Run publishes what there is to tell until ctx ends.
func (t *Teller) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-t.lines:
			t.publish(ctx, l)
		}
	}
}

func (t *Teller) publish(ctx context.Context, l message) {
	text, err := json.Marshal(l.line)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callMost)
	defer cancel()
	_ = t.rdb.Publish(ctx, l.channel, text).Err() // a reader does not wait for a line that is lost
}

// Observer hears the decisions of the pool. It never blocks.
func (t *Teller) Observer() event.Observer {
	return event.Observer{
		Granted: func(_ context.Context, e event.Granted) {
			if t.viewers.Load() == nil {
				return
			}
			reason := ""
			switch {
			case e.Forced:
				reason = "forced by an operator"
			case e.Fallback:
				reason = "without Redis"
			case e.Shadowed:
				reason = "in spite of the limits, which only watch"
			}
			t.tell(e.Task, Line{Outcome: Granted, Rules: e.Rules, Reason: reason, Late: e.Late})
		},
		Refused: func(_ context.Context, e event.Refused) {
			t.tell(e.Task, Line{Outcome: Refused, Rules: one(e.Rule), Reason: string(e.Reason), Until: e.At})
		},
		Deferred: func(_ context.Context, e event.Deferred) {
			t.tell(e.Task, Line{Outcome: Deferred, Rules: one(e.Rule), Reason: string(e.Reason), Until: e.At, Wait: e.Wait})
		},
		Moved: func(_ context.Context, e event.Moved) {
			t.tell(e.Task, Line{Outcome: Moved, Rules: one(e.Rule), Until: e.At})
		},
		Postponed: func(_ context.Context, e event.Postponed) {
			t.tell(e.Task, Line{Outcome: Postponed, Rules: one(e.Rule), Wait: e.Wait})
		},
		LeaseLost: func(_ context.Context, e event.LeaseLost) {
			t.tell(e.Task, Line{Outcome: LeaseLost, Rules: one(e.Rule)})
		},
	}
}

func one(rule string) []string {
	if rule == "" {
		return nil
	}
	return []string{rule}
}

// tell offers a line to all readers.
func (t *Teller) tell(task event.Task, l Line) {
	all := t.viewers.Load()
	if all == nil {
		return
	}
	l.At, l.Process, l.Queue, l.Type, l.Task = time.Now(), t.process, task.Queue, task.Type, task.ID
	looking := false
	for _, v := range *all {
		if v.until.Load() < l.At.UnixNano() {
			continue
		}
		looking = true
		if (v.Queue == "" || v.Queue == l.Queue) && (v.Rule == "" || slices.Contains(l.Rules, v.Rule)) {
			v.offer(l, t.lines)
		}
	}
	if !looking {
		t.viewers.CompareAndSwap(all, nil)
	}
}

// offer puts a line into the queue to Redis if the second has room for it.
func (v *viewer) offer(l Line, to chan<- message) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if second := l.At.Unix(); second != v.second {
		v.second, v.sent = second, 0
	}
	if v.sent >= v.Rate {
		v.skipped++
		return
	}
	l.Skipped = v.skipped
	select {
	case to <- message{v.channel, l}:
		v.sent++
		v.skipped = 0
	default:
		v.skipped++
	}
}

// Watch calls show with each line that pools tell, until ctx ends. It calls alone when the
// server says that nobody listens; on Redis Cluster a server only knows of itself, and alone
// is not called. The error is that of a Redis that did not answer, or the one of show.
func Watch(ctx context.Context, rdb redis.UniversalClient, prefix string, a Ask, alone func(), show func(Line) error) error {
	a.Viewer = fmt.Sprintf("%016x", rand.Uint64()) //nolint:gosec // it only names a channel
	a.Rate = min(max(a.Rate, 1), RateMax)
	caller := ctx
	// Without its deadline: a read that times out by it may be noticed before the context has ended.
	ctx, fail := context.WithCancelCause(context.WithoutCancel(caller))
	defer context.AfterFunc(caller, func() { fail(nil) })()
	defer fail(nil)
	ended := func(err error) error {
		if caller.Err() != nil {
			err = nil
		} else {
			err = cmp.Or(context.Cause(ctx), err)
		}
		return err
	}
	sub := rdb.Subscribe(ctx, viewerChannel(prefix, a.Viewer))
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // a read in progress would outlive ctx
	defer func() {
		stop()
		_ = sub.Close()
	}()
	if _, err := sub.Receive(ctx); err != nil {
		if errors.Is(caller.Err(), context.DeadlineExceeded) {
			return caller.Err() // Redis has not answered in all the time
		}
		return ended(err)
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		if err := a.keepAsking(ctx, rdb, prefix, alone); err != nil {
			fail(err)
		}
	})
	defer asking.Wait()
	defer fail(nil)
	for {
		m, err := sub.ReceiveMessage(ctx)
		if err != nil {
			return ended(err)
		}
		var l Line
		if json.Unmarshal([]byte(m.Payload), &l) != nil {
			continue // of another version
		}
		if err := show(l); err != nil {
			return err
		}
	}
}

// keepAsking publishes the Ask every 2 s. At the end it tells the pools to stop.
func (a Ask) keepAsking(ctx context.Context, rdb redis.UniversalClient, prefix string, alone func()) error {
	say := func(ctx context.Context) (int64, error) {
		text, err := json.Marshal(a)
		if err != nil {
			return 0, err
		}
		return rdb.Publish(ctx, askChannel(prefix), text).Result()
	}
	defer func() {
		a.Rate = 0
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callMost)
		defer cancel()
		_, _ = say(ctx) // without it pools stop 5 s later
	}()
	t := time.NewTicker(askEvery)
	defer t.Stop()
	for first := true; ; first = false {
		n, err := say(ctx)
		if err != nil {
			return err
		}
		if _, cluster := rdb.(*redis.ClusterClient); first && n == 0 && !cluster {
			alone()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
