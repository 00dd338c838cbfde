package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// Two of four holders die; what the others give back goes on through the line, at any
// pace. The leases of the dead go to others at the very instants at which they end,
// though all who wait are 3 ms away.
func TestLeasesOfTheDeadAreUsedWhenTheyEnd(t *testing.T) {
	t.Parallel()
	const n, lease, away, ahead = 4, time.Second, 3 * ms, 4 * ms
	for _, every := range []time.Duration{7 * ms, 20 * ms, 50 * ms, 110 * ms, 330 * ms} {
		t.Run(fmt.Sprint(every), func(t *testing.T) {
			t.Parallel()
			h := newHall(newScene(t), n, 250, lease)
			var ends []time.Time
			for i, d := range h.holders[:2] {
				h.at(time.Duration(i) * 3 * ms) // at different instants
				if errs := h.l.Policy().Renew(t.Context(), []throttle.Decision{d}); errs[0] != nil {
					t.Fatal(errs[0])
				}
				ends = append(ends, h.now.Add(lease))
			}
			h.holders = h.holders[2:]

			var grants []throttle.Decision
			comes := make(map[string]time.Time)
			knows := make(map[string]time.Time) // the instant for which it comes
			for at := 4 * ms; at < lease+10*ms; at += ms {
				h.at(at)
				if at%every == 0 {
					h.release()
				}
				for i := range 250 {
					job := fmt.Sprintf("j%02d", i)
					if arrives, ok := comes[job]; ok && !arrives.After(h.now) {
						if d := h.comes(job); d.Granted {
							grants = append(grants, d)
						}
						delete(comes, job)
						delete(knows, job)
					}
				}
				for job, due := range h.due {
					if due.Equal(knows[job]) {
						continue
					}
					knows[job], comes[job] = due, due.Add(away-ahead)
					if soonest := h.now.Add(away); comes[job].Before(soonest) {
						comes[job] = soonest
					}
				}
			}
			for i, end := range ends {
				if !slices.ContainsFunc(grants, func(d throttle.Decision) bool { return d.At.Equal(end) }) {
					t.Errorf("nobody was granted the lease %d of the dead at its end", i+1)
				}
			}
		})
	}
}

// However late holders renew, also in the last moment of a lease that was granted ahead
// to the next, at no instant more leases count than the limit says.
func TestLateRenewalsBesideLeasesGrantedAhead(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const lease = time.Second
	type held struct {
		throttle.Decision
		from, to time.Duration // that it was told it holds
	}
	late := 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		redistest.Flush(t, s.raw)
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		l := s.limiter("slots", throttle.Concurrent(n, lease))
		var all []*held
		now := time.Duration(0)
		renew := func(h *held) {
			switch err := l.Policy().Renew(ctx, []throttle.Decision{h.Decision})[0]; {
			case err == nil:
				h.to = max(h.to, now+lease)
			case !errors.Is(err, throttle.ErrLeaseLost):
				rt.Fatal(err)
			default:
				late++
			}
		}
		for i := range rapid.IntRange(5, 60).Draw(rt, "calls") {
			step := rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, 400)).Draw(rt, "step")
			if ends := rapid.IntRange(0, 3).Draw(rt, "to an end"); ends == 0 && len(all) > 0 { // shortly before one ends
				h := rapid.SampledFrom(all).Draw(rt, "ends")
				if left := (h.to - now).Milliseconds(); left > 0 {
					step = max(0, left-rapid.Int64Range(-1, 49).Draw(rt, "before"))
				}
			}
			now += time.Duration(step) * ms
			s.at(now)
			op := rapid.IntRange(0, 9).Draw(rt, "op")
			if op < 4 || len(all) == 0 {
				d, err := l.Policy().Redeem(ctx, throttle.Request{Key: key, Cost: 1, Job: fmt.Sprint("j", rapid.IntRange(0, 4).Draw(rt, "job"), i/30)})
				if err != nil {
					rt.Fatal(err)
				}
				if d.Granted {
					at := d.At.Sub(start)
					for _, h := range all {
						if h.to > now && h.to <= at && rapid.Bool().Draw(rt, "renewed late") {
							renew(h)
						}
					}
					all = append(all, &held{d, at, at + lease})
				}
			} else {
				h := rapid.SampledFrom(all).Draw(rt, "which")
				if h.to <= now {
					continue
				}
				if op < 8 {
					renew(h)
				} else {
					if _, err := l.Policy().Release(ctx, h.Decision); err != nil {
						rt.Fatal(err)
					}
					h.to = max(h.from, now)
				}
			}
			for _, a := range all {
				count := 0
				for _, b := range all {
					if b.from <= a.from && a.from < b.to {
						count++
					}
				}
				if count > n && a.to > a.from {
					rt.Fatalf("at %v %d hold one of %d", a.from, count, n)
				}
			}
		}
	})
	t.Logf("%d renewals were refused", late)
}

