package throttle

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

// A limit of a policy file is stored with what it replaced, and only over what was read:
// in both stores.
func TestLimitStoresOfAFile(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]limitStore{
		"memory": &memoryLimits{},
		"redis":  redisLimits{redistest.Client(t), "hw"},
	} {
		change := func(c limitChange, want bool) (version int64) {
			t.Helper()
			done, version, err := s.change(t.Context(), "sms", c)
			if err != nil || done != want {
				t.Errorf("%s: change %+v = %v, %v, want %v", name, c, done, err, want)
			}
			return version
		}
		before := []string{"1/1s"}
		change(limitChange{text: "2/1s", replaced: before, version: 7}, false)
		version := change(limitChange{text: "2/1s", replaced: before}, true)
		change(limitChange{text: "3/1s", replaced: before}, false)
		if got := s.stored(t.Context(), "sms"); !reflect.DeepEqual(got, (storedLimit{text: "2/1s", version: version, replaced: before})) {
			t.Errorf("%s: %+v is stored, want 2/1s and what it replaced", name, got)
		}
		version = change(limitChange{text: "3/1s", replaced: before, version: version}, true)
		change(limitChange{text: "4/1s"}, true)
		change(limitChange{text: "5/1s", replaced: before, version: version}, false)
		if got := s.stored(t.Context(), "sms"); got.text != "4/1s" || got.replaced != nil {
			t.Errorf("%s: %+v is stored, want an operator's 4/1s", name, got)
		}
	}
}

// Both stores answer alike.
func TestLimitStores(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]limitStore{
		"memory": &memoryLimits{},
		"redis":  redisLimits{redistest.Client(t), "hw"},
	} {
		var last int64
		for i, step := range []struct {
			limitChange
			done bool
			text string
		}{
			{limitChange{text: ""}, false, ""},
			{limitChange{text: "1/1s", absent: true}, true, "1/1s"},
			{limitChange{text: "2/1s", absent: true}, false, "1/1s"},
			{limitChange{text: "3/1s"}, true, "3/1s"},
			{limitChange{text: "3/1s", ttl: time.Hour}, true, "3/1s"},
			{limitChange{text: ""}, true, ""},
			{limitChange{text: ""}, false, ""},
			{limitChange{text: "4/1s", absent: true}, true, "4/1s"},
		} {
			done, version, err := s.change(t.Context(), "sms", step.limitChange)
			if err != nil || done != step.done {
				t.Errorf("%s: change %d %+v = %v, %v, want %v", name, i, step.limitChange, done, err, step.done)
			}
			if (version > last) != step.done {
				t.Errorf("%s: change %d has version %d after %d, done = %v", name, i, version, last, done)
			}
			last = version
			if got := s.stored(t.Context(), "sms"); !reflect.DeepEqual(got, (storedLimit{text: step.text, version: version})) {
				t.Errorf("%s: after change %d %+v is stored, want %q of version %d", name, i, got, step.text, version)
			}
		}
		if got := s.stored(t.Context(), "other"); !reflect.DeepEqual(got, storedLimit{}) {
			t.Errorf("%s: of another rule %+v is stored, want nothing", name, got)
		}
	}
}

func TestMemoryLimitEndsAndRings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &memoryLimits{}
		set := func(text string, ttl time.Duration) {
			if done, _, err := s.change(t.Context(), "sms", limitChange{text: text, ttl: ttl}); !done || err != nil {
				t.Errorf("change = %v, %v", done, err)
			}
		}
		wait, stop := s.changes(t.Context(), "sms")
		defer stop()
		began := time.Now()
		go func() {
			time.Sleep(time.Second)
			set("1/1s", time.Minute)
		}()
		wait(time.Hour)
		if took := time.Since(began); took != time.Second {
			t.Errorf("the change was seen after %v, want 1s", took)
		}
		for after, text := range map[time.Duration]string{time.Minute - 1: "1/1s", time.Minute: ""} {
			s := &memoryLimits{rules: map[string]memoryLimit{"sms": {text: "1/1s", until: time.Now().Add(time.Minute)}}}
			time.Sleep(after)
			if got := s.stored(t.Context(), "sms").text; got != text {
				t.Errorf("after %v %q is stored, want %q", after, got, text)
			}
		}
		began = time.Now()
		wait(time.Minute)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("without a change it waited %v, want a minute", took)
		}
	})
}

// An answer that was on its way when the limit was set anew here is no news.
func TestOlderNewsAreDropped(t *testing.T) {
	t.Parallel()
	var f limitMemory
	t0 := time.Now()
	at := func(d time.Duration) time.Time { return t0.Add(d) }
	newer := &knownLimit{limit: Sliding(2, time.Second), version: 2, began: at(1), done: at(3)}
	f.learn(newer)
	f.learn(&knownLimit{limit: Sliding(1, time.Second), version: 1, began: at(2), done: at(4)})
	if got := f.last.Load(); got != newer {
		t.Errorf("known is %+v, want the newer version", got)
	}
	gone := &knownLimit{limit: Sliding(1, time.Second), began: at(5), done: at(6)}
	if f.learn(gone); f.last.Load() != gone {
		t.Error("what began later is not known, although it has no version")
	}
}
