package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/policyset"
	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Config are the options of an [Inspector]. The zero value is ready to use, for tasks
// without policies.
type Config struct {
	// Policies are the policies of the pools, see [queue.ValidatePolicies]. Defaults to none.
	Policies []queue.Policy

	// Throttle is that of the pools: Prefix and Secret say where their limits and lines
	// are. Defaults to the zero throttle.Config.
	Throttle throttle.Config
}

// ErrInvalidCursor says that a cursor was not made by a page, or that a page is to have no
// places or too many.
var ErrInvalidCursor = errors.New("inspect: invalid cursor")

// Inspector tells what waits, and why, from Redis alone: it needs no pool to run. A question
// changes nothing, neither places nor what was promised to those who have them. What changes
// something takes a [Reason], and is noted in the audit list.
//
//   - [Inspector.Explain] is about one task: what each of its rules says, which one it
//     waits for, until when, and which tasks are before it. [Inspector.ExplainNew] answers for a
//     task that does not exist yet, [Inspector.Position] for the person whom a task is for.
//   - [Inspector.Line] and [Inspector.LinePage] list the jobs that wait on one key of a
//     rule, in the order in which they are let in.
//   - [Inspector.Deferred] and [Inspector.DeferredPage] list what pools will wake on a
//     queue, the first to come first.
//
// Each answer is as of one moment and costs O(log n) in what waits; a page costs that
// and its length, 250 at most. Only [Inspector.OnKey], [Inspector.CancelKey] and
// [Inspector.FrontKey] read all that waits on a queue. What moves while it is listed may be missed or
// come twice.
//
// Keys are given in clear; an Inspector finds them also where a Secret hides them. What it
// gives back is a key as it stands in Redis, see [Mask]; tasks are known by their ids. When Redis is away every call returns
// an error that unwraps to throttle.ErrUnavailable; [Inspector.Rules] has it in the Err of each rule. An Inspector owns nothing and is
// safe for concurrent use. The zero Inspector is not usable.
type Inspector struct {
	rdb      redis.UniversalClient
	cfg      throttle.Config
	set      *policyset.Set          // the limiters of all policies
	policies map[string]queue.Policy // by task type, never changed
	perKey   map[string]bool         // rules whose keys have limits of their own, never changed
	asynq    *asynq.Inspector
	pools    *poolFacts
	byID     bool // keys are given as they stand in Redis
}

// ByID returns an inspector whose methods take keys as they stand in Redis, which is how
// answers have them: hashed where a Secret is set, else in clear. It is for a program that
// leads from one answer to the next, such as a page with links. Its policies and its
// connection are the same.
func (i *Inspector) ByID() *Inspector {
	other := *i
	other.byID = true
	return &other
}

// id is how a key stands in Redis. A key in clear is refused while pools run whose keys stand otherwise: under
// ours nothing would be found, and a change would reach nobody.
func (i *Inspector) id(ctx context.Context, l *throttle.Limiter, key string) (string, error) {
	if i.cfg.PerClient {
		return "", errPerClient
	}
	if key == "" || len(key) > throttle.KeyMax {
		return "", fmt.Errorf("inspect: %w: it has %d bytes, want 1 to %d", throttle.ErrInvalidKey, len(key), throttle.KeyMax)
	}
	if !i.byID {
		return throttle.ForWorkers.Meet(l, key), i.sameKeys(ctx)
	}
	if hashed := strings.HasPrefix(key, "#"); !hashed && limitscripts.KeyID(nil, key) != key || len(key) > idMax {
		return "", fmt.Errorf("inspect: %w: no key stands so in Redis", throttle.ErrInvalidKey)
	}
	return key, nil
}

// poolFacts remembers what the running pools say that a question about a key needs. Safe for concurrent use.
type poolFacts struct {
	mu    sync.Mutex
	until time.Time
	form  error // why keys of theirs are not found by their names in clear
	hold  hold
}

// hold says whether pools hold keys after a failover.
type hold struct {
	on    bool // some do
	other bool // and those that do are of another release, whose holds are not known here
}

