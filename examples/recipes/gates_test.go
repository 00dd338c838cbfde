package recipes

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle/gate"
)

// open says whether all gates of a policy are open for a task, at an instant of the
// clock on the wall of a zone.
func open(t *testing.T, p queue.Policy, payload, zone, at string) bool {
	t.Helper()
	in, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	instant, err := time.ParseInLocation("2006-01-02 15:04", at, in)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Demand(asynq.NewTask(p.Type, []byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	_, closed := gate.FirstClosed(d.Gates, instant)
	return !closed
}

// TestGateOpens: what is parked holds no place, and comes at the pace of its limit.
func TestGateOpens(t *testing.T) {
	t.Parallel()
	policies := policiesOf(t, "Opening hours")
	for at, want := range map[string]bool{
		"2026-03-02 08:59": false, "2026-03-02 09:00": true, "2026-03-02 12:30": false, "2026-03-02 17:59": true,
		"2026-03-07 10:00": true, "2026-03-07 14:00": false, "2026-03-01 11:00": false,
	} {
		if got := open(t, policies[0], "{}", "Europe/Berlin", at); got != want {
			t.Errorf("at %s it is open: %v, want %v", at, got, want)
		}
	}
	inBubble(t, func(t *testing.T, b *bed) {
		opens := 29 * time.Hour // on Monday at 9 in Berlin
		time.Sleep(opens - time.Minute)
		b.work(done, policies...)
		const n = 20
		for i := range n {
			b.enqueue("call:make", fmt.Sprint(i), "{}")
		}
		if line, err := b.pool.Limiter("provider").Peek(t.Context(), "acme", 1); err != nil || line.Waiting != 0 {
			t.Errorf("%d wait for the provider, %v, want none: a gate is shut", line.Waiting, err)
		}
		time.Sleep(time.Minute + 10*time.Second)
		all := b.ran()
		if len(all) != n {
			t.Fatalf("%d ran, want %d", len(all), n)
		}
		for i, r := range all {
			if early := opens + time.Duration(i)*100*time.Millisecond; r.granted < early || r.granted > early+time.Second {
				t.Errorf("the task at place %d was granted at %v, want %v, 100 ms from each other", i, r.granted, early)
			}
		}
		if s := b.pool.Stats(); s.Admissions > 2*n+2 {
			t.Errorf("%d tasks asked %d times, want twice each", n, s.Admissions)
		}
	})
}

func TestRecipientsDay(t *testing.T) {
	t.Parallel()
	p := policiesOf(t, "The recipient's day")[0]
	for at, want := range map[string]bool{"2026-03-02 07:59": false, "2026-03-02 08:00": true, "2026-03-02 21:00": false} {
		if got := open(t, p, `{"zone":"Asia/Tokyo"}`, "Asia/Tokyo", at); got != want {
			t.Errorf("at %s in Tokyo it is open: %v, want %v", at, got, want)
		}
	}
	for _, payload := range []string{`{}`, `{"zone":"Local"}`, `{"zone":"Mars/Olympus"}`} {
		if _, err := p.Demand(asynq.NewTask(p.Type, []byte(payload))); !errors.Is(err, queue.ErrNoZone) {
			t.Errorf("%s: %v, want %v", payload, err, queue.ErrNoZone)
		}
	}
}

func TestZoneOfAPhone(t *testing.T) {
	t.Parallel()
	p := policiesOf(t, "The zone of a phone number")[0]
	for number, zone := range map[string]string{
		"+4915112345678": "Europe/Berlin", "+12125550100": "America/New_York", "+351912345678": "Europe/Lisbon", "+81312345678": "Asia/Tokyo",
	} {
		for at, want := range map[string]bool{"2026-03-02 07:59": false, "2026-03-02 08:00": true, "2026-03-02 20:59": true} {
			if got := open(t, p, fmt.Sprintf(`{"to":%q}`, number), zone, at); got != want {
				t.Errorf("%s at %s in %s: open is %v, want %v", number, at, zone, got, want)
			}
		}
	}
	if _, err := p.Demand(asynq.NewTask(p.Type, []byte(`{"to":"12"}`))); !errors.Is(err, queue.ErrNoZone) {
		t.Errorf("a text that is no number: %v, want %v", err, queue.ErrNoZone)
	}
}

func TestCron(t *testing.T) {
	t.Parallel()
	p := policiesOf(t, "Cron")[0]
	for at, want := range map[string]bool{
		"2026-03-02 21:59": false, "2026-03-02 22:00": true, "2026-03-03 04:59": true, "2026-03-03 05:00": false, "2026-03-07 22:00": false,
	} {
		if got := open(t, p, "{}", "Europe/Berlin", at); got != want {
			t.Errorf("at %s it is open: %v, want %v", at, got, want)
		}
	}
	if d, err := p.Demand(asynq.NewTask(p.Type, nil)); err != nil || len(d.Costs) != 1 || !p.Rules[1].Limit.IsConcurrent() {
		t.Errorf("Demand = %v, %v, want one slot", d, err)
	}
}

func TestHolidays(t *testing.T) {
	t.Parallel()
	p := policiesOf(t, "Holidays")[0]
	for at, want := range map[string]bool{
		"2026-04-03 12:00": false, "2026-04-02 12:00": true, "2026-12-25 12:00": false, "2028-12-25 12:00": false, "2028-04-03 12:00": true,
	} {
		if got := open(t, p, "{}", "Europe/Berlin", at); got != want {
			t.Errorf("at %s it is open: %v, want %v", at, got, want)
		}
	}
}

// TestReadmePolicy: what the README shows first is what it says.
func TestReadmePolicy(t *testing.T) {
	t.Parallel()
	p := policiesOf(t, "Several rules at once")[0]
	d, err := p.Demand(asynq.NewTask(p.Type, []byte(`{"to":"+4915112345678"}`)))
	if err != nil || len(d.Gates) != 1 || d.Gates[0].In.String() != "Europe/Berlin" || len(d.Costs) != 4 {
		t.Errorf("Demand = %+v, %v, want four limits and a gate in Berlin", d, err)
	}
}
