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
)

// Winter starts a batch, on every replica's clock at once: one of them does.
func Winter(ctx context.Context, client *queue.Client, path string) (started bool, err error) {
	return queue.NewBatches(client).Start(ctx, queue.BatchSpec{
		ID: "winter-2026", Name: "winter campaign", Queue: "campaigns", Type: "sms:send",
		Source: "file", Args: path, Total: 200_000, Window: 6_000,
	})
}

// Feeder feeds batches from files with lines such as "4711,+4917012345678"; run it in
// every replica.
func Feeder(client *queue.Client, log *zap.Logger) (*queue.Feeder, error) {
	open := func(path string) (io.ReadSeekCloser, error) { return os.Open(path) }
	recipient := func(line []byte) (queue.Element, error) {
		id, phone, ok := bytes.Cut(line, []byte(","))
		if !ok {
			return queue.Element{}, errors.New("want an id and a phone")
		}
		return queue.Element{ID: string(id), Payload: fmt.Appendf(nil, `{"to":%q}`, phone)}, nil
	}
	return queue.NewFeeder(client, queue.FeederConfig{
		Queues:  []string{"campaigns"},
		Sources: map[string]queue.Source{"file": queue.Lines(open, recipient)},
		Logger:  log,
	})
}

// Outbox is a source that pages through a table of what is to be sent by the numbers of its
// rows, which say nothing of anybody: they are its marks.
func Outbox(page func(ctx context.Context, after string) (rows []string, err error)) queue.Source {
	return func(ctx context.Context, _ queue.BatchSpec, from queue.Position) iter.Seq2[queue.Element, error] {
		return func(yield func(queue.Element, error) bool) {
			for after := from.Mark; ; {
				rows, err := page(ctx, after)
				if err != nil {
					yield(queue.Element{}, err) // it is asked again, from the last mark
					return
				}
				for _, row := range rows {
					after = row
					if !yield(queue.Element{ID: row, Payload: fmt.Appendf(nil, `{"row":%q}`, row), Mark: row}, nil) {
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
// switchboard is busy.
func SlowDown(ctx context.Context, batches *queue.Batches) error {
	return batches.SetPace(ctx, "campaigns", "winter-2026", queue.Pace{N: 10, Per: time.Second})
}
