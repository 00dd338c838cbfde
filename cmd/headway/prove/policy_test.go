package prove

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"

	"github.com/headwayq/headway/internal/e2e"
)

// smsOfTest is a message whose number and text nobody may see.
var smsOfTest = e2e.Message{ID: "1", To: "+12025550117", Text: "topsecret"}

// policyFile writes a policy file.
func policyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustPolicy(t *testing.T, path string) e2e.Policy {
	t.Helper()
	p, err := e2e.ReadPolicy(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSamplePolicy wants the five rules, and that they let every message of the
// sample through at some time.
func TestSamplePolicy(t *testing.T) {
	t.Parallel()
	p := mustPolicy(t, "../../../examples/sms-sender/policy.yaml")
	var rules []string
	for _, r := range p.Rules {
		rules = append(rules, r.Name+": "+e2e.RuleText(r))
	}
	want := []string{
		"daytime: gate 08:00-21:00 recipient", "phone-minute: sliding 1/1m", "phone-day: sliding 10/1d",
		"provider-second: gcra 100/1s burst 20", "provider-slots: concurrent 50 lease 30s",
	}
	if diff := cmp.Diff(want, rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	zones := map[string]bool{}
	for _, m := range e2e.Sample() {
		d, err := p.DemandOf(m)
		if err != nil {
			t.Errorf("demand of %v: %v", m, err)
			continue
		}
		zones[d.Gates[0].In.String()] = true
	}
	if len(zones) != 5 {
		t.Errorf("zones = %v, want those of five countries", zones)
	}
	d, err := p.DemandOf(e2e.Message{ID: "1", To: "+351912345678", Text: "hi"}) // Lisbon, or the Azores
	if err != nil || d.Gates[0].In.String() != "Europe/Lisbon" {
		t.Errorf("a Portuguese mobile: %v, %v, want Lisbon", d.Gates, err)
	}
	// At every hour there is somebody to write to, so that the sample shows something.
	for hour := range 24 {
		for _, month := range []time.Month{time.January, time.July} {
			now := time.Date(2026, month, 1, hour, 30, 0, 0, time.UTC)
			if free, _ := holdUps(p, e2e.Sample(), now); len(free) < 5 {
				t.Errorf("at %v %d messages of the sample may go, want some", now, len(free))
			}
		}
	}
	if got := p.Longest(); got != 24*time.Hour {
		t.Errorf("longest = %v, want a day", got)
	}
}

func TestPolicyFileFaults(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for name, tt := range map[string]struct {
		file string
		want []string
	}{
		"two faults": {
			"rules:\n  a: {limit: 1/x, key: $.to}\n  b: {limit: 1/1s}\npolicies:\n  sms:send: {rules: [a, b]}\n",
			[]string{"line 2, column 14: ", "line 3, column 3: "},
		},
		"another type": {
			"rules:\n  a: {limit: 1/1s, key: $.to}\npolicies:\n  sms:ad: {rules: [a]}\n  sms:send: {rules: [a]}\n",
			[]string{`-policy: "sms:ad" is a task type that this program does not have, want "sms:send"`},
		},
		"a prefix of the type": {
			"rules:\n  a: {limit: 1/1s, key: $.to}\npolicies:\n  sms: {rules: [a]}\n",
			[]string{`"sms" is a task type`},
		},
	} {
		path := policyFile(t, tt.file)
		p := newProgram(t, "-redis", urlOf(srv), "-policy", path)
		r := p.run(t.Context())
		r.want(t, exitUsage)
		for _, want := range tt.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("%s: stderr has no %q:\n%s", name, want, r.stderr)
			}
		}
	}
	r := newProgram(t, "-redis", urlOf(srv), "-policy", filepath.Join(t.TempDir(), "none")).run(t.Context())
	r.want(t, exitUsage)
	checkEmpty(t, srv)
}

// TestPolicyRefusesMessages has a number of several zones, and no "or".
func TestPolicyRefusesMessages(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	path := policyFile(t, `
rules:
  day: {gate: "00:00-24:00 recipient", zone: phone $.to}
  phone: {limit: 1/1s, key: $.to}
policies:
  sms:send: {rules: [day, phone]}
`)
	const input = "to,text\n+12025550117,hello\n+351912345678,hello\n"
	p := newProgram(t, "-redis", urlOf(srv), "-policy", path, "-input", "-")
	p.env.stdin = strings.NewReader(input)
	r := p.run(t.Context())
	r.want(t, exitUsage)
	for _, want := range []string{"1 message that it never lets through", "message to +35…5678: ", "several zones"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr has no %q:\n%s", want, r.stderr)
		}
	}
	checkEmpty(t, srv)

	p.args = append(p.args, "-skip-invalid")
	p.env.stdin = strings.NewReader(input)
	r = p.run(t.Context())
	r.want(t, exitOK)
	if r.report.Sent != 1 || !strings.Contains(r.stderr, "skipped: ") {
		t.Errorf("sent %d, want 1 and a word about the other:\n%s", r.report.Sent, r.stderr)
	}
}