// ErrOtherSecret says that the pools that run hash keys otherwise than this Inspector: by another
// throttle.Config.Secret, or one of the two has none.
var ErrOtherSecret = fmt.Errorf("%w: Secret: the pools that run have another one, so that a key of theirs is not found by its name in clear",
	throttle.ErrInvalidConfig)

// sameKeys is nil when a pool that runs has its keys stand as ours do, or none says how they stand.
func (i *Inspector) sameKeys(ctx context.Context) error {
	form, _, err := i.factsOfPools(ctx)
	return cmp.Or(err, form)
}

// holds says whether pools hold keys after a failover. An error is that of a Redis that does not answer.
func (i *Inspector) holds(ctx context.Context) (hold, error) {
	if i.cfg.HoldAfterFailover { // as the limiters here do
		return hold{on: true}, nil
	}
	_, h, err := i.factsOfPools(ctx)
	return h, err
}

// factsOfPools is what the running pools say. It asks Redis once in the time in which a pool says so anew.
func (i *Inspector) factsOfPools(ctx context.Context) (form error, h hold, err error) {
	i.pools.mu.Lock()
	known, form, h := time.Now().Before(i.pools.until), i.pools.form, i.pools.hold
	i.pools.mu.Unlock()
	if known {
		return form, h, nil
	}
	running, _, err := i.Processes(ctx)
	if err != nil {
		return nil, hold{}, err
	}
	form, h = i.compareForms(running), holdOf(running)
	i.pools.mu.Lock()
	defer i.pools.mu.Unlock()
	i.pools.form, i.pools.hold, i.pools.until = form, h, time.Now().Add(presence.Every)
	return form, h, nil
}

// holdOf is the hold of processes.
func holdOf(running []Process) (h hold) {
	ours, _ := luascripts.Library()
	for _, p := range running {
		if p.Hold == ours {
			return hold{on: true}
		}
		if p.Hold != "" {
			h = hold{on: true, other: true}
		}
	}
	return h
}

// peek asks a limit about a job of a cost that comes now, and lists the first most of the line.
func (i *Inspector) peek(ctx context.Context, l *throttle.Limiter, id string, cost, most int) (throttle.State, error) {
	h, err := i.holds(ctx)
	if err != nil {
		return throttle.State{}, err
	}
	s, err := throttle.ForWorkers.Peek(ctx, l, id, cost, most, h.on && !h.other)
	s.HoldUnknown = s.HoldUnknown || err == nil && h.other
	return s, err
}

// lookup finds where a booking stands.
func (i *Inspector) lookup(ctx context.Context, b throttle.BookingRef) (throttle.BookingStatus, error) {
	h, err := i.holds(ctx)
	if err != nil {
		return throttle.BookingStatus{}, err
	}
	return throttle.ForWorkers.Lookup(ctx, b, h.on && !h.other)
}

// compareForms says what is wrong when all pools that run have their keys stand otherwise.
func (i *Inspector) compareForms(running []Process) (err error) {
	ours := presence.KeyForm(i.cfg.Secret, false)
	for _, p := range running {
		switch p.KeyForm {
		case "": // a feeder, a scheduler, or a pool of an older release
		case ours:
			return nil
		case presence.PerClient:
			err = errPerClient
		default:
			err = ErrOtherSecret
		}
	}
	return err
}

// idMax is how many bytes a key has in Redis at most; longer ones are hashed.
const idMax = 64

// New returns an inspector of pools that have these policies and this throttle.Config. The
// error has all that is wrong with config, joined: it unwraps to queue.ErrInvalidPolicy,
// throttle.ErrInvalidConfig or both. New does not ask Redis, and panics when rdb is nil.
func New(rdb redis.UniversalClient, config Config) (*Inspector, error) {
	if rdb == nil {
		panic("inspect: nil Redis client")
	}
	if err := errors.Join(queue.ValidatePolicies(config.Policies), throttle.ForWorkers.ValidateConfig(config.Throttle)); err != nil {
		return nil, err
	}
	cfg := throttle.ForWorkers.FillConfig(config.Throttle)
	cfg.OnUnavailable = throttle.FailClosed
	i := &Inspector{
		rdb: rdb, cfg: cfg, set: policyset.New(rdb, cfg), policies: make(map[string]queue.Policy, len(config.Policies)),
		perKey: make(map[string]bool), asynq: asynq.NewInspectorFromRedisClient(rdb), pools: &poolFacts{},
	}
	for _, p := range config.Policies {
		p.Rules = slices.Clone(p.Rules)
		rules := make([]policyset.Rule, len(p.Rules))
		for n, r := range p.Rules {
			rules[n] = policyset.Rule{Name: r.Name, Limit: r.Limit, LimitOf: r.LimitOf}
			i.perKey[r.Name] = i.perKey[r.Name] || r.LimitOf != nil
		}
		if _, err := i.set.Compile(rules); err != nil {
			return nil, err
		}
		i.policies[p.Type] = p
	}
	return i, nil
}

