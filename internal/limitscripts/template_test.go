package limitscripts

import (
	"reflect"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// sample is a call of two rules on one key.
func sample() AcquireArgs {
	n := Numbers{Kind: Sliding, Permits: 3, Window: time.Minute}
	return AcquireArgs{
		Rules:  []RuleCall{{LimitKeys: NewLimitKeys("hw", "a", "id"), Numbers: n, Cost: 1}, {LimitKeys: NewLimitKeys("hw", "b", "id"), Numbers: n, Cost: 1}},
		Policy: "p", Token: 1, Job: "a", MaxWait: -1,
	}
}

// others are calls that differ from a sample in one field each, whatever fields there
// are, but for what is not in a template.
func others(t *testing.T) map[string]AcquireArgs {
	t.Helper()
	out := make(map[string]AcquireArgs)
	each := func(of string, typ reflect.Type, at func(*AcquireArgs) reflect.Value) {
		for i := range typ.NumField() {
			switch name := typ.Field(i).Name; name {
			case "Rules", "Token", "Job", "Known", "Templates", "LimitKeys", "Numbers":
			default:
				a := sample()
				change(t, at(&a).Field(i))
				out[of+name] = a
			}
		}
	}
	each("", reflect.TypeFor[AcquireArgs](), func(a *AcquireArgs) reflect.Value { return reflect.ValueOf(a).Elem() })
	each("RuleCall.", reflect.TypeFor[RuleCall](), func(a *AcquireArgs) reflect.Value { return reflect.ValueOf(&a.Rules[1]).Elem() })
	each("Numbers.", reflect.TypeFor[Numbers](), func(a *AcquireArgs) reflect.Value { return reflect.ValueOf(&a.Rules[1].Numbers).Elem() })
	apart := sample()
	apart.Rules[1].LimitKeys = NewLimitKeys("hw", "b", "other")
	out["keys that do not count together"] = apart
	single := sample()
	single.Rules = single.Rules[:1]
	out["one rule"] = single
	return out
}

func change(t *testing.T, v reflect.Value) {
	t.Helper()
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		*at = time.UnixMicro(5)
	case *[]time.Time:
		*at = []time.Time{time.UnixMicro(5), time.UnixMicro(6)}
	case *Gate:
		*at = Gate{From: time.UnixMicro(1), Until: time.UnixMicro(9)}
	case *Kind:
		*at = Calendar
	case *string:
		*at = ""
	case *bool:
		*at = true
	case *luascripts.Durability:
		at.Replicas = 1
	default:
		v.SetInt(2)
	}
}

// What is remembered of a call is the template of no other.
func TestTemplatesTellCallsApart(t *testing.T) {
	t.Parallel()
	for field, other := range others(t) {
		first := sample()
		var remembered CallTemplates
		for _, a := range []*AcquireArgs{&first, &other, &first, &other} {
			if got, want := remembered.of(a).text, a.template(); got != want {
				t.Errorf("%s: the template is %q, want %q", field, got, want)
			}
		}
	}
}

// Calls that differ in keys, token and job have one template, which is made once, also
// when the rules of the call before are used for another.
func TestTemplatesAreMadeOnce(t *testing.T) {
	t.Parallel()
	a, b := sample(), sample()
	b.Token, b.Job = 2, "b"
	for i := range b.Rules {
		b.Rules[i].LimitKeys = NewLimitKeys("hw", "c", "another id")
	}
	var remembered CallTemplates
	first := remembered.of(&a)
	clear(a.Rules)
	if remembered.of(&b) != first {
		t.Error("a call of the same template has another")
	}
	if remembered.of(&b).text != b.template() {
		t.Errorf("the template is %q, want %q", remembered.of(&b).text, b.template())
	}
	b.Rules[0].Cost++
	if newest := remembered.of(&b); newest == first || remembered.of(&b) != newest {
		t.Error("the template of the newest call is not kept")
	}
}
