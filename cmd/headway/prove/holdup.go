package prove

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/headwayq/headway/throttle/gate"

	"github.com/headwayq/headway/internal/e2e"
)

// holdUp is messages that wait for a gate, all of them until the same instant.
type holdUp struct {
	rule     string
	opens    time.Time // in the zone that it opens by; zero for never
	messages int
}

// String has no line end: `gate "daytime" opens at Sat 08:00 AEDT, in 3h47m, for 2 messages`.
func (h holdUp) text(now time.Time) string {
	if h.opens.IsZero() {
		return fmt.Sprintf("gate %q does not open within a year for %s", h.rule, e2e.Count(h.messages, "message"))
	}
	in := (h.opens.Sub(now) + time.Second - 1).Truncate(time.Second)
	return fmt.Sprintf("gate %q opens at %s, in %v, for %s", h.rule, h.opens.Format("Mon 15:04 MST"), in, e2e.Count(h.messages, "message"))
}

// holdUps returns the messages that could go if it were not for a gate, and what
// the others wait for: never to open first, then the soonest.
func holdUps(p e2e.Policy, msgs []e2e.Message, now time.Time) (free []e2e.Message, held []holdUp) {
	type group struct {
		rule  string
		opens int64
	}
	at := map[group]int{}
	for _, m := range msgs {
		d, err := p.DemandOf(m)
		rule, closed := gate.FirstClosed(d.Gates, now)
		if err != nil || !closed {
			free = append(free, m)
			continue
		}
		opens := opensAt(d.Gates, rule, now)
		of := group{rule, opens.Unix()}
		if _, ok := at[of]; !ok {
			at[of] = len(held)
			held = append(held, holdUp{rule: rule, opens: opens})
		}
		held[at[of]].messages++
	}
	slices.SortFunc(held, func(a, b holdUp) int {
		return cmp.Or(a.opens.Compare(b.opens), cmp.Compare(a.rule, b.rule))
	})
	return free, held
}

// opensAt returns when all gates are open next, by the clock of the one that is closed,
// or the zero time.
func opensAt(gates []gate.InZone, rule string, now time.Time) time.Time {
	const day = 24 * time.Hour
	for _, reach := range []time.Duration{30 * day, 366 * day} { // results of the first are remembered
		openings := gate.Openings(gates, now, now.Add(reach))
		if len(openings) == 0 {
			continue
		}
		return openings[0].Open.In(zoneOf(gates, rule))
	}
	return time.Time{}
}

// zoneOf is the zone that a gate opens by.
func zoneOf(gates []gate.InZone, rule string) *time.Location {
	i := slices.IndexFunc(gates, func(g gate.InZone) bool { return g.Rule == rule })
	if name := gates[i].Gate.Zone(); name != "" {
		if zone, err := time.LoadLocation(name); err == nil {
			return zone
		}
	}
	return cmp.Or(gates[i].In, time.UTC)
}
