package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/simulate"
	"github.com/headwayq/headway/queue"
)

// simulateAnswer is what a simulation found.
type simulateAnswer struct {
	Start     time.Time       `json:"start"` // the first arrival
	Jobs      int             `json:"jobs"`
	Run       int             `json:"run"` // that start at all
	Last      time.Time       `json:"last_start,omitzero"`
	WaitP50   time.Duration   `json:"wait_p50_ns"`
	WaitP99   time.Duration   `json:"wait_p99_ns"`
	WaitMax   time.Duration   `json:"wait_max_ns"`
	Unlimited int             `json:"without_policy"`
	Rules     []simulatedRule `json:"rules"`
	Never     []neverRuns     `json:"never"`
	Rows      []simulatedJob  `json:"rows"` // by arrival

	most int // rows of a table
}

type simulatedRule struct {
	Rule    string        `json:"rule"`
	Is      string        `json:"is"`
	Binds   int           `json:"binds"` // jobs whose start it says
	WaitMax time.Duration `json:"wait_max_ns"`
}

// neverRuns is why jobs never run, and on which lines they are.
type neverRuns struct {
	Why   string `json:"why"`
	Lines []int  `json:"lines"`
}

type simulatedJob struct {
	Line  int           `json:"line"`
	Type  string        `json:"type"`
	At    time.Time     `json:"at"`
	Start time.Time     `json:"start,omitzero"`
	Wait  time.Duration `json:"wait_ns"`
	Rule  string        `json:"rule,omitempty"`
	Never string        `json:"never,omitempty"`
}

const (
	instantLayout = "2006-01-02 15:04:05.000Z"
	linesShown    = 10 // of jobs that never run for one reason
)

func (s simulateAnswer) table(t *table) {
	t.row("LINE", "TYPE", "ARRIVES", "STARTS", "WAITS", "RULE")
	shown := s.Rows[:min(len(s.Rows), s.most)]
	for _, j := range shown {
		starts := t.bad("never")
		if j.Never == "" {
			starts = j.Start.Format(instantLayout)
		}
		t.row(j.Line, j.Type, j.At.Format(instantLayout), starts, short(j.Wait), orDash(j.Rule))
	}
	if len(shown) < len(s.Rows) {
		t.line("... and %d more", len(s.Rows)-len(shown))
	}
	t.line("")
	if s.Run == 0 {
		t.line("none of %s starts", e2e.Count(s.Jobs, "job"))
	} else {
		verb := "start"
		if s.Run == 1 {
			verb = "starts"
		}
		t.line("%d of %s %s, the last at %s, %v after the first arrival",
			s.Run, e2e.Count(s.Jobs, "job"), verb, s.Last.Format(instantLayout), s.Last.Sub(s.Start).Round(time.Millisecond))
		if s.Run == 1 {
			t.line("it waits %s", orZero(s.WaitMax))
		} else {
			t.line("they wait %s (p50), %s (p99), %s (max)", orZero(s.WaitP50), orZero(s.WaitP99), orZero(s.WaitMax))
		}
	}
	if s.Unlimited > 0 {
		t.line("%s", t.warn(fmt.Sprintf("without a limit: %s of types that have no policy", e2e.Count(s.Unlimited, "job"))))
	}
	t.line("")
	t.row("RULE", "IS", "BINDS", "LONGEST")
	for _, r := range s.Rules {
		t.row(r.Rule, r.Is, r.Binds, short(r.WaitMax))
	}
	for i, n := range s.Never {
		if i == 0 {
			t.line("")
			t.row("NEVER RUN", "LINES", "WHY")
		}
		if i == linesShown {
			t.line("... and for %d more reasons", len(s.Never)-i)
			break
		}
		var lines []string
		for _, line := range n.Lines[:min(len(n.Lines), linesShown)] {
			lines = append(lines, strconv.Itoa(line))
		}
		if len(n.Lines) > linesShown {
			lines = append(lines, "...")
		}
		t.row(len(n.Lines), strings.Join(lines, ","), t.bad(n.Why))
	}
}

