package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

// A constant key before one that differs from task to task would let the tasks of one phone
// stall those of all others.
func TestConstantComesAfterKeysOfTasks(t *testing.T) {
	t.Parallel()
	rate, slots := throttle.Sliding(1, time.Minute), throttle.Concurrent(5, time.Minute)
	own := func(task *asynq.Task) (string, error) { return task.Type(), nil }
	rule := func(name string, l throttle.Limit, key KeyFunc) Rule { return Rule{Name: name, Limit: l, Key: key} }
	constant := func(name string, l throttle.Limit) Rule { return Rule{Name: name, Limit: l, Constant: name} }
	acme := constant("acme", rate)
	for name, tt := range map[string]struct {
		rules []Rule
		fault string
	}{
		"a path after it":          {[]Rule{acme, rule("phone", rate, MustJSONKey("$.to"))}, `rule 1 ("phone"): comes after "acme"`},
		"a function after it":      {[]Rule{acme, rule("phone", rate, own)}, `want "phone" before "acme"`},
		"slots of a task after it": {[]Rule{constant("acme", slots), rule("phone", slots, own)}, `want "phone" before "acme"`},
		"a gate between":           {[]Rule{acme, gateRule(t, "daytime"), rule("phone", rate, own)}, `rule 2 ("phone"): comes after "acme"`},
		"narrowest first":          {[]Rule{rule("phone", rate, own), acme}, ""},
		"two constants":            {[]Rule{acme, constant("all", rate)}, ""},
		"slots after a rate":       {[]Rule{acme, rule("phone", slots, own)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := ValidatePolicies([]Policy{{Type: "sms", Rules: tt.rules}})
			if tt.fault == "" && err != nil || tt.fault != "" && (!errors.Is(err, ErrInvalidPolicy) || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("ValidatePolicies = %v, want %q", err, tt.fault)
			}
		})
	}
}

func TestConstantComesAfterKeysOfTasksInFiles(t *testing.T) {
	t.Parallel()
	const wide = "rules:\n  acme: {limit: 1/500ms, key: =acme}\n"
	for text, fault := range map[string]string{
		wide + "  phone: {limit: 1/60s, key: $.to}\npolicies:\n  sms: {rules: [acme, phone]}\n": `rule "phone": comes after "acme", whose key is the same for all tasks`,
		wide + "  all: {limit: 1/60s, key: all}\npolicies:\n  sms: {rules: [acme, all]}\n":      `the key "all" is ambiguous`, // and no more: what is meant is not known
	} {
		err := second(read(text))
		if err == nil || !strings.Contains(err.Error(), fault) || strings.Count(err.Error(), "p.yaml") != 1 {
			t.Errorf("%s gives %v, want %q alone", text, err, fault)
		}
	}
}
