package tail

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headwayq/headway/event"
)

func ask(t *testing.T, to *Teller, a Ask) {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	to.Hear(string(text))
}

// drain are the lines that wait, by channel.
func drain(to *Teller) map[string][]Line {
	all := make(map[string][]Line)
	for {
		select {
		case l := <-to.lines:
			all[l.channel] = append(all[l.channel], l.line)
		default:
			return all
		}
	}
}

// Without a reader nothing is kept. A reader gets at most the rate in each second, is told
// how much that leaves out, and is forgotten 5 s after the last time of asking, or at once.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := NewTeller(nil, "hw")
		deferred := func() {
			to.Observer().Deferred(t.Context(), event.Deferred{Task: event.Task{Queue: "q", ID: "t"}, Rule: "phone", Reason: event.Booked})
		}
		deferred()
		if all := drain(to); len(all) != 0 {
			t.Fatalf("nobody looks, and there is %v to tell", all)
		}
		a := Ask{Viewer: "0123456789abcdef", Rate: 3}
		ask(t, to, a)
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		for second := range 3 {
			for range 10 {
				deferred()
			}
			got := drain(to)["hw:tail:0123456789abcdef"]
			skipped := 0
			if second > 0 {
				skipped = 7
			}
			if len(got) != 3 || got[0].Skipped != skipped || got[1].Skipped != 0 {
				t.Errorf("second %d: %+v, want 3 lines, the first with %d not shown", second, got, skipped)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(3 * time.Second)
		deferred()
		if all := drain(to); len(all) != 0 || to.viewers.Load() != nil {
			t.Errorf("nobody has asked for 6 s, and there is %v to tell", all)
		}
		ask(t, to, a)
		deferred()
		if len(drain(to)) != 1 {
			t.Error("asked again: nothing is told")
		}
		a.Rate = 0
		ask(t, to, a)
		deferred()
		if all := drain(to); len(all) != 0 || to.viewers.Load() != nil {
			t.Errorf("no more was asked for, and there is %v to tell", all)
		}
	})
}

// A Redis that takes nothing does not hold a worker up: what finds no room is counted.
func TestFullRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := NewTeller(nil, "hw") // nobody runs it
		a := Ask{Viewer: "0123456789abcdef", Rate: 1_000_000}
		const seconds, each = 10, 2 * RateMax
		for range seconds {
			ask(t, to, a)
			for range each {
				to.Observer().Granted(t.Context(), event.Granted{Task: event.Task{Queue: "q"}, Rules: []string{"phone"}})
			}
			time.Sleep(time.Second)
		}
		waiting := drain(to)["hw:tail:0123456789abcdef"]
		if len(waiting) != room {
			t.Errorf("%d lines wait, want %d", len(waiting), room)
		}
		ask(t, to, a)
		to.Observer().Granted(t.Context(), event.Granted{})
		skipped := 0
		for _, l := range append(waiting, drain(to)["hw:tail:0123456789abcdef"]...) {
			skipped += l.Skipped
		}
		if skipped != seconds*each-room {
			t.Errorf("%d are told as not shown, want %d", skipped, seconds*each-room)
		}
	})
}

// Each reader gets what it asks for. There are 4 of them at most, and no other text on the channel
// does anything.
func TestViewers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to := NewTeller(nil, "hw")
		for _, bad := range []string{"", "{", "[]", `{"viewer":"x","rate":1}`, `{"viewer":"0123456789abcdef\n","rate":1}`, `{"viewer":"0123456789abcdef","rate":0}`,
			`{"viewer":"0123456789abcdef","rate":-1}`, `{"rate":5}`} {
			if to.Hear(bad); to.viewers.Load() != nil {
				t.Fatalf("%q makes a viewer", bad)
			}
		}
		name := func(n int) string { return fmt.Sprintf("%016x", n) }
		asks := []Ask{{}, {Queue: "a"}, {Rule: "phone"}, {Queue: "b", Rule: "phone"}, {}, {}}
		for n, a := range asks {
			a.Viewer, a.Rate = name(n), 10
			ask(t, to, a)
		}
		o := to.Observer()
		o.Granted(t.Context(), event.Granted{Task: event.Task{Queue: "a"}, Rules: []string{"phone", "all"}})
		o.Refused(t.Context(), event.Refused{Task: event.Task{Queue: "b"}, Rule: "phone"})
		o.Moved(t.Context(), event.Moved{Task: event.Task{Queue: "b"}, Rule: "all"})
		o.Postponed(t.Context(), event.Postponed{Task: event.Task{Queue: "b"}, Rule: "all"})
		o.LeaseLost(t.Context(), event.LeaseLost{Task: event.Task{Queue: "c"}})
		got := drain(to)
		for _, n := range []int{4, 5} { // they are told that there is no room
			lines := got["hw:tail:"+name(n)]
			if len(lines) != 1 || lines[0].Outcome != Full || lines[0].Process == "" {
				t.Errorf("the reader %d is told %+v, want that the process has no room", n, lines)
			}
		}
		for n, want := range []int{5, 1, 2, 1} {
			if lines := got["hw:tail:"+name(n)]; len(lines) != want {
				t.Errorf("%+v: %d lines, want %d: %+v", asks[n], len(lines), want, lines)
			}
		}
	})
}

// What a decision costs without a reader.
func BenchmarkNobodyLooks(b *testing.B) {
	o := NewTeller(nil, "hw").Observer()
	e := event.Granted{Task: event.Task{Queue: "default", Type: "sms", ID: "t"}, Rules: []string{"phone"}}
	for b.Loop() {
		o.Granted(b.Context(), e)
	}
}
