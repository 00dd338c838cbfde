package headway_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// message is an SMS: the payload of a task, and what is sent to the gateway.
type message struct {
	ID      string `json:"id"`
	To      string `json:"to"`
	Life    int    `json:"life,omitempty"`       // which process sends it
	Granted int64  `json:"granted_us,omitempty"` // when it was let in
}

// arrival is a message that reached the gateway.
type arrival struct {
	message
	At int64 // by the gateway's clock, in microseconds
}

// gateway is the provider at the end of the way. It takes everything.
type gateway struct {
	*httptest.Server

	mu       sync.Mutex
	arrivals []arrival
	times    map[string]int // by message id
}

func newGateway(tb testing.TB) *gateway {
	tb.Helper()
	g := &gateway{times: make(map[string]int)}
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
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrivals = append(g.arrivals, a)
	g.times[a.ID]++
}

// all are the arrivals so far.
func (g *gateway) all() []arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.arrivals)
}

// distinct is how many messages arrived at least once.
func (g *gateway) distinct() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.times)
}

// repeated are the messages that arrived more than once.
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
