package recipes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

// winterFile is a file of n recipients.
func winterFile(t *testing.T, n int) string {
	t.Helper()
	var text []byte
	for i := range n {
		text = fmt.Appendf(text, "%d,+4917%08d\n", 4711+i, i)
	}
	path := filepath.Join(t.TempDir(), "winter.csv")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fed runs feeders until a batch has so much enqueued, and answers how far it is.
func (b *bed) fed(id string, enqueued int64, feeders ...*batch.Feeder) batch.Progress {
	b.Helper()
	for _, f := range feeders {
		defer b.beside(f.Run)()
	}
	for range 600 {
		time.Sleep(100 * time.Millisecond) // of the bubble
		p, err := batch.NewControl(b.client).Progress(b.Context(), "campaigns", id)
		if err == nil && p.Read >= enqueued {
			return p
		}
	}
	b.Fatalf("%d elements of %s were never enqueued", enqueued, id)
	return batch.Progress{}
}

// TestWinter: three replicas start it.
func TestWinter(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		b.enqueueing()
		n := 0
		for range 3 {
			started, err := Winter(t.Context(), b.client, "winter.csv")
			if err != nil {
				t.Fatal(err)
			}
			if started {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d of three replicas started it, want one", n)
		}
		if _, err := Winter(t.Context(), b.client, "summer.csv"); !errors.Is(err, batch.ErrExists) {
			t.Errorf("another file under its id = %v, want ErrExists", err)
		}
	})
}

// TestFeeder: two replicas feed it; a line that is no recipient is refused.
func TestFeeder(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		b.enqueueing()
		path := winterFile(t, 50)
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("nobody\n"); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := Winter(t.Context(), b.client, path); err != nil {
			t.Fatal(err)
		}
		var feeders []*batch.Feeder
		for range 2 {
			f, err := Feeder(b.client, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			feeders = append(feeders, f)
		}
		if p := b.fed("winter-2026", 51, feeders...); p.Enqueued != 50 || p.Refused != 1 {
			t.Errorf("it is %+v, want 50 enqueued and one refused", p)
		}
	})
}

// TestOutbox: three pages, the second of which fails once.
func TestOutbox(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		b.enqueueing()
		failed := false
		source := Outbox(func(_ context.Context, after string) ([]string, error) {
			switch after {
			case "":
				return []string{"1", "2"}, nil
			case "2":
				if !failed {
					failed = true
					return nil, errors.New("the database is away")
				}
				return []string{"3"}, nil
			}
			return nil, nil
		})
		if _, err := batch.NewControl(b.client).Start(t.Context(), batch.Spec{ID: "outbox", Queue: "campaigns", Type: "letter", Source: "outbox"}); err != nil {
			t.Fatal(err)
		}
		f, err := batch.NewFeeder(b.client, batch.FeederConfig{Queues: []string{"campaigns"}, Sources: map[string]batch.Source{"outbox": source}})
		if err != nil {
			t.Fatal(err)
		}
		if p := b.fed("outbox", 3, f); p.Enqueued != 3 || !failed {
			t.Errorf("it is %+v, want 3 enqueued", p)
		}
	})
}

// TestSlowDown: a batch has run at the limit's 30 a second for a while. Soon after the call
// its tasks run at 10 a second: what had been booked before has run by then.
func TestSlowDown(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		provider := queue.Policy{Type: "sms:send", Rules: []queue.Rule{{Name: "provider", Limit: throttle.GCRA(30, time.Second, 3), Constant: "acme"}}}
		b.queues = map[string]int{"campaigns": 1}
		b.work(done, provider)
		batches := batch.NewControl(b.client)
		if err := SlowDown(t.Context(), batches); !errors.Is(err, batch.ErrNotFound) {
			t.Errorf("SlowDown of nothing = %v, want ErrNotFound", err)
		}
		if _, err := Winter(t.Context(), b.client, winterFile(t, 1000)); err != nil {
			t.Fatal(err)
		}
		f, err := Feeder(b.client, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		defer b.beside(f.Run)()
		ranIn := func(d time.Duration) int {
			before := len(b.ran())
			time.Sleep(d) // of the bubble
			return len(b.ran()) - before
		}
		time.Sleep(10 * time.Second)
		if n := ranIn(2 * time.Second); n < 54 || n > 64 {
			t.Errorf("%d ran in 2s before, want 60", n)
		}
		if err := SlowDown(t.Context(), batches); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		if n := ranIn(5 * time.Second); n < 45 || n > 55 {
			t.Errorf("%d ran in 5s afterwards, want 50", n)
		}
	})
}
