package schedule

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/queue/internal/yamlfile"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestScheduleFile(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	path := filepath.Join(t.TempDir(), "s.yaml")
	writeFile(t, path, goodSchedule)
	funcs := map[string]TaskFunc{"campaign": func(context.Context, time.Time) (*queue.Task, error) { return queue.NewTask("made", nil), nil }}
	s, err := New(newClient(t, rdb), Config{File: path, TaskFuncs: funcs}, Entry{Name: "code", Spec: "@daily", Task: queue.NewTask("t", nil)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range s.Next() {
		names = append(names, e.Entry)
	}
	if diff := cmp.Diff([]string{"block", "campaign", "code", "nightly", "quick"}, names); diff != "" {
		t.Errorf("- want + got:\n%s", diff)
	}
	block, campaign, nightly := s.all[0], s.all[1], s.all[3]
	want(t, string(block.Task.Payload()), "two\nlines\n")
	want(t, campaign.Task == nil && campaign.TaskFunc != nil && campaign.Overlap == OverlapSkip && campaign.Missed == MissedRunAll, true)
	want(t, nightly.cron.String(), "CRON_TZ=Europe/Berlin 30 2 * * *")
	want(t, fmt.Sprint(nightly.Task.Type(), " ", string(nightly.Task.Payload()), " ", nightly.Task.Options()), `report:nightly {"all":true} [MaxRetry(3) Timeout(10m0s) Retention(24h0m0s)]`)
	want(t, fmt.Sprint(nightly.Queue, nightly.Overlap, nightly.Missed, nightly.LateMax, nightly.MissedWithin, nightly.MissedMax), "low2 1 5m0s 48h0m0s 9")
}

// All faults come in one round: those of the text, and those of what an entry means.
func TestScheduleFileFaults(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := newClient(t, rdb, smsPolicy())
	path := filepath.Join(t.TempDir(), "s.yaml")
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"", []string{"0:0: empty, want entries"}},
		{"entries: {}\n", []string{"1:1: no entries"}},
		{"x: 1\n", []string{"0:0: no entries", `1:1: unknown field "x", want entries`}},
		{"entries:\n  a: {spec: @daily, task: t}\n", []string{"2:13: not valid YAML"}},
		{"entries:\n  a: {spec: '@daily', task: t}\n  a: {spec: '@daily', task: t}\n", []string{`3:3: "a" is there already, on line 2`}},
		{`entries:
  a: {spec: 61 * * * *, task: t}
  b b: {spec: '@daily', task: sms:send, payload: '{}'}
  c: {zone: Mars/Phobos, queue: 7, tusk: t}
  d: {spec: '@daily', task: func nobody, payload: x}
  e:
    spec: TZ=UTC 0 9 * * *
    zone: UTC
    task: t
    timeout: 1500ms
    max_retry: -1
    overlap: sometimes
    missed: run
    late_max: 2h
    missed_within: 2
    missed_max: 5000
  f: {spec: '0 9 * * *', task: t, late_max: 2h}
  code: {spec: '@daily', task: t}
`, []string{
			`2:13: entry "a": cron spec "61 * * * *": want`,
			`3:3: entry "b b": want 1 to 64`,
			`3:31: entry "b b": task type "sms:send", rule`,
			`4:3: entry "c": no task`, `4:3: entry "c": no spec`,
			`4:13: time zone "Mars/Phobos": want a name`, `4:33: a number`, `4:36: unknown field "tusk"`,
			`5:29: no function "nobody"`,
			`7:11: entry "e": cron spec "TZ=UTC 0 9 * * *": two zones`,
			`10:14: option Timeout(1.5s)`, `11:16: want a whole number`, `12:14: "sometimes", want allow, queue one, skip`,
			`13:13: "run", want run all, run once, skip`, `14:15: entry "e": it is 2h0m0s, want 1s to 1h0m0s`, `15:20: a number`, `16:17: want a whole number, 1 to 1000`,
			`17:45: entry "f": it is 2h0m0s, want 1s to 1h0m0s`,
			`18:3: entry "code": there is one of that name in code`,
		}},
	} {
		writeFile(t, path, tt.text)
		_, err := New(client, Config{File: path}, Entry{Name: "code", Spec: "@daily", Task: queue.NewTask("t", nil)})
		if !errors.Is(err, ErrInvalid) || errors.Is(err, queue.ErrInvalidPolicy) {
			t.Errorf("New = %v, want ErrInvalid", err)
			continue
		}
		var got []string
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fe := &FileError{}
			if strings.HasPrefix(line, `schedule: file "`) {
				for _, e := range unjoined(err) {
					if f, ok := errors.AsType[*FileError](e); ok && f.Error() == line {
						fe = f
					}
				}
			}
			got = append(got, fmt.Sprintf("%d:%d: %s", fe.Line, fe.Column, fe.Reason))
		}
		for i := range max(len(got), len(tt.want)) {
			if i >= len(got) || i >= len(tt.want) || !strings.HasPrefix(got[i], tt.want[i]) {
				t.Errorf("faults of\n%s\n= %s,\nwant %s", tt.text, strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
				break
			}
		}
	}
}