func (i *Inspector) keys(queue string) queuescripts.QueueKeys {
	return queuescripts.NewQueueKeys(i.cfg.Prefix, queue)
}

// gated says that a rule of a valid policy is a gate.
func gated(r queue.Rule) bool { return r.Gate != gate.Gate{} }

// away is the error of a Redis that did not answer as it should.
func away(what string, err error) error {
	return fmt.Errorf("inspect: %s: %w: %w", what, throttle.ErrUnavailable, err)
}

// clip keeps an error readable when somebody passes a whole file as a name.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// queuesMax bounds how many queues an overview has.
const queuesMax = 100

// QueueStatus is what a queue holds. Deferred and booked tasks are not failures: they
// wait for a limit or a gate.
type QueueStatus struct {
	Queue    string `json:"queue"`
	Paused   bool   `json:"paused"`
	Pending  int    `json:"pending"` // can be taken now: a queue with many lacks workers
	Active   int    `json:"active"`
	Waiting  int    `json:"waiting"`   // deferred or booked: they wait for their instants
	Overdue  int    `json:"overdue"`   // of those, whose instants have come
	Within1s int    `json:"within_1s"` // tasks of Waiting that come due within a second, with the overdue ones
	Within1m int    `json:"within_1m"`
	Within1h int    `json:"within_1h"`
	// Other is how many tasks asynq's scheduled and retry sets hold beside those of Waiting:
	// tasks that a producer scheduled, and tasks that failed and are tried again. Headway's
	// waiting tasks are in the same two sets, so the two numbers can't be told apart.
	Other    int       `json:"scheduled_or_retrying"`
	Archived int       `json:"archived"`
	Next     time.Time `json:"next,omitzero"` // the first instant of those that wait
	Now      time.Time `json:"now"`           // Redis' clock
}

// QueueNames returns the names of all queues, in order. It asks Redis once.
func (i *Inspector) QueueNames(ctx context.Context) ([]string, error) {
	names, err := queuescripts.Queues(ctx, i.rdb)
	if err != nil {
		return nil, away("list the queues", err)
	}
	slices.Sort(names)
	return names, nil
}

// ServedQueues returns which queues are served, as far as that is known. It asks Redis about the processes, and
// then about each server of asynq.
func (i *Inspector) ServedQueues(ctx context.Context) (Served, error) {
	running, all, err := i.Processes(ctx)
	if err != nil {
		return Served{}, err
	}
	s := Served{Queues: ServedByPools(running), Unlisted: all - len(running)}
	servers, err := i.asynq.Servers()
	if err != nil {
		s.AsynqErr = away("list asynq's servers", err)
		return s, nil
	}
	for _, server := range servers {
		if server.Status != "active" { // it was told to stop
			continue
		}
		for queue := range server.Queues {
			s.Queues[queue] = true
		}
	}
	return s, nil
}

// HasQueue says whether there is a queue: asynq knows it, or it is paused, or something serves it. While more
// processes run than are listed, any queue may be served, and the answer is true. It asks Redis once about a queue
// that asynq knows.
func (i *Inspector) HasQueue(ctx context.Context, queue string) (bool, error) {
	known, err := queuescripts.HasQueue(ctx, i.rdb, queue)
	if err != nil {
		return false, away("look for a queue", err)
	}
	if known {
		return true, nil
	}
	counts, err := i.Queues(ctx, queue)
	if err != nil || counts[0].Paused {
		return err == nil, err
	}
	served, err := i.ServedQueues(ctx)
	switch {
	case err != nil:
		return false, err
	case served.Queues[queue] || served.Unlisted > 0:
		return true, nil
	}
	return false, served.AsynqErr
}

