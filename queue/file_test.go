package queue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

const goodFile = `# what our senders need
rules:
  phone-minute: {limit: 1/60s, key: $.to}
  phone-day:    {limit: 10/24h, key: $.to}
  provider:     {limit: gcra 100/1s burst 100, key: =acme}
  tokens:
    limit: 90000/1m
    key: =acme # a constant
    cost: $['tokens used'][0]
  daytime:      {gate: 08:00-21:00 recipient, zone: phone $.to or UTC}
policies:
  sms:send:
    rules: [daytime, phone-minute, phone-day, provider]
  sms:code:
    rules:
    - phone-minute
    - "provider"
    charge: success
    max_postpones: 7
  'ai chat':
    rules: [ tokens ]
    charge: every attempt
`

func read(text string) ([]Policy, error) {
	return Funcs{PhoneZone: germanPhones}.ReadPolicies("p.yaml", strings.NewReader(text))
}

// germanPhones stands for phonezone.Of, which imports this package.
func germanPhones(number KeyFunc, otherwise *time.Location) ZoneFunc {
	return func(task *asynq.Task) (*time.Location, error) {
		text, err := number(task)
		if err == nil && strings.HasPrefix(text, "+49") {
			return time.LoadLocation("Europe/Berlin")
		}
		return otherwise, err
	}
}

