package queue

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

func TestValidateOnePolicy(t *testing.T) {
	t.Parallel()
	first := func(change func(*Rule)) func(*Policy) {
		return func(p *Policy) { change(&p.Rules[0]) }
	}
	tests := []struct {
		name   string
		change func(*Policy)
		want   []string // a part of each fault; none means valid
	}{
		{"as it should be", func(*Policy) {}, nil},
		{"with a cost", first(func(r *Rule) { r.Cost = MustJSONCost("$.n") }), nil},
		{"every character of a rule", first(func(r *Rule) { r.Name = "azAZ09_.-" }), nil},
		{"longest rule", first(func(r *Rule) { r.Name = strings.Repeat("r", 64) }), nil},
		{"rule too long", first(func(r *Rule) { r.Name = strings.Repeat("r", 65) }), []string{"rule name"}},
		{"no type", func(p *Policy) { p.Type = "" }, []string{"no Type"}},
		{"blank type", func(p *Policy) { p.Type = " \t" }, []string{"no Type"}},
		{"hash tag in the rule", first(func(r *Rule) { r.Name = "a{b}" }), []string{"rule name"}},
		{"rule not ASCII", first(func(r *Rule) { r.Name = "短信" }), []string{"rule name"}},
		{"rule not UTF-8", first(func(r *Rule) { r.Name = "a\xff" }), []string{"rule name"}},
		{"no limit", first(func(r *Rule) { r.Limit = throttle.Limit{} }), []string{"neither a limit nor a gate"}},
		{"a limit that makes no sense", first(func(r *Rule) { r.Limit = throttle.Sliding(0, time.Minute) }), []string{`rule 0 ("sms-per-phone"): throttle: invalid limit: 0 permits`}},
		{"no key", first(func(r *Rule) { r.Key = nil }), []string{`rule 0 ("sms-per-phone"): no key`}},
		{"a zone for a limit", first(func(r *Rule) { r.Zone = utcZone }), []string{"a zone, but a limit has none"}},
		{"a blank behind the type", func(p *Policy) { p.Type = "sms " }, []string{`the type "sms " begins or ends with a blank, want "sms"`}},
		{"zero policy", func(p *Policy) { *p = Policy{} }, []string{"no Type", "no Rules"}},
		{"zero rule", first(func(r *Rule) { *r = Rule{} }), []string{`rule 0 (""): no name`, "neither"}},
		{"16 rules", func(p *Policy) { *p = manyRules(16) }, nil},
		{"17 rules", func(p *Policy) { *p = manyRules(17) }, []string{"17 Rules, want at most 16"}},
		{"a rule twice", func(p *Policy) { p.Rules = append(p.Rules, limitRule("other"), p.Rules[0]) }, []string{`rule 2 ("sms-per-phone"): the policy names it twice`}},
		{"pay for success", func(p *Policy) { p.Charge = ChargeSuccess }, nil},
		{"charge unknown", func(p *Policy) { p.Charge = 2 }, []string{"unknown Charge 2"}},
		{"put off once", func(p *Policy) { p.MaxPostpones = 1 }, nil},
		{"put off less than never", func(p *Policy) { p.MaxPostpones = -1 }, []string{"MaxPostpones is -1, want at least 1, or 0 for the default"}},
		{"a gate alone", func(p *Policy) { p.Rules = []Rule{gateRule(t, "daytime")} }, []string{"no limit, want at least one"}},
		{"a gate at the end", func(p *Policy) { p.Rules = append(p.Rules, gateRule(t, "daytime")) }, nil},
		{"a gate between limits", func(p *Policy) { p.Rules = append(p.Rules, gateRule(t, "daytime"), limitRule("other")) }, nil},
		{
			"a gate with all that a limit has", first(func(r *Rule) {
				*r = gateRule(t, "daytime")
				r.Key, r.Cost = MustJSONKey("$.to"), constantCost(2)
			}), []string{"a key, but a gate has none", "a cost, but a gate has none"},
		},
		{"a recipient's gate without a zone", first(func(r *Rule) { *r = gateRule(t, "daytime"); r.Zone = nil }), []string{"no zone, but the gate opens by the recipient's"}},
		{"limit and gate", first(func(r *Rule) { r.Gate = recipientGate(t) }), []string{"both a limit and a gate"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := smsPolicy()
			tt.change(&p)
			wantFaults(t, ValidatePolicies([]Policy{p}), tt.want)
		})
	}
}

