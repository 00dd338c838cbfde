package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
)

// errProgramsOwn is what a function of the program answers here.
var errProgramsOwn = errors.New("a function of the program, which is not known here")

var funcName = regexp.MustCompile(`\bfunc\s+([A-Za-z0-9_.-]+)`)

// nameFuncs lets the text of a policy file name functions of the program.
func nameFuncs(text string, funcs queue.Funcs) {
	for _, m := range funcName.FindAllStringSubmatch(text, -1) {
		funcs.Keys[m[1]] = func(*asynq.Task) (string, error) { return "", errProgramsOwn }
		funcs.Costs[m[1]] = func(*asynq.Task) (int, error) { return 0, errProgramsOwn }
		funcs.Zones[m[1]] = func(*asynq.Task) (*time.Location, error) { return nil, errProgramsOwn }
	}
}

func policyCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "check policy files, or compare them with what runs", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return badUsage("want policy check or policy diff") },
	}
	c.AddCommand(policyCheckCommand(a), policyDiffCommand(a))
	return c
}

// checkedRule is a rule of a policy, and what a payload needs of it.
type checkedRule struct {
	Rule string `json:"rule"`
	Is   string `json:"is"`
	Key  string `json:"key,omitempty"`
	Cost int    `json:"cost,omitempty"`
	Zone string `json:"zone,omitempty"`
}

type checkedPolicy struct {
	Type  string        `json:"type"`
	Rules []checkedRule `json:"rules"`
}

type checkAnswer struct {
	Policies []checkedPolicy `json:"policies"`
	demanded bool
}

func (c checkAnswer) table(t *table) {
	for _, p := range c.Policies {
		t.line("%s", p.Type)
		for _, r := range p.Rules {
			if c.demanded {
				what := "key " + r.Key + fmt.Sprintf(", cost %d", r.Cost)
				if r.Key == "" {
					what = "zone " + r.Zone
				}
				t.row("  "+r.Rule, r.Is, what)
				continue
			}
			t.row("  "+r.Rule, r.Is)
		}
	}
	t.line("%s", t.good("the policies are right"))
}

func policyCheckCommand(a *app) *cobra.Command {
	payload, typ := "", ""
	c := &cobra.Command{
		Use: "check FILE...", Short: "read policy files and say every fault with its line; with --payload what a task needs", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			policies, err := readPolicies(files)
			if err != nil {
				return err
			}
			got := checkAnswer{Policies: []checkedPolicy{}, demanded: payload != ""}
			var body []byte
			if got.demanded { // once for all policies: stdin can't be read a second time
				if body, err = readText(a.stdin, payload); err != nil {
					return badUsage("--payload: %w", err)
				}
			}
			var faults []error
			for _, p := range policies {
				if typ != "" && p.Type != typ {
					continue
				}
				checked, err := checkedWith(a, p, got.demanded, body)
				got.Policies, faults = append(got.Policies, checked), append(faults, err)
			}
			if len(got.Policies) == 0 {
				return badUsage("--type: the files have no policy for %q", typ)
			}
			if err := errors.Join(faults...); err != nil {
				return usageError{err}
			}
			return a.output.print(a.stdout, got, false)
		},
	}
	c.Flags().StringVar(&payload, "payload", "", "`JSON` of a task, or @FILE, or - for stdin: find its keys and costs")
	c.Flags().StringVar(&typ, "type", "", "only the policy of the task type `TYPE`")
	return c
}

// checkedWith is what the answer says of a policy, and if they are demanded the keys and costs of a
// task with this payload.
func checkedWith(a *app, p queue.Policy, demanded bool, payload []byte) (checkedPolicy, error) {
	out := checkedPolicy{Type: p.Type}
	var d queue.Demand
	if demanded {
		var err error
		if d, err = p.Demand(asynq.NewTask(p.Type, payload)); err != nil {
			return out, err
		}
	}
	for _, r := range p.Rules {
		c := checkedRule{Rule: r.Name, Is: r.Limit.String()}
		switch {
		case !r.Gate.IsZero():
			c.Is = "gate " + r.Gate.String()
			if len(d.Gates) > 0 {
				c.Zone = r.Gate.Zone()
				if in := d.Gates[0].In; in != nil {
					c.Zone = in.String()
				}
				d.Gates = d.Gates[1:]
			}
		case len(d.Costs) > 0:
			c.Key, c.Cost = a.key(d.Costs[0].Key), d.Costs[0].Cost
			d.Costs = d.Costs[1:]
		}
		out.Rules = append(out.Rules, c)
	}
	return out, nil
}

