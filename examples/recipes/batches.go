package recipes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// Winter starts a batch, on every replica's clock at once: one of them does.
func Winter(ctx context.Context, client *queue.Client, path string) (started bool, err error) {
	return batch.NewControl(client).Start(ctx, batch.Spec{
		ID: "winter-2026", Name: "winter campaign", Queue: "campaigns", Type: "sms:send",
		Source: "file", Args: path, Total: 200_000, Window: 6_000,
	})
}

// Feeder feeds batches from files with lines such as "4711,+4917012345678"; run it in
// every replica.
func Feeder(client *queue.Client, log *zap.Logger) (*batch.Feeder, error) {
	open := func(path string) (io.ReadSeekCloser, error) { return os.Open(path) }
	recipient := func(line []byte) (batch.Element, error) {
		id, phone, ok := bytes.Cut(line, []byte(","))
		if !ok {
			return batch.Element{}, errors.New("want an id and a phone")
		}
		return batch.Element{ID: string(id), Payload: fmt.Appendf(nil, `{"to":%q}`, phone)}, nil
	}
	return batch.NewFeeder(client, batch.FeederConfig{
		Queues:  []string{"campaigns"},
		Sources: map[string]batch.Source{"file": batch.Lines(open, recipient)},
		Ahead:   2 * time.Second, // so soon does a new pace show
		Logger:  log,
	})
}

// Outbox is a source that pages through a table of what is to be sent by the numbers of its
// rows, which say nothing of anybody: they are its marks.
func Outbox(page func(ctx context.Context, after string) (rows []string, err error)) batch.Source {
	return func(ctx context.Context, _ batch.Spec, from batch.Position) iter.Seq2[batch.Element, error] {
		return func(yield func(batch.Element, error) bool) {
			for after := from.Mark; ; {
				rows, err := page(ctx, after)
				if err != nil {
					yield(batch.Element{}, err) // it is asked again, from the last mark
					return
				}
				for _, row := range rows {
					after = row
					if !yield(batch.Element{ID: row, Payload: fmt.Appendf(nil, `{"row":%q}`, row), Mark: row}, nil) {
						return
					}
				}
				if len(rows) == 0 {
					return
				}
			}
		}
	}
}

// SlowDown changes a batch while it runs: no more than 10 a second, as long as the
// switchboard is busy. What is enqueued already runs as it was booked.
func SlowDown(ctx context.Context, batches *batch.Control) error {
	return batches.SetPace(ctx, "campaigns", "winter-2026", batch.Pace{N: 10, Per: time.Second})
}