func manyRules(n int) Policy {
	p := Policy{Type: "t"}
	for i := range n {
		p.Rules = append(p.Rules, limitRule(fmt.Sprint("r", i)))
	}
	return p
}

// What a rule may have depends on its limit's kind and its gate's zone.
func TestRuleFaultsByTrait(t *testing.T) {
	t.Parallel()
	costly := limitRule("slots")
	costly.Cost = constantCost(1)
	blind := gateRule(t, "daytime")
	blind.Zone = nil
	tests := []struct {
		name string
		rule Rule
		is   traits
		want string
	}{
		{"a cost under a rate", costly, traits{}, ""},
		{"a cost under a concurrent limit", costly, traits{concurrent: true}, "a cost, but under a concurrent limit each task holds one slot"},
		{"no cost under a concurrent limit", limitRule("slots"), traits{concurrent: true}, ""},
		{"a zone for the recipient's gate", gateRule(t, "daytime"), traits{recipient: true}, ""},
		{"a zone for a gate with its own", gateRule(t, "daytime"), traits{}, "a zone, but the gate has its own"},
		{"none for a gate with its own", blind, traits{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got string
			for _, f := range tt.rule.faults(tt.is) {
				got += f.err.Error()
			}
			want(t, got, tt.want)
		})
	}
}

func TestConcurrentLimitsComeLast(t *testing.T) {
	t.Parallel()
	slots := func(r Rule) bool { return strings.HasPrefix(r.Name, "slots") }
	gate := gateRule(t, "daytime")
	tests := []struct {
		name  string
		rules []Rule
		at    []int // places with a fault
	}{
		{"last", []Rule{limitRule("phone"), limitRule("slots")}, nil},
		{"several last", []Rule{limitRule("phone"), limitRule("slots-a"), limitRule("slots-b")}, nil},
		{"a gate after it", []Rule{limitRule("phone"), limitRule("slots"), gate}, nil},
		{"first", []Rule{limitRule("slots"), limitRule("phone")}, []int{1}},
		{"between", []Rule{limitRule("phone"), limitRule("slots"), limitRule("a"), gate, limitRule("b")}, []int{2, 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := Policy{Rules: tt.rules}.listFaults(7, slots)
			if len(got) != len(tt.at) {
				t.Fatalf("faults = %v, want them at %d", got, tt.at)
			}
			for i, at := range tt.at {
				if got[i].policy != 7 || got[i].rule != at || !strings.Contains(got[i].err.Error(), `after the concurrent limit "slots", want concurrent limits after all other`) {
					t.Errorf("fault = %+v, want one at %d about the order of concurrent limits", got[i], at)
				}
			}
		})
	}
}

// A task that no gates ever let run would wait for good.
func TestGatesThatAreNeverOpenTogether(t *testing.T) {
	t.Parallel()
	const shut = "is never open together with those before it, looking a year ahead"
	tests := []struct {
		name  string
		gates []string
		want  []string
	}{
		{"one", []string{"09:00-12:00 UTC"}, nil},
		{"an hour in common", []string{"09:00-12:00 UTC", "11:00-14:00 UTC"}, nil},
		{"in other zones", []string{"09:00-12:00 UTC", "13:00-14:00 Europe/Berlin"}, nil},
		{"touching", []string{"09:00-12:00 UTC", "12:00-14:00 UTC"}, []string{`rule 1 ("g1"): the gate 12:00-14:00 UTC ` + shut}},
		{"other days", []string{"00:00-24:00 Sat,Sun UTC", "09:00-18:00 Mon-Fri UTC"}, []string{`rule 1 ("g1"): the gate 09:00-18:00 Mon-Fri UTC ` + shut}},
		{"only two of three", []string{"08:00-12:00 UTC", "10:00-16:00 UTC", "14:00-18:00 UTC"}, []string{`rule 2 ("g2"): the gate 14:00-18:00 UTC ` + shut}},
		{"the recipient's may be anywhere", []string{"09:00-12:00 UTC", "20:00-21:00 recipient"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := Policy{Type: "t"}
			for i, text := range tt.gates {
				hours, err := gate.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				r := Rule{Name: fmt.Sprint("g", i), Gate: hours}
				if hours.Zone() == "" {
					r.Zone = utcZone
				}
				p.Rules = append(p.Rules, r)
			}
			p.Rules = append(p.Rules, limitRule("phone"))
			wantFaults(t, ValidatePolicies([]Policy{p}), tt.want)
		})
	}
}