// Queues returns what queues hold, at most 100 of them: those that are named, in that order, or
// without names all, in the order of their names. Each costs O(log n) in what it holds. One that
// is not there holds nothing.
func (i *Inspector) Queues(ctx context.Context, names ...string) ([]QueueStatus, error) {
	if len(names) == 0 {
		var err error
		if names, err = i.QueueNames(ctx); err != nil {
			return nil, err
		}
	}
	names = names[:min(len(names), queuesMax)]
	all := make([]QueueStatus, 0, len(names))
	for _, name := range names {
		n, err := queuescripts.Count(ctx, i.rdb, i.keys(name), 0, time.Second, time.Minute, time.Hour)
		if err != nil {
			return nil, away("count a queue", err)
		}
		all = append(all, QueueStatus{
			Queue: name, Paused: n.Paused, Pending: n.Pending, Active: n.Active, Waiting: n.Waiting,
			Overdue: n.Within[0], Within1s: n.Within[1], Within1m: n.Within[2], Within1h: n.Within[3],
			Other: max(0, n.Scheduled+n.Retried-n.Waiting), Archived: n.Archived, Next: n.First, Now: n.Now,
		})
	}
	return all, nil
}

// Left returns how many tasks of a queue are still to run: all but those that were completed
// or archived, and those that asynq gathers in groups.
func (i *Inspector) Left(ctx context.Context, queue string) (int, error) {
	n, err := queuescripts.Count(ctx, i.rdb, i.keys(queue))
	if err != nil {
		return 0, away("count a queue", err)
	}
	return n.Pending + n.Active + n.Scheduled + n.Retried, nil
}

// Planned returns how many tasks of a queue start in each of the next 60 minutes, by the
// instants that they were told last; the overdue ones count for the first.
func (i *Inspector) Planned(ctx context.Context, queue string) (minutes [60]int, err error) {
	var spans [60]time.Duration
	for n := range spans {
		spans[n] = time.Duration(n+1) * time.Minute
	}
	n, err := queuescripts.Count(ctx, i.rdb, i.keys(queue), spans[:]...)
	if err != nil {
		return minutes, away("count a queue", err)
	}
	before := 0
	for k, until := range n.Within {
		minutes[k], before = until-before, until
	}
	return minutes, nil
}

// RuleStatus is the limit of a rule as it is in force.
type RuleStatus struct {
	Rule    string         `json:"rule"`
	InCode  throttle.Limit `json:"in_code"`           // of the policies here
	Limit   throttle.Limit `json:"limit"`             // that decides
	Stored  bool           `json:"stored"`            // it is stored, and goes before the one in code
	File    bool           `json:"file,omitempty"`    // it is stored because a policy file was edited
	Closed  time.Time      `json:"closed,omitzero"`   // until when the rule is closed on all keys
	Problem string         `json:"problem,omitempty"` // the text of Err
	// Err is a throttle.ErrStoredLimit when the stored limit can't be read, and a
	// throttle.ErrUnavailable when Redis did not answer as it should. Then the limit is not known.
	Err error `json:"-"`
}

// Rules returns the limits of all rules of the policies, in the order of their names. It
// asks Redis once.
func (i *Inspector) Rules(ctx context.Context) []RuleStatus {
	limiters := i.set.Limiters()
	slices.SortFunc(limiters, func(a, b *throttle.Limiter) int { return cmp.Compare(a.Rule(), b.Rule()) })
	all := make([]RuleStatus, len(limiters))
	for n, s := range throttle.ForWorkers.LimitStatuses(ctx, limiters) {
		all[n] = RuleStatus{Rule: limiters[n].Rule(), InCode: limiters[n].Limit(), Limit: s.Limit, Stored: s.Stored, File: s.Replaced != nil, Closed: s.Closed}
		if s.Err != nil {
			all[n].Problem, all[n].Err = s.Err.Error(), s.Err
		}
	}
	return all
}

