package e2e

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// message is an SMS: the payload of a task, and what is sent to the gateway.
type message struct {
	ID      string `json:"id"`
	To      string `json:"to"`
	Tenant  string `json:"tenant,omitempty"`
	Life    int    `json:"life,omitempty"`       // which process sends it
	Granted int64  `json:"granted_us,omitempty"` // when it was let in
}

// arrival is a message that reached the gateway.
type arrival struct {
	message
	At   int64 // by the gateway's clock, in microseconds
	Left int64 // when it was answered, or its sender was gone; 0 before
}

// gateway is the provider at the end of the way. It takes everything, but for
// phones that it closes.
type gateway struct {
	*httptest.Server

	takes time.Duration // how long it works on each; set before the first arrives, then by [gateway.setTakes]

	mu       sync.Mutex
	arrivals []arrival
	times    map[string]int           // by message id
	closing  map[string]time.Duration // by phone: what the next to it is told
	refused  []arrival
}

func newGateway(tb testing.TB) *gateway {
	tb.Helper()
	g := &gateway{times: make(map[string]int), closing: make(map[string]time.Duration)}
	g.Server = httptest.NewServer(g)
	tb.Cleanup(g.Close)
	return g
}

// ServeHTTP implements [http.Handler].
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := arrival{At: time.Now().UnixMicro()}
	if err := json.NewDecoder(r.Body).Decode(&a.message); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if after, closed := g.refuses(a); closed {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
		http.Error(w, "too many", http.StatusTooManyRequests)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.arrivals)
	g.arrivals = append(g.arrivals, a)
	if takes := g.takes; takes > 0 {
		g.mu.Unlock()
		wait(r, takes)
		g.mu.Lock()
	}
	g.arrivals[n].Left = time.Now().UnixMicro()
	g.times[a.ID]++
}

// setTakes changes how long it works on each that arrives from now on.
func (g *gateway) setTakes(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.takes = d
}

// wait ends early when the sender is gone.
func wait(r *http.Request, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
}

// putOff answers the next message to a phone with 429, and a Retry-After of d in
// whole seconds.
func (g *gateway) putOff(to string, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closing[to] = d
}

func (g *gateway) refuses(a arrival) (after time.Duration, closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if after, closed = g.closing[a.To]; closed {
		delete(g.closing, a.To)
		g.refused = append(g.refused, a)
	}
	return after, closed
}

// rejected are the arrivals that were answered with 429 so far.
func (g *gateway) rejected() []arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.refused)
}

// all are the arrivals so far that were taken.
func (g *gateway) all() []arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.arrivals)
}

// distinct is how many messages were taken at least once.
func (g *gateway) distinct() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.times)
}

// repeated are the messages that were taken more than once.
func (g *gateway) repeated() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(g.times)) {
		if g.times[id] > 1 {
			out = append(out, id)
		}
	}
	return out
}

// since is how many messages arrived after t.
func (g *gateway) since(t time.Time) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, a := range g.arrivals {
		if a.At > t.UnixMicro() {
			n++
		}
	}
	return n
}

// crowd is how many arrivals the gateway works on from an instant on.
type crowd struct {
	at int64
	n  int
}

// crowds is how the number of those that the gateway works on went up and down.
// Who leaves goes before who comes at the same instant.
func crowds(arrivals []arrival) []crowd {
	var steps []crowd
	for _, a := range arrivals {
		steps = append(steps, crowd{a.At, 1})
		if a.Left != 0 {
			steps = append(steps, crowd{a.Left, -1})
		}
	}
	slices.SortFunc(steps, func(a, b crowd) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	n := 0
	for i := range steps {
		n += steps[i].n
		steps[i].n = n
	}
	return steps
}
