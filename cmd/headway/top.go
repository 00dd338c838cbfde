package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/headwayq/headway/inspect"
)

const (
	topEvery   = 2 * time.Second
	topRules   = 30                     // rules of which the last hour is asked
	topKeysOf  = 3                      // rules whose keys are asked, those that bind most
	topPlanned = 10                     // queues whose planned starts are asked
	topLook    = 200 * time.Millisecond // how often the size of the terminal is looked at
)

func topCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "top", Short: "a full-screen view of queues, rules, keys that wait, planned starts and pools", Args: cobra.NoArgs,
		Long: `top fills the terminal, and is read again every 2s, or as --watch says. q or Ctrl-C ends it.

RUNNABLE tasks lack workers. THROTTLED tasks wait for a limit or a gate, and start by
themselves. BOUND is how often a rule made a task wait in the last hour. KEY lists the keys by
which tasks wait that start last, of the three rules that bind most. The first 100 queues by name
are looked at, and the last hour of 30 rules.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.output.format != "table" {
				return badUsage("top has no --output: for scripts there is status -o json")
			}
			in, fromFile := a.stdin.(*os.File)
			out, toFile := a.stdout.(*os.File)
			if !fromFile || !toFile || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
				return badUsage("top needs a terminal: use status --watch, or for scripts status -o json")
			}
			return showTop(cmd.Context(), a, in, out)
		},
	}
}

// showTop shows views until somebody quits. The terminal is as it was afterwards.
func showTop(ctx context.Context, a *app, in, out *os.File) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	every := cmp.Or(a.watch, topEvery)
	v, err := readTop(ctx, a)
	if err != nil {
		return err
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("top: %w", err)
	}
	defer func() {
		_, _ = io.WriteString(out, "\x1b[?25h\x1b[?1049l") // the cursor, and the screen that was there
		if restored := term.Restore(int(in.Fd()), before); err == nil && restored != nil {
			err = fmt.Errorf("top: %w", restored)
		}
	}()
	if _, err := io.WriteString(out, "\x1b[?1049h\x1b[?25l"); err != nil {
		return fmt.Errorf("top: %w", err)
	}
	quit := quitBy(in)
	views := topViews(ctx, a, every)
	look := time.NewTicker(topLook)
	defer look.Stop()
	var shown string
	for {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return fmt.Errorf("top: %w", err)
		}
		if text := screen(v.lines(width, height, every)); text != shown {
			if _, err := io.WriteString(out, text); err != nil {
				return fmt.Errorf("top: %w", err)
			}
			shown = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-quit:
			return nil
		case newer := <-views:
			if newer.fault != "" { // what was known before is shown with it
				v.fault = newer.fault
			} else {
				v = newer
			}
		case <-look.C:
		}
	}
}

// topMost is how long one reading may take, before the view says that it is old.
const topMost = 3 * time.Second

// topViews reads again and again, until ctx ends.
func topViews(ctx context.Context, a *app, every time.Duration) <-chan topView {
	views := make(chan topView)
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			call, cancel := context.WithTimeout(ctx, topMost)
			v, err := readTop(call, a)
			cancel()
			if err != nil {
				v.fault = err.Error()
			}
			select {
			case <-ctx.Done():
				return
			case views <- v:
			}
		}
	}()
	return views
}

// quitBy is closed when q or Ctrl-C is pressed, or nobody can press anything any more. A read of a
// terminal can't be broken off: it ends with the process.
func quitBy(in io.Reader) <-chan struct{} {
	quit := make(chan struct{})
	go func() {
		defer close(quit)
		pressed := make([]byte, 64)
		for {
			n, err := in.Read(pressed)
			if err != nil || bytes.ContainsAny(pressed[:n], "qQ\x03") {
				return
			}
		}
	}()
	return quit
}

// screen writes lines over those that were there. A terminal in raw mode wants the carriage
// return.
func screen(lines []string) string {
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}

// topView is what top shows.
type topView struct {
	queues    []inspect.QueueStatus
	left      int       // queues that were not looked at
	rules     []topRule // those that bind most first
	keys      []topKey  // those whose tasks start last first
	planned   [60]int   // starts by minute
	processes []inspect.Process
	all       int // processes
	now       time.Time
	fault     string // why it could not be read again
}

type topRule struct {
	rule, is string
	closed   time.Time
	problem  string
	unasked  bool // its last hour is not known
	perKey   bool
	hour     inspect.Point
}

type topKey struct {
	rule, key string // as it may be shown
	waiting   int
	last      time.Time // when the last of them starts
}

func readTop(ctx context.Context, a *app) (v topView, err error) {
	a.forget()
	i, err := a.inspector(ctx)
	if err != nil {
		return v, err
	}
	if v.queues, v.left, err = countQueues(ctx, i); err != nil {
		return v, err
	}
	v.now = time.Now()
	for _, q := range v.queues {
		v.now = q.Now // Redis' clock
	}
	if v.processes, v.all, err = i.Processes(ctx); err != nil {
		return v, err
	}
	if v.rules, err = readTopRules(ctx, a, i); err != nil {
		return v, err
	}
	if v.keys, err = readTopKeys(ctx, a, i, v); err != nil {
		return v, err
	}
	busy := slices.DeleteFunc(slices.Clone(v.queues), func(q inspect.QueueStatus) bool { return q.Within1h == 0 })
	slices.SortStableFunc(busy, func(a, b inspect.QueueStatus) int { return cmp.Compare(b.Within1h, a.Within1h) })
	for _, q := range busy[:min(len(busy), topPlanned)] {
		of, err := i.Planned(ctx, q.Queue)
		if err != nil {
			return v, err
		}
		for n, tasks := range of {
			v.planned[n] += tasks
		}
	}
	return v, nil
}

func readTopRules(ctx context.Context, a *app, i *inspect.Inspector) ([]topRule, error) {
	limits := make(map[string]inspect.RuleStatus)
	for _, r := range i.Rules(ctx) {
		limits[r.Rule] = r
	}
	var rules []topRule
	for n, r := range rulesOf(a.known) {
		row := topRule{rule: r.Rule, is: r.Is}
		if of, known := limits[r.Rule]; known {
			row.is, row.closed, row.problem = of.Limit.String(), of.Closed, of.Problem
		}
		if row.unasked = n >= topRules; !row.unasked {
			h, err := i.History(ctx, r.Rule, time.Hour)
			if err != nil {
				return nil, err
			}
			row.hour, row.perKey = h.Total, h.PerKey
		}
		rules = append(rules, row)
	}
	slices.SortStableFunc(rules, func(a, b topRule) int { return cmp.Compare(b.hour.Deferred, a.hour.Deferred) })
	return rules, nil
}

func readTopKeys(ctx context.Context, a *app, i *inspect.Inspector, v topView) (keys []topKey, err error) {
	var queues []string
	for _, q := range v.queues {
		if q.Waiting > 0 {
			queues = append(queues, q.Queue)
		}
	}
	asked := 0
	for _, r := range v.rules {
		if r.hour.Deferred == 0 || asked == topKeysOf {
			break
		}
		if !limited(a, r.rule) {
			continue
		}
		asked++
		of, _, err := i.FarKeys(ctx, r.rule, queues)
		if err != nil {
			return nil, err
		}
		for _, k := range of {
			keys = append(keys, topKey{rule: r.rule, key: a.key(k.ID), waiting: k.Seen, last: k.Last})
		}
	}
	slices.SortStableFunc(keys, func(a, b topKey) int { return b.last.Compare(a.last) })
	return keys, nil
}

// limited says that a rule is a limit and no gate, which has no keys.
func limited(a *app, rule string) bool {
	for _, p := range a.known {
		for _, r := range p.Rules {
			if r.Name == rule {
				return r.Gate.IsZero()
			}
		}
	}
	return false
}

// nameWidth is how much of a name is shown, so that the figures beside it are.
const nameWidth = 24

// section is a list of a view.
type section struct {
	head []any
	rows [][]any
}

// lines are a view as it fits on a terminal of this size.
func (v topView) lines(width, height int, every time.Duration) []string {
	sum := inspect.QueueStatus{}
	for _, q := range v.queues {
		sum.Pending += q.Pending
		sum.Active += q.Active
		sum.Waiting += q.Waiting
		sum.Overdue += q.Overdue
		sum.Archived += q.Archived
	}
	out := []string{fmt.Sprintf("headway top  %s, every %v, q quits", v.now.UTC().Format("2006-01-02 15:04:05Z"), every)}
	if v.fault != "" {
		out = append(out, "not read again: "+v.fault)
	}
	if v.left > 0 {
		out = append(out, fmt.Sprintf("of the first %d queues by name: %s not looked at", len(v.queues), counted(v.left, "more was", "more were")))
	}
	unasked := 0
	for _, r := range v.rules {
		if r.unasked {
			unasked++
		}
	}
	if unasked > 0 {
		out = append(out, "the last hour of "+counted(unasked, "rule", "rules")+" was not asked for")
	}
	out = append(out, fmt.Sprintf("throttled %d  runnable %d  running %d  failed %d  processes %d",
		sum.Waiting-sum.Overdue, sum.Pending+sum.Overdue, sum.Active, sum.Archived, v.all))
	sections := v.sections()
	if len(sections) == 0 {
		out = append(out, "", "nothing was enqueued, and no pool runs")
	}
	chart, most := bars(v.planned)
	axis := "now" + strings.Repeat(" ", 25) + "in 30m" + strings.Repeat(" ", 21) + "in 1h"
	planned := []string{"", fmt.Sprintf("STARTS IN THE NEXT HOUR, at most %d a minute", most), chart, axis}
	if most == 0 {
		planned = nil
	}
	room := func() int { return height - len(out) - len(planned) - 2*len(sections) } // a blank line and a head for each
	if room() < len(sections) {
		planned = nil
	}
	for len(sections) > 1 && room() < len(sections) {
		sections = sections[:len(sections)-1]
	}
	for _, n := range share(sections, room()) {
		s := sections[0]
		sections = sections[1:]
		t := &table{}
		head := slices.Clone(s.head)
		if n < len(s.rows) {
			head[0] = fmt.Sprintf("%v %d OF %d", head[0], n, len(s.rows))
		}
		t.row(head...)
		for _, row := range s.rows[:n] {
			t.row(row...)
		}
		out = append(out, "")
		out = append(out, strings.Split(strings.TrimRight(t.String(), "\n"), "\n")...)
	}
	out = append(out, planned...)
	out = out[:max(0, min(len(out), height))]
	for n, line := range out {
		out[n] = cut(line, width)
	}
	return out
}

func (v topView) sections() []section {
	queues := section{head: []any{"QUEUE", "RUNNABLE", "THROTTLED", "RUNNING", "FAILED", "NEXT START"}}
	for _, q := range v.queues {
		name := cut(q.Queue, nameWidth)
		if q.Paused {
			name += " (paused)"
		}
		queues.rows = append(queues.rows, []any{name, q.Pending + q.Overdue, q.Waiting - q.Overdue, q.Active, q.Archived, until(q.Next, v.now)})
	}
	rules := section{head: []any{"RULE", "BOUND", "GRANTED", "WAIT P99", "USED", "CLOSED", "IS"}}
	for _, r := range v.rules {
		is := r.is
		if r.problem != "" {
			is = r.problem
		}
		row := []any{cut(r.rule, nameWidth), r.hour.Deferred, r.hour.Granted, short(r.hour.WaitedP99), usedOf(r.hour, r.perKey), until(r.closed, v.now), is}
		if r.unasked {
			row[1], row[2] = "-", "-"
		}
		rules.rows = append(rules.rows, row)
	}
	keys := section{head: []any{"KEY", "RULE", "TASKS", "LAST START"}}
	for _, k := range v.keys {
		keys.rows = append(keys.rows, []any{k.key, cut(k.rule, nameWidth), k.waiting, until(k.last, v.now)})
	}
	pools := section{head: []any{"PROCESS", "PID", "UP", "BUSY", "QUEUES"}}
	for _, p := range v.processes {
		pools.rows = append(pools.rows, []any{
			p.Kind + " " + cut(p.Host, nameWidth), p.PID, short(v.now.Sub(p.Since)), fmt.Sprintf("%d/%d", p.Busy, p.Workers),
			strings.Join(slices.Sorted(maps.Keys(p.Queues)), ","),
		})
	}
	return slices.DeleteFunc([]section{queues, rules, keys, pools}, func(s section) bool { return len(s.rows) == 0 })
}

// share gives each section as many of the lines as it needs, and the same number to those
// that need more than there are.
func share(sections []section, room int) []int {
	given := make([]int, len(sections))
	for again := true; again; {
		again = false
		for n, s := range sections {
			if room > 0 && given[n] < len(s.rows) {
				given[n]++
				room--
				again = true
			}
		}
	}
	return given
}

// bars draws numbers, and says which is the largest.
func bars(numbers [60]int) (chart string, most int) {
	most = slices.Max(numbers[:])
	levels := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, n := range numbers {
		if n == 0 {
			b.WriteRune(' ')
			continue
		}
		b.WriteRune(levels[(n*len(levels)-1)/most])
	}
	return strings.TrimRight(b.String(), " "), most
}

// until is how long it is to an instant; "-" for none.
func until(at, now time.Time) string {
	switch d := at.Sub(now); {
	case at.IsZero():
		return "-"
	case d <= 0:
		return "now"
	case d < time.Second:
		return "in <1s"
	default:
		return fmt.Sprintf("in %v", d.Round(time.Second))
	}
}

// cut shortens a line to a width, and shows what would move the cursor.
func cut(line string, width int) string {
	runes := []rune(visible(line))
	if len(runes) <= width {
		return string(runes)
	}
	return string(runes[:max(0, width-1)]) + "…"
}
