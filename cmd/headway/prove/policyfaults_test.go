package prove

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/e2e"
)

// slowGateway is gatewayInMemory to which messages take a while to come, so that
// some are there at once.
func slowGateway(ctx context.Context, cfg config, files []byte) (outlet, error) {
	o, err := gatewayInMemory(ctx, cfg, files)
	if err != nil {
		return o, err
	}
	o.client.HTTP.Transport = e2e.InMemory(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &slowBody{ReadCloser: r.Body}
		o.own.ServeHTTP(w, r)
	}))
	return o, nil
}

type slowBody struct {
	io.ReadCloser
	once sync.Once
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.once.Do(func() { <-time.After(800 * time.Millisecond) })
	return b.ReadCloser.Read(p)
}

// TestPolicyRun keeps five rules, two of them on one key, at a gateway of which one
// answer in five is a fault and which closes phones.
func TestPolicyRun(t *testing.T) {
	t.Parallel()
	const (
		n     = 24
		rules = fiveRules
		spec  = "429=10%,after=7s,5xx=8%,timeout=4%,seed=7"
		bound = "morning phone-short phone-long" // they surely refuse somebody
	)
	p := newProgram(t, "-policy", policyFile(t, rules), "-input", "-", "-once", "-gateway-faults", spec)
	p.args = append(p.args, "-grants", p.path("grants"), "-arrivals", p.path("arrivals"))
	p.env.stdin = strings.NewReader(strings.ReplaceAll(csvOf(n, 6), "+1202555", "+4477009"))
	p.env.retryDelay = func(int, error, *asynq.Task) time.Duration { return time.Second }
	p.env.openRedis, p.env.openOutlet = redisInMemory, slowGateway
	var r result
	synctest.Test(t, func(t *testing.T) { r = p.run(t.Context()) }) // at midnight in London
	r.want(t, exitOK)
	got := r.report
	if got.Sent != n || got.Failed != 0 || got.Phones != 6 || got.Breaches != 0 || got.ElapsedS < 60 {
		t.Errorf("report = %+v, want %d to 6 phones, no breach, from 0:01 on", got, n)
	}
	f := got.GatewayFaults
	if f.Unavailable == 0 || f.EarlyAfter429 != 0 || *got.Postponed != int64(f.TooMany+f.UnderWay429) || *got.LeasesLost != 0 {
		t.Errorf("faults %+v, %d postponed, %d leases lost, want each 429 postponed and none early", f, *got.Postponed, *got.LeasesLost)
	}
	if f.TooMany == 0 {
		t.Errorf("the seed draws %+v, want a 429", f)
	}
	var names []string
	for _, rule := range got.Rules {
		names = append(names, rule.Rule)
		if strings.Contains(bound, rule.Rule) && (rule.Bound == 0 || rule.WaitedS <= 0 || *rule.WaitedMeanS <= 0) {
			t.Errorf("rule %+v, want that it bound somebody", rule)
		}
		if (rule.Breaches == nil) != (rule.Rule == "slots") || rule.Breaches != nil && *rule.Breaches != 0 {
			t.Errorf("rule %+v, want no breach", rule)
		}
	}
	if want := "morning phone-short phone-long provider slots"; strings.Join(names, " ") != want {
		t.Errorf("rules %v, want %s", names, want)
	}
	if most := got.Rules[4].AtOnceMost; most == nil || *most != 2 {
		t.Errorf("most at once %v, want 2", most)
	}
	if want := `waits    gate "morning" opens at Sat 00:01 GMT, in 1m0s, for 24 messages`; !strings.Contains(r.stderr, want) {
		t.Errorf("stderr has no %q:\n%s", want, r.stderr)
	}
	checkCharges(t, p.path("grants"), p.path("arrivals"), mustPolicy(t, p.args[1]))
}

// checkCharges wants that the files say of each grant and each message what all five rules charged, so that they can be
// judged again.
func checkCharges(t *testing.T, grants, arrivals string, p e2e.Policy) {
	t.Helper()
	all, err := e2e.ReadGrants(grants)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		if len(g.Charges) != 5 {
			t.Fatalf("grant %+v, want what all five rules charged", g)
		}
	}
	f, err := os.Open(arrivals)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log, err := e2e.ReadArrivals(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range log {
		if len(a.Charges) != 5 {
			t.Fatalf("arrival %+v, want what all five rules charged", a)
		}
	}
	if stats := e2e.ReplayArrivals(log, p); stats.Breaches != 0 || stats.Phones != 6 {
		t.Errorf("replayed: %+v, want 6 phones and no breach", stats)
	}
}
