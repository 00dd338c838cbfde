// Package metrics counts what limits do to tasks, for Prometheus.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	...
//	rdb.AddHook(m.Hook())                                     // how long scripts take
//	pool, err := worker.New(rdb, mux, worker.Config{Observer: m.Observer()})
//
// These figures are of one process. [RegisterQueues] adds those that stand in Redis.
//
// The labels are rules, queues, outcomes, names of scripts and of schedule entries, and the types of tasks
// without a policy, most of which stand in a program's code or its policy files. A program may make up rules and types:
// the first 500 rules and the first 100 types of a process are told apart, and the others are counted as "other". No key, task id
// or payload becomes a label. docs/metrics.md has the list.
package metrics

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/queue/schedule"
)

// Metrics are the metrics of one process. It is safe for concurrent use, and may observe
// several pools and limiters.
type Metrics struct {
	admissions *prometheus.CounterVec
	binding    *prometheus.CounterVec
	wait       *prometheus.HistogramVec
	lateness   *prometheus.HistogramVec
	moved      *prometheus.CounterVec
	promoted   *prometheus.CounterVec
	woken      *prometheus.CounterVec
	postponed  *prometheus.CounterVec
	leasesLost *prometheus.CounterVec
	adjusted   *prometheus.CounterVec
	unlimited  *prometheus.CounterVec
	changes    *prometheus.CounterVec
	closures   *prometheus.CounterVec
	away       prometheus.Gauge
	outages    prometheus.Counter
	awayFor    prometheus.Counter
	replaced   prometheus.Counter
	clockJumps prometheus.Counter
	scripts    *prometheus.HistogramVec
	ticks      *prometheus.CounterVec

	rule labels
	typ  labels // task types without a policy
}

// Bounds of the values of a label that are told apart.
const (
	rulesMax = 500 // a handler may make up a rule for each customer
	typesMax = 100
	labelMax = 128 // bytes of a value
)

// labels are the values of one label. The first ones are told apart, and the others are "other": a
// program may make values up, and each would be a series that never ends.
type labels struct {
	most  int
	mu    sync.RWMutex
	known map[string]bool
}

// of is the label of a value. It is empty for none.
func (l *labels) of(value string) string {
	if value == "" {
		return ""
	}
	l.mu.RLock()
	known := l.known[value]
	l.mu.RUnlock()
	if known {
		return value
	}
	value = strings.ToValidUTF8(value, "?") // a label has to be
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known[value] {
		if len(l.known) >= l.most || len(value) > labelMax {
			return "other"
		}
		l.known[value] = true
	}
	return value
}

// New makes the metrics of this process and registers them. It fails when one of them is
// registered already: make one Metrics for a process.
func New(to prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, // for servers that ask for it
		}, labels)
	}
	m := &Metrics{
		admissions: counter("headway_admissions_total", "Answers to tasks that asked for their permits. Each rule of a granted task counts it; of "+
			"others the rule that holds it does.", "rule", "outcome"),
		binding: counter("headway_binding_total", "Times that a rule was the one that made a task wait.", "rule"),
		wait: histogram("headway_wait_seconds", "How long tasks were told to wait when they were deferred.",
			[]float64{.01, .1, 1, 10, 60, 300, 1800, 7200, 28800, 86400}, "rule"),
		lateness: histogram("headway_lateness_seconds", "How long after their instants tasks that waited started.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "queue"),
		moved:      counter("headway_moved_total", "Tasks whose instants changed while they waited.", "rule"),
		promoted:   counter("headway_promoted_total", "Tasks that came earlier than they were told, because permits came back.", "queue"),
		woken:      counter("headway_woken_total", "Tasks that this process put back to pending.", "queue"),
		postponed:  counter("headway_postponed_total", "Tasks that a provider asked to try later.", "rule"),
		leasesLost: counter("headway_leases_lost_total", "Leases that ended while their handlers ran.", "rule"),
		adjusted:   counter("headway_charges_adjusted_total", "Charges that were corrected after the work.", "rule"),
		unlimited:  counter("headway_unlimited_tasks_total", "Tasks whose types have no policy: nothing limits them.", "type"),
		rule:       labels{most: rulesMax, known: make(map[string]bool)},
		typ:        labels{most: typesMax, known: make(map[string]bool)},
		changes:    counter("headway_limit_changes_total", "Changes of the limit in force, or of the closing of a rule, that this process has seen.", "rule"),
		closures:   counter("headway_key_closures_total", "Keys that this process closed or opened.", "rule", "action"),
		away: prometheus.NewGauge(prometheus.GaugeOpts{Name: "headway_redis_away", Help: "Pools and policies of this process to which Redis " +
			"does not answer at the moment."}),
		outages: prometheus.NewCounter(prometheus.CounterOpts{Name: "headway_redis_outages_total", Help: "Times that Redis stopped to answer."}),
		awayFor: prometheus.NewCounter(prometheus.CounterOpts{Name: "headway_redis_away_seconds_total", Help: "How long Redis did not answer, " +
			"in outages that are over."}),
		replaced: prometheus.NewCounter(prometheus.CounterOpts{Name: "headway_redis_replaced_total",
			Help: "Times that another server process answered than before."}),
		clockJumps: prometheus.NewCounter(prometheus.CounterOpts{Name: "headway_redis_clock_jumps_total",
			Help: "Times that the clock of a server was set by more than a second."}),
		scripts: histogram("headway_redis_script_seconds", "How long calls of Redis scripts took, to the server and back. The calls of one "+
			"pipeline count once, as pipeline.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 2.5}, "script"),
		ticks: counter("headway_ticks_total", "Ticks of schedules that this process decided.", "entry", "outcome"),
	}
	for _, c := range []prometheus.Collector{
		m.admissions, m.binding, m.wait, m.lateness, m.moved, m.promoted, m.woken, m.postponed, m.leasesLost, m.adjusted, m.unlimited,
		m.changes, m.closures, m.away, m.outages, m.awayFor, m.replaced, m.clockJumps, m.scripts, m.ticks, buildInfo(),
	} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return m, nil
}

// buildInfo is 1, with the versions that run.
func buildInfo() prometheus.Collector {
	const module = "github.com/headwayq/headway"
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == module && m.Version != "" {
				version = m.Version
			}
		}
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "headway_build_info", Help: "1, with the version of Headway.",
		ConstLabels: prometheus.Labels{"version": version}})
	g.Set(1)
	return g
}