// WaitingByRule counts by rule the tasks that wait on queues, 1 to 10 of them. It looks at the
// first 1000 of each queue in the order of their instants, by portions of 250: Redis serves
// others in between, and a task that moves meanwhile may be missed.
func (i *Inspector) WaitingByRule(ctx context.Context, queues ...string) (WaitingByRule, error) {
	return waitingByRule(ctx, i, queues)
}

// History returns what happened to the tasks of a rule in the last span of time, from a
// minute to [HistoryMax], as all pools saw it; another span is an [ErrInvalidSpan]. It asks Redis twice, whatever the number of keys. Of a rule whose keys
// have limits of their own it tells no share: the history does not say whose limit that would be.
func (i *Inspector) History(ctx context.Context, rule string, span time.Duration) (History, error) {
	step, err := historyStep(span)
	if err != nil {
		return History{}, err
	}
	now, err := luascripts.Now(ctx, i.rdb)
	if err != nil {
		return History{}, away("read the clock", err)
	}
	values, err := history.Values(ctx, i.rdb, i.cfg.Prefix, rule, now.Add(step-span).Truncate(step), now.Add(step), step)
	if err != nil {
		return History{}, away("read a history", err)
	}
	h := historyOf(rule, values, now, span, step)
	if i.perKey[rule] {
		h.PerKey, h.Total.Used = true, 0
		for n := range h.Points {
			h.Points[n].Used = 0
		}
	}
	return h, nil
}

// Keys lists at most [KeysMax] keys of a rule of the policies: the busiest, or those on
// which jobs wait the longest. Which keys these are is known from what pools saw, of which a
// bounded part is kept; how each one stands is asked of Redis, two short calls for the list
// and at most 40 for the keys. A key that can't be asked about is listed with its Problem.
func (i *Inspector) Keys(ctx context.Context, rule string, order KeyOrder) ([]KeyStatus, error) {
	l, err := i.limiter(rule)
	if err != nil {
		return nil, err
	}
	if i.cfg.PerClient {
		return nil, errPerClient
	}
	now, err := luascripts.Now(ctx, i.rdb)
	if err != nil {
		return nil, away("read the clock", err)
	}
	busy, err := history.BusyKeys(ctx, i.rdb, i.cfg.Prefix, rule, now)
	if err != nil {
		return nil, away("read the keys of a rule", err)
	}
	var waiting []history.Key
	if order == ByWait {
		if waiting, err = history.WaitingKeys(ctx, i.rdb, i.cfg.Prefix, rule); err != nil {
			return nil, away("read the keys of a rule", err)
		}
	}
	permits := make(map[string]int64, len(busy))
	for _, k := range busy {
		permits[k.ID] = k.N
	}
	all := make([]KeyStatus, 0, KeysMax)
	for _, id := range candidates(busy, waiting, order) {
		s, err := i.peek(ctx, l, id, 1, 0)
		switch {
		case errors.Is(err, throttle.ErrUnavailable):
			return nil, fmt.Errorf("inspect: ask a rule: %w", err)
		case err != nil:
			all = append(all, KeyStatus{Key: id, Permits: permits[id], Now: now, Problem: err.Error()})
			continue
		case order == ByWait && s.Waiting == 0 && s.Closed.IsZero():
			continue // they have started, or were cancelled
		}
		all = append(all, KeyStatus{Key: id, Permits: permits[id], Waiting: s.Waiting, Next: latest(s.Next, s.Now), Closed: s.Closed,
			OwnClosed: s.OwnClosed, RuleClosed: s.RuleClosed, Held: s.Held, HoldUnknown: s.HoldUnknown, Now: s.Now})
	}
	if order == ByWait {
		slices.SortStableFunc(all, longestWait)
	}
	return all[:min(len(all), KeysMax)], nil
}

// longestWait puts the keys first whose lines end last, and before them those that nobody can
// say an end of.
func longestWait(a, b KeyStatus) int {
	switch {
	case a.Problem != "" && b.Problem == "":
		return -1
	case a.Problem == "" && b.Problem != "":
		return 1
	}
	return b.Next.Compare(a.Next)
}

