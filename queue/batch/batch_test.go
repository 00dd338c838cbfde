package batch

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func winter() Spec {
	return Spec{ID: "winter", Type: "sms", Source: "messages", Total: 10}
}

func TestBatchSpecFaults(t *testing.T) {
	t.Parallel()
	b := NewControl(newClient(t, redistest.Client(t)))
	for field, spec := range map[string]func(*Spec){
		"ID":     func(s *Spec) { s.ID = "a b" },
		"Name":   func(s *Spec) { s.Name = strings.Repeat("n", 1025) },
		"Queue":  func(s *Spec) { s.Queue = "{q}" },
		"Type":   func(s *Spec) { s.Type = " " },
		"Source": func(s *Spec) { s.Source = "" },
		"Args":   func(s *Spec) { s.Args = strings.Repeat("n", 1025) },
		"Total":  func(s *Spec) { s.Total = -1 },
		"Window": func(s *Spec) { s.Window = WindowMax + 1 },
		"Weight": func(s *Spec) { s.Weight = 101 },
		"Pace":   func(s *Spec) { s.Pace.N = 1 },
	} {
		s := winter()
		spec(&s)
		started, err := b.Start(t.Context(), s)
		be, ok := errors.AsType[*Error](err)
		if started || !errors.Is(err, ErrInvalid) || !ok || be.Field != field {
			t.Errorf("a wrong %s: %v, %v, want ErrInvalid about it", field, started, err)
		}
	}
	_, err := b.Start(t.Context(), Spec{Weight: -1})
	for _, field := range []string{"ID", "Type", "Source", "Weight"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Start of nothing = %v, want also %s in it", err, field)
		}
	}
}

// A pace is at most 10000 a second, and at least one in 31 days.
func TestPaceBounds(t *testing.T) {
	t.Parallel()
	for p, ok := range map[Pace]bool{
		{}: true, {1, 100 * time.Microsecond}: true, {10_000, time.Second}: true, {1, 31 * 24 * time.Hour}: true,
		{1, 100*time.Microsecond - 1}: false, {10_001, time.Second}: false, {1, 31*24*time.Hour + 1}: false, {0, time.Second}: false, {-1, time.Second}: false,
	} {
		if err := p.check(); (err == nil) != ok {
			t.Errorf("%v: %v, want it allowed: %v", p, err, ok)
		}
	}
}

// Of many that start a batch one does; another batch under its id is an error that
// says what differs, and not what may be changed meanwhile.
func TestBatchStartsOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.StartEither(t)
	var mu sync.Mutex
	n := 0
	var wg sync.WaitGroup
	for range 5 {
		b := NewControl(newClient(t, srv.Client(t)))
		wg.Go(func() {
			started, err := b.Start(t.Context(), winter())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if started {
				n++
			}
		})
	}
	wg.Wait()
	if n != 1 {
		t.Errorf("%d started it, want 1", n)
	}
	b := NewControl(newClient(t, srv.Client(t)))
	if err := errors.Join(b.SetWindow(t.Context(), "default", "winter", 7), b.SetWeight(t.Context(), "default", "winter", 50), b.SetPace(t.Context(), "default", "winter", Pace{3, time.Second})); err != nil {
		t.Fatal(err)
	}
	if started, err := b.Start(t.Context(), winter()); started || err != nil {
		t.Errorf("Start again = %v, %v, want no start and no error", started, err)
	}
	other := winter()
	other.Type, other.Total = "mail", 11
	_, err := b.Start(t.Context(), other)
	if be, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, ErrExists) || be.Field != "Type, Total" {
		t.Errorf("Start of another = %v, want ErrExists about Type, Total", err)
	}
	p, err := b.Progress(t.Context(), "default", "winter")
	if err != nil || p.Window != 7 || p.Weight != 50 || p.Pace != (Pace{3, time.Second}) || p.State != Running || p.Fed || p.Total != 10 {
		t.Errorf("Progress = %+v, %v", p, err)
	}
}

