package eventlog_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/event/eventlog"
)

// Each kind of event becomes one line, at the level at which somebody wants to see it.
func TestEachKindIsALine(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	o := reflect.ValueOf(eventlog.New(zap.New(core)))
	for _, tell := range o.Fields() {
		tell.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.Zero(tell.Type().In(1))})
	}
	levels := map[string]int{}
	for _, e := range logs.All() {
		levels[e.Level.String()]++
	}
	if want := map[string]int{"debug": 7, "info": 4, "warn": 5}; !reflect.DeepEqual(levels, want) {
		t.Errorf("lines by level: %v, want %v", levels, want)
	}
	if logs.Len() != o.NumField() {
		t.Errorf("%d lines of %d kinds", logs.Len(), o.NumField())
	}
}

func TestLineOfADeferredTask(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	o := eventlog.New(zap.New(core))
	o.Deferred(t.Context(), event.Deferred{Task: event.Task{Queue: "low", Type: "sms", ID: "a"}, Rule: "phone", Reason: event.Booked, Wait: time.Minute})
	line := logs.All()[0]
	want := "deferred map[at:0001-01-01 00:00:00 +0000 UTC queue:low reason:booked rule:phone task:a type:sms wait:1m0s]"
	if got := fmt.Sprint(line.Message, " ", line.ContextMap()); got != want {
		t.Errorf("line = %s\nwant   %s", got, want)
	}
}
