package schedule

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/filewatch"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/backend"
	"github.com/headwayq/headway/queue/internal/check"
	"github.com/headwayq/headway/queue/internal/yamlfile"
	"github.com/headwayq/headway/queue/internal/zones"
)

// scheduleFile are the entries of a file, as far as it can be read. The zero
// scheduleFile has none.
type scheduleFile struct {
	yamlfile.File
	client  backend.Client
	funcs   map[string]TaskFunc
	stamps  filewatch.Stamps
	entries []fileEntry
}

// fileEntry is an entry as a file defines it.
type fileEntry struct {
	Entry
	at     yamlfile.Pos
	places map[string]yamlfile.Pos // where its fields stand
	typ    string                  // of its task
	opts   []asynq.Option          // of its task
	data   []byte                  // of its task
	broken map[string]bool         // fields of Entry whose faults the file has already; nil for an entry that could be read
}

// readScheduleFile reads a file of entries, or its faults.
func readScheduleFile(path string, funcs map[string]TaskFunc, client backend.Client) scheduleFile {
	f := scheduleFile{File: yamlfile.File{Name: path, Want: "entries"}, client: client, funcs: funcs, stamps: filewatch.Of(path)}
	if body := f.Open(); body != nil {
		f.document(body)
	}
	return f
}

func (f *scheduleFile) document(n ast.Node) {
	given := f.Fields(n, "entries", []string{"entries"}, func(e yamlfile.Entry) {
		before := len(f.Faults)
		found := f.Entries(e.Value, "entries by their names")
		if len(found) == 0 && len(f.Faults) == before {
			f.Fault(e.At, "no entries")
		}
		for _, e := range found {
			f.entry(e)
		}
	})
	if _, ok := given["entries"]; !ok && given != nil {
		f.Fault(yamlfile.Pos{}, "no entries")
	}
}

// entryFields are those of an entry in a file, with the names that they have in
// [Entry], by which faults find them.
var entryFields = map[string]string{
	"spec": "Spec", "zone": "Zone", "queue": "Queue", "task": "Task", "payload": "", "max_retry": "", "timeout": "", "retention": "",
	"overlap": "Overlap", "missed": "Missed", "late_max": "LateMax", "missed_within": "MissedWithin", "missed_max": "MissedMax",
}

var (
	overlapTexts = map[string]Overlap{"allow": OverlapAllow, "skip": OverlapSkip, "queue one": OverlapQueueOne}
	missedTexts  = map[string]Missed{"skip": MissedSkip, "run once": MissedRunOnce, "run all": MissedRunAll}
)

func (f *scheduleFile) entry(e yamlfile.Entry) {
	var (
		fe     = fileEntry{Entry: Entry{Name: e.Name}, at: e.At}
		before = len(f.Faults)
		names  = slices.Sorted(maps.Keys(entryFields))
	)
	broken := make(map[string]bool)
	fe.places = f.Fields(e.Value, "an entry: "+strings.Join(names, ", "), names, func(field yamlfile.Entry) {
		known := len(f.Faults)
		f.field(&fe, field)
		if len(f.Faults) > known {
			name := entryFields[field.Name]
			if field.Name == "payload" {
				name = "Task"
			}
			broken[name] = true // "" is an option that the task is without
		}
	})
	if fe.places == nil {
		return
	}
	_, task := fe.places["task"]
	_, spec := fe.places["spec"]
	if !task {
		broken["Task"] = true
		f.Fault(e.At, fmt.Sprintf("entry %q: no task", check.Clip(e.Name)))
	}
	if !spec {
		broken["Spec"] = true
		f.Fault(e.At, fmt.Sprintf("entry %q: no spec", check.Clip(e.Name)))
	}
	if fe.TaskFunc == nil {
		fe.Task = queue.NewTask(fe.typ, fe.data, fe.opts...)
	}
	for _, name := range []string{"payload", "max_retry", "timeout", "retention"} {
		if at, ok := fe.places[name]; ok && fe.TaskFunc != nil {
			f.Fault(at, name+" is for the function to say")
		}
	}
	if len(f.Faults) > before {
		fe.broken = broken
	}
	f.entries = append(f.entries, fe)
}

