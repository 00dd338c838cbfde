package batch

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// scriptsOn counts the scripts that a client runs with a key.
type scriptsOn struct {
	redis.Hook
	key string
	n   atomic.Int64
}

func (s *scriptsOn) note(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if slices.ContainsFunc(cmd.Args(), func(a any) bool { return fmt.Sprint(a) == s.key }) {
			s.n.Add(1)
		}
	}
}

func (s *scriptsOn) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scriptsOn) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *scriptsOn) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.note(cmds...)
		return next(ctx, cmds)
	}
}

// What is enqueued is booked anew once after a resume, however often the batch is taken
// over after that; and after the next resume once more.
func TestRebookedOnceHoweverOftenItIsTakenOver(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	line := &scriptsOn{key: "hw:{acme}:provider:line"}
	rdb.AddHook(line)
	c := newClient(t, rdb, queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "provider", Limit: throttle.Sliding(1, time.Hour), Constant: "acme"}}})
	b := NewControl(c)
	spec := winter()
	spec.Window = 3
	if _, err := b.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Ahead: 24 * time.Hour, Sources: map[string]Source{
		"messages": Seq(func(Spec) iter.Seq[Element] { return slices.Values(make([]Element, 10)) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	// takeOver feeds as one more process would, and counts the scripts on the line.
	takeOver := func(fed func(*feeding) bool) int64 {
		t.Helper()
		g, before := newFeeding(f, "default", "winter"), line.n.Load()
		if err := g.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		within(t, "it fed", func() bool {
			if _, err := g.pass(t.Context()); err != nil {
				t.Fatal(err)
			}
			return fed(g)
		})
		g.input.close()
		if err := rdb.HDel(t.Context(), "hw:{default}:batch:winter", "owner").Err(); err != nil { // it died long ago
			t.Fatal(err)
		}
		return line.n.Load() - before
	}
	full := func(g *feeding) bool { return g.unfinished == 3 && g.polled }
	if n := takeOver(full); n == 0 {
		t.Fatal("nothing is booked")
	}
	for range 2 {
		if err := b.Pause(t.Context(), "default", "winter"); err != nil {
			t.Fatal(err)
		}
		if err := b.Resume(t.Context(), "default", "winter"); err != nil {
			t.Fatal(err)
		}
		if n := takeOver(full); n == 0 {
			t.Error("nothing is booked anew after the resume")
		}
		for range 3 {
			if n := takeOver(full); n != 0 {
				t.Errorf("%d scripts on the line when it is taken over again, want none", n)
			}
		}
	}
}

// To learn what is settled of a large window takes long behind a slow network: the lease is
// renewed meanwhile, or another feeder would take the batch, and fare as this one.
func TestLeaseIsRenewedWhileAFeederLearnsWhatIsSettled(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	record := &scriptsOn{key: "hw:{default}:batch:winter"}
	c := newClient(t, rdb)
	if _, err := NewControl(c).Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	const n = 2400
	for i := range n {
		rdb.ZAdd(t.Context(), "hw:{default}:batch:winter:ahead", redis.Z{Score: float64(i), Member: fmt.Sprint(i)})
	}
	rdb.AddHook(record)
	f := testFeeder(t, c, nil)
	now := time.Now()
	f.now = func() time.Time {
		now = now.Add(200 * time.Millisecond)
		return now
	}
	g := newFeeding(f, "default", "winter")
	if err := g.begin(t.Context()); err != nil || len(g.input.settled) != n {
		t.Fatalf("%v, %d elements are settled, want %d", err, len(g.input.settled), n)
	}
	if claims := record.n.Load(); claims < 2 || claims > 6 {
		t.Errorf("the lease was taken and renewed %d times, want some", claims)
	}
}

// A task that a pool fetches while its batch is rebooked keeps its place before those that
// come after it in the source.
func TestRebookedInOrderAlthoughAPoolFetchesOne(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := newClient(t, rdb, queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "provider", Limit: throttle.Sliding(1, time.Hour), Constant: "acme"}}})
	spec := winter()
	spec.Window = 3
	if _, err := NewControl(c).Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Ahead: 24 * time.Hour, Sources: map[string]Source{
		"messages": Seq(func(Spec) iter.Seq[Element] { return slices.Values(make([]Element, 3)) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	g := newFeeding(f, "default", "winter")
	if err := g.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, "all are enqueued", func() bool {
		if _, err := g.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		return g.unfinished == 3
	})
	unfinished, err := batchscripts.UnfinishedElements(t.Context(), rdb, g.keys, "winter", 0, 3)
	if err != nil || len(unfinished) != 3 {
		t.Fatalf("unfinished: %v, %v", unfinished, err)
	}
	left := make(map[int64]bool)
	if err := g.f.c.unbook(t.Context(), "default", "sms", "winter", unfinished, left); err != nil {
		t.Fatal(err)
	}
	first := batchscripts.TaskID("winter", unfinished[0].ID)
	_, err = rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error { // as asynq's fetching does
		p.ZRem(t.Context(), "asynq:{default}:scheduled", first)
		p.LRem(t.Context(), "asynq:{default}:pending", 0, first)
		p.LPush(t.Context(), "asynq:{default}:active", first)
		p.HSet(t.Context(), "asynq:{default}:t:"+first, "state", "active")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.bookAgain(t.Context(), unfinished, left); err != nil {
		t.Fatal(err)
	}
	for i, e := range unfinished[1:] {
		r, err := queuescripts.GetTask(t.Context(), rdb, g.keys, batchscripts.TaskID("winter", e.ID))
		want := time.Duration(i+1) * time.Hour
		if wait := r.At.Sub(r.Now); err != nil || wait < want-time.Minute || wait > want {
			t.Errorf("element %s comes after %v, %v, want %v: the first has the place before it", e.ID, wait, err, want)
		}
	}
}
