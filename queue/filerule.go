package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue/internal/yamlfile"
	"github.com/headwayq/headway/queue/internal/zones"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// fileRule is a rule as a file defines it.
type fileRule struct {
	Rule
	at   yamlfile.Pos
	used bool
	good bool // without a fault of its own
}

var ruleFields = []string{"limit", "limits", "gate", "key", "cost", "zone"}

// rule reads a rule. A field that can't be read counts as given: it is a fault
// already, and that it is missing would be a wrong one.
func (f *policyFile) rule(e yamlfile.Entry) *fileRule {
	var (
		r      = &fileRule{Rule: Rule{Name: e.Name, source: fileSource{file: f.Name, at: e.At}}, at: e.At}
		before = len(f.Faults)
		gate   = true // as it stands can be held against the other fields

		constant  int  // cost, 0 for none
		limitRead bool // and does not stand for one that can't be read
	)
	places := f.Fields(e.Value, "a rule: "+strings.Join(ruleFields, ", "), ruleFields, func(field yamlfile.Entry) {
		switch n := field.Value; field.Name {
		case "limit":
			if r.Limit = f.limit(n); r.limited() {
				limitRead = true
			} else {
				r.Limit = throttle.Sliding(1, time.Second)
			}
		case "limits":
			r.source.limits = f.limits(n)
			r.LimitOf = limitsOf(r.source.limits)
		case "gate":
			r.Gate, gate = f.gate(n)
		case "key":
			if r.Key, r.Constant = f.key(n); r.Key == nil && r.Constant == "" {
				r.Key, r.source.unread = func(*asynq.Task) (string, error) { return "?", nil }, true
			}
			r.source.key = yamlfile.TextOf(n)
		case "cost":
			if r.Cost, constant = f.cost(n); r.Cost == nil {
				r.Cost = constantCost(1)
			}
			r.source.cost = yamlfile.TextOf(n)
		case "zone":
			if r.Zone = f.zone(n); r.Zone == nil {
				r.Zone = func(*asynq.Task) (*time.Location, error) { return time.UTC, nil }
			}
			r.source.zone = yamlfile.TextOf(n)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(r.source.limits)) {
		if own := r.source.limits[name]; r.limited() && own != (throttle.Limit{}) && own.IsConcurrent() != r.Limit.IsConcurrent() {
			f.Fault(places["limits"], fmt.Sprintf("rule %q: one of its limits is %v, and the limit of other keys %v: what runs at once and what runs "+
				"per window are kept apart", clip(e.Name), own, r.Limit))
		}
	}
	if gate && places != nil {
		for _, fault := range r.faults(r.traits()) {
			at := e.At
			if p, ok := places[fault.field]; ok {
				at = p
			}
			f.FaultOf(at, fmt.Sprintf("rule %q: ", clip(e.Name)), fault.err)
		}
	}
	if limitRead {
		f.costFits(r, constant, places)
	}
	r.good = len(f.Faults) == before
	return r
}

// costFits adds a fault when no task could ever have the cost that all of them have: each
// would end in the archive.
func (f *policyFile) costFits(r *fileRule, cost int, places map[string]yamlfile.Pos) {
	if r.Limit.IsConcurrent() {
		return // which has no cost: that is a fault already
	}
	if cost > r.Limit.MaxCost() {
		f.FaultOf(places["cost"], "", &throttle.ExceedsLimitError{Rule: clip(r.Name), Cost: cost, Limit: r.Limit})
	}
	for _, name := range slices.Sorted(maps.Keys(r.source.limits)) {
		if own := r.source.limits[name]; own != (throttle.Limit{}) && !own.IsConcurrent() && cost > own.MaxCost() {
			f.FaultOf(places["limits"], "one of its limits: ", &throttle.ExceedsLimitError{Rule: clip(r.Name), Cost: cost, Limit: own})
		}
	}
}

// limit reads the text of a limit, or returns the zero Limit.
func (f *policyFile) limit(n ast.Node) throttle.Limit {
	text, ok := f.Text(n, "a limit, such as 1/60s")
	if !ok {
		return throttle.Limit{}
	}
	limit, err := throttle.ParseLimit(text)
	if err != nil {
		f.FaultOf(yamlfile.PosOf(n), "", err)
	}
	return limit
}

// limits reads the limits of keys that have their own.
func (f *policyFile) limits(n ast.Node) map[string]throttle.Limit {
	limits := make(map[string]throttle.Limit)
	for _, e := range f.Entries(n, "limits by their keys, such as {acme: 1000/1h}") {
		if e.Name == "" || len(e.Name) > throttle.KeyMax {
			f.Fault(e.At, fmt.Sprintf("a key of %d bytes, want 1 to %d", len(e.Name), throttle.KeyMax))
			continue
		}
		limits[e.Name] = f.limit(e.Value)
	}
	return limits
}

// limitsOf finds the limit of a key among these.
func limitsOf(limits map[string]throttle.Limit) func(context.Context, string, time.Time) (throttle.Limit, time.Time, error) {
	return func(_ context.Context, key string, _ time.Time) (throttle.Limit, time.Time, error) {
		return limits[key], time.Time{}, nil
	}
}

func (f *policyFile) gate(n ast.Node) (g gate.Gate, ok bool) {
	text, ok := f.Text(n, "a gate, such as 08:00-21:00 recipient")
	if !ok {
		return gate.Gate{}, false
	}
	g, err := gate.Parse(text)
	if err != nil {
		f.FaultOf(yamlfile.PosOf(n), "", err)
	}
	return g, err == nil
}

// key reads what finds a key, or the constant that is the key. It returns neither when that is a fault.
func (f *policyFile) key(n ast.Node) (find KeyFunc, constant string) {
	const want = "a path, such as $.to, or = and a constant, such as =acme"
	text, ok := f.Text(n, want)
	if !ok {
		return nil, ""
	}
	if text == "" {
		f.Fault(yamlfile.PosOf(n), "an empty text, want "+want)
		return nil, ""
	}
	if name, ok := yamlfile.FuncName(text); ok {
		return lookUp(f, yamlfile.PosOf(n), "Keys", f.funcs.Keys, name), ""
	}
	if strings.HasPrefix(text, "$") {
		key, err := JSONKey(text)
		if err != nil {
			f.FaultOf(yamlfile.PosOf(n), "", err)
		}
		return key, ""
	}
	constant, ok = strings.CutPrefix(text, "=")
	if !ok { // a path whose $ was forgotten would count all tasks together
		f.Fault(yamlfile.PosOf(n), bareWord(text))
		return nil, ""
	}
	fault := constantFault(constant)
	if strings.TrimSpace(constant) != constant {
		fault = "a blank after =, want = and the constant without one, such as =acme"
	}
	if fault != "" {
		f.Fault(yamlfile.PosOf(n), fault)
		return nil, ""
	}
	return nil, constant
}

// bareWord is the fault of a key that is neither a path nor marked as a constant.
func bareWord(text string) string {
	field := "$." + text
	if _, err := parsePath(field); err != nil {
		field = "$.to"
	}
	return fmt.Sprintf("the key %q is ambiguous: write %s for a field of the payload, or =%s for one key that all tasks share", clip(text), clip(field),
		clip(text))
}

// cost reads what finds a cost, or returns nil; and the cost that all tasks have, 0 for none.
func (f *policyFile) cost(n ast.Node) (find CostFunc, constant int) {
	const want = "a whole number of permits, or a path, such as $.tokens"
	if _, ok := n.(*ast.IntegerNode); ok {
		if cost, ok := f.Number(n, 1, throttle.PermitsMax); ok {
			return constantCost(cost), cost
		}
		return nil, 0
	}
	if _, ok := n.(*ast.FloatNode); ok {
		f.Fault(yamlfile.PosOf(n), "a number with a fraction or an exponent, want "+want)
		return nil, 0
	}
	text, ok := f.Text(n, want)
	if !ok {
		return nil, 0
	}
	if name, ok := yamlfile.FuncName(text); ok {
		return lookUp(f, yamlfile.PosOf(n), "Costs", f.funcs.Costs, name), 0
	}
	if !strings.HasPrefix(text, "$") {
		f.Fault(yamlfile.PosOf(n), fmt.Sprintf("text %q, want %s", clip(text), want))
		return nil, 0
	}
	find, err := JSONCost(text)
	if err != nil {
		f.FaultOf(yamlfile.PosOf(n), "", err)
	}
	return find, 0
}

// zone reads what finds a recipient's zone, or returns nil.
func (f *policyFile) zone(n ast.Node) ZoneFunc {
	const want = "a path, such as $.zone, or phone and a path"
	text, ok := f.Text(n, want)
	if !ok {
		return nil
	}
	if name, ok := yamlfile.FuncName(text); ok {
		return lookUp(f, yamlfile.PosOf(n), "Zones", f.funcs.Zones, name)
	}
	var (
		zone ZoneFunc
		err  error
	)
	switch number, phone := strings.CutPrefix(text, "phone "); {
	case phone:
		zone, err = f.phoneZone(strings.TrimSpace(number))
	case strings.HasPrefix(text, "$"):
		zone, err = JSONZone(text)
	default:
		err = fmt.Errorf("text %q, want %s", clip(text), want)
	}
	if err != nil {
		f.FaultOf(yamlfile.PosOf(n), "", err)
		return nil
	}
	return zone
}

// errNoPhoneZones is about a program that does not have the numbering plans.
var errNoPhoneZones = errors.New("zones of phone numbers are not built in: import github.com/headwayq/headway/queue/phonezone, and set " +
	"Funcs.PhoneZone to phonezone.Of")

// phoneZone reads "PATH" or "PATH or ZONE". A name in a path's quotes may have
// the word too, and then what follows has a quote.
func (f *policyFile) phoneZone(text string) (ZoneFunc, error) {
	if f.funcs.PhoneZone == nil {
		return nil, errNoPhoneZones
	}
	var otherwise *time.Location
	if i := strings.LastIndex(text, " or "); i >= 0 && !strings.ContainsAny(text[i:], `'"`) {
		name := strings.TrimSpace(text[i+len(" or "):])
		var err error
		if otherwise, err = zones.Load(name); err != nil {
			return nil, fmt.Errorf("time zone %q: %w", clip(name), err)
		}
		text = strings.TrimSpace(text[:i])
	}
	number, err := JSONKey(text)
	if err != nil {
		return nil, err
	}
	zone := f.funcs.PhoneZone(number, otherwise)
	if zone == nil {
		return nil, errors.New("Funcs.PhoneZone returned nil, want a function")
	}
	return zone, nil
}

// lookUp finds a Go function by its name in a file, or returns nil.
func lookUp[F KeyFunc | CostFunc | ZoneFunc](f *policyFile, at yamlfile.Pos, field string, funcs map[string]F, name string) F {
	fn, ok := funcs[name]
	switch {
	case !ok:
		f.Fault(at, fmt.Sprintf("no function %q in Funcs.%s", clip(name), field))
	case fn == nil:
		f.Fault(at, fmt.Sprintf("Funcs.%s[%q] is nil, want a function", field, clip(name)))
	}
	return fn
}