func TestCharges(t *testing.T) {
	t.Parallel()
	p := mustPolicy(t, policyFile(t, `
rules:
  berlin: {gate: "08:00-21:00 Europe/Berlin"}
  theirs: {gate: "08:00-21:00 recipient", zone: phone $.to}
  phone: {limit: 1/1s, key: $.to, cost: 1}
  all: {limit: 9/1s, key: =provider, cost: 2}
policies:
  sms:send: {rules: [berlin, phone, theirs, all]}
`))
	payload, err := smsOfTest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("secret")
	got, err := p.ChargesOf(payload, secret)
	if err != nil {
		t.Fatal(err)
	}
	want := []e2e.Charge{
		{Rule: "berlin"},
		{Rule: "phone", Key: e2e.PhoneKey(secret, smsOfTest.To), Cost: 1},
		{Rule: "theirs", Zone: "America/New_York"},
		{Rule: "all", Key: e2e.PhoneKey(secret, "provider"), Cost: 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("charges (-want +got):\n%s", diff)
	}
	if _, err := p.ChargesOf([]byte(`{}`), secret); err == nil {
		t.Error("charges without a phone = nil, want an error")
	}
	if got, err := e2e.PhoneLimit(throttle.Sliding(1, time.Minute)).ChargesOf(payload, secret); got != nil || err != nil {
		t.Errorf("charges with -limit = %v, %v, want none", got, err)
	}
}

func TestAtLeast(t *testing.T) {
	t.Parallel()
	p := mustPolicy(t, policyFile(t, `
rules:
  phone: {limit: 1/1m, key: $.to}
  all: {limit: 4/1h, key: =provider, cost: 2}
  even: {limit: gcra 1/1h, key: =provider}
policies:
  sms:send: {rules: [phone, all, even]}
`))
	phone := e2e.PhoneLimit(throttle.Sliding(2, time.Minute))
	for _, tt := range []struct {
		p    e2e.Policy
		n    int
		want time.Duration
	}{
		{phone, 0, 0}, {phone, 2, 0}, {phone, 3, time.Minute}, {phone, 5, 2 * time.Minute},
		{p, 1, 0}, {p, 2, time.Minute}, {p, 3, time.Hour}, {p, 5, 2 * time.Hour},
	} {
		var msgs []e2e.Message
		for range tt.n {
			msgs = append(msgs, smsOfTest)
		}
		if got := tt.p.AtLeast(msgs); got != tt.want {
			t.Errorf("atLeast of %d = %v, want %v", tt.n, got, tt.want)
		}
	}
}

func TestHoldUps(t *testing.T) {
	t.Parallel()
	p := mustPolicy(t, policyFile(t, `
rules:
  daytime: {gate: "08:00-21:00 recipient", zone: phone $.to}
  phone: {limit: 1/1s, key: $.to}
policies:
  sms:send: {rules: [daytime, phone]}
`))
	now := time.Date(2026, 11, 20, 17, 27, 8, 500, time.UTC)
	free, held := holdUps(p, e2e.Sample(), now)
	if len(free) != 19 || len(held) != 1 {
		t.Fatalf("%d free, held %+v, want 19 and those in Australia", len(free), held)
	}
	if got, want := held[0].text(now), `gate "daytime" opens at Sat 08:00 AEDT, in 3h32m52s, for 5 messages`; got != want {
		t.Errorf("text = %s, want %s", got, want)
	}
	if got, want := (holdUp{rule: "g", messages: 1}).text(now), `gate "g" does not open within a year for 1 message`; got != want {
		t.Errorf("text = %s, want %s", got, want)
	}
	if free, held := holdUps(e2e.PhoneLimit(throttle.Sliding(1, time.Second)), e2e.Sample(), now); len(free) != 24 || held != nil {
		t.Errorf("without a gate: %d free, held %+v", len(free), held)
	}
}
