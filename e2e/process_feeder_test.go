package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// sourceMessages is the source of numbered messages to phones in turns, as
// [stage.write] writes them; its Args say how many.
const sourceMessages = "messages"

// feed is a whole process that feeds batches. Each half second it records what memory
// it has had at most.
func (p *workerProcess) feed(ctx context.Context, rdb redis.UniversalClient, policies []queue.Policy, log *zap.Logger) error {
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: policies})
	if err != nil {
		return err
	}
	feeder, err := batch.NewFeeder(client, batch.FeederConfig{
		Queues: []string{defaultQueue}, Sources: map[string]batch.Source{sourceMessages: batch.Seq(p.elements)}, Logger: log,
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- feeder.Run(ctx) }()
	fmt.Println(readyLine)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		resident, err := residentMost()
		if err != nil {
			return err
		}
		p.out.write(record{Kind: kindMemory, Bytes: resident})
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
	}
}

func (p *workerProcess) elements(b batch.Spec) iter.Seq[batch.Element] {
	return func(yield func(batch.Element) bool) {
		n, _ := strconv.Atoi(b.Args)
		for i := range n {
			m := numbered(i, p.spec.Phones)
			body, err := json.Marshal(m)
			if err != nil {
				panic(err)
			}
			if !yield(batch.Element{ID: m.ID, Payload: body}) {
				return
			}
		}
	}
}

// numbered is the i-th message of all, to phones in turns.
func numbered(i, phones int) message { return message{ID: messageID(i), To: phone(i % phones)} }

// residentMost is the most memory that this process has had.
func residentMost() (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/self/status")
}
