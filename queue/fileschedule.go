package queue

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/hibiken/asynq"
)

// scheduleFile are the entries of a file, as far as it can be read. The zero
// scheduleFile has none.
type scheduleFile struct {
	yamlFile
	funcs   map[string]TaskFunc
	stamp   fileStamp
	entries []fileEntry
}

// fileEntry is an entry as a file defines it.
type fileEntry struct {
	Entry
	at     pos
	places map[string]pos // where its fields stand
	typ    string         // of its task
	opts   []asynq.Option // of its task
	data   []byte         // of its task
}

// fileStamp tells whether a file has changed.
type fileStamp struct {
	changed time.Time
	size    int64
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info.ModTime(), info.Size()}
}

// readScheduleFile reads a file of entries, or its faults.
func readScheduleFile(path string, funcs map[string]TaskFunc) scheduleFile {
	f := scheduleFile{yamlFile: yamlFile{name: path, kind: ofEntries}, funcs: funcs, stamp: stampOf(path)}
	if body := f.open(); body != nil {
		f.document(body)
	}
	return f
}

func (f *scheduleFile) document(n ast.Node) {
	given := f.fields(n, "entries", []string{"entries"}, func(e entry) {
		before := len(f.faults)
		found := f.yamlFile.entries(e.value, "entries by their names")
		if len(found) == 0 && len(f.faults) == before {
			f.fault(e.at, "no entries")
		}
		for _, e := range found {
			f.entry(e)
		}
	})
	if _, ok := given["entries"]; !ok && given != nil {
		f.fault(pos{}, "no entries")
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

func (f *scheduleFile) entry(e entry) {
	var (
		fe     = fileEntry{Entry: Entry{Name: e.name}, at: e.at}
		before = len(f.faults)
		names  = slices.Sorted(maps.Keys(entryFields))
	)
	fe.places = f.fields(e.value, "an entry: "+strings.Join(names, ", "), names, func(field entry) { f.field(&fe, field) })
	if fe.places == nil {
		return
	}
	_, task := fe.places["task"]
	_, spec := fe.places["spec"]
	if !task {
		f.fault(e.at, fmt.Sprintf("entry %q: no task", clip(e.name)))
	}
	if !spec {
		f.fault(e.at, fmt.Sprintf("entry %q: no spec", clip(e.name)))
	}
	if fe.TaskFunc == nil {
		fe.Task = NewTask(fe.typ, fe.data, fe.opts...)
	}
	for _, name := range []string{"payload", "max_retry", "timeout", "retention"} {
		if at, ok := fe.places[name]; ok && fe.TaskFunc != nil {
			f.fault(at, name+" is for the function to say")
		}
	}
	if len(f.faults) == before { // or what is missing would be told twice
		f.entries = append(f.entries, fe)
	}
}

func (f *scheduleFile) field(fe *fileEntry, field entry) {
	n := field.value
	switch field.name {
	case "spec":
		fe.Spec, _ = f.text(n, "a cron spec in quotes, such as '0 9 * * 1-5'")
	case "zone":
		fe.Zone = f.zone(n)
	case "queue":
		fe.Queue, _ = f.text(n, "the name of a queue")
	case "task":
		f.task(fe, n)
	case "payload":
		if block, ok := n.(*ast.LiteralNode); ok {
			fe.data = []byte(block.Value.Value)
			return
		}
		text, _ := f.text(n, "the payload as text")
		fe.data = []byte(text)
	case "max_retry":
		if most, ok := f.number(n, 0, math.MaxInt32); ok {
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
		fe.MissedMax, _ = f.number(n, 1, MissedMaxMax)
	}
}

// task reads the type of the task, or the name of the function that makes it.
func (f *scheduleFile) task(fe *fileEntry, n ast.Node) {
	text, ok := f.text(n, "a task type, or func and a name")
	if !ok {
		return
	}
	fe.typ = text
	if name, ok := funcName(text); ok {
		if fe.TaskFunc = f.funcs[name]; fe.TaskFunc == nil {
			f.fault(posOfNode(n), fmt.Sprintf("no function %q among TaskFuncs", clip(name)))
		}
	}
}

func (f *scheduleFile) zone(n ast.Node) *time.Location {
	name, ok := f.text(n, "a time zone, such as Europe/Berlin")
	if !ok {
		return nil
	}
	zone, err := zones.load(name)
	if err != nil {
		f.fault(posOfNode(n), fmt.Sprintf("%q is no time zone that is known here", clip(name)))
	}
	return zone
}

func (f *scheduleFile) duration(n ast.Node) time.Duration {
	const want = "a duration, such as 90s or 24h"
	text, ok := f.text(n, want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		f.fault(posOfNode(n), fmt.Sprintf("%q, want %s", clip(text), want))
		return 0
	}
	return d
}

func (f *scheduleFile) option(fe *fileEntry, n ast.Node, option func(time.Duration) asynq.Option) {
	if d := f.duration(n); d > 0 {
		opt := option(d)
		if err := checkOptions([]asynq.Option{opt}); err != nil {
			f.faultOf(posOfNode(n), "", err)
		}
		fe.opts = append(fe.opts, opt)
	}
}

// oneOf reads one of some texts.
func oneOf[T any](f *scheduleFile, n ast.Node, texts map[string]T) T {
	want := strings.Join(slices.Sorted(maps.Keys(texts)), ", ")
	text, ok := f.text(n, want)
	value, known := texts[text]
	if ok && !known {
		f.fault(posOfNode(n), fmt.Sprintf("%q, want %s", clip(text), want))
	}
	return value
}

// join makes the entries of code and of the file ready, or returns all that is
// wrong with them.
func (f *scheduleFile) join(code []Entry, c *Client) ([]*scheduled, error) {
	all, err := joinEntries(code, c)
	inCode := make(map[string]bool)
	for _, e := range code {
		inCode[e.Name] = true
	}
	faults := yamlFile{name: f.name, kind: f.kind, faults: slices.Clone(f.faults)}
	for _, fe := range f.entries {
		ready, wrong := fe.ready(c)
		for _, w := range wrong {
			at := fe.at
			for name, place := range fe.places {
				if entryFields[name] == w.Field {
					at = place
				}
			}
			faults.faultOf(at, fmt.Sprintf("entry %q: ", clip(fe.Name)), w.Err)
		}
		if inCode[fe.Name] {
			faults.fault(fe.at, fmt.Sprintf("entry %q: there is one of that name in code", clip(fe.Name)))
		}
		all = append(all, ready)
	}
	if err := errors.Join(append([]error{err}, faults.sorted()...)...); err != nil {
		return nil, err
	}
	sortEntries(all)
	return all, nil
}
