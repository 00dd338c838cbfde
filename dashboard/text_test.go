package dashboard

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle"
)

func TestSafe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                          "",
		"plain <b>":                 "plain <b>",
		"a\nb\x00c\x7f":             "a␊b␀c␡",
		"a\u202eb\u2066c\u200bd":    "a�b�c�d",
		"\xff":                      "�",
		"日本語":                       "日本語",
		"e\u0301\u0301\u0301\u0301": "e\u0301\u0301",
		strings.Repeat("x", 10_000): strings.Repeat("x", textMax) + "…",
		strings.Repeat("日", 10_000): strings.Repeat("日", textMax) + "…",
	} {
		if got := safe(text); got != want {
			t.Errorf("safe(%.20q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzSafe(f *testing.F) {
	f.Add("a\x00\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		got := safe(text)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > textMax+1 || strings.ContainsAny(got, "\x00\x1b\n\r\u202e\u2028") {
			t.Errorf("safe(%q) = %q", text, got)
		}
	})
}

func TestSpans(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "now", 12 * time.Millisecond: "in 12 ms", 1500 * time.Millisecond: "in 1.5 s", -42 * time.Second: "42 s ago", 90 * time.Second: "in 1 min 30 s",
		2*time.Hour + 5*time.Minute: "in 2 h 5 min", 75 * time.Hour: "in 3 days 3 h", 20 * time.Minute: "in 20 min",
	} {
		if got := strings.ReplaceAll(relative(now.Add(d), now), "\u00A0", " "); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if got := count(1234567) + " " + count(-1000) + " " + count(999); got != "1,234,567 -1,000 999" {
		t.Errorf("count gives %s", got)
	}
}