// unjoined are the errors that were joined, at any depth.
func unjoined(err error) []error {
	if _, ok := err.(*FileError); ok { //nolint:errorlint // one of the tree's nodes
		return []error{err}
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, unjoined(e)...)
	}
	return out
}

// The file is read again when it changes; one with faults changes nothing.
func TestScheduleFileIsReloaded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		writeFile(t, path, "entries:\n  a: {spec: '@every 10s', task: t}\n")
		core, logs := observer.New(zapcore.InfoLevel)
		s := runSchedule(t, rdb, Config{File: path, Logger: zap.New(core)})
		defer s.stop()
		names := func() string {
			var names []string
			for _, e := range s.Next() {
				names = append(names, e.Entry)
			}
			return strings.Join(names, " ")
		}
		time.Sleep(15 * time.Second)
		writeFile(t, path, "entries:\n  a: {spec: '@every 10s', task: t}\n  b: {spec: '@every 20s', task: t}\n")
		time.Sleep(4 * time.Second)
		want(t, names(), "a b")
		writeFile(t, path, "entries:\n  a: {spec: '@every 10s', tusk: t}\n")
		time.Sleep(60 * time.Second)
		want(t, names(), "a b")
		if err := s.Reload(); !errors.Is(err, ErrInvalid) {
			t.Errorf("Reload = %v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		want(t, names(), "a b")
		writeFile(t, path, "entries:\n  c: {spec: '@every 10s', task: t}\n")
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		want(t, names(), "c")
		want(t, logs.FilterMessage("the schedule's file was read").Len(), 1)
		want(t, logs.FilterMessage("the schedule's file is wrong: its entries stay as they were").Len(), 2)
	})
}

// Whatever is read from a file is an entry or a fault, and no fault is outside of it.
func FuzzScheduleFile(f *testing.F) {
	for _, seed := range []string{goodSchedule, "entries:\n  a: {spec: x, task: t}\n", "entries: {a: [", "{}", "- a", "entries: &a\nb: *a", "a: |\n  x\n"} {
		f.Add(seed)
	}
	client := backend.Of(&queue.Client{})
	f.Fuzz(func(t *testing.T, text string) {
		file := scheduleFile{File: yamlfile.File{Name: "s.yaml", Want: "entries"}, client: client}
		if body := file.Read(strings.NewReader(text)); body != nil {
			file.document(body)
		}
		all, err := file.join(nil, client)
		if (len(all) > 0) == (err != nil) {
			t.Fatalf("%q gives %d entries and %v", text, len(all), err)
		}
		lines := strings.Count(text, "\n") + 2 + strings.Count(text, "\r")
		for _, e := range unjoined(err) {
			if fe, ok := errors.AsType[*FileError](e); err != nil && (!ok || fe.Line < 0 || fe.Line > lines || fe.Reason == "") {
				t.Fatalf("%q: fault %#v", text, e)
			}
		}
	})
}
