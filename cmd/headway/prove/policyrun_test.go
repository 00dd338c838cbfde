package prove

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
)

// fiveRules are as many, each easily broken.
const fiveRules = `
rules:
  morning: {gate: "00:01-21:00 recipient", zone: phone $.to or UTC}
  phone-short: {limit: 1/4s, key: $.to}
  phone-long: {limit: 3/30s, key: $.to}
  provider: {limit: gcra 2/1s burst 2, key: =provider}
  slots: {limit: concurrent 2 lease 30s, key: =provider}
policies:
  sms:send: {rules: [morning, phone-short, phone-long, provider, slots]}
`

// TestPolicyBreachFails hands the run a grants file in which each rule is broken.
func TestPolicyBreachFails(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-policy", policyFile(t, strings.ReplaceAll(fiveRules, "00:01-21:00", "00:00-24:00")), "-input", "-")
	p.env.stdin = strings.NewReader(csvOf(1, 1))
	w, err := e2e.OpenGrants(p.path("grants"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		g := e2e.Grant{ID: fmt.Sprint(i), Key: "k", Attempt: "a", GrantedUs: int64(1 + i), Charges: []e2e.Charge{
			{Rule: "morning", Zone: "No/Where"}, {Rule: "phone-short", Key: "k", Cost: 1}, {Rule: "phone-long", Key: "k", Cost: 1},
			{Rule: "provider", Key: "p", Cost: 1}, {Rule: "slots", Key: "p", Cost: 1},
		}}
		if err := w.Write(g); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p.args = append(p.args, "-grants", p.path("grants"))
	r := p.run(t.Context())
	r.want(t, exitRun)
	for _, want := range []string{
		`rule "morning" was broken: 5 times by the granted instants`, `rule "phone-short" was broken: 4 times`,
		`rule "phone-long" was broken: 2 times`, `rule "provider" was broken: 3 times`,
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("stderr has no %q:\n%s", want, r.stderr)
		}
	}
	if r.report.Breaches != 5+4+2+3 {
		t.Errorf("%d breaches, want the sum", r.report.Breaches)
	}
}

// TestSampleByDay leaves out who sleeps: at midnight UTC that is Europe.
func TestSampleByDay(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-policy", "../../../examples/sms-sender/policy.yaml")
	p.env.openRedis, p.env.openOutlet = redisInMemory, gatewayInMemory
	synctest.Test(t, func(t *testing.T) {
		r := p.run(t.Context())
		r.want(t, exitOK)
		if got := r.report; got.Sent != 11 || got.Phones != 5 || got.Breaches != 0 {
			t.Errorf("report = %+v, want 11 messages to 5 phones in America and Australia", got)
		}
		if !regexp.MustCompile(`sample: 13 messages of 24 left out, which would wait:\n  gate "daytime" opens at Sat 08:00 CET, in 7h0m0s, for `).MatchString(r.stderr) {
			t.Errorf("stderr does not say what was left out:\n%s", r.stderr)
		}
	})
}

// TestConnectionRefused is not charged: with 1 an hour the message goes at its
// third try.
func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-limit", "1/1h", "-input", "-")
	p.args = append(p.args, "-grants", p.path("grants"))
	p.env.stdin = strings.NewReader(csvOf(1, 1))
	p.env.retryDelay = func(int, error, *asynq.Task) time.Duration { return time.Second }
	p.env.openRedis = redisInMemory
	tries := 0
	p.env.openOutlet = func(ctx context.Context, cfg config, files []byte) (outlet, error) {
		o, err := gatewayInMemory(ctx, cfg, files)
		if err != nil {
			return o, err
		}
		there := o.client.HTTP.Transport
		o.client.HTTP.Transport = e2e.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if tries++; tries < 3 {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("connection refused")}
			}
			return there.RoundTrip(r)
		})
		return o, nil
	}
	synctest.Test(t, func(t *testing.T) {
		r := p.run(t.Context())
		r.want(t, exitOK)
		if r.report.Sent != 1 || r.report.Breaches != 0 || r.report.ElapsedS > 60 {
			t.Errorf("report = %+v, want one sent within a minute, no breach", r.report)
		}
	})
	grants, err := e2e.ReadGrants(p.path("grants"))
	if err != nil {
		t.Fatal(err)
	}
	if len(grants) != 3 || !grants[0].Unused || !grants[1].Unused || grants[2].Unused {
		t.Errorf("grants = %+v, want two that were given back and one that was used", grants)
	}
}
