package recipes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// TestSMS: code and file say the same, and both limits of a phone hold.
func TestSMS(t *testing.T) {
	t.Parallel()
	read := policiesOf(t, "Several rules, narrowest first")
	task := asynq.NewTask("sms:send", []byte(`{"to":"+15550100"}`))
	want, err := SMS().Demand(task)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read[0].Demand(task)
	if err != nil || !cmp.Equal(got.Costs, want.Costs) || len(read) != 1 {
		t.Errorf("the file asks for %v, %v, want what the code asks for, %v", got, err, want)
	}
	for i, r := range SMS().Rules {
		if read[0].Rules[i].Name != r.Name || read[0].Rules[i].Limit != r.Limit {
			t.Errorf("rule %d of the file is %s %v, want %s %v", i, read[0].Rules[i].Name, read[0].Rules[i].Limit, r.Name, r.Limit)
		}
	}
	inBubble(t, func(t *testing.T, b *bed) {
		b.work(done, SMS())
		for i := range 12 {
			b.enqueue("sms:send", fmt.Sprintf("m%02d", i), `{"to":"+15550100"}`)
		}
		if d, err := b.pool.Limiter("provider").Peek(b.Context(), "acme", 1); err != nil || d.Waiting != 0 {
			t.Errorf("%d wait at the provider, %v, want none: their phone holds them up", d.Waiting, err)
		}
		time.Sleep(9 * time.Minute)
		first := b.grants("m00")[0]
		for i := range 10 {
			b.want(fmt.Sprintf("m%02d", i), first+time.Duration(i)*time.Minute)
		}
		time.Sleep(time.Minute)
		b.waits("phone-day", "+15550100", "m10", first+24*time.Hour)
	})
}

func TestSharedRules(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, "Rules shared by name")
	inBubble(t, func(t *testing.T, b *bed) {
		b.work(done, policies...)
		for _, m := range []struct{ typ, id string }{{"ad", "ad1"}, {"ad", "ad2"}, {"ad", "ad3"}, {"code", "code"}} {
			b.enqueue("sms:"+m.typ, m.id, `{"to":"+15550100"}`)
		}
		time.Sleep(2 * time.Minute)
		first := b.grants("ad1")[0]
		b.want("ad2", first+time.Minute)
		b.want("code", first+2*time.Minute) // behind the ads of the phone, and before the one that waits for its week
		b.waits("ads", "+15550100", "ad3", first+7*24*time.Hour)
	})
}

func TestNewPool(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(yamlOf(t, "Several rules, narrowest first")), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(t *testing.T, b *bed) {
		ran := make(chan struct{}, 1)
		pool, err := NewPool(b.rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			ran <- struct{}{}
			return nil
		}), file)
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer pool.Shutdown()
		b.enqueueing()
		b.enqueue("sms:send", "m", `{"to":"+15550100"}`)
		<-ran
		if _, err := NewPool(b.rdb, asynq.HandlerFunc(done), file+".none"); err == nil {
			t.Error("a pool without its file: no error")
		}
	})
}

// TestFaultsOfAFile: the page quotes what its faulty file is refused with.
func TestFaultsOfAFile(t *testing.T) {
	t.Parallel()
	const heading = "What is wrong with a file"
	_, err := queue.ReadPolicies("policies.yaml", strings.NewReader(yamlOf(t, "What is wrong with a file")))
	if err == nil {
		t.Fatal("the faulty file was read")
	}
	if diff := cmp.Diff(blockOf(t, heading, "text"), err.Error()+"\n"); diff != "" {
		t.Errorf("what the page quotes (-) and what is said (+):\n%s", diff)
	}
}

func TestTenants(t *testing.T) {
	t.Parallel()
	policies, err := Tenants(strings.NewReader(yamlOf(t, "A key that a function finds")))
	if err != nil {
		t.Fatal(err)
	}
	d, err := policies[0].Demand(asynq.NewTaskWithHeaders("report:make", nil, map[string]string{"tenant": "t1"}))
	if err != nil || !cmp.Equal(d.Costs, []throttle.KeyCost{{Key: "t1", Cost: 1}}) {
		t.Errorf("Demand = %+v, %v, want 1 of t1", d.Costs, err)
	}
	if _, err := policies[0].Demand(asynq.NewTask("report:make", nil)); err == nil {
		t.Error("a task without a tenant: no error")
	}
}

// TestServe: a task that may not run is deferred on a plain server too.
func TestServe(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		mux := asynq.NewServeMux()
		mux.HandleFunc("sms:send", b.noted(done))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, b.rdb, mux, SMS()) }()
		b.enqueueing(SMS())
		b.enqueue("sms:send", "first", `{"to":"+15550100"}`)
		b.enqueue("sms:send", "second", `{"to":"+15550100"}`)
		time.Sleep(time.Minute)
		b.want("second", b.grants("first")[0]+time.Minute)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
