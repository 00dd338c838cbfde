package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/headwayq/headway/throttle"
)

// grantedHeader carries the instant at which Redis granted the message, in µs
// since 1970. Without it the gateway takes the arrival for it, so that any gap
// under the window is a breach.
const grantedHeader = "Headway-Granted-Us"

// gatewayBodyMax is the largest body that the gateway reads, in bytes.
const gatewayBodyMax = 64 << 10

// Gateway stands in for an SMS provider: it takes POSTs of JSON
// {"id","to","text"}, answers 202, sends nothing, and checks by its own
// clock that no phone gets more than the limit allows. It counts a message that
// comes twice and takes it twice, as a provider would. It keeps a line per
// message in memory, none with a phone number. It is safe for concurrent use.
type Gateway struct {
	secret []byte
	now    func() time.Time
	srv    *http.Server
	url    string
	wg     sync.WaitGroup

	mu    sync.Mutex
	check *arrivalCheck
	log   []Arrival
}

// NewGateway returns a gateway as a plain [http.Handler]. The secret is that of
// phoneKey.
func NewGateway(limit throttle.Limit, secret []byte) *Gateway {
	return &Gateway{secret: secret, now: time.Now, check: newArrivalCheck(limit)}
}

// StartGateway returns a gateway that listens on a free port of the loopback
// interface until [Gateway.Shutdown]. The context is for the start only.
func StartGateway(ctx context.Context, limit throttle.Limit, secret []byte) (*Gateway, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g := NewGateway(limit, secret)
	g.url = "http://" + l.Addr().String() + "/"
	g.srv = &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	g.wg.Go(func() { _ = g.srv.Serve(l) }) // ends with ErrServerClosed; nobody else can close l
	return g, nil
}

// URL returns where to POST to, or "" if the gateway was not started.
func (g *Gateway) URL() string { return g.url }

// Shutdown lets requests end until ctx does, then cuts them off. It may be
// called twice, and on a gateway that was not started.
func (g *Gateway) Shutdown(ctx context.Context) error {
	if g.srv == nil {
		return nil
	}
	err := g.srv.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("gateway: %w", err), g.srv.Close())
	}
	g.wg.Wait()
	return err
}

// Stats returns what was seen so far.
func (g *Gateway) Stats() GatewayStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.check.stats
}

// Arrivals returns the log so far, in the order of arrival. [WriteArrivals] makes a
// file of it, [ReplayArrivals] judges it again.
func (g *Gateway) Arrivals() []Arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.log)
}

// ServeHTTP takes one message. No answer quotes the request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "want POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, gatewayBodyMax))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		http.Error(w, "body is too large", http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "body cannot be read", http.StatusBadRequest)
		return
	}
	m, err := DecodeMessage(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	granted, given, ok := grantedFrom(r.Header)
	if !ok {
		http.Error(w, grantedHeader+" is not a number of microseconds", http.StatusBadRequest)
		return
	}
	g.arrive(m, granted, given)
	w.WriteHeader(http.StatusAccepted)
}

// arrive notes a message at the present instant.
func (g *Gateway) arrive(m Message, grantedUs int64, given bool) {
	a := Arrival{ID: m.ID, Phone: mask(m.To), Key: phoneKey(g.secret, m.To), GrantedUs: grantedUs}
	g.mu.Lock()
	defer g.mu.Unlock()
	// The clock is read under the lock: the log is in the order of its instants.
	a.ArrivedUs = g.now().UnixMicro()
	if !given {
		a.GrantedUs = a.ArrivedUs
	}
	g.log = append(g.log, a)
	g.check.add(a)
}

func grantedFrom(h http.Header) (us int64, given, ok bool) {
	v := h.Get(grantedHeader)
	if v == "" {
		return 0, false, true
	}
	us, err := strconv.ParseInt(v, 10, 64)
	// 2^53 µs is the year 2255: beyond, it is nanoseconds by mistake.
	return us, true, err == nil && us > 0 && us < 1<<53
}
