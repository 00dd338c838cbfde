package schedule_test

import (
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/schedule"
)

// The last Sunday of March has no 02:30 in Berlin, and that of October has two.
func ExampleParseCron() {
	cron, err := schedule.ParseCron("CRON_TZ=Europe/Berlin 30 2 * * *", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, day := range []string{"2026-03-28", "2026-10-24"} {
		at, _ := time.Parse(time.DateOnly, day)
		for range 3 {
			at = cron.Next(at)
			fmt.Println(at.Format("Jan 02 15:04 MST"))
		}
	}
	// Output:
	// Mar 28 02:30 CET
	// Mar 29 03:00 CEST
	// Mar 30 02:30 CEST
	// Oct 24 02:30 CEST
	// Oct 25 02:30 CEST
	// Oct 26 02:30 CET
}

// All that is wrong with the entries is told at once, and Redis is not asked.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	client, err := queue.NewClient(rdb, queue.ClientConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = schedule.New(client, schedule.Config{},
		schedule.Entry{Name: "nightly", Spec: "0 0 30 2 *", Task: queue.NewTask("report:nightly", nil)},
		schedule.Entry{Name: "sync", Spec: "@every 90s", Task: queue.NewTask("sync", nil, asynq.TaskID("sync"))},
	)
	fmt.Println(err)
	// Output:
	// schedule: entry "nightly": Spec: cron spec "0 0 30 2 *": a date that never comes
	// schedule: entry "sync": Task: option TaskID: the id of a tick's task is made of its entry and its instant
}

// A handler reads its tick from the id of its task, which asynq.GetTaskID gives.
func ExampleParseTaskID() {
	entry, tick, ok := schedule.ParseTaskID("nightly@2026-03-29T01:00:00Z")
	fmt.Println(entry, tick, ok)
	// Output: nightly 2026-03-29 01:00:00 +0000 UTC true
}