func orZero(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	return short(d)
}

// csv writes all jobs, waits in seconds.
func (s simulateAnswer) csv(w *csv.Writer) error {
	rows := [][]string{{"line", "type", "at", "start", "wait_seconds", "rule", "never"}}
	for _, j := range s.Rows {
		start, wait := "", ""
		if j.Never == "" {
			start, wait = j.Start.Format(time.RFC3339Nano), strconv.FormatFloat(j.Wait.Seconds(), 'f', -1, 64)
		}
		rows = append(rows, []string{strconv.Itoa(j.Line), j.Type, j.At.Format(time.RFC3339Nano), start, wait, j.Rule, j.Never})
	}
	return w.WriteAll(rows)
}

func simulateCommand(a *app) *cobra.Command {
	s := simulation{}
	c := &cobra.Command{
		Use: "simulate FILE...", Short: "when each job of a list would run under policy files, without Redis", Args: cobra.MinimumNArgs(1),
		Annotations: map[string]string{csvToo: ""},
		Long: `simulate says when jobs would start under the policies of files, how long they would wait, and
for which rule. It asks no Redis, and no time passes: the limits decide in memory.

The jobs are a CSV file with the columns at, type and payload. at is an instant as in RFC 3339,
or a duration from the start, such as 1.5s, in the years 2000 to 2100. With --type there is no
column type.

It takes for granted that a worker is free for each job at its instant, that no job fails, and
that nothing was spent before the first of them. BINDS counts the jobs whose start a rule says:
a gate that is closed right before it, or else a limit. Of several limits after a gate it may
count the gate. -o csv and -o json have all jobs. The exit code is 1 when a job never runs.`,
		RunE: func(cmd *cobra.Command, files []string) error {
			if a.watch != 0 {
				return badUsage("simulate has no --watch")
			}
			policies, err := readPolicies(files)
			if err != nil {
				return err
			}
			if err := s.check(cmd, policies); err != nil {
				return usageError{err}
			}
			if err := e2e.ReadFile(s.arrivals, a.stdin, s.read); err != nil {
				return usageError{fmt.Errorf("--arrivals: %w", err)}
			}
			out, err := simulate.Run(cmd.Context(), policies, s.jobs, s.takes)
			if err != nil {
				return err
			}
			got, err := s.answer(policies, out)
			if err != nil {
				return err
			}
			if err := a.output.print(a.stdout, got, false); err != nil || len(got.Never) == 0 {
				return err
			}
			return errNotWell
		},
	}
	c.Flags().StringVar(&s.arrivals, "arrivals", "", "CSV `FILE` of the jobs, - is stdin")
	c.Flags().StringVar(&s.typ, "type", "", "`TYPE` of all jobs, in place of a column")
	c.Flags().StringVar(&s.start, "start", "", "`INSTANT` from which durations count, as in RFC 3339 (default the first instant of the list, or now)")
	c.Flags().DurationVar(&s.takes, "takes", 0, "how long a job runs, a `DURATION`; for rules that limit how many run at once")
	c.Flags().IntVar(&s.most, "most", 20, "list at most `N` jobs in a table")
	return c
}

// simulation is what the flags and the list of jobs say.
type simulation struct {
	arrivals, typ, start string
	takes                time.Duration
	most                 int

	from   time.Time
	jobs   []simulate.Job
	lines  []int
	after  []int // jobs whose instants are durations
	offset []time.Duration
}

