package recipes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue/schedule"
)

// schedule runs a schedule for a while and stops it.
func (b *bed) schedule(s *schedule.Schedule, d time.Duration) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		b.Error(err)
	}
}

// tickTasks are the ids of the tasks that wait in a queue.
func (b *bed) tickTasks(name string) string {
	b.Helper()
	tasks, err := asynq.NewInspectorFromRedisClient(b.rdb).ListPendingTasks(name)
	if err != nil {
		b.Fatal(err)
	}
	var ids []string
	for _, task := range tasks {
		ids = append(ids, task.ID)
	}
	return strings.Join(ids, " ")
}

// TestReports: two processes run it, over the day on which Berlin has no 02:30.
func TestReports(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		time.Sleep(time.Until(time.Date(2026, 3, 29, 0, 30, 10, 0, time.UTC)))
		b.enqueueing()
		for range 2 {
			s, err := Reports(b.client, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			go b.schedule(s, time.Hour)
		}
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if got, want := b.tickTasks("reports"), "nightly-report@2026-03-29T01:00:00Z"; got != want {
			t.Errorf("reports: %s, want %s", got, want)
		}
		if n := b.rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 40 {
			t.Errorf("sync ran %d times, want 40: every 90 s", n)
		}
	})
}

func TestCampaign(t *testing.T) {
	t.Parallel()
	task, err := Campaign().TaskFunc(t.Context(), time.Date(2026, 3, 30, 9, 0, 0, 0, time.UTC))
	if err != nil || string(task.Payload()) != `{"day":"2026-03-30"}` {
		t.Errorf("the task is %s, %v", task.Payload(), err)
	}
}

func TestFromFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(path, []byte(yamlOf(t, "Entries in a file")), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(t *testing.T, b *bed) {
		b.enqueueing()
		s, err := FromFile(b.client, zap.NewNop(), path)
		if err != nil {
			t.Fatal(err)
		}
		var next []string
		for _, tick := range s.Next() {
			next = append(next, tick.TaskID)
		}
		want := "campaign@2026-03-02T00:00:00Z nightly-report@2026-03-02T01:30:00Z sync@2026-03-01T03:01:30Z"
		if got := strings.Join(next, " "); got != want {
			t.Errorf("next: %s, want %s", got, want)
		}
		time.Sleep(22 * time.Hour)
		b.schedule(s, time.Hour)
		if got, want := b.tickTasks("reports"), "nightly-report@2026-03-02T01:30:00Z"; got != want {
			t.Errorf("reports: %s, want %s", got, want)
		}
	})
}

// TestTickOf: a pool runs the task of a tick.
func TestTickOf(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, b *bed) {
		time.Sleep(21*time.Hour - 2*time.Second) // Monday begins in UTC
		ran := make(chan string, 1)
		b.work(func(ctx context.Context, task *asynq.Task) error {
			tick, ok := TickOf(ctx)
			ran <- fmt.Sprint(string(task.Payload()), tick.Format(time.RFC3339), ok)
			return nil
		})
		s, err := schedule.New(b.client, schedule.Config{}, Campaign())
		if err != nil {
			t.Fatal(err)
		}
		b.schedule(s, 4*time.Second)
		if got, want := <-ran, `{"day":"2026-03-02"}2026-03-02T00:00:00Ztrue`; got != want {
			t.Errorf("ran %s, want %s", got, want)
		}
	})
}

// The examples of the page, where the clock is changed.
func TestSchedulesPageTellsTheTicks(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\w+/\\w+) \\| (\\S+) \\| (.+) \\|$")
	rows := row.FindAllStringSubmatch(read(t, filepath.Join("..", "..", "docs", "schedules.md")), -1)
	if len(rows) < 10 {
		t.Fatalf("the page has %d examples, want more", len(rows))
	}
	for _, r := range rows {
		zone, err := time.LoadLocation(r[2])
		if err != nil {
			t.Fatal(err)
		}
		day, err := time.ParseInLocation(time.DateOnly, r[3], zone)
		if err != nil {
			t.Fatal(err)
		}
		cron, err := schedule.ParseCron(r[1], zone)
		if err != nil {
			t.Fatal(err)
		}
		until := time.Date(day.Year(), day.Month(), day.Day(), 4, 0, 0, 0, zone)
		var ticks []string
		for at := cron.Next(day.Add(-1)); at.Before(until); at = cron.Next(at) {
			ticks = append(ticks, at.Format("15:04 MST"))
		}
		if got := strings.Join(ticks, ", "); got != r[4] {
			t.Errorf("%s in %s on %s ticks at %s, the page says %s", r[1], r[2], r[3], got, r[4])
		}
	}
}