// IDOf returns how a key in clear stands in Redis under a rule. While pools run whose keys stand
// otherwise, the error is [ErrOtherSecret].
func (i *Inspector) IDOf(ctx context.Context, rule, key string) (string, error) {
	l, err := i.limiter(rule)
	if err != nil {
		return "", err
	}
	inClear := *i
	inClear.byID = false
	return inClear.id(ctx, l, key)
}

// Key tells what was spent on a key of a rule, how many jobs wait, and whether it is closed.
// It asks Redis once, twice where the key is closed, and now and then once more what pools run. When the limit of the key can't be
// found, the error is a throttle.ErrStoredLimit.
func (i *Inspector) Key(ctx context.Context, rule, key string) (Key, error) {
	l, err := i.limiter(rule)
	if err != nil {
		return Key{}, err
	}
	id, err := i.id(ctx, l, key)
	if err != nil {
		return Key{}, err
	}
	h, err := i.holds(ctx)
	if err != nil {
		return Key{}, err
	}
	s, at, permits, err := throttle.ForWorkers.Spent(ctx, l, id, SpentMax, h.on && !h.other)
	if err != nil {
		return Key{}, fmt.Errorf("inspect: read a key: %w", err)
	}
	limit, err := throttle.ForWorkers.LimitOfID(ctx, l, id)
	if err != nil {
		return Key{}, fmt.Errorf("inspect: read a key: %w", err)
	}
	k := Key{
		ID: id, Limit: limit, Available: s.Available, Waiting: s.Waiting, Next: s.Next, Closed: s.Closed, OwnClosed: s.OwnClosed, RuleClosed: s.RuleClosed,
		Held: s.Held, HoldUnknown: s.HoldUnknown || h.other, Now: s.Now,
	}
	for n := range at {
		k.Spent = append(k.Spent, Spent{at[n], permits[n]})
	}
	if !s.Closed.IsZero() {
		audited, err := i.Audit(ctx, 0, pageMax)
		if err != nil {
			return Key{}, err
		}
		made := Made(audited)
		k.Who, k.Why = closedBy(made, rule, id, s.OwnClosed)
		k.RuleWho, k.RuleWhy = closedBy(made, rule, "", s.RuleClosed)
	}
	return k, nil
}

// FarKeys returns the keys of a rule whose tasks start last, at most 20 of them: those have
// to wait longest. It looks at the last 1000 tasks that wait on each queue, and
// at 10 queues; looked is how many tasks it saw.
func (i *Inspector) FarKeys(ctx context.Context, rule string, queues []string) (keys []FarKey, looked int, err error) {
	if _, err := i.limiter(rule); err != nil {
		return nil, 0, err
	}
	byID := make(map[string]*FarKey)
	for _, q := range queues[:min(len(queues), queuesLooked)] {
		r, err := queuescripts.ScanDeferredEnd(ctx, i.rdb, i.keys(q), scanPortion)
		if err != nil {
			return nil, 0, away("list what waits", err)
		}
		looked += len(r.Tasks)
		for _, t := range r.Tasks {
			record, _ := queuescripts.ParseWaitRecord(t.Record)
			ids, _, ok := record.Booking.Read()
			n := slices.Index(strings.Split(record.Booking.Policy(), "+"), rule)
			if !ok || n < 0 || n >= len(ids) {
				continue
			}
			k := byID[ids[n]]
			if k == nil {
				k = &FarKey{ID: ids[n]}
				byID[ids[n]] = k
			}
			k.Seen++
			if !t.At.Before(k.Last) {
				k.Queue, k.Task, k.Last = q, t.ID, t.At
			}
		}
	}
	for _, k := range byID {
		keys = append(keys, *k)
	}
	slices.SortFunc(keys, func(a, b FarKey) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(b.Seen, a.Seen), cmp.Compare(a.ID, b.ID))
	})
	return keys[:min(len(keys), farMax)], looked, nil
}

// control is that of the batches on the queues of the policies here.
func (i *Inspector) control() (*batch.Control, error) {
	policies := make([]queue.Policy, 0, len(i.policies))
	for _, p := range i.policies {
		policies = append(policies, p)
	}
	client, err := queue.NewClient(i.rdb, queue.ClientConfig{Policies: policies, Throttle: i.cfg})
	if err != nil {
		return nil, fmt.Errorf("inspect: batches: %w", err)
	}
	return batch.NewControl(client), nil
}