// check looks at the flags.
func (s *simulation) check(cmd *cobra.Command, policies []queue.Policy) error {
	var errs []error
	if s.arrivals == "" {
		errs = append(errs, errors.New("--arrivals FILE is required: a CSV file with the columns at, type and payload, or - for stdin"))
	}
	if s.most < 0 {
		errs = append(errs, fmt.Errorf("--most is %d, want at least 0", s.most))
	}
	if cmd.Flags().Changed("start") {
		var err error
		if s.from, err = time.Parse(time.RFC3339Nano, s.start); err != nil {
			errs = append(errs, fmt.Errorf("--start is %q, want an instant such as 2026-03-02T08:00:00Z", s.start))
		} else if !inYears(s.from) {
			errs = append(errs, fmt.Errorf("--start is %q, want a year from %d to %d", s.start, firstYear, lastYear))
		}
	}
	var slots []string
	for _, p := range policies {
		for _, r := range p.Rules {
			if r.Limit.IsConcurrent() && !slices.Contains(slots, r.Name) {
				slots = append(slots, r.Name)
			}
		}
	}
	given := cmd.Flags().Changed("takes")
	switch {
	case len(slots) > 0 && !given:
		errs = append(errs, fmt.Errorf("%s limits how many jobs run at once: say by --takes DURATION how long a job runs, such as --takes 200ms",
			strings.Join(slots, ", ")))
	case len(slots) == 0 && given:
		errs = append(errs, errors.New("--takes has no effect: no rule of the files limits how many jobs run at once"))
	case given && s.takes <= 0:
		errs = append(errs, fmt.Errorf("--takes is %v, want more than 0", s.takes))
	}
	return errors.Join(errs...)
}

// read reads the jobs. A fault says the line, and nothing of what stands there.
func (s *simulation) read(r io.Reader) error {
	columns := []string{"at", "payload", "type"}
	if s.typ != "" {
		columns = columns[:2]
	}
	var first time.Time
	err := e2e.ReadCSV(r, columns, func(line int, fields []string) (faults []string) {
		job := simulate.Job{Type: s.typ, Payload: []byte(fields[1])}
		if s.typ == "" {
			if job.Type = fields[2]; job.Type == "" {
				faults = append(faults, "type is empty")
			}
		}
		var fault string
		var offset time.Duration
		if job.At, offset, fault = instantOf(strings.TrimSpace(fields[0])); fault != "" {
			faults = append(faults, fault)
		}
		if offset >= 0 {
			s.after, s.offset = append(s.after, len(s.jobs)), append(s.offset, offset)
		} else if first.IsZero() || job.At.Before(first) {
			first = job.At
		}
		s.jobs, s.lines = append(s.jobs, job), append(s.lines, line)
		return faults
	})
	if err == nil && len(s.jobs) == 0 {
		err = &e2e.InputError{Faults: []e2e.Fault{{Line: 1, What: "no jobs after the header"}}}
	}
	if err != nil {
		return err
	}
	if s.from.IsZero() { // no --start: it refuses the year 1
		if s.from = first; first.IsZero() {
			s.from = time.Now().UTC().Truncate(time.Second)
		}
	}
	late := &e2e.InputError{}
	for n, i := range s.after {
		if s.jobs[i].At = s.from.Add(s.offset[n]); !inYears(s.jobs[i].At) {
			late.Faults = append(late.Faults, e2e.Fault{Line: s.lines[i], What: fmt.Sprintf("at is after the year %d, counted from the start", lastYear)})
		}
	}
	if len(late.Faults) > 0 {
		return late
	}
	return nil
}

// Instants lie in these years: the windows around them, and leases of many years, are on a clock of
// microseconds since 1970.
const firstYear, lastYear = 2000, 2100

func inYears(at time.Time) bool {
	year := at.UTC().Year()
	return firstYear <= year && year <= lastYear
}

// longestAfter bounds a duration from the start.
const longestAfter = 101 * 366 * 24 * time.Hour

// longDuration finds a duration that [time.ParseDuration] refuses for its size.
var longDuration = regexp.MustCompile(`^[-+]?([0-9]*\.?[0-9]+(h|m|s|ms|us|µs|ns))+$`)