// hall is jobs that share the leases of one key. What a pool knows of the jobs that wait is
// due: each comes by it alone.
type hall struct {
	*scene
	l       *throttle.Limiter
	due     map[string]time.Time
	holders []throttle.Decision // the first has the oldest lease
	over    throttle.Decision   // whose lease was given back last
	granted []string
	deaf    bool // the process that reads the notices is about to die
}

// newHall has n leases held, and so many jobs "j00", "j01", … waiting.
func newHall(s *scene, n, waiting int, lease time.Duration) *hall {
	s.Helper()
	h := &hall{scene: s, due: make(map[string]time.Time)}
	h.l = h.limiter("slots", throttle.Concurrent(n, lease))
	for i := range n {
		h.comes(fmt.Sprint("holder", i))
	}
	for i := range waiting {
		h.comes(fmt.Sprintf("j%02d", i))
	}
	h.granted = nil
	return h
}

func (h *hall) hear(turns []throttle.Promotion) {
	for _, turn := range turns {
		if at, waits := h.due[turn.Job]; !h.deaf && waits && turn.At.Before(at) {
			h.due[turn.Job] = turn.At
		}
	}
}

func (h *hall) comes(job string) throttle.Decision {
	h.Helper()
	d := h.job(h.l, job, 1)
	if d.Granted {
		delete(h.due, job)
		h.holders, h.granted = append(h.holders, d), append(h.granted, job)
	} else {
		h.due[job] = d.At
	}
	h.hear(d.Promoted)
	return d
}

// release gives the oldest lease back, and answers who is offered it.
func (h *hall) release() string {
	h.Helper()
	turns, err := h.l.Policy().Release(h.Context(), h.holders[0])
	if err != nil || len(turns) == 0 || !turns[0].Offered {
		h.Fatalf("Release = %+v, %v, want somebody to come", turns, err)
	}
	h.over, h.holders = h.holders[0], h.holders[1:]
	h.hear(turns)
	return turns[0].Job
}

// next lets whoever is due first come at its instant, checked before as by a pool.
func (h *hall) next() {
	h.Helper()
	var job string
	for j, at := range h.due {
		if job == "" || at.Before(h.due[job]) || at.Equal(h.due[job]) && j < job {
			job = j
		}
	}
	if at := h.due[job]; at.After(h.now) {
		h.at(at.Sub(start))
	}
	place := throttle.BookingRef{Policy: h.l.Policy(), IDs: []string{h.l.ID(key)}, Costs: []int{1}, Job: job}
	in := throttle.ForWorkers.Refresh(h.Context(), h.rdb, []throttle.BookingRef{place})[0]
	if in.Err != nil || !in.Known {
		h.Fatalf("Refresh(%q) = %+v", job, in)
	}
	h.hear(in.Promoted)
	if in.At.After(h.now) {
		h.due[job] = in.At
		return
	}
	h.comes(job)
}

// The notices of the last releases die with the process that read them, and with it
// die all holders. Who is next comes all the same, when the leases end, in order.
func TestNoticesDieWithAllHolders(t *testing.T) {
	t.Parallel()
	const n, lease = 4, 10 * time.Second
	for _, taken := range []bool{true, false} { // whether the last leases that came back were taken
		for warm := range 3 * n { // the notices that are lost do not always say the same
			t.Run(fmt.Sprint(taken, warm), func(t *testing.T) {
				t.Parallel()
				h := newHall(newScene(t), n, 40, lease)
				for i := range 8 + warm + n {
					h.at(time.Duration(i+1) * 5 * ms)
					h.deaf = i >= 8+warm
					if job := h.release(); !h.deaf || taken {
						h.comes(job)
					}
				}
				died := h.now
				var ends []time.Time // of the leases of the dead, when they were granted last
				for _, d := range h.holders {
					ends = append(ends, d.At.Add(lease))
				}
				h.deaf, h.granted = false, nil
				first := len(h.due)
				for range 20 * n {
					if h.next(); len(h.granted) == n {
						break
					}
				}
				var want []string
				for i := range n {
					want = append(want, fmt.Sprintf("j%02d", 40-first+i))
				}
				if !slices.Equal(h.granted, want) {
					t.Fatalf("%q went first after all had died, want %q", h.granted, want)
				}
				for i, d := range h.holders[len(h.holders)-n:] {
					if taken && !d.At.Equal(ends[i]) || d.At.After(died.Add(lease)) {
						t.Errorf("%s went %v after all had died, want it when the leases end", h.granted[i], d.At.Sub(died))
					}
				}
			})
		}
	}
}