func TestZoneDatabaseIsMissing(t *testing.T) {
	t.Parallel()
	if err := zonesKnown(time.LoadLocation); err != nil {
		t.Errorf("with a database: %v", err)
	}
	err := zonesKnown(func(string) (*time.Location, error) { return nil, errors.New("no such file") })
	if err == nil || !strings.Contains(err.Error(), "time/tzdata") {
		t.Errorf("without a database: %v, want the way out", err)
	}
}

func TestValidatePolicies(t *testing.T) {
	t.Parallel()
	of := func(typ string, rules ...Rule) Policy { return Policy{Type: typ, Rules: rules} }
	double := limitRule("sms-per-phone")
	double.Limit = throttle.Sliding(2, time.Minute)
	gate := gateRule(t, "sms-per-phone")
	keyless := limitRule("sms-per-phone")
	keyless.Key = nil
	tests := []struct {
		name     string
		policies []Policy
		want     []string
	}{
		{"none", nil, nil},
		{"two types share a rule", []Policy{smsPolicy(), policyOf("sms:code", "sms-per-phone")}, nil},
		{"and another key", []Policy{smsPolicy(), of("b", Rule{Name: "sms-per-phone", Limit: throttle.Sliding(1, time.Minute), Key: MustJSONKey("$.phone")})}, nil},
		{
			"a type twice", []Policy{smsPolicy(), policyOf("sms:code", "a"), smsPolicy()},
			[]string{`policy 2 ("sms:send"): policy 0 has the same type`},
		},
		{
			"a rule with two limits", []Policy{smsPolicy(), of("sms:ad", limitRule("a"), double)},
			[]string{`policy 1 ("sms:ad"), rule 1 ("sms-per-phone"): has the limit sliding 2/1m here and the limit sliding 1/1m in policy 0 ("sms:send")`},
		},
		{
			"once a limit and once a gate", []Policy{smsPolicy(), of("sms:ad", gate, limitRule("ads"))},
			[]string{`policy 1 ("sms:ad"), rule 0 ("sms-per-phone"): has the gate`},
		},
		{
			"once a gate and once a limit", []Policy{of("sms:ad", gate, limitRule("ads")), smsPolicy()},
			[]string{`policy 1 ("sms:send"), rule 0 ("sms-per-phone"): has the limit sliding 1/1m here and the gate`},
		},
		{
			"all faults at once, in their order",
			[]Policy{of("sms:send", keyless), smsPolicy(), {Type: "b", Rules: []Rule{{}}, MaxPostpones: -1}},
			[]string{
				`policy 0 ("sms:send"), rule 0 ("sms-per-phone"): no key`, `policy 1 ("sms:send"): policy 0 has`,
				`policy 2 ("b"): MaxPostpones`, `policy 2 ("b"), rule 0 (""): no name`, `rule 0 (""): neither`,
			},
		},
		// an empty name is one fault each, not a name that two policies share
		{"two zero policies", []Policy{{}, {}}, []string{"policy 0", "policy 0", "policy 1", "policy 1"}},
		{"one order", []Policy{policyOf("a", "phone", "provider"), policyOf("b", "provider", "phone")}, []string{`policy 1 ("b"), rule 1 ("phone"): comes after "provider" here, but before "provider" in policy 0 ("a")`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantFaults(t, ValidatePolicies(tt.policies), tt.want)
		})
	}
}

// A fault's text is for people: a whole file given as a name does not fill it.
func TestFaultsClipNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	err := ValidatePolicies([]Policy{{Type: long, Rules: []Rule{{Name: long}, {Name: long}}}})
	wantFaults(t, err, []string{"rule name", "neither", "rule name", "neither", "twice"})
	if n := len(err.Error()); n > 2000 {
		t.Errorf("%d bytes of faults, want them clipped", n)
	}
}