func (f *scheduleFile) field(fe *fileEntry, field yamlfile.Entry) {
	n := field.Value
	switch field.Name {
	case "spec":
		fe.Spec, _ = f.Text(n, "a cron spec in quotes, such as '0 9 * * 1-5'")
	case "zone":
		fe.Zone = f.zone(n)
	case "queue":
		fe.Queue, _ = f.Text(n, "the name of a queue")
	case "task":
		f.task(fe, n)
	case "payload":
		if block, ok := n.(*ast.LiteralNode); ok {
			fe.data = []byte(block.Value.Value)
			return
		}
		text, _ := f.Text(n, "the payload as text")
		fe.data = []byte(text)
	case "max_retry":
		if most, ok := f.Number(n, 0, math.MaxInt32); ok {
			fe.opts = append(fe.opts, asynq.MaxRetry(most))
		}
	case "timeout":
		f.option(fe, n, asynq.Timeout)
	case "retention":
		f.option(fe, n, asynq.Retention)
	case "overlap":
		fe.Overlap = oneOf(f, n, overlapTexts)
	case "missed":
		fe.Missed = oneOf(f, n, missedTexts)
	case "late_max":
		fe.LateMax = f.duration(n)
	case "missed_within":
		fe.MissedWithin = f.duration(n)
	case "missed_max":
		fe.MissedMax, _ = f.Number(n, 1, MissedMaxMax)
	}
}

// task reads the type of the task, or the name of the function that makes it.
func (f *scheduleFile) task(fe *fileEntry, n ast.Node) {
	text, ok := f.Text(n, "a task type, or func and a name")
	if !ok {
		return
	}
	fe.typ = text
	if name, ok := yamlfile.FuncName(text); ok {
		if fe.TaskFunc = f.funcs[name]; fe.TaskFunc == nil {
			f.Fault(yamlfile.PosOf(n), fmt.Sprintf("no function %q among TaskFuncs", check.Clip(name)))
		}
	}
}

func (f *scheduleFile) zone(n ast.Node) *time.Location {
	name, ok := f.Text(n, "a time zone, such as Europe/Berlin")
	if !ok {
		return nil
	}
	zone, err := zones.Load(name)
	if err != nil {
		f.Fault(yamlfile.PosOf(n), fmt.Sprintf("time zone %q: %v", check.Clip(name), err))
	}
	return zone
}

func (f *scheduleFile) duration(n ast.Node) time.Duration {
	const want = "a duration, such as 90s or 24h"
	text, ok := f.Text(n, want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		f.Fault(yamlfile.PosOf(n), fmt.Sprintf("%q, want %s", check.Clip(text), want))
		return 0
	}
	return d
}

func (f *scheduleFile) option(fe *fileEntry, n ast.Node, option func(time.Duration) asynq.Option) {
	if d := f.duration(n); d > 0 {
		opt := option(d)
		if err := f.client.CheckOptions([]asynq.Option{opt}); err != nil {
			f.FaultOf(yamlfile.PosOf(n), "", err)
			return
		}
		fe.opts = append(fe.opts, opt)
	}
}

// oneOf reads one of some texts.
func oneOf[T any](f *scheduleFile, n ast.Node, texts map[string]T) T {
	want := strings.Join(slices.Sorted(maps.Keys(texts)), ", ")
	text, ok := f.Text(n, want)
	value, known := texts[text]
	if ok && !known {
		f.Fault(yamlfile.PosOf(n), fmt.Sprintf("%q, want %s", check.Clip(text), want))
	}
	return value
}

// join makes the entries of code and of the file ready, or returns all that is
// wrong with them.
func (f *scheduleFile) join(code []Entry, c backend.Client) ([]*scheduled, error) {
	all, err := joinEntries(code, c)
	inCode := make(map[string]bool)
	for _, e := range code {
		inCode[e.Name] = true
	}
	faults := yamlfile.File{Name: f.Name, Faults: slices.Clone(f.Faults)}
	for _, fe := range f.entries {
		ready, wrong := fe.ready(c)
		for _, w := range wrong {
			if fe.broken[w.Field] {
				continue // or it would be told twice
			}
			at := fe.at
			for name, place := range fe.places {
				if entryFields[name] == w.Field {
					at = place
				}
			}
			faults.FaultOf(at, fmt.Sprintf("entry %q: ", check.Clip(fe.Name)), w.Err)
		}
		if inCode[fe.Name] {
			faults.Fault(fe.at, fmt.Sprintf("entry %q: there is one of that name in code", check.Clip(fe.Name)))
		}
		all = append(all, ready)
	}
	errs := []error{err}
	for _, fault := range faults.Sorted() {
		errs = append(errs, &FileError{File: f.Name, Line: fault.Line, Column: fault.Column, Reason: fault.Reason, Err: fault.Err})
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	sortEntries(all)
	return all, nil
}