// One that does not come for a lease in time is parked by whoever asks next, and told
// once more, by any call: what told it before may be gone.
func TestParkedForALeaseIsNoticedOnce(t *testing.T) {
	t.Parallel()
	told := func(turns []throttle.Promotion) (n int) {
		for _, turn := range turns {
			if turn.Job == "j00" && turn.Offered {
				n++
			}
		}
		return n
	}
	for name, call := range map[string]func(h *hall) []throttle.Promotion{
		"granted": func(h *hall) []throttle.Promotion { return h.comes("j01").Promoted },
		"booked":  func(h *hall) []throttle.Promotion { return h.comes("j02").Promoted },
		"refused": func(h *hall) []throttle.Promotion { return h.try(h.l, 1).Promoted },
		"too late": func(h *hall) []throttle.Promotion {
			d, _ := h.l.Policy().Redeem(h.Context(), throttle.Request{Key: key, Cost: 1, Job: "j02", MaxWait: ms})
			return d.Promoted
		},
		"checked": func(h *hall) []throttle.Promotion {
			place := throttle.BookingRef{Policy: h.l.Policy(), IDs: []string{h.l.ID(key)}, Costs: []int{1}, Job: "j01"}
			return throttle.ForWorkers.Refresh(h.Context(), h.rdb, []throttle.BookingRef{place})[0].Promoted
		},
		"released": func(h *hall) []throttle.Promotion {
			turns, _ := h.l.Policy().Release(h.Context(), h.over)
			return turns
		},
		"left": func(h *hall) []throttle.Promotion {
			turns, _ := h.l.Policy().Cancel(h.Context(), throttle.Request{Key: key, Cost: 1, Job: "j02"})
			return turns
		},
		"opened": func(h *hall) []throttle.Promotion {
			turns, _ := h.l.OpenKey(h.Context(), key)
			return turns
		},
		"reset": func(h *hall) []throttle.Promotion {
			turns, _ := h.l.Reset(h.Context(), key)
			return turns
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHall(newScene(t), 1, 3, 10*time.Second)
			if job := h.release(); job != "j00" {
				t.Fatalf("%s is offered the lease, want j00", job)
			}
			h.at(time.Second + ms) // nobody has heard of it
			if n := told(call(h)); n != 1 {
				t.Errorf("j00 was told %d times by who parked it, want 1", n)
			}
			if n := told(h.try(h.l, 1).Promoted); n != 0 {
				t.Errorf("j00 was told %d times by the next call, want none", n)
			}
			if d := h.comes("j00"); d.Granted != (name != "granted") {
				t.Errorf("j00, which was parked: %v, want it granted where the lease is still free", d)
			}
		})
	}
}

// A release tells about one who is further behind, however long the line is, and its
// commands are bounded.
func TestVirtualNoticeAheadOnce(t *testing.T) {
	t.Parallel()
	const n, rounds = 40, 200
	h := newHall(newSceneOnOne(t, "it counts the commands of one server", redistest.Own()), n, 500, 10*time.Second)
	ahead, most := 0, 0
	count := func(turns []throttle.Promotion) {
		for _, turn := range turns {
			if !turn.Offered {
				ahead++
			}
		}
	}
	for i := range rounds {
		h.at(time.Duration(i+1) * ms)
		var job string
		most = max(most, commands(t, h.raw, func() {
			turns, err := h.l.Policy().Release(t.Context(), h.holders[0])
			if err != nil || len(turns) == 0 {
				t.Fatalf("Release = %+v, %v, want somebody to come", turns, err)
			}
			h.holders, job = h.holders[1:], turns[0].Job
			count(turns)
		}))
		count(h.comes(job).Promoted)
	}
	if least := rounds - 32; ahead < least || ahead > rounds+3*32 {
		t.Errorf("%d were told ahead by %d releases, want about one by each", ahead, rounds)
	}
	if most > 40 {
		t.Errorf("a release made %d commands, want 40 at most", most)
	}
	t.Logf("%d told ahead, %d commands at most", ahead, most)
}

// A limit was raised, so a lease is free and nobody has heard of it: whoever comes, and may
// not pass the line, lets the first in line know.
func TestFreeLeaseNobodyHeardOfIsOffered(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(h *hall, l *throttle.Limiter) []throttle.Promotion{
		"booked":  func(h *hall, l *throttle.Limiter) []throttle.Promotion { return h.job(l, "late", 1).Promoted },
		"refused": func(h *hall, l *throttle.Limiter) []throttle.Promotion { return h.try(l, 1).Promoted },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHall(newScene(t), 1, 2, time.Minute)
			h.at(time.Second)
			if _, err := h.l.SetLimit(t.Context(), throttle.Concurrent(2, time.Minute), throttle.SetLimitOptions{}); err != nil {
				t.Fatal(err)
			}
			turns := call(h, h.limiter("slots", throttle.Concurrent(1, time.Minute)))
			if len(turns) == 0 || turns[0].Job != "j00" || !turns[0].Offered {
				t.Errorf("%+v, want j00 to be offered the lease", turns)
			}
		})
	}
}