func TestReadPolicies(t *testing.T) {
	t.Parallel()
	policies, err := read(goodFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := ValidatePolicies(policies); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range policies {
		got = append(got, fmt.Sprintf("%s, pay %v, put off %d", p.Type, p.Charge, p.MaxPostpones))
		for _, r := range p.Rules {
			got = append(got, fmt.Sprintf("  %s %s", r.Name, r.what()))
		}
	}
	want := []string{
		"sms:send, pay every attempt, put off 0",
		"  daytime " + Rule{Gate: recipientGate(t)}.what(),
		"  phone-minute the limit sliding 1/1m", "  phone-day the limit sliding 10/1d", "  provider the limit gcra 100/1s burst 100",
		"sms:code, pay success, put off 7",
		"  phone-minute the limit sliding 1/1m", "  provider the limit gcra 100/1s burst 100",
		"ai chat, pay every attempt, put off 0",
		"  tokens the limit sliding 90000/1m",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}

	d, err := policies[0].Demand(asynq.NewTask("sms:send", []byte(`{"to":"+4915112345678"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]throttle.KeyCost{{Key: "+4915112345678", Cost: 1}, {Key: "+4915112345678", Cost: 1}, {Key: "acme", Cost: 1}}, d.Costs); diff != "" {
		t.Errorf("sms:send wants (-want +got):\n%s", diff)
	}
	if len(d.Gates) != 1 || d.Gates[0].Rule != "daytime" || d.Gates[0].In.String() != "Europe/Berlin" {
		t.Errorf("sms:send has the gates %v", d.Gates)
	}
	d, err = policies[2].Demand(asynq.NewTask("ai chat", []byte(`{"tokens used":[512]}`)))
	if diff := cmp.Diff(Demand{Costs: []throttle.KeyCost{{Key: "acme", Cost: 512}}}, d); diff != "" || err != nil {
		t.Errorf("ai chat: %v (-want +got):\n%s", err, diff)
	}
}

// The same file as JSON, which YAML contains, with a mark and line ends of
// Windows, and with a document's header.
func TestReadPoliciesInOtherSpellings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"rules": {"a": {"limit": "3/60s", "key": "$['to']", "cost": 3}}, "policies": {"t": {"rules": ["a"]}}}`,
		"\ufeffrules:\r\n  a:\r\n    limit: 3/60s\r\n    key: $['to']\r\n    cost: 3\r\npolicies:\r\n  t:\r\n    rules:\r\n      - a\r\n",
		"---\npolicies: {t: {rules: [a]}}\nrules: {a: {limit: 3/60s,\n  key: \"$['to']\", cost: 3}}\n...\n# the end\n",
	} {
		policies, err := read(text)
		if err != nil || len(policies) != 1 {
			t.Errorf("%q: %v, %v, want one policy", text, policies, err)
			continue
		}
		d, err := policies[0].Demand(asynq.NewTask("t", []byte(`{"to":"x"}`)))
		if diff := cmp.Diff(Demand{Costs: []throttle.KeyCost{{Key: "x", Cost: 3}}}, d); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
}

func TestPolicyFileNamesFunctions(t *testing.T) {
	t.Parallel()
	const text = `
rules:
  tenant: {limit: 9/1s, key: func tenant, cost: func size}
  open: {gate: 08:00-21:00 recipient, zone: func home}
policies:
  t: {rules: [tenant, open]}
`
	funcs := Funcs{
		Keys:  map[string]KeyFunc{"tenant": func(*asynq.Task) (string, error) { return "from Go", nil }},
		Costs: map[string]CostFunc{"size": constantCost(4)},
		Zones: map[string]ZoneFunc{"home": utcZone},
	}
	policies, err := funcs.ReadPolicies("p.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	d, err := policies[0].Demand(asynq.NewTask("t", nil))
	if diff := cmp.Diff([]throttle.KeyCost{{Key: "from Go", Cost: 4}}, d.Costs); diff != "" || err != nil || d.Gates[0].In != time.UTC {
		t.Errorf("Demand = %v, %v (-want +got):\n%s", d, err, diff)
	}
	wantFileFaults(t, second(read(text)), []string{
		`3:30: no function "tenant" in Funcs.Keys`,
		`3:49: no function "size" in Funcs.Costs`,
		`4:45: no function "home" in Funcs.Zones`,
	})
}

// A nil function would count all tasks under one key, at one permit each, by UTC.
func TestPolicyFileRefusesNilFunctions(t *testing.T) {
	t.Parallel()
	const text = `
rules:
  tenant: {limit: 9/1s, key: func tenant, cost: func size}
  open: {gate: 08:00-21:00 recipient, zone: func home}
  phone: {gate: 08:00-21:00 recipient, zone: phone $.to}
policies:
  t: {rules: [tenant, open, phone]}
`
	funcs := Funcs{
		Keys: map[string]KeyFunc{"tenant": nil}, Costs: map[string]CostFunc{"size": nil}, Zones: map[string]ZoneFunc{"home": nil},
		PhoneZone: func(KeyFunc, *time.Location) ZoneFunc { return nil },
	}
	policies, err := funcs.ReadPolicies("p.yaml", strings.NewReader(text))
	if policies != nil {
		t.Errorf("%d policies, want none", len(policies))
	}
	wantFileFaults(t, err, []string{
		`3:30: Funcs.Keys["tenant"] is nil, want a function`,
		`3:49: Funcs.Costs["size"] is nil, want a function`,
		`4:45: Funcs.Zones["home"] is nil, want a function`,
		`5:46: Funcs.PhoneZone returned nil, want a function`,
	})
}

func second(_ []Policy, err error) error { return err }

// wantFileFaults checks that err joins these faults of p.yaml, in order, as
// "line:column: reason", whole or up to "...".
func wantFileFaults(t *testing.T, err error, want []string) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("error %v, want %d faults", err, len(want))
	}
	var got []string
	for _, e := range joined.Unwrap() {
		fe, ok := errors.AsType[*FileError](e)
		if !ok || !errors.Is(e, ErrInvalidPolicy) || fe.Err != nil && !errors.Is(e, fe.Err) {
			t.Fatalf("fault %v, want a FileError that unwraps to ErrInvalidPolicy and its cause", e)
		}
		text := fmt.Sprintf("%d:%d: %s", fe.Line, fe.Column, fe.Reason)
		if fe.File != "p.yaml" {
			text = fe.File + ":" + text
		}
		if n := len(got); n < len(want) {
			if begin, ok := strings.CutSuffix(want[n], "..."); ok && strings.HasPrefix(text, begin) {
				text = want[n]
			}
		}
		got = append(got, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestFileErrorText(t *testing.T) {
	t.Parallel()
	err := second(read("rules: {a: {limit: 0/1s, key: =k}}\npolicies: {t: {rules: [a]}}\n"))
	const text = `queue: policy file "p.yaml", line 1, column 20: throttle: invalid limit: "0/1s": 0 permits, want 1 to 1000000; right is for example "1/60s"`
	if err == nil || err.Error() != text {
		t.Errorf("error %v, want %s", err, text)
	}
	if le, ok := errors.AsType[*throttle.LimitError](err); !ok || le.Field != "permits" {
		t.Errorf("error %v does not unwrap to that of the limit", err)
	}
	err = second(read(""))
	if want := `queue: policy file "p.yaml": empty, want rules and policies`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestReadPolicyFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := write("a.yaml", "rules:\n  phone: {limit: 1/60s, key: $.to}\n  all: {limit: 9/1s, key: =k}\npolicies:\n  sms: {rules: [phone, all]}\n")
	b := write("b.yaml", "rules:\n  phone: {limit: 1/1m, key: $.phone}\npolicies:\n  call: {rules: [phone]}\n")
	policies, err := ReadPolicyFiles(a, b)
	if err != nil || len(policies) != 2 || policies[0].Type != "sms" || policies[1].Type != "call" {
		t.Fatalf("ReadPolicyFiles = %v, %v, want sms and call", policies, err)
	}
	d, err := policies[1].Demand(asynq.NewTask("call", []byte(`{"phone":"x"}`)))
	if err != nil || d.Costs[0].Key != "x" {
		t.Errorf("the rule of the second file has the key of the first: %v, %v", d, err)
	}

	c := write("c.yaml", "rules:\n  phone: {limit: 2/60s, key: $.to}\n  all: {limit: 9/1s, key: $.all}\npolicies:\n  sms: {rules: [phone]}\n  mail: {rules: [all, phone]}\n")
	absent := filepath.Join(dir, "absent.yaml")
	policies, err = ReadPolicyFiles(a, absent, c)
	if policies != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadPolicyFiles = %v, %v, want no policies and fs.ErrNotExist", policies, err)
	}
	wantFileFaults(t, err, []string{
		absent + ":0:0: can't be read: no such file or directory",
		c + `:2:3: rule "phone": has the limit sliding 2/1m here and the limit sliding 1/1m in ` + a + ":2",
		c + `:5:3: type "sms" has a policy in ` + a + ":5 already",
		c + `:6:23: rule "phone": comes after "all" here, but before "all" in policy "sms" (` + a + ":5)",
	})
	if _, err := ReadPolicyFiles(dir); !errors.Is(err, ErrInvalidPolicy) {
		t.Errorf("of a directory: %v, want ErrInvalidPolicy", err)
	}
	// a pattern that matches no file would leave every task without limits
	if policies, err := ReadPolicyFiles(); policies != nil || !errors.Is(err, ErrInvalidPolicy) {
		t.Errorf("of no file: %v, %v, want ErrInvalidPolicy", policies, err)
	}
}

func TestReadPoliciesWhileReadingFails(t *testing.T) {
	t.Parallel()
	cause := errors.New("the disk is gone")
	_, err := ReadPolicies("p.yaml", iotest.ErrReader(cause))
	if !errors.Is(err, cause) || !errors.Is(err, ErrInvalidPolicy) {
		t.Errorf("error %v, want it to unwrap to its cause", err)
	}
}

// Without the numbering plans a file that needs them is refused, by the name of the
// package to import.
func TestPhoneZoneWithoutPlans(t *testing.T) {
	t.Parallel()
	_, err := ReadPolicies("p.yaml", strings.NewReader(goodFile))
	if !errors.Is(err, ErrInvalidPolicy) || !strings.Contains(err.Error(), "line 10, column 53: zones of phone numbers are not built in: import github.com/headwayq/headway/queue/phonezone, and set Funcs.PhoneZone to phonezone.Of") {
		t.Errorf("ReadPolicies = %v, want a fault that names the package", err)
	}
}
