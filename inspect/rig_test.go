package inspect

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a client that books, and a Redis whose clock only the test moves.
type rig struct {
	*testing.T
	*queue.Client
	raw   redis.UniversalClient
	timed redistest.Timed
	start time.Time
	asynq *asynq.Inspector
}

func perMinute() queue.Policy {
	return queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}}}
}

func newRig(t *testing.T, policies ...queue.Policy) *rig {
	t.Helper()
	return rigOn(t, redistest.Client(t), policies...)
}

// newExactRig is [newRig] on one Redis in any case, for a test that knows to the microsecond when a task is due. A
// Cluster gets to know that by how long it is from now, because the clocks of the rule's and the queue's servers may
// differ. The test's clock stands still meanwhile.
func newExactRig(t *testing.T, policies ...queue.Policy) *rig {
	t.Helper()
	redistest.OneRedis(t, "it knows to the microsecond when a task is due")
	return rigOn(t, redistest.Start(t).Client(t), policies...)
}

func rigOn(t *testing.T, raw redis.UniversalClient, policies ...queue.Policy) *rig {
	t.Helper()
	start := time.Now().Truncate(time.Second)
	timed := redistest.NewTimed(raw, start)
	return &rig{T: t, Client: newClient(t, timed, queue.ClientConfig{Policies: policies}), raw: raw, timed: timed, start: start,
		asynq: asynq.NewInspectorFromRedisClient(raw)}
}

func newClient(t *testing.T, rdb redis.UniversalClient, cfg queue.ClientConfig) *queue.Client {
	t.Helper()
	client, err := queue.NewClient(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inspector is one of the rig's pools.
func (d *rig) inspector(cfg throttle.Config, policies ...queue.Policy) *Inspector {
	d.Helper()
	i, err := New(d.timed, Config{Policies: policies, Throttle: cfg})
	if err != nil {
		d.Fatal(err)
	}
	return i
}

// at moves the clock to in after the start.
func (d *rig) at(in time.Duration) {
	d.Helper()
	d.timed.SetTime(d.start.Add(in))
}

func smsTo(phone string, opts ...asynq.Option) *queue.Task {
	return queue.NewTask("sms", fmt.Appendf(nil, `{"to":%q}`, phone), opts...)
}

// booked books a task that has to wait so long.
func (d *rig) booked(phone string, wait time.Duration, opts ...asynq.Option) {
	d.Helper()
	b, err := d.Book(d.Context(), smsTo(phone, opts...))
	if err != nil || b.Wait != wait {
		d.Fatalf("Book(%s) = %+v, %v, want a wait of %v", phone, b, err, wait)
	}
}
