package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/throttle"
)

// rulePage is all about one rule.
type rulePage struct {
	inspect.RuleStatus
	Types      []string
	Words      string          // the limit in force, in words
	Set        *inspect.Change // who stored the limit
	ClosedBy   *inspect.Change
	Day        inspect.History
	DayChart   chart
	Busy       []inspect.KeyStatus
	Line       inspect.RuleCount // of the tasks that start next
	More       bool              // others start later, and were not counted
	Far        []inspect.FarKey
	Looked     int
	Waiting    int // on the queues that were looked at
	Changes    []inspect.Change
	Preview    *preview
	LimitText  string // of the form
	ForText    string
	Now        time.Time
	Concurrent bool
}

// preview says what another limit would do to the line.
type preview struct {
	Limit, Words string
	Problem      string
	Slower       bool
	Factor       string // how much longer or shorter lines take
	Rows         []previewRow
}

type previewRow struct {
	ID        string
	Jobs      int
	Last, New time.Time // when the last one starts now, and by the other limit
}

// previewKeys is how many keys a preview looks at.
const previewKeys = 5

func loadRule(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	p := rulePage{LimitText: q.Get("limit"), ForText: q.Get("for")}
	rows := ruleRows(s, s.Rules(ctx))
	n := slices.IndexFunc(rows, func(r ruleRow) bool { return r.Rule == q.Get("rule") })
	if n < 0 {
		return nil, fmt.Errorf("%w: no rule of this name", errGone)
	}
	p.RuleStatus, p.Types = rows[n].RuleStatus, rows[n].Types
	if errors.Is(p.Err, throttle.ErrUnavailable) {
		return nil, p.Err
	}
	p.Words, p.Concurrent = words(p.Limit), p.Limit.IsConcurrent()
	if p.Problem != "" {
		p.Words, p.Concurrent = "", p.InCode.IsConcurrent()
	}
	queues, err := queuesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	p.Now = now(queues)
	names := waitingOn(queues)
	for _, of := range queues {
		p.Waiting += of.Waiting
	}
	waiting, err := waitingOf(ctx, d, s, queues)
	if err != nil {
		return nil, err
	}
	p.Line, p.More = countOf(waiting, p.Rule), !waiting.Until.IsZero() || len(waiting.Queues) < len(names)
	if p.Far, p.Looked, err = s.FarKeys(ctx, p.Rule, names); err != nil {
		return nil, err
	}
	if p.Day, err = historyOf(ctx, d, s, p.Rule, inspect.HistoryFineMax); err != nil {
		return nil, err
	}
	p.DayChart = dayOf(p.Day)
	if p.Busy, err = busyOf(ctx, d, s, p.Rule); err != nil {
		return nil, err
	}
	changes, err := changesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if c.Rule == p.Rule && len(p.Changes) < 10 {
			p.Changes = append(p.Changes, c)
		}
	}
	if p.Stored && !p.File {
		p.Set = setting(changes, p.Rule)
	}
	if !p.Closed.IsZero() {
		p.ClosedBy = closing(changes, p.Rule)
	}
	if p.LimitText != "" {
		if p.Preview, err = previewOf(ctx, s, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// setting is the change that stored the limit of a rule. It is nil when a program stored it, which
// is in no audit list.
func setting(changes []inspect.Change, rule string) *inspect.Change {
	for _, c := range inspect.Made(changes) { // the newest first
		if c.Rule != rule {
			continue
		}
		switch c.Action {
		case inspect.ActionSetLimit:
			return &c
		case inspect.ActionUnsetLimit:
			return nil
		}
	}
	return nil
}

// waitingOn are the names of the queues on which something waits.
func waitingOn(queues []inspect.QueueStatus) (names []string) {
	for _, of := range queues {
		if of.Waiting > 0 {
			names = append(names, of.Queue)
		}
	}
	return names
}

// waitingOf counts by rule the tasks that start next. All rules and viewers share the count.
func waitingOf(ctx context.Context, d *board, s *source, queues []inspect.QueueStatus) (inspect.WaitingByRule, error) {
	names := waitingOn(queues)
	got, err := d.views.get(ctx, "waiting", max(historyFor, d.cfg.Refresh), func(ctx context.Context) (any, error) { return s.WaitingByRule(ctx, names...) })
	if err != nil {
		return inspect.WaitingByRule{}, err
	}
	return got.value.(inspect.WaitingByRule), nil
}

// countOf is the count of a rule.
func countOf(w inspect.WaitingByRule, rule string) inspect.RuleCount {
	if n := slices.IndexFunc(w.Rules, func(c inspect.RuleCount) bool { return c.Rule == rule }); n >= 0 {
		return w.Rules[n]
	}
	return inspect.RuleCount{Rule: rule}
}

// busyMax is how many of the busiest keys a page lists.
const busyMax = 10

// busyOf returns the busiest keys of a rule, which all viewers share.
func busyOf(ctx context.Context, d *board, s *source, rule string) ([]inspect.KeyStatus, error) {
	got, err := d.views.get(ctx, "busy "+rule, max(historyFor, d.cfg.Refresh),
		func(ctx context.Context) (any, error) { return s.Keys(ctx, rule, inspect.ByPermits) })
	if err != nil {
		return nil, err
	}
	keys := got.value.([]inspect.KeyStatus)
	return keys[:min(len(keys), busyMax)], nil
}

// words says what a limit does.
func words(l throttle.Limit) string {
	n, w := l.Permits(), spelled(l.Window())
	per := w // "2 minutes", "a minute"
	if !strings.Contains(w, " ") && l.Window() >= time.Second {
		if per = "a " + w; w == "hour" {
			per = "an hour"
		}
	}
	switch l.Kind() {
	case "concurrent":
		return fmt.Sprintf("At most %s run at once for each key.", count(n))
	case "sliding":
		return fmt.Sprintf("At most %s in any %s for each key.", count(n), w)
	case "fixed":
		return fmt.Sprintf("At most %s in a window of %s that begins with the first, for each key.", count(n), per)
	case "calendar":
		return fmt.Sprintf("At most %s in each period of the calendar, for each key.", count(n))
	case "leaky", "smooth":
		return fmt.Sprintf("One after the other, %s in %s for each key, evenly spaced.", count(n), per)
	default:
		return fmt.Sprintf("%s in %s for each key, and bursts of %s.", count(n), per, count(max(1, l.Burst())))
	}
}

// spelled is a window in words.
func spelled(d time.Duration) string {
	for _, u := range []struct {
		d    time.Duration
		word string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if d >= u.d && d%u.d == 0 {
			if d == u.d {
				return u.word
			}
			return fmt.Sprintf("%d %ss", d/u.d, u.word)
		}
	}
	return d.String()
}

// rate is how many permits a limit gives in a second in the long run; 0 for one that does
// not say.
func rate(l throttle.Limit) float64 {
	if l.IsConcurrent() || l.Window() <= 0 {
		return 0
	}
	return float64(l.Permits()) / l.Window().Seconds()
}

// previewOf tells what another limit does to the lines that reach furthest.
func previewOf(ctx context.Context, s *source, p rulePage) (*preview, error) {
	l, err := throttle.ParseLimit(p.LimitText)
	if err != nil {
		return &preview{Problem: safeIn(err.Error(), 300)}, nil // the page shows it
	}
	v := &preview{Limit: l.String(), Words: words(l)}
	old, changed := rate(p.Limit), rate(l)
	switch {
	case p.Problem != "":
		v.Factor = "Nothing is granted now."
		return v, nil
	case old == 0 || changed == 0:
		v.Factor = "How long the lines take follows from how long tasks run."
		return v, nil
	}
	v.Slower = changed < old
	switch {
	case changed == old:
		v.Factor = "In the long run it lets as many through as the limit in force."
	case v.Slower:
		v.Factor = fmt.Sprintf("Lines take about %.3g times as long.", old/changed)
	default:
		v.Factor = fmt.Sprintf("Lines take about %.3g %% of the time that they take now.", 100*old/changed)
	}
	for _, far := range p.Far[:min(len(p.Far), previewKeys)] {
		k, err := s.Key(ctx, p.Rule, far.ID)
		if errors.Is(err, throttle.ErrUnavailable) {
			return nil, err
		}
		if err != nil || k.Waiting == 0 || k.Limit != p.Limit { // it can't be read, or has a limit of its own, which stays
			continue
		}
		begin := k.Now
		for _, opens := range []time.Time{k.Closed, k.Held} {
			if opens.After(begin) {
				begin = opens
			}
		}
		after := time.Duration(float64(k.Waiting) / changed * float64(time.Second))
		v.Rows = append(v.Rows, previewRow{ID: far.ID, Jobs: k.Waiting, Last: far.Last, New: begin.Add(after).Truncate(time.Second)})
	}
	return v, nil
}

// keyPage is the line of one key.
type keyPage struct {
	inspect.Key
	Rule       string
	Token      string
	Page       inspect.Page
	Pager      pager
	First      int // place of the first of the page, from 1; 0 when it is not known
	Timeline   chart
	Words      string
	Concurrent bool
	Changes    []inspect.Change
	Queue      string // of the first that waits, for what is done to all
}

func loadKey(ctx context.Context, d *board, q url.Values) (any, error) {
	id, err := d.seal.open(q.Get("k"))
	if err != nil {
		return nil, err
	}
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	p := keyPage{Rule: q.Get("rule"), Token: q.Get("k")}
	if p.Key, err = s.Key(ctx, p.Rule, id); err != nil {
		return nil, err
	}
	if p.Page, err = s.LinePage(ctx, p.Rule, id, inspect.Cursor(q.Get("from")), lineMost); err != nil {
		return nil, err
	}
	p.Pager = cursorsOf(d, "/key", "the line", q, p.Page.Next)
	if q.Get("from") == "" {
		p.First = 1
	}
	if len(p.Page.Waiting) > 0 {
		p.Queue = p.Page.Waiting[0].Queue
	}
	p.Words, p.Concurrent = words(p.Limit), p.Limit.IsConcurrent()
	spent := p.Spent
	if q.Get("from") != "" {
		spent = nil
	}
	p.Timeline = timeline(spent, p.Page.Waiting, p.Page.Now, p.Concurrent)
	changes, err := changesOf(ctx, d, s)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if c.Rule == p.Rule && (c.Key == id || c.Key == "") && len(p.Changes) < 5 {
			p.Changes = append(p.Changes, c)
		}
	}
	return p, nil
}
