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
)

// grantedHeader carries the instant at which Redis granted the message, in µs
// since 1970. Without it the gateway takes the arrival for it, so that any gap
// under the window is a breach.
const grantedHeader = "Headway-Granted-Us"

// gatewayBodyMax is the largest body that the gateway reads, in bytes.
const gatewayBodyMax = 64 << 10

// Gateway stands in for an SMS provider: it takes POSTs of JSON
// {"id","to","text"}, answers 202, sends nothing, and checks by its own
// clock that no key gets more than its sliding limit allows. It counts a message that
// comes twice and takes it twice, as a provider would. Only what it took is in
// its log and counts for the limit: with [Faults] that is what it answers 202, and
// what it leaves without an answer. It keeps a line per
// message in memory, none with a phone number. It is safe for concurrent use.
type Gateway struct {
	policy   policy
	secret   []byte
	now      func() time.Time
	srv      *http.Server
	url      string
	wg       sync.WaitGroup
	closing  chan struct{} // ends the wait of messages that get no answer
	closeNow func()        // closes closing, once

	mu     sync.Mutex
	check  *arrivalCheck
	log    []Arrival
	faults *faultMaker
	atOnce int // requests under way
	most   int // of these, ever
}

// NewGateway returns a gateway as a plain [http.Handler]. The secret is that of
// phoneKey.
func NewGateway(p policy, faults Faults, secret []byte) *Gateway {
	g := &Gateway{
		policy: p, secret: secret, now: time.Now, check: newArrivalCheck(p),
		faults: newFaultMaker(faults), closing: make(chan struct{}),
	}
	g.closeNow = sync.OnceFunc(func() { close(g.closing) })
	return g
}

// StartGateway returns a gateway that listens on a free port of the loopback
// interface until [Gateway.Shutdown]. The context is for the start only.
func StartGateway(ctx context.Context, p policy, faults Faults, secret []byte) (*Gateway, error) {
	g := NewGateway(p, faults, secret)
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Gateway) start(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	g.url = "http://" + l.Addr().String() + "/"
	g.srv = &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	g.wg.Go(func() { _ = g.srv.Serve(l) }) // ends with ErrServerClosed; nobody else can close l
	return nil
}

// URL returns where to POST to, or "" if the gateway was not started.
func (g *Gateway) URL() string { return g.url }

// Shutdown lets requests end until ctx does, then cuts them off; those that get
// no answer it cuts off at once. It may be called twice, and on a gateway that was not
// started.
func (g *Gateway) Shutdown(ctx context.Context) error {
	g.closeNow()
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
	s := g.check.stats
	s.MostAtOnce = g.most
	if g.faults.faults != (Faults{}) {
		s.Faults = new(g.faults.stats)
	}
	return s
}

// Arrivals returns the log so far, in the order of arrival. [WriteArrivals] makes a
// file of it, [ReplayArrivals] judges it again.
func (g *Gateway) Arrivals() []Arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.log)
}

// ServeHTTP takes one message. No answer quotes the request. A message that gets
// no answer waits for its sender to give up, then panics with
// [http.ErrAbortHandler]: a plain return would be a 200.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.enter()
	defer g.leave()
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
	charges, err := g.policy.charges(body, g.secret)
	if err != nil {
		http.Error(w, "the policy cannot charge it", http.StatusBadRequest)
		return
	}
	a := Arrival{ID: m.ID, Phone: mask(m.To), Key: phoneKey(g.secret, m.To), GrantedUs: granted, Charges: charges}
	switch f, after := g.arrive(a, given); f {
	case faultNone:
		w.WriteHeader(http.StatusAccepted)
	case faultTooMany:
		w.Header().Set("Retry-After", strconv.Itoa(int(after/time.Second)))
		http.Error(w, "too many", http.StatusTooManyRequests)
	case faultUnavailable:
		http.Error(w, "out of order", http.StatusServiceUnavailable)
	case faultTimeout:
		select {
		case <-r.Context().Done():
		case <-g.closing:
		}
		panic(http.ErrAbortHandler)
	}
}

func (g *Gateway) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.atOnce++
	g.most = max(g.most, g.atOnce)
}

func (g *Gateway) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.atOnce--
}

// arrive decides on a message at the present instant, and notes it if it is
// taken. After is the Retry-After of a 429.
func (g *Gateway) arrive(a Arrival, given bool) (f fault, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// The clock is read under the lock: the log is in the order of its instants.
	now := g.now()
	a.ArrivedUs = now.UnixMicro()
	if !given {
		a.GrantedUs = a.ArrivedUs
	}
	f, after = g.faults.next(a, now)
	if f == faultTooMany || f == faultUnavailable {
		return f, after
	}
	g.log = append(g.log, a)
	g.check.add(a)
	return f, after
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
