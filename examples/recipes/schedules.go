package recipes

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/schedule"
)

// Reports is a schedule whose entries are in code.
func Reports(client *queue.Client, log *zap.Logger) (*schedule.Schedule, error) {
	return schedule.New(client, schedule.Config{Logger: log},
		schedule.Entry{
			Name: "nightly-report", Spec: "CRON_TZ=Europe/Berlin 30 2 * * *", Queue: "reports",
			Task:    queue.NewTask("report:nightly", nil, asynq.MaxRetry(3), asynq.Timeout(time.Hour)),
			Overlap: schedule.OverlapSkip, Missed: schedule.MissedRunOnce,
		},
		schedule.Entry{Name: "sync", Spec: "@every 90s", Task: queue.NewTask("sync", nil)},
	)
}

// Campaign is an entry whose task knows its tick.
func Campaign() schedule.Entry {
	return schedule.Entry{
		Name: "campaign", Spec: "CRON_TZ=Asia/Tokyo 0 9 * * 1-5", Missed: schedule.MissedRunAll,
		TaskFunc: func(_ context.Context, tick time.Time) (*queue.Task, error) {
			payload, err := json.Marshal(map[string]string{"day": tick.Format(time.DateOnly)})
			return queue.NewTask("campaign:start", payload), err
		},
	}
}

// FromFile is a schedule whose entries are in a file, which may change while it
// runs.
func FromFile(client *queue.Client, log *zap.Logger, path string) (*schedule.Schedule, error) {
	return schedule.New(client, schedule.Config{
		File: path, Logger: log,
		TaskFuncs: map[string]schedule.TaskFunc{"campaign": Campaign().TaskFunc},
	})
}

// TickOf finds the tick of a task in its handler.
func TickOf(ctx context.Context) (tick time.Time, ok bool) {
	id, _ := asynq.GetTaskID(ctx)
	_, tick, ok = schedule.ParseTaskID(id)
	return tick, ok
}