// Batches returns how far the batches of a queue are, at most [BatchesMax] of them, and
// whether there are more: those that have not ended, the oldest first, and then those that
// ended within a day.
func (i *Inspector) Batches(ctx context.Context, queue string) (all []batch.Progress, more bool, err error) {
	all, next, err := i.BatchesPage(ctx, queue, 0, BatchesMax)
	return all, next > 0, err
}

// BatchesPage returns at most `most` of these batches, from a position on: the first batch is at 0.
// next is the position of the next page, or 0 when this page is the last one.
func (i *Inspector) BatchesPage(ctx context.Context, queue string, from, most int) (page []batch.Progress, next int, err error) {
	control, err := i.control()
	if err != nil {
		return nil, 0, err
	}
	if page, next, err = control.Page(ctx, queue, from, most); err != nil {
		return nil, 0, fmt.Errorf("inspect: list batches: %w", err)
	}
	return page, next, nil
}

// Process is a process that runs, as it says itself every few seconds.
type Process = presence.Process

// Processes returns the pools, feeders and schedulers that run, at most 500, and how many
// there are. A process that died is listed for up to 20 s. What another version says and nobody here can
// read is counted and left out.
func (i *Inspector) Processes(ctx context.Context) (running []Process, all int, err error) {
	running, all, err = presence.Running(ctx, i.rdb, i.cfg.Prefix)
	if err != nil {
		return nil, 0, away("list the processes", err)
	}
	slices.SortFunc(running, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
	return running, all, nil
}

// errPerClient is about a throttle.Config with which there is no common line.
var errPerClient = fmt.Errorf("%w: with PerClient each process has lines of its own, which nobody else can read", throttle.ErrInvalidConfig)

// pageMax is how many jobs a page has at most.
const pageMax = throttle.PeekMax

// Cursor is where a page begins. It is text without personal data, for a link to the next
// page. The empty Cursor is the first page's.
type Cursor string

// WaitingTask is one task that waits.
type WaitingTask struct {
	// Queue and ID are those of the task. In a line they are empty for a caller
	// that blocks in an Acquire, and for a task whose id is longer than a line holds (about 500 bytes).
	Queue, ID string
	Cost      int // permits of the rule whose line it is; 0 in a list of a queue
	// At is the instant of its place, as things stand now. A parked job has missed it. In a
	// list of a queue, At is when the task is woken, as it was told last.
	At     time.Time
	Parked bool // it came too late, see [Explanation]
	// Rules are those of its policy that it waits for, in a list of a queue; none for a
	// task without a place, as at a gate.
	Rules []string
}

// Page is a part of a list.
type Page struct {
	Waiting []WaitingTask
	Now     time.Time // Redis' clock
	Next    Cursor    // the next page's; empty when nothing follows
	All     int       // how many are in the line; 0 in a list of a queue
}

// LinePage is the page of a line that begins at a cursor, with most places, 1 to
// 250. The line is that of a rule of a policy on one key; those who came too late
// stand first in it. A task that waits for another rule is in that rule's line alone.
func (i *Inspector) LinePage(ctx context.Context, rule, key string, from Cursor, most int) (Page, error) {
	l, err := i.limiter(rule)
	if err != nil {
		return Page{}, err
	}
	number, skip, err := from.read(most)
	if err != nil {
		return Page{}, err
	}
	at := throttle.ListFrom{}
	if from != "" {
		at = throttle.ListFrom{Ticket: number, Skip: skip}
	}
	id, err := i.id(ctx, l, key)
	if err != nil {
		return Page{}, err
	}
	h, err := i.holds(ctx)
	if err != nil {
		return Page{}, err
	}
	list, err := throttle.ForWorkers.List(ctx, l, id, at, most, h.on && !h.other)
	if err != nil {
		return Page{}, fmt.Errorf("inspect: list a line: %w", err)
	}
	p := Page{Now: list.Now, All: list.All}
	for _, b := range list.Listed {
		queue, id, _ := luascripts.TaskOf(b.Job)
		p.Waiting = append(p.Waiting, WaitingTask{Queue: queue, ID: id, Cost: b.Cost, At: b.At, Parked: b.Parked})
	}
	if len(p.Waiting) == most {
		p.Next = cursorOf(list.Next.Ticket, list.Next.Skip)
	}
	return p, nil
}

// Line is all pages of a line, one after the other. After an error nothing follows.
func (i *Inspector) Line(ctx context.Context, rule, key string) iter.Seq2[WaitingTask, error] {
	return pages(func(from Cursor) (Page, error) { return i.LinePage(ctx, rule, key, from, pageMax) })
}

// DeferredPage is the page that begins at a cursor, with most places, 1 to 250, of
// what was deferred on a queue or booked for it: all tasks that pools will wake, the first
// to come first. Those that failed, or that a producer scheduled, are asynq's to tell.
func (i *Inspector) DeferredPage(ctx context.Context, queue string, from Cursor, most int) (Page, error) {
	number, skip, err := from.read(most)
	if err != nil {
		return Page{}, err
	}
	first := time.Time{}
	if from != "" {
		first = time.UnixMicro(number)
	}
	r, err := queuescripts.ScanDeferred(ctx, i.rdb, i.keys(queue), first, skip, most)
	if err != nil {
		return Page{}, away("list what waits", err)
	}
	p := Page{Now: r.Now}
	for _, t := range r.Tasks {
		w := WaitingTask{Queue: queue, ID: t.ID, At: t.At}
		if record, ok := queuescripts.ParseWaitRecord(t.Record); ok && record.Booking != "" {
			w.Rules = strings.Split(record.Booking.Policy(), "+")
		}
		p.Waiting = append(p.Waiting, w)
		if at := t.At.UnixMicro(); at != number {
			number, skip = at, 0
		}
		skip++
	}
	if len(p.Waiting) == most {
		p.Next = cursorOf(number, skip)
	}
	return p, nil
}

// Deferred is all pages of what waits on a queue, one after the other. After an error
// nothing follows.
func (i *Inspector) Deferred(ctx context.Context, queue string) iter.Seq2[WaitingTask, error] {
	return pages(func(from Cursor) (Page, error) { return i.DeferredPage(ctx, queue, from, pageMax) })
}

func pages(page func(Cursor) (Page, error)) iter.Seq2[WaitingTask, error] {
	return func(yield func(WaitingTask, error) bool) {
		for from := Cursor(""); ; {
			p, err := page(from)
			if err != nil {
				yield(WaitingTask{}, err)
				return
			}
			for _, w := range p.Waiting {
				if !yield(w, nil) {
					return
				}
			}
			if from = p.Next; from == "" {
				return
			}
		}
	}
}

// cursorOf is behind so many of a number.
func cursorOf(number int64, skip int) Cursor {
	return Cursor(strconv.FormatInt(number, 10) + "." + strconv.Itoa(skip))
}

// read takes a cursor apart, for a page of most places.
func (c Cursor) read(most int) (number int64, skip int, err error) {
	if most < 1 || most > pageMax {
		return 0, 0, fmt.Errorf("%w: a page of %d places, want 1 to %d", ErrInvalidCursor, most, pageMax)
	}
	if c == "" {
		return 0, 0, nil
	}
	before, behind, _ := strings.Cut(string(c), ".")
	number, bad := strconv.ParseInt(before, 10, 64)
	skip, worse := strconv.Atoi(behind)
	if bad != nil || worse != nil || skip < 1 || cursorOf(number, skip) != c {
		return 0, 0, fmt.Errorf("%w: it was not made by a page", ErrInvalidCursor)
	}
	return number, skip, nil
}

// LastTicks tells what became of the last ticks of entries, most of each entry, 1 to
// [LastTicksMax], the newest first; one that is held comes besides. The entries are those
// of [Schedules], which keep their order. What was decided is read from Redis; ticks of
// their specs between those that were decided were missed. Nothing is told of ticks before
// the oldest that is kept.
func (i *Inspector) LastTicks(ctx context.Context, entries []Entry, now time.Time, most int) ([]PastTick, error) {
	return tickReader{i.rdb, i.keys}.last(ctx, entries, now, most)
}