// instantOf reads an instant, or a duration of 0 or more from the start.
func instantOf(text string) (at time.Time, after time.Duration, fault string) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		if !inYears(at) {
			return at, -1, fmt.Sprintf("at is not in the years %d to %d", firstYear, lastYear)
		}
		return at.UTC(), -1, ""
	}
	after, err := time.ParseDuration(text)
	switch {
	case err == nil && 0 <= after && after <= longestAfter:
		return at, after, ""
	case err != nil && !longDuration.MatchString(text):
		return at, -1, "at is not an instant such as 2026-03-02T08:00:00Z, and not a duration such as 1.5s"
	case strings.HasPrefix(text, "-"):
		return at, -1, "at is a negative duration, want at least 0s"
	}
	return at, -1, fmt.Sprintf("at is a duration that is too long, want at most %dh", longestAfter/time.Hour)
}

// answer sums up.
func (s *simulation) answer(policies []queue.Policy, out []simulate.Outcome) (simulateAnswer, error) {
	got := simulateAnswer{Jobs: len(out), Rules: rulesOf(policies), Never: []neverRuns{}, most: s.most}
	byRule, byReason := make(map[string]int), make(map[string]int)
	for i, r := range got.Rules {
		byRule[r.Rule] = i
	}
	var waits []time.Duration
	for i, o := range out {
		job := simulatedJob{Line: s.lines[i], Type: s.jobs[i].Type, At: s.jobs[i].At.UTC(), Start: o.Start.UTC(), Rule: o.Rule}
		switch {
		case errors.Is(o.Err, errProgramsOwn):
			return got, usageError{fmt.Errorf("line %d can't be simulated: %w: %w", job.Line, o.Err, errProgramsOwn)}
		case o.Err != nil:
			job.Start, job.Never = time.Time{}, o.Err.Error()
			if _, known := byReason[job.Never]; !known {
				byReason[job.Never] = len(got.Never)
				got.Never = append(got.Never, neverRuns{Why: job.Never})
			}
			n := &got.Never[byReason[job.Never]]
			n.Lines = append(n.Lines, job.Line)
		default:
			got.Run++
			job.Wait = max(0, job.Start.Sub(job.At))
			waits = append(waits, job.Wait)
			if job.Start.After(got.Last) {
				got.Last = job.Start
			}
			if o.Unlimited {
				got.Unlimited++
			}
			if o.Rule != "" {
				r := &got.Rules[byRule[o.Rule]]
				r.Binds, r.WaitMax = r.Binds+1, max(r.WaitMax, job.Wait)
			}
		}
		if got.Start.IsZero() || job.At.Before(got.Start) {
			got.Start = job.At
		}
		got.Rows = append(got.Rows, job)
	}
	slices.SortStableFunc(got.Rows, func(a, b simulatedJob) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(got.Rules, func(a, b simulatedRule) int { return cmp.Compare(b.Binds, a.Binds) })
	slices.Sort(waits)
	got.WaitP50, got.WaitP99, got.WaitMax = quantile(waits, 50), quantile(waits, 99), quantile(waits, 100)
	return got, nil
}

// rulesOf are the rules of the policies, each once.
func rulesOf(policies []queue.Policy) []simulatedRule {
	rules := []simulatedRule{}
	seen := make(map[string]bool)
	for _, p := range policies {
		for _, r := range p.Rules {
			if seen[r.Name] {
				continue
			}
			seen[r.Name] = true
			is := r.Limit.String()
			if !r.Gate.IsZero() {
				is = "gate " + r.Gate.String()
			}
			rules = append(rules, simulatedRule{Rule: r.Name, Is: is})
		}
	}
	return rules
}

// quantile is the least of the sorted waits that so many of a hundred do not exceed.
func quantile(waits []time.Duration, percent int) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	return waits[max(0, (len(waits)*percent+99)/100-1)]
}