// A link hides its key, is the same for all viewers, and can't be made or changed by others.
func TestLinksHideKeys(t *testing.T) {
	t.Parallel()
	s, err := newSealer(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newSealer(nil)
	if err != nil {
		t.Fatal(err)
	}
	token := s.seal("+15550100")
	if strings.Contains(token, "15550100") || token != s.seal("+15550100") || token == s.seal("+15550101") {
		t.Errorf("the token is %s", token)
	}
	if key, err := s.open(token); key != "+15550100" || err != nil {
		t.Errorf("open = %q, %v", key, err)
	}
	changed := "A" + token[1:]
	if token[0] == 'A' {
		changed = "B" + token[1:]
	}
	for _, bad := range []string{"", "x", changed, token[:len(token)-1], other.seal("+15550100")} {
		if _, err := s.open(bad); err == nil {
			t.Errorf("open(%q) is no error", bad)
		}
	}
	a, _ := newSealer([]byte("sixteen bytes .."))
	b, _ := newSealer([]byte("sixteen bytes .."))
	if key, err := b.open(a.seal("k")); key != "k" || err != nil {
		t.Errorf("with one secret another process opens %q, %v", key, err)
	}
}

// A limit is told in a sentence that a person would say.
func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"sliding 5/1s": "At most 5 in any second for each key.", "gcra 5/1s": "5 in a second for each key", "gcra 5/1h": "5 in an hour for each key", "fixed 5/1m": "in a window of a minute that",
		"gcra 5/2m": "5 in 2 minutes for each key", "leaky 5/24h": "5 in a day for each key",
	} {
		l, err := throttle.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := words(l); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// The verdict names the gravest thing first, and says what is to be done.
func TestVerdict(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	pool := inspect.Process{Kind: "pool", Workers: 10, Busy: 3, Queues: map[string]int{"default": 1}}
	busy := pool
	busy.Busy = 10
	waits := inspect.QueueStatus{Queue: "default", Waiting: 5000, Within1h: 100, Next: now.Add(time.Minute), Now: now}
	late := waits
	late.Next, late.Overdue = now.Add(-time.Minute), 7
	fresh := late
	fresh.Next = now.Add(-time.Millisecond)
	overdue := late
	overdue.Overdue, overdue.Within1h = 5000, 5000
	plain := inspect.QueueStatus{Queue: "default", Pending: 500, Active: 2, Now: now}
	killed := late
	killed.Active = 2
	paused := waits
	paused.Paused = true
	crowd := inspect.QueueStatus{Queue: "default", Pending: 500, Active: 10, Now: now}
	closed := ruleRow{RuleStatus: inspect.RuleStatus{Rule: "phone", Limit: throttle.Sliding(1, time.Minute), Closed: now.Add(time.Hour)}}
	broken := ruleRow{RuleStatus: inspect.RuleStatus{Rule: "phone", Problem: "stored"}}
	away := ruleRow{RuleStatus: inspect.RuleStatus{Rule: "phone", Problem: "away", Err: fmt.Errorf("%w: a node is down", throttle.ErrUnavailable)}}
	one := inspect.QueueStatus{Queue: "default", Waiting: 1, Next: now.Add(time.Minute), Now: now}
	oneLate := inspect.QueueStatus{Queue: "default", Waiting: 1, Overdue: 1, Next: now.Add(-time.Minute), Now: now}
	onePaused := one
	onePaused.Paused = true
	alone := pool
	alone.Workers, alone.Busy = 1, 1
	broke := waits
	broke.Archived = 3
	because := []inspect.Change{{Action: inspect.ActionClose, Rule: "phone", Why: "an outage"}}
	for name, c := range map[string]struct {
		facts           facts
		level, headline string
	}{
		"nothing":           {facts{}, "ok", "Nothing waits"},
		"limits hold tasks": {facts{queues: []inspect.QueueStatus{waits}, processes: []inspect.Process{pool}}, "ok", "Limits hold 5,000 tasks"},
		"just due":          {facts{queues: []inspect.QueueStatus{fresh}, processes: []inspect.Process{pool}}, "ok", "Limits hold 4,993 tasks"},
		"no pool":           {facts{queues: []inspect.QueueStatus{late}}, "bad", "No pool is known to serve queue default, and 7 tasks"},
		"no pool, but runs": {facts{queues: []inspect.QueueStatus{plain}}, "warn", "No pool is known to serve queue default, where 2 tasks run and 500 tasks should run now"},
		"pool was killed":   {facts{queues: []inspect.QueueStatus{killed}}, "bad", "No pool is known to serve queue default, and 7 tasks"},
		"no pool is listed": {facts{queues: []inspect.QueueStatus{late}, unlisted: 200}, "warn", "It is not known whether a pool serves queue default, and 7 tasks"},
		"all is overdue":    {facts{queues: []inspect.QueueStatus{overdue}}, "bad", "No pool is known to serve queue default, and 5,000 tasks"},
		"no pool, not yet":  {facts{queues: []inspect.QueueStatus{waits}}, "ok", "Limits hold 5,000 tasks"},
		"late":              {facts{queues: []inspect.QueueStatus{late}, processes: []inspect.Process{pool}}, "warn", "7 tasks of queue default should have started"},
		"late and busy":     {facts{queues: []inspect.QueueStatus{late}, processes: []inspect.Process{busy}}, "bad", "All 10 workers are busy"},
		"workers lack":      {facts{queues: []inspect.QueueStatus{crowd}, processes: []inspect.Process{busy}}, "warn", "Workers are missing, not permits"},
		"paused":            {facts{queues: []inspect.QueueStatus{paused}, processes: []inspect.Process{pool}}, "warn", "Queue default is paused"},
		"closed":            {facts{queues: []inspect.QueueStatus{waits}, processes: []inspect.Process{pool}, rules: []ruleRow{closed}, changes: because}, "note", "phone is closed for another 1\u00A0h: an outage"},
		"broken":            {facts{rules: []ruleRow{closed, broken}}, "bad", "The stored limit of phone can't be read"},
		"away":              {facts{rules: []ruleRow{closed, away}}, "bad", "Redis does not answer as it should about the limit of phone"},
		"one task":          {facts{queues: []inspect.QueueStatus{one}, processes: []inspect.Process{pool}}, "ok", "Limits hold 1 task. It starts by itself"},
		"one task, paused":  {facts{queues: []inspect.QueueStatus{onePaused}, processes: []inspect.Process{pool}}, "warn", "Queue default is paused, and 1 task waits in it"},
		"one late and busy": {facts{queues: []inspect.QueueStatus{oneLate}, processes: []inspect.Process{alone}}, "bad", "The only worker is busy, so 1 task of queue default is late"},
		"failed":            {facts{queues: []inspect.QueueStatus{broke}, processes: []inspect.Process{pool}}, "note", "3 tasks failed in all their attempts"},
		"several numbers":   {facts{differences: []inspect.Difference{{Rule: "phone"}}}, "warn", "Pools run with several numbers for phone"},
	} {
		c.facts.now = now
		v := judge(c.facts)
		if v.Level != c.level || !strings.HasPrefix(v.Headline, c.headline) || v.Next == "" {
			t.Errorf("%s: %+v, want %s: %s", name, v, c.level, c.headline)
		}
	}
}

// An overdue task is not throttled: no limit holds it, and a worker may run it.
func TestVerdictAboutOverdueTasks(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	pool := inspect.Process{Kind: "pool", Workers: 10, Busy: 10, Queues: map[string]int{"default": 1}}
	for name, c := range map[string]struct {
		queue     inspect.QueueStatus
		processes []inspect.Process
		says      []string
		not       []string
	}{
		"all is overdue, and no pool runs": {
			inspect.QueueStatus{Queue: "default", Waiting: 5000, Overdue: 5000, Within1m: 5000, Within1h: 5000, Next: now.Add(-time.Hour), Now: now}, nil,
			[]string{"5,000 tasks in it should run now", "No limit holds anything. 5,000 tasks to run or running", "No pool runs."},
			[]string{"Limits hold", "planned to start"},
		},
		"some is overdue, and all workers are busy": {
			inspect.QueueStatus{Queue: "default", Waiting: 120, Overdue: 20, Within1m: 50, Within1h: 80, Pending: 5, Active: 10, Next: now.Add(-time.Hour), Now: now},
			[]inspect.Process{pool},
			[]string{"20 tasks of queue default are late", "25 tasks could run", "Limits hold 100 tasks", "60 tasks planned to start within the hour"}, nil,
		},
	} {
		v := judge(facts{queues: []inspect.QueueStatus{c.queue}, processes: c.processes, now: now})
		all := v.Headline + "\n" + strings.Join(v.Evidence, "\n")
		wants(t, all, c.says...)
		for _, text := range c.not {
			if strings.Contains(all, text) {
				t.Errorf("%s: %q is said in\n%s", name, text, all)
			}
		}
	}
}

// Where more processes run than can be listed, nothing is said about what they do.
func TestVerdictSaysWhatIsNotListed(t *testing.T) {
	t.Parallel()
	v := judge(facts{unlisted: 200})
	all := strings.Join(v.Evidence, "\n")
	wants(t, all, "No pool is among the processes that can be listed.", "200 of the processes that run can't be listed")
	if strings.Contains(all, "No pool runs") {
		t.Errorf("it is said that no pool runs in\n%s", all)
	}
}

// The clock of a process is equal to Redis' when the difference is within what can be measured.
func TestClockText(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]inspect.Process{
		"–":                             {},
		"equal":                         {ClockAhead: -3 * time.Millisecond, ClockWithin: 4 * time.Millisecond},
		"40\u00A0ms behind, ±1\u00A0ms": {ClockAhead: -40 * time.Millisecond, ClockWithin: time.Millisecond},
		"3.2\u00A0s ahead, ±7\u00A0ms":  {ClockAhead: 3200 * time.Millisecond, ClockWithin: 7 * time.Millisecond},
	} {
		if got := clockText(p); got != want {
			t.Errorf("%v within %v is %q, want %q", p.ClockAhead, p.ClockWithin, got, want)
		}
	}
}

