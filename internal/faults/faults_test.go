package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/e2e"
)

// short is a run of few seconds.
func short(t *testing.T, name string) Spec {
	t.Helper()
	f, ok := Find(name)
	if !ok {
		t.Fatalf("there is no fault %q", name)
	}
	f.every = min(f.every, time.Second)
	return Spec{Fault: f, For: 4 * time.Second, Drain: 3 * time.Minute, Seed: 1, Workers: 2, Rate: 20, Dir: t.ArtifactDir(), Log: t.Logf}
}

// Each fault in its short form: what the guarantees say holds. `headway prove` runs them at length,
// and docs/reliability.md has the figures.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range All() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			spec := short(t, f.Name)
			if f.Name == "workers" { // what a killed process had comes back after a minute or two: e2e has that
				spec.Fault.strike = func(_ context.Context, r *run) (string, error) {
					if p := r.crew.pick(r.random); r.random.IntN(2) == 0 {
						p.freeze()
						r.sleep(time.Second)
						p.resume()
						return "a worker stood still", nil
					} else if err := p.end(); err != nil {
						return "", err
					}
					return "a worker stopped", r.crew.start()
				}
			}
			r, err := Run(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if r.struck() == 0 || r.Sent == 0 {
				t.Errorf("%d strikes, %d sent, want both", r.struck(), r.Sent)
			}
			if err := r.Failed(); err != nil {
				var text strings.Builder
				_ = r.Print(&text)
				t.Errorf("%v\n%s", err, &text)
			}
		})
	}
}

// Workers that let more through than they are judged by are found out, by both judges.
func TestBreachesAreFound(t *testing.T) {
	t.Parallel()
	spec := short(t, "server")
	spec.Fault.every = time.Minute // no strike
	spec.phone = "5/2s"
	r, err := Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if r.Breaches["phone"] == 0 || r.AtGateway == 0 || r.Breaches["provider"] != 0 {
		t.Errorf("%v over a limit by the grants, %d by the gateway's clock, want some of the phone's by both", r.Breaches, r.AtGateway)
	}
	if err := r.Failed(); err == nil || !strings.Contains(err.Error(), "over a limit") {
		t.Errorf("Failed = %v, want that limits were broken", err)
	}
}

func TestMessagesAreCounted(t *testing.T) {
	t.Parallel()
	at := func(s float64) int64 { return int64(1e15 + s*1e6) }
	arrival := func(id string, s float64, sender int) e2e.Arrival {
		return e2e.Arrival{ID: id, ArrivedUs: at(s), GrantedUs: at(s), Sender: sender}
	}
	began := time.UnixMicro(at(0))
	r := &run{
		spec: Spec{Fault: Fault{Name: "restart-always"}, Rate: 1, For: 10 * time.Second}, began: began,
		crew:     &crew{processes: []*process{{killed: true}, {}}},
		accepted: map[string]bool{"c1": true, "c2": true, "c3": true, "c4": true, "c5": true},
		strikes:  []Strike{{"Redis killed", began.Add(5 * time.Second), began.Add(6 * time.Second)}},
	}
	arrivals := []e2e.Arrival{
		arrival("c1", 1, 1), arrival("t100", 1.5, 2), arrival("c1", 2, 2), // its first sender was killed
		arrival("c2", 2.5, 2), arrival("c2", 3, 2), // nobody knows why
		arrival("t103", 3.5, 2),                    // 101 and 102 are missing
		arrival("c3", 4.9, 2), arrival("c3", 7, 2), // Redis was killed in between
		arrival("c5", 9, 2),
	}
	var rep Report
	r.messages(&rep, arrivals, map[string]bool{"c4": true})
	if rep.Accepted != 9 || rep.Sent != 6 || rep.Lost != 2 || rep.Again != 3 || rep.Unexplained != 1 {
		t.Errorf("%+v, want 9 accepted, 6 sent, 2 ticks lost, 3 sent again and 1 of them without a cause", rep)
	}
	r.pace(&rep, arrivals)
	if want := []time.Duration{2100 * time.Millisecond}; rep.Stall != want[0] || !slices.Equal(rep.Stalls, want) || rep.Used != 0.9 {
		t.Errorf("stall %v, at strikes %v, used %v, want 2.1 s for both and 0.9", rep.Stall, rep.Stalls, rep.Used)
	}
	grants := []e2e.Grant{{ID: "c1", GrantedUs: at(1)}, {ID: "c1", GrantedUs: at(1.1), PromisedUs: at(1)}}
	if n := unused(grants, arrivals); n != 1 {
		t.Errorf("%d grants are unused, want 1", n)
	}
	if _, p99 := lateness(grants); p99 != 100*time.Millisecond {
		t.Errorf("the 99th percentile of lateness is %v, want 100 ms", p99)
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	bad := Report{Fault: "f", Lost: 1, Unexplained: 2, Left: 3, Archived: 4, AtGateway: 5, Breaches: map[string]int{"phone": 6}}
	for forgets, want := range map[bool]string{
		false: "f: 2 sent again without a cause\nf: 4 archived\nf: 3 left in the queue\nf: 1 lost\nf: 6 over a limit\nf: 5 over a limit by the gateway's clock",
		true:  "f: 2 sent again without a cause\nf: 4 archived\nf: 3 left in the queue",
	} {
		bad.Forgets = forgets
		if got := fmt.Sprint(bad.Failed()); got != want {
			t.Errorf("a fault that forgets (%v) failed for\n%s\nwant\n%s", forgets, got, want)
		}
	}
	if err := (Report{Again: 3, Unused: 1}).Failed(); err != nil {
		t.Errorf("Failed = %v, want nil", err)
	}
}
