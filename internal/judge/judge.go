// Package judge says which of the permits that were spent broke a limit, by nothing
// but the instants at which they were spent. It knows nothing of how a limit is kept,
// so it can judge any implementation. Tests, benchmarks and `headway prove` use it.
//
// What is judged was spent for one key, and comes in the order of its instants. The
// judges return the indices of those with which the limit is broken.
package judge

import (
	"cmp"
	"slices"
	"time"
)

// Spent are permits that were spent at one instant.
type Spent struct {
	At   int64 // µs since any fixed instant
	Cost int   // permits
}

// Windows judges n in any window. Windows are half open: with 1/60s a gap of 60 s
// is fine, one of 59.999999 s is not.
func Windows(spent []Spent, n int, window time.Duration) []int {
	var over []int
	sum, from := 0, 0
	for i, s := range spent {
		for spent[from].At <= s.At-window.Microseconds() {
			sum -= spent[from].Cost
			from++
		}
		if sum += s.Cost; sum > n {
			over = append(over, i)
		}
	}
	return over
}

// FixedWindows judges n in a window that begins with the first permit outside of any
// window before it.
func FixedWindows(spent []Spent, n int, window time.Duration) []int {
	var over []int
	sum, start := 0, int64(0)
	for i, s := range spent {
		if i == 0 || s.At >= start+window.Microseconds() {
			start, sum = s.At, 0
		}
		if sum += s.Cost; sum > n {
			over = append(over, i)
		}
	}
	return over
}

// NamedWindows judges n in each window to which name gives the same name, such as a
// day of the calendar. It wants no order.
func NamedWindows(spent []Spent, n int, name func(us int64) string) []int {
	var over []int
	sums := map[string]int{}
	for i, s := range spent {
		w := name(s.At)
		if sums[w] += s.Cost; sums[w] > n {
			over = append(over, i)
		}
	}
	return over
}

// Rate is n permits per window, with burst permits at once after a rest.
type Rate struct {
	N      int
	Window time.Duration
	Burst  int
	// PaidBefore says that a permit may be spent when all permits before it are paid
	// for, but for the burst. Otherwise its own cost counts among them.
	PaidBefore bool
	// Slack is how much too early a permit may seem, where instants are rounded.
	Slack time.Duration
}

// Early is a permit that broke a rate.
type Early struct {
	Index int
	By    time.Duration
}

// Breaches judges that no time t holds more than the burst and what the rate gives in t.
// It follows the instant at which all permits are paid for, one after the other, and
// how far that instant lies ahead of each permit.
func (r Rate) Breaches(spent []Spent) []Early {
	if len(spent) == 0 {
		return nil
	}
	// Instants in 1/N of a µs since the first are whole numbers, which a float64 holds
	// exactly up to 2^53 and never overflows.
	var over []Early
	n, each, paid := float64(r.N), float64(r.Window.Microseconds()), 0.0
	most := float64(r.Burst)*each + n*float64(r.Slack.Microseconds())
	for i, s := range spent {
		at := n * float64(s.At-spent[0].At)
		lead := paid - at
		paid = max(paid, at) + float64(s.Cost)*each
		if !r.PaidBefore {
			lead = paid - at
		}
		if lead > most {
			over = append(over, Early{Index: i, By: time.Duration((lead - most) / n * float64(time.Microsecond))})
		}
	}
	return over
}

// Arrivals judges N permits in any window by the log of a receiver, which knows when a
// message was granted and when it arrived. What a message was on its way counts for it:
// with 1/5s a message that was granted at 0 s and came at 0.2 s may be followed by one
// at 5 s. Delays hide breaches, and never make one up, as long as the clocks of both
// agree. It is not safe for concurrent use.
type Arrivals struct {
	N      int
	Window time.Duration

	recent []Spent // by instant of the grant, in the window before the last arrival
}

// Add takes what arrives next for the key, and says whether it breaks the limit: whether
// of all that has arrived so far more than N were granted in the window that ends now.
func (a *Arrivals) Add(granted, arrived int64, cost int) (broken bool) {
	byGrant := func(s Spent, us int64) int { return cmp.Compare(s.At, us) }
	at, _ := slices.BinarySearchFunc(a.recent, granted, byGrant)
	a.recent = slices.Insert(a.recent, at, Spent{At: granted, Cost: cost})
	// What was granted a window before to the microsecond is out.
	out, _ := slices.BinarySearchFunc(a.recent, arrived-a.Window.Microseconds()+1, byGrant)
	a.recent = slices.Delete(a.recent, 0, out)
	sum := 0
	for _, s := range a.recent {
		sum += s.Cost
	}
	return sum > a.N
}

// Most is the largest number of permits in any window.
func Most(spent []Spent, window time.Duration) int {
	most, sum, from := 0, 0, 0
	for _, s := range spent {
		for spent[from].At <= s.At-window.Microseconds() {
			sum -= spent[from].Cost
			from++
		}
		sum += s.Cost
		most = max(most, sum)
	}
	return most
}
