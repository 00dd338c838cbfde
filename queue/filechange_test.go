package queue

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// What a program that runs takes over of an edited file, and what it refuses, with the line.
func TestChangedLimits(t *testing.T) {
	t.Parallel()
	const before = `rules:
  phone: {limit: 1/60s, key: $.to}
  tokens: {limit: 90/1m, key: =acme, cost: $.tokens}
  day: {gate: 08:00-21:00 recipient, zone: $.zone}
  slots: {limit: concurrent 5 lease 30s, key: =acme}
policies:
  sms: {rules: [day, phone, tokens, slots]}
  code: {rules: [phone]}
`
	for _, tt := range []struct {
		name     string
		old, new string // of the text
		want     map[string]throttle.Limit
		refused  []string
	}{
		{"nothing", "", "", nil, nil},
		{"a comment, and quotes", "  phone: {limit: 1/60s, key: $.to}", "  # the phone\n  phone: {limit: '1/60s', key: '$.to'}", nil, nil},
		{"a limit", "1/60s", "2/60s", map[string]throttle.Limit{"phone": throttle.Sliding(2, time.Minute)}, nil},
		{"a limit of another kind of rate", "limit: 1/60s", "limit: gcra 3/1s", map[string]throttle.Limit{"phone": throttle.GCRA(3, time.Second, 1)}, nil},
		{"slots", "concurrent 5", "concurrent 6", map[string]throttle.Limit{"slots": throttle.Concurrent(6, 30*time.Second)}, nil},
		{
			"two limits, in another order",
			"  phone: {limit: 1/60s, key: $.to}\n  tokens: {limit: 90/1m, key: =acme, cost: $.tokens}",
			"  tokens: {limit: 80/1m, key: =acme, cost: $.tokens}\n  phone: {limit: 9/60s, key: $.to}",
			map[string]throttle.Limit{"tokens": throttle.Sliding(80, time.Minute), "phone": throttle.Sliding(9, time.Minute)}, nil,
		},
		{"a rate instead of slots", "concurrent 5 lease 30s", "5/30s", nil, []string{`line 5, column 3: rule "slots" has the limit sliding 5/30s, and had the limit concurrent 5 lease 30s: what runs at once`}},
		{"a gate", "08:00", "09:00", nil, []string{`line 4, column 3: rule "day" has the gate 09:00-21:00 recipient, and had the gate 08:00-21:00 recipient`}},
		{"a key", "$.to", "$.phone", nil, []string{`line 2, column 3: rule "phone" has another key`}},
		{"a cost, and a limit", "90/1m, key: =acme, cost: $.tokens", "80/1m, key: =acme, cost: 3", nil, []string{`line 3, column 3: rule "tokens" has another cost`}},
		{"limits of keys", "key: $.to", "key: $.to, limits: {x: 2/60s}", nil, []string{`line 2, column 3: rule "phone" has other limits of keys`}},
		{"no cost", ", cost: $.tokens", "", nil, []string{`line 3, column 3: rule "tokens" has another cost`}},
		{"a zone", "zone: $.zone", "zone: $.where", nil, []string{`line 4, column 3: rule "day" has another zone`}},
		{"the charge", "code: {rules: [phone]}", "code: {rules: [phone], charge: success}", nil, []string{`line 8, column 3: policy "code" has the charge "success", and had "every attempt"`}},
		{"max_postpones", "code: {rules: [phone]}", "code: {rules: [phone], max_postpones: 7}", nil, []string{`line 8, column 3: policy "code" has max_postpones 7, and had 0`}},
		{"a new rule in a policy", "code: {rules: [phone]}", "code: {rules: [phone, tokens]}", nil, []string{`line 8, column 3: policy "code" has the rules ["phone" "tokens"], and had ["phone"]`}},
		{"a new policy, and one less", "code: {", "mail: {", nil, []string{`line 8, column 3: policy "mail" is new`, `policy file "p.yaml": policy "code" is gone`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			edited := before
			if tt.old != "" {
				edited = strings.Replace(before, tt.old, tt.new, 1)
			}
			was, err := read(before)
			is, err2 := read(edited)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			limits, err := ChangedLimits(was, is)
			if len(tt.refused) == 0 {
				if err != nil || !maps.Equal(limits, tt.want) {
					t.Errorf("ChangedLimits = %v, %v, want %v", limits, err, tt.want)
				}
				return
			}
			if limits != nil || !errors.Is(err, ErrNeedsRestart) {
				t.Fatalf("ChangedLimits = %v, %v, want %v", limits, err, ErrNeedsRestart)
			}
			faults := strings.Split(err.Error(), "\n")
			if len(faults) != len(tt.refused) {
				t.Errorf("%d faults, want %d: %v", len(faults), len(tt.refused), err)
			}
			for i, want := range tt.refused {
				if i < len(faults) && !strings.Contains(faults[i], want) {
					t.Errorf("%q, want %q in it", faults[i], want)
				}
			}
		})
	}
}