// What is asked of a batch that is not there, or not in that state.
func TestBatchErrors(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	b := NewControl(newClient(t, srv.Client(t)))
	calls := map[string]func(id string) error{
		"Pause":     func(id string) error { return b.Pause(t.Context(), "default", id) },
		"Resume":    func(id string) error { return b.Resume(t.Context(), "default", id) },
		"Cancel":    func(id string) error { _, err := b.Cancel(t.Context(), "default", id); return err },
		"SetPace":   func(id string) error { return b.SetPace(t.Context(), "default", id, Pace{}) },
		"SetWeight": func(id string) error { return b.SetWeight(t.Context(), "default", id, 1) },
		"SetWindow": func(id string) error { return b.SetWindow(t.Context(), "default", id, 1) },
		"Progress":  func(id string) error { _, err := b.Progress(t.Context(), "default", id); return err },
	}
	for name, call := range calls {
		for _, id := range []string{"none", "a b"} {
			if err := call(id); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s of %q = %v, want ErrNotFound", name, id, err)
			}
		}
	}
	if _, err := b.Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"SetPace": b.SetPace(t.Context(), "default", "winter", Pace{1, 0}), "SetWeight": b.SetWeight(t.Context(), "default", "winter", 0),
		"SetWindow": b.SetWindow(t.Context(), "default", "winter", WindowMax+1),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s = %v, want ErrInvalid", name, err)
		}
	}
	if p, err := b.Cancel(t.Context(), "default", "winter"); err != nil || p.State != Cancelled {
		t.Errorf("Cancel = %+v, %v", p, err)
	}
	if keys := redistest.Keys(t, srv.Client(t), "hw:*"); len(keys) != 0 {
		t.Errorf("left behind: %v", keys)
	}
	rdb, record := srv.Client(t), "hw:{default}:batch:winter"
	if _, err := b.Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	rdb.HSet(t.Context(), record, "done", "x")
	if err := calls["Progress"]("winter"); err == nil || errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Progress of nobody's record = %v, want that Redis answered", err)
	}
	rdb.HSet(t.Context(), record, "v", "2")
	calls["Start"] = func(string) error { _, err := b.Start(t.Context(), winter()); return err }
	for name, call := range calls {
		if err := call("winter"); !errors.Is(err, throttle.ErrSchema) || errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%s of a newer version's batch = %v, want ErrSchema", name, err)
		}
	}
	gone := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	_ = gone.Close()
	b = NewControl(newClient(t, gone))
	for name, call := range calls {
		if err := call("winter"); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("%s without Redis = %v, want ErrUnavailable", name, err)
		}
	}
}

// A queue without a name is the default one, whatever is asked of it.
func TestBatchesOfTheDefaultQueue(t *testing.T) {
	t.Parallel()
	b := NewControl(newClient(t, redistest.Client(t)))
	if _, err := b.Start(t.Context(), winter()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		b.Pause(t.Context(), "", "winter"), b.Resume(t.Context(), "", "winter"), b.SetPace(t.Context(), "", "winter", Pace{3, time.Second}),
		b.SetWeight(t.Context(), "", "winter", 50), b.SetWindow(t.Context(), "", "winter", 7),
	); err != nil {
		t.Error(err)
	}
	p, err := b.Progress(t.Context(), "", "winter")
	if err != nil || p.Queue != "default" || p.Window != 7 || p.Weight != 50 || p.Pace.N != 3 {
		t.Errorf("Progress = %+v, %v, want all of that set", p, err)
	}
	n := 0
	for p, err := range b.All(t.Context(), "") {
		if n++; err != nil || p.Queue != "default" || p.ID != "winter" {
			t.Errorf("All = %+v, %v, want winter", p, err)
		}
	}
	if p, err := b.Cancel(t.Context(), "", "winter"); n != 1 || err != nil || p.Queue != "default" {
		t.Errorf("Cancel = %+v, %v, of %d batches", p, err, n)
	}
}

// All are listed, those that ended too.
func TestAllBatches(t *testing.T) {
	t.Parallel()
	client := newClient(t, redistest.Client(t))
	b := NewControl(client)
	f, err := NewFeeder(client, FeederConfig{Queues: []string{"default"}, Sources: map[string]Source{
		"empty": Seq(func(Spec) iter.Seq[Element] { return slices.Values([]Element(nil)) }),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"c", "a", "b"} {
		s := winter()
		if s.ID = id; id == "a" {
			s.Source = "empty"
		}
		if _, err := b.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if p, err := b.Progress(ctx, "default", "a"); err == nil && p.State == Ended {
				cancel()
			}
		}
	}()
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	var got []string
	for p, err := range b.All(t.Context(), "default") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.ID+" "+string(p.State))
	}
	if want := []string{"c running", "b running", "a ended"}; !slices.Equal(got, want) {
		t.Errorf("All = %v, want %v", got, want)
	}
}

func TestNewFeederFaults(t *testing.T) {
	t.Parallel()
	client := newClient(t, redistest.Client(t))
	_, err := NewFeeder(client, FeederConfig{Queues: []string{"{"}, Sources: map[string]Source{"a b": nil}, Ahead: time.Millisecond})
	for _, want := range []string{"Queues", "Sources", "nil", "Ahead"} {
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("NewFeeder = %v, want also %q in it", err, want)
		}
	}
	if _, err := NewFeeder(client, FeederConfig{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("NewFeeder of nothing = %v, want ErrInvalid", err)
	}
}

func TestBatchTask(t *testing.T) {
	t.Parallel()
	if batch, element, ok := ParseTaskID("batch:winter:7"); !ok || batch != "winter" || element != "7" {
		t.Errorf("BatchTask = %q, %q, %v", batch, element, ok)
	}
	for _, id := range []string{"", "7", "batch:winter", "batch::7", "batch:winter:", "batch:a b:7", "batch:winter:a:b"} {
		if _, _, ok := ParseTaskID(id); ok {
			t.Errorf("%q is the task of a batch, want not", id)
		}
	}
}