// stdinMost is how many bytes of stdin are a payload.
const stdinMost = 1 << 20

// readText is a text that is given as it is, by a file, or on stdin.
func readText(stdin io.Reader, text string) ([]byte, error) {
	if text == "-" {
		read, err := io.ReadAll(io.LimitReader(stdin, stdinMost+1))
		if err == nil && len(read) > stdinMost {
			err = fmt.Errorf("stdin has more than %d bytes", stdinMost)
		}
		return read, err
	}
	if file, ok := strings.CutPrefix(text, "@"); ok {
		return os.ReadFile(file)
	}
	return []byte(text), nil
}

type diffAnswer struct {
	Pools       int                  `json:"pools"`
	Differences []inspect.Difference `json:"differences"`
	NotCompared int                  `json:"processes_not_compared,omitempty"`
}

// compareWithFiles finds what runs otherwise than the policies of files say. Of all processes that
// run, some are listed.
func compareWithFiles(policies []queue.Policy, listed []inspect.Process, all int) diffAnswer {
	got := diffAnswer{Differences: inspect.Differences(policies, listed), NotCompared: all - len(listed)}
	charges, runs := make(map[string]string), make(map[string]bool)
	for _, p := range policies {
		charges[p.Type] = p.Charge.String()
	}
	for _, p := range inspect.Pools(listed) {
		got.Pools++
		for _, said := range p.Policies {
			runs[said.Type] = true
			// A pool of an older release does not say its charge.
			if want := charges[said.Type]; want != "" && said.Charge != "" && said.Charge != want {
				got.Differences = append(got.Differences, inspect.Difference{
					Type: said.Type, Want: "charge: " + want, Got: "charge: " + said.Charge, Pool: fmt.Sprintf("%s:%d", p.Host, p.PID),
				})
			}
		}
	}
	if got.NotCompared > 0 { // one of the others may run what none of these runs
		return got
	}
	for _, p := range policies {
		if !runs[p.Type] {
			names := make([]string, len(p.Rules))
			for n, r := range p.Rules {
				names[n] = r.Name
			}
			got.Differences = append(got.Differences, inspect.Difference{Type: p.Type, Want: strings.Join(names, "+"), Got: "(no pool)"})
		}
	}
	return got
}

func (d diffAnswer) table(t *table) {
	if len(d.Differences) == 0 {
		t.line("%s", t.good(counted(d.Pools, "pool runs", "pools run")+" as the files say"))
	} else {
		differencesTable(t, d.Differences)
	}
	if d.NotCompared > 0 {
		t.line("%s", t.warn(counted(d.NotCompared, "process more was", "processes more were")+" not compared"))
	}
}

func policyDiffCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "diff FILE...", Short: "which pools run with other rules or numbers than the files have; exit code 1 if any does", Args: cobra.MinimumNArgs(1),
		Long: `diff compares the pools that run with policy files: the rules of each task type, their limits
and gates, and what is charged. A policy of the files that no pool runs is a difference, too.

At most 500 processes are listed. When more run, it says how many were not compared, and
a policy that none of the listed pools runs is no difference: another one may run it.`,
		RunE: func(cmd *cobra.Command, files []string) error {
			return a.answer(cmd.Context(), func(ctx context.Context) (answer, error) {
				policies, err := readPolicies(files)
				if err != nil {
					return nil, err
				}
				a.known = policies
				i, err := a.inspector(ctx)
				if err != nil {
					return nil, err
				}
				running, all, err := i.Processes(ctx)
				if err != nil {
					return nil, err
				}
				got := compareWithFiles(policies, running, all)
				switch {
				case got.Pools == 0 && got.NotCompared > 0:
					return nil, fmt.Errorf("none of the %d processes that are listed is a pool: %w", len(running), errMissing)
				case got.Pools == 0:
					return nil, fmt.Errorf("no pool runs: %w", errMissing)
				}
				if len(got.Differences) > 0 {
					return got, errNotWell
				}
				return got, nil
			})
		},
	}
}
