package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/presence"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// programsFunction is the error of a key, cost, zone or limit function of another program. It has
// a type of its own because package throttle names the type of an error, and not its text.
type programsFunction struct{}

func (programsFunction) Error() string { return "only the program knows this function" }

// errFunc is what a key, cost, zone or limit function of another program answers here.
var errFunc error = programsFunction{}

// Pools returns the pools among processes. Only pools run policies and serve queues: a feeder names the queues
// that it fills.
func Pools(running []Process) []Process {
	return slices.DeleteFunc(slices.Clone(running), func(p Process) bool { return p.Kind != presence.Pool })
}

// ServedByPools returns the queues that the pools among processes serve.
func ServedByPools(running []Process) map[string]bool {
	served := make(map[string]bool)
	for _, p := range Pools(running) {
		for queue := range p.Queues {
			served[queue] = true
		}
	}
	return served
}

// Served says which queues are served.
type Served struct {
	// Queues are served by a pool that is listed, or by a server of asynq, also in a program without Headway.
	Queues map[string]bool
	// Unlisted is how many processes run that are not listed. They may serve more queues.
	Unlisted int
	// AsynqErr says why asynq's list of servers could not be read; nil when it was. To read it takes the rights of
	// an operator, because asynq removes servers from it that died.
	AsynqErr error
}

// newestFirst orders processes by their starts.
func newestFirst(running []Process) []Process {
	all := slices.Clone(running)
	slices.SortStableFunc(all, func(a, b Process) int { return b.Since.Compare(a.Since) })
	return all
}

// PoliciesOf returns the policies that running pools say, in the order of their types; of
// pools with several numbers those of most, see [Differences]. Of policies that contradict each other
// the first is returned. How keys are found is not
// known, so a demand can't be computed by them. Nor is it known which limits keys have of their
// own: a question about a key of such a rule is a throttle.ErrStoredLimit.
func PoliciesOf(running []Process) []queue.Policy {
	numbers, _ := wanted(nil, running)
	perKey := perKeyOf(running)
	byType := make(map[string]queue.Policy)
	for _, p := range newestFirst(running) {
		for _, said := range p.Policies {
			if _, known := byType[said.Type]; known {
				continue
			}
			if policy, ok := policyOf(said, numbers, perKey); ok {
				byType[said.Type] = policy
			}
		}
	}
	policies := make([]queue.Policy, 0, len(byType))
	for _, p := range byType {
		policies = append(policies, p)
	}
	slices.SortFunc(policies, func(a, b queue.Policy) int { return cmp.Compare(a.Type, b.Type) })
	fitting := policies[:0:0]
	for _, p := range policies {
		if with := append(fitting, p); queue.ValidatePolicies(with) == nil { // pools may contradict each other
			fitting = with
		}
	}
	return fitting
}

// perKeyOf are the rules whose keys have limits of their own. Pools of an older release do not
// say it, so one pool that does is enough: a rule has such a function everywhere, or nowhere.
func perKeyOf(running []Process) map[string]bool {
	rules := make(map[string]bool)
	for _, p := range running {
		for _, said := range p.Policies {
			for _, r := range said.Rules {
				if r.PerKey {
					rules[r.Name] = true
				}
			}
		}
	}
	return rules
}

// policyOf reads what a pool says about a task type, with the numbers of most pools.
func policyOf(said presence.Policy, numbers map[string]string, perKey map[string]bool) (queue.Policy, bool) {
	p := queue.Policy{Type: said.Type}
	var err error
	for _, s := range said.Rules {
		r := queue.Rule{Name: s.Name}
		if s.Gate != "" {
			if r.Gate, err = gate.Parse(numbers[s.Name]); err != nil {
				return p, false
			}
			if r.Gate.Zone() == "" {
				r.Zone = func(*asynq.Task) (*time.Location, error) { return nil, errFunc }
			}
		} else {
			if r.Limit, err = throttle.ParseLimit(numbers[s.Name]); err != nil {
				return p, false
			}
			r.Key = func(*asynq.Task) (string, error) { return "", errFunc }
			if perKey[s.Name] {
				r.LimitOf = func(context.Context, string, time.Time) (throttle.Limit, time.Time, error) {
					return throttle.Limit{}, time.Time{}, errFunc
				}
			}
		}
		p.Rules = append(p.Rules, r)
	}
	return p, true
}

// Difference is a rule that runs with several numbers, or with others than in a file.
type Difference struct {
	Rule string `json:"rule"`
	Type string `json:"type,omitempty"` // where it is about the rules of a task type
	Want string `json:"want"`           // in the policies here, or in most pools
	Got  string `json:"got"`
	Pool string `json:"pool"` // host and pid of the pool with other numbers
}

// Differences compares the pools that run with policies, such as those of a file. Without
// policies it compares the pools with each other: what most of them have is right, and
// among equals what the one has that started last.
func Differences(policies []queue.Policy, running []Process) []Difference {
	want, types := wanted(policies, running)
	var all []Difference
	for _, p := range running {
		if p.Kind != presence.Pool {
			continue
		}
		pool := fmt.Sprintf("%s:%d", p.Host, p.PID)
		seen := make(map[string]bool)
		for _, said := range p.Policies {
			if names := namesOf(said.Rules); len(policies) > 0 && types[said.Type] != names {
				all = append(all, Difference{Type: said.Type, Want: types[said.Type], Got: names, Pool: pool})
			}
			for _, r := range said.Rules {
				text := r.Limit + r.Gate
				if w := want[r.Name]; w != "" && w != text && !seen[r.Name] {
					seen[r.Name] = true
					all = append(all, Difference{Rule: r.Name, Want: w, Got: text, Pool: pool})
				}
			}
		}
	}
	return all
}

// wanted are the numbers by rule and the rules by task type.
func wanted(policies []queue.Policy, running []Process) (rules, types map[string]string) {
	rules, types = make(map[string]string), make(map[string]string)
	if len(policies) > 0 {
		for _, p := range policies {
			var said []presence.Rule
			for _, r := range p.Rules {
				text := r.Limit.String()
				if gated(r) {
					text = r.Gate.String()
				}
				rules[r.Name] = text
				said = append(said, presence.Rule{Name: r.Name})
			}
			types[p.Type] = namesOf(said)
		}
		return rules, types
	}
	votes := make(map[string]map[string]int)
	for _, p := range newestFirst(running) {
		mine := make(map[string]string)
		for _, said := range p.Policies {
			for _, r := range said.Rules {
				mine[r.Name] = r.Limit + r.Gate
			}
		}
		for rule, text := range mine {
			if votes[rule] == nil {
				votes[rule] = make(map[string]int)
				rules[rule] = text
			}
			votes[rule][text]++
		}
	}
	for rule, texts := range votes {
		for text, n := range texts {
			if n > texts[rules[rule]] {
				rules[rule] = text
			}
		}
	}
	return rules, types
}

func namesOf(rules []presence.Rule) string {
	names := make([]string, len(rules))
	for i, r := range rules {
		names[i] = r.Name
	}
	return strings.Join(names, "+")
}