// Observer is what pools and limiters are configured with. Give it to a pool as
// worker.Config.Observer and not as its Throttle.Observer too: it would count twice.
func (m *Metrics) Observer() event.Observer {
	return event.Observer{
		Granted: func(_ context.Context, e event.Granted) {
			outcome := "granted"
			if e.Forced {
				outcome = "forced"
			}
			for _, rule := range e.Rules {
				m.admissions.WithLabelValues(m.rule.of(rule), outcome).Inc()
			}
			if !e.Promised.IsZero() && e.Task.Queue != "" {
				m.lateness.WithLabelValues(e.Task.Queue).Observe(e.Late.Seconds())
			}
		},
		Refused: func(_ context.Context, e event.Refused) {
			outcome := "refused"
			if e.Reason == event.Unavailable {
				outcome = "unavailable"
			}
			rule := m.rule.of(e.Rule)
			m.admissions.WithLabelValues(rule, outcome).Inc()
			if e.Reason == event.NoPermits {
				m.binding.WithLabelValues(rule).Inc()
			}
		},
		Deferred: m.deferred,
		Moved:    func(_ context.Context, e event.Moved) { m.moved.WithLabelValues(m.rule.of(e.Rule)).Inc() },
		Promoted: func(_ context.Context, e event.Promoted) { m.promoted.WithLabelValues(e.Task.Queue).Inc() },
		Woken:    func(_ context.Context, e event.Woken) { m.woken.WithLabelValues(e.Task.Queue).Inc() },
		Postponed: func(_ context.Context, e event.Postponed) {
			m.postponed.WithLabelValues(m.rule.of(e.Rule)).Inc()
		},
		LeaseLost: func(_ context.Context, e event.LeaseLost) { m.leasesLost.WithLabelValues(m.rule.of(e.Rule)).Inc() },
		Adjusted:  func(_ context.Context, e event.Adjusted) { m.adjusted.WithLabelValues(m.rule.of(e.Rule)).Inc() },
		Unlimited: func(_ context.Context, e event.Unlimited) {
			m.unlimited.WithLabelValues(m.typ.of(e.Task.Type)).Inc()
		},
		LimitChanged: func(_ context.Context, e event.LimitChanged) { m.changes.WithLabelValues(m.rule.of(e.Rule)).Inc() },
		KeyClosed: func(_ context.Context, e event.KeyClosed) {
			action := "close"
			if e.Until.IsZero() {
				action = "open"
			}
			m.closures.WithLabelValues(m.rule.of(e.Rule), action).Inc()
		},
		RedisAway: func(context.Context, event.RedisAway) {
			m.away.Inc()
			m.outages.Inc()
		},
		RedisBack: func(_ context.Context, e event.RedisBack) {
			m.away.Dec()
			m.awayFor.Add(e.For.Seconds())
		},
		RedisReplaced: func(context.Context, event.RedisReplaced) { m.replaced.Inc() },
		ClockJumped:   func(context.Context, event.ClockJumped) { m.clockJumps.Inc() },
	}
}

// deferred counts a task that waits. One that waits for no rule, but for Redis or for its
// batch, has no place in the distribution of waits.
func (m *Metrics) deferred(_ context.Context, e event.Deferred) {
	rule := m.rule.of(e.Rule)
	switch e.Reason {
	case event.Unavailable:
		m.admissions.WithLabelValues(rule, "unavailable").Inc()
	case event.Booked, event.Gated:
		m.admissions.WithLabelValues(rule, "deferred").Inc()
		m.binding.WithLabelValues(rule).Inc()
		m.wait.WithLabelValues(rule).Observe(e.Wait.Seconds())
	case event.RetryAfter: // it was admitted before
		m.binding.WithLabelValues(rule).Inc()
		m.wait.WithLabelValues(rule).Observe(e.Wait.Seconds())
	}
}

// Tick counts a tick: it is for schedule.Config.TickFunc.
func (m *Metrics) Tick(t schedule.Tick) {
	m.ticks.WithLabelValues(t.Entry, string(t.Outcome)).Inc()
}