// A batch gets its weighted window's share of the provider that all batches need, whatever their types.
func TestShareOfAProvider(t *testing.T) {
	t.Parallel()
	policies := []queue.Policy{
		{Type: "sms", Rules: []queue.Rule{{Name: "phone"}, {Name: "own", Constant: "a"}, {Name: "provider", Constant: "acme"}}},
		{Type: "letter", Rules: []queue.Rule{{Name: "provider", Constant: "acme"}}},
		{Type: "mail", Rules: []queue.Rule{{Name: "phone"}}},
		{Type: "fax", Rules: []queue.Rule{{Name: "provider", Constant: "other"}}},
	}
	var said inspect.Process
	if err := json.Unmarshal([]byte(`{"kind":"pool","policies":[
		{"type":"sms","rules":[{"name":"phone"},{"name":"own","constant":"a"},{"name":"provider","constant":"acme"}]},
		{"type":"fax","rules":[{"name":"provider","constant":"other"}]},
		{"type":"letter","rules":[{"name":"provider","constant":"acme"}]}]}`), &said); err != nil {
		t.Fatal(err)
	}
	of := func(id, taskType string, window, weight int, state batch.State) batch.Progress {
		return batch.Progress{Spec: batch.Spec{ID: id, Type: taskType, Window: window, Weight: weight}, State: state}
	}
	all := []batch.Progress{
		of("a", "sms", 100, 100, batch.Running), of("b", "letter", 100, 50, batch.Running), of("c", "letter", 50, 100, batch.Running),
		of("d", "letter", 900, 100, batch.Paused), of("e", "mail", 900, 100, batch.Running),
		of("f", "fax", 900, 100, batch.Running), // at another provider
	}
	for name, keys := range map[string]map[string][]constant{"given": constants(policies, nil), "said": constants(nil, []inspect.Process{said})} {
		for id, want := range map[int]string{0: "50 % of provider, which 3 batches share", 1: "25 % of provider, which 3 batches share", 3: "", 4: "", 5: ""} {
			if got := share(all, all[id], keys); got != want {
				t.Errorf("with policies that are %s, the share of %s is %q, want %q", name, all[id].ID, got, want)
			}
		}
		none := []batch.Progress{of("a", "sms", 0, 100, batch.Running), of("b", "letter", 100, 0, batch.Running)} // a record that makes no sense
		if got := share(none, none[0], keys); got != "" {
			t.Errorf("the share of nothing is %q", got)
		}
		if got := share(all[:1], all[0], keys); got != "" {
			t.Errorf("the share of a batch that is alone is %q", got)
		}
	}
}
