package recipes

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
)

// Reports is a schedule whose entries are in code.
func Reports(client *queue.Client, log *zap.Logger) (*queue.Schedule, error) {
	return queue.NewSchedule(client, queue.ScheduleConfig{Logger: log},
		queue.Entry{
			Name: "nightly-report", Spec: "CRON_TZ=Europe/Berlin 30 2 * * *", Queue: "reports",
			Task:    queue.NewTask("report:nightly", nil, asynq.MaxRetry(3), asynq.Timeout(time.Hour)),
			Overlap: queue.OverlapSkip, Missed: queue.MissedRunOnce,
		},
		queue.Entry{Name: "sync", Spec: "@every 90s", Task: queue.NewTask("sync", nil)},
	)
}

// Campaign is an entry whose task knows its tick.
func Campaign() queue.Entry {
	return queue.Entry{
		Name: "campaign", Spec: "CRON_TZ=Asia/Tokyo 0 9 * * 1-5", Missed: queue.MissedRunAll,
		TaskFunc: func(_ context.Context, tick time.Time) (*queue.Task, error) {
			payload, err := json.Marshal(map[string]string{"day": tick.Format(time.DateOnly)})
			return queue.NewTask("campaign:start", payload), err
		},
	}
}

// FromFile is a schedule whose entries are in a file, which may change while it
// runs.
func FromFile(client *queue.Client, log *zap.Logger, path string) (*queue.Schedule, error) {
	return queue.NewSchedule(client, queue.ScheduleConfig{
		File: path, Logger: log,
		TaskFuncs: map[string]queue.TaskFunc{"campaign": Campaign().TaskFunc},
	})
}

// TickOf finds the tick of a task in its handler.
func TickOf(ctx context.Context) (tick time.Time, ok bool) {
	id, _ := asynq.GetTaskID(ctx)
	_, tick, ok = queue.TaskTick(id)
	return tick, ok
}
