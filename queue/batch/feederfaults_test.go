package batch

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
)

// A file whose last line is too long, and has no end, has no element in it, not one that
// was cut off.
func TestLinesWhoseLastIsTooLong(t *testing.T) {
	t.Parallel()
	var all []Element
	for e, err := range lines("a\n"+strings.Repeat("x", lineMax+1))(t.Context(), Spec{Args: "a.txt"}, Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	if len(all) != 2 || !errors.Is(all[1].fault, errLine) || errors.Is(all[1].fault, io.EOF) || all[1].Payload != nil {
		t.Errorf("%d elements, the last refused for %v, want 2 and its length", len(all), all[len(all)-1].fault)
	}
}

// A source that ends because it was told to has not ended: its batch would.
func TestReaderThatIsStopped(t *testing.T) {
	t.Parallel()
	for range 50 {
		r := startReader(t.Context(), Channel(make(chan Element)), Spec{}, Position{})
		r.close()
		if x, ok := r.poll(); ok {
			t.Fatalf("it says %+v, want nothing", x)
		}
	}
}

// An element whose mark is too long is refused, and the mark before it stays: with none, a
// source that goes on by marks would give all elements again.
func TestMarkThatIsTooLong(t *testing.T) {
	t.Parallel()
	source := func(context.Context, Spec, Position) iter.Seq2[Element, error] {
		return func(yield func(Element, error) bool) {
			_ = yield(Element{Mark: "a"}, nil) && yield(Element{Mark: strings.Repeat("x", markMax+1)}, nil)
		}
	}
	in := newInput(source, batchscripts.Batch{}, func(error, int) {})
	in.open(t.Context(), Spec{}, time.Now())
	defer in.close()
	next := func() *item {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); !in.read(time.Now); time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("there is no element")
			}
		}
		return in.item
	}
	if e := next(); e.fault != nil {
		t.Fatalf("the first is refused for %v", e.fault)
	}
	if e := next(); !errors.Is(e.fault, ErrInvalid) {
		t.Errorf("the second is refused for %v, want ErrInvalid", e.fault)
	}
	if got, want := in.cursor.at(), (Position{Read: 2, Mark: "a"}); got != want {
		t.Errorf("the source goes on at %+v, want %+v", got, want)
	}
	in.cursor.settle([]int64{0, 1})
	if got, want := in.cursor.at(), (Position{Read: 2, Mark: "a"}); got != want || in.cursor.mark != "a" {
		t.Errorf("settled, the source goes on at %+v, mark %q, want %+v", got, in.cursor.mark, want)
	}
}

func testFeeder(t *testing.T, c *queue.Client, log *zap.Logger) *Feeder {
	t.Helper()
	f, err := NewFeeder(c, FeederConfig{Queues: []string{"default"}, Logger: log, Sources: map[string]Source{
		"messages": Seq(func(Spec) iter.Seq[Element] { return slices.Values([]Element{{}}) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A feeding call that meets a change of pace may write an instant by the pace before.
func TestPaceThatChangesWhileItIsFed(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := newClient(t, rdb)
	spec := winter()
	spec.Pace = Pace{1, time.Hour}
	b := NewControl(c)
	if _, err := b.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	g := newFeeding(testFeeder(t, c, nil), "default", "winter")
	if err := g.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := g.pace.after(1) // as feed has it
	if err := b.SetPace(t.Context(), "default", "winter", Pace{10, time.Second}); err != nil {
		t.Fatal(err)
	}
	_, err := batchscripts.Feed(t.Context(), rdb, g.keys, batchscripts.FeedArgs{Batch: "winter", Owner: g.owner, Call: newOwner(), PaceAt: late})
	g.calls++
	if err := errors.Join(err, g.claim(t.Context())); err != nil {
		t.Fatal(err)
	}
	if wait := g.pace.at.Sub(g.clock.now()); wait > 100*time.Millisecond {
		t.Errorf("the next goes in %v, want 100 ms at most", wait)
	}
}

// A record that can't be read, for a newer version wrote it, keeps no other batch waiting.
func TestFeederBesideARecordItCantRead(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := newClient(t, rdb)
	b := NewControl(c)
	for _, id := range []string{"newer", "winter"} {
		spec := winter()
		if spec.ID = id; id == "newer" {
			spec.Total = 0
		}
		if _, err := b.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	if err := rdb.HSet(t.Context(), "hw:{default}:batch:newer", "v", "2").Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	core, logs := observer.New(zapcore.WarnLevel)
	f := testFeeder(t, c, zap.New(core))
	go func() { done <- f.Run(ctx) }()
	for ctx.Err() == nil {
		if p, err := b.Progress(ctx, "default", "winter"); err == nil && p.Enqueued == 1 {
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("the other batch is not fed")
	}
	var unused sync.WaitGroup // nothing is left to be fed
	if err := f.look(ctx, &unused); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if all := logs.All(); len(all) != 1 || !strings.Contains(all[0].Message, "newer version") {
		t.Errorf("it warned of %v, want of the newer version, once", all)
	}
}

// Redis that refuses one batch and answers all else is told once.
func TestFeederSaysOnceThatRedisIsAway(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	f := testFeeder(t, newClient(t, redistest.Client(t)), zap.New(core))
	for range 10 {
		f.reached(t.Context(), "", nil)
		f.reached(t.Context(), "default/winter", errors.New("OOM"))
		f.reached(t.Context(), "default/summer", nil)
	}
	if n := logs.Len(); n != 1 {
		t.Errorf("%d lines while it refuses, want 1", n)
	}
	f.reached(t.Context(), "default/winter", nil)
	if n := logs.Len(); n != 2 {
		t.Errorf("%d lines when it answers again, want 2", n)
	}
}

// What is left of a batch whose source has ended is what is unfinished, whatever Total says.
func TestExpectedEndBehindTheSource(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	b := NewControl(newClient(t, rdb))
	spec := winter()
	spec.Total = 1_000_000
	if _, err := b.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	now := rdb.Time(t.Context()).Val()
	ten := now.Add(-10 * time.Second).UnixMicro()
	if err := errors.Join(
		rdb.HSet(t.Context(), "hw:{default}:batch:winter", "end", 1, "enqueued", 200, "done", 100, "t0", ten, "n0", 0, "t1", ten, "n1", 0).Err(),
		rdb.Eval(t.Context(), `for i = 1, 100 do redis.call("ZADD", KEYS[1], i, i) end`, []string{"hw:{default}:batch:winter:open"}).Err(),
	); err != nil && err.Error() != "redis: nil" {
		t.Fatal(err)
	}
	p, err := b.Progress(t.Context(), "default", "winter")
	if left := p.ExpectedEnd.Sub(now); err != nil || left < 5*time.Second || left > 15*time.Second {
		t.Errorf("it is expected in %v (%v), want about 10 s", left, err)
	}
}

// A sequence that is counted off, or never ends, does not keep a feeder that ends.
func TestSeqThatIsStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	forever := Seq(func(Spec) iter.Seq[Element] {
		return func(yield func(Element) bool) {
			for n++; n < 1_000_000 && yield(Element{}); n++ {
				if n == 10 {
					cancel()
				}
			}
		}
	})
	for e, err := range forever(ctx, Spec{}, Position{Read: 1 << 40}) {
		t.Fatalf("it gives %+v, %v, which was to be skipped", e, err)
	}
	if n > 20 {
		t.Errorf("%d elements were counted, want it to stop", n)
	}
}
