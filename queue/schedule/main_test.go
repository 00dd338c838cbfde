package schedule

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, rdb redis.UniversalClient, policies ...queue.Policy) *queue.Client {
	t.Helper()
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// smsPolicy counts tasks by the phone in their payload.
func smsPolicy() queue.Policy {
	return queue.Policy{Type: "sms:send", Rules: []queue.Rule{
		{Name: "sms-per-phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")},
	}}
}

func want[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// panicOf runs f and returns what it panicked with.
func panicOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}
