package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue"
)

// GrantedHeader carries the instant at which Redis granted the message, in µs
// since 1970. Without it the gateway takes the arrival for it, so that any gap
// under the window is a breach.
const GrantedHeader = "Headway-Granted-Us"

// SenderHeader carries the number of the process that sends, for the log. It may be absent.
const SenderHeader = "Headway-Sender"

// GatewayBodyMax is the largest body that the gateway reads, in bytes.
const GatewayBodyMax = 64 << 10

// Gateway stands in for an SMS provider: it takes POSTs of JSON
// {"id","to","text"}, answers 202, sends nothing, and checks by its own
// clock that no key gets more than its sliding limit allows. It counts a message that
// comes twice and takes it twice, as a provider would. Only what it took is in
// its log and counts for the limit: with [Faults] that is what it answers 202, and
// what it leaves without an answer. It keeps a line per
// message in memory, none with a phone number. It is safe for concurrent use.
type Gateway struct {
	policy   Policy
	others   map[string]Policy // of [Gateway.Also], by the path of the request
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

	takes    time.Duration            // how long it works on a message
	closed   map[string]time.Duration // by phone: what the next message to it is told
	refused  []Arrival                // what a closed phone was sent
	answered map[string]int           // by id of message: how often it was taken, to the end
}

// NewGateway returns a gateway as a plain [http.Handler]. The secret is that of
// PhoneKey.
func NewGateway(p Policy, faults Faults, secret []byte) *Gateway {
	g := &Gateway{
		policy: p, others: map[string]Policy{}, secret: secret, now: time.Now, check: newArrivalCheck(p),
		faults: newFaultMaker(faults), closing: make(chan struct{}),
		closed: map[string]time.Duration{}, answered: map[string]int{},
	}
	g.closeNow = sync.OnceFunc(func() { close(g.closing) })
	return g
}

// StartGateway returns a gateway that listens on a free port of the loopback
// interface until [Gateway.Shutdown]. The context is for the start only.
func StartGateway(ctx context.Context, p Policy, faults Faults, secret []byte) (*Gateway, error) {
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

// Also lets the gateway take messages of another task type, at its URL and the type behind
// it. It is called before the first message. Rules of one name are one rule.
func (g *Gateway) Also(p Policy) {
	g.others["/"+p.Type] = p
	g.check.judge(p)
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

// SetTakes changes how long the gateway works on each message that arrives from now on.
// At first it takes none.
func (g *Gateway) SetTakes(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.takes = d
}

// Postpone answers the next message to a phone with 429 and a Retry-After of d, which is in
// whole seconds.
func (g *Gateway) Postpone(to string, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed[PhoneKey(g.secret, to)] = d
}

// Refused returns the messages that [Gateway.Postpone] had answered so far.
func (g *Gateway) Refused() []Arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.refused)
}

// Answered returns how many messages were taken and answered at least once.
func (g *Gateway) Answered() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.answered)
}

// Repeated returns the ids of the messages that were taken more than once, sorted.
func (g *Gateway) Repeated() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var again []string
	for id, times := range g.answered {
		if times > 1 {
			again = append(again, id)
		}
	}
	slices.Sort(again)
	return again
}

// Count returns how many messages of the log so far are such. It copies nothing, so it may
// be asked often.
func (g *Gateway) Count(such func(*Arrival) bool) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for i := range g.log {
		if such(&g.log[i]) {
			n++
		}
	}
	return n
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
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, GatewayBodyMax))
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
		http.Error(w, GrantedHeader+" is not a number of microseconds", http.StatusBadRequest)
		return
	}
	policy, other := g.others[r.URL.Path]
	if !other {
		policy = g.policy
	}
	charges, err := policy.ChargesOf(body, g.secret)
	if err != nil {
		http.Error(w, "the policy cannot charge it", http.StatusBadRequest)
		return
	}
	a := Arrival{ID: m.ID, Phone: Mask(m.To), Key: PhoneKey(g.secret, m.To), GrantedUs: granted, Charges: charges}
	a.Sender, _ = strconv.Atoi(r.Header.Get(SenderHeader))
	switch n, f, after := g.arrive(a, given); f {
	case faultNone:
		g.work(r.Context(), n)
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

// work takes its time over the n-th message of the log, unless its sender is gone.
func (g *Gateway) work(ctx context.Context, n int) {
	g.mu.Lock()
	takes := g.takes
	g.mu.Unlock()
	if takes > 0 {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log[n].LeftUs = g.now().UnixMicro()
	g.answered[g.log[n].ID]++
}

// arrive decides on a message at the present instant, and notes it as the n-th of the log
// if it is taken. After is the Retry-After of a 429.
func (g *Gateway) arrive(a Arrival, given bool) (n int, f fault, after time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// The clock is read under the lock: the log is in the order of its instants.
	now := g.now()
	a.ArrivedUs = now.UnixMicro()
	if !given {
		a.GrantedUs = a.ArrivedUs
	}
	if after, ok := g.closed[a.Key]; ok {
		delete(g.closed, a.Key)
		g.refused = append(g.refused, a)
		return 0, faultTooMany, after
	}
	f, after = g.faults.next(a, now)
	if f == faultTooMany || f == faultUnavailable {
		return 0, f, after
	}
	g.log = append(g.log, a)
	g.check.add(a)
	return len(g.log) - 1, f, after
}

func grantedFrom(h http.Header) (us int64, given, ok bool) {
	v := h.Get(GrantedHeader)
	if v == "" {
		return 0, false, true
	}
	us, err := strconv.ParseInt(v, 10, 64)
	// 2^53 µs is the year 2255: beyond, it is nanoseconds by mistake.
	return us, true, err == nil && us > 0 && us < 1<<53
}

// Arrival is one message at the gateway, and one line of its log.
type Arrival struct {
	ID        string `json:"id"`
	Phone     string `json:"phone"`      // masked
	Key       string `json:"key"`        // groups by phone, see PhoneKey
	ArrivedUs int64  `json:"arrived_us"` // since 1970, the gateway's clock
	GrantedUs int64  `json:"granted_us"` // since 1970, Redis' clock, as the sender says

	Charges []Charge `json:"charges,omitempty"` // by rule; none with -limit

	Sender int   `json:"sender,omitempty"`  // which process, by [SenderHeader]
	LeftUs int64 `json:"left_us,omitempty"` // when it was answered, or its sender was gone; 0 before
}

// GatewayStats is what the gateway has seen.
type GatewayStats struct {
	Messages   int            // accepted
	Duplicates int            // of these, such whose id had come before
	Phones     int            // phones that got at least one
	Breaches   int            // times that a message broke a sliding limit by the gateway's clock
	BrokenBy   map[string]int // these, by rule; nil without any
	Early      int            // messages that came before they were granted: a bug, or two clocks that differ
	MinGap     *time.Duration // smallest gap between two messages of one phone; nil when no phone got two
	MostAtOnce int            // requests under way at one instant, the most ever; one that its sender gave up counts until the gateway sees that
	Faults     *FaultStats    // nil without [Faults]
}

// arrivalCheck is the second opinion on the sliding limits: it knows when messages
// arrived and when they were granted, and nothing of how. Limits of other kinds it
// leaves to [Breaches]: delays could make a breach up. It is not safe for concurrent use.
//
// With 1/60s a message granted at 0 s arrives at 0.2 s. The next is granted at
// 60 s at the earliest and cannot arrive before: a gap of 59.8 s is right, since the
// first was 0.2 s on its way, and 59.7 s is a breach. In general a breach is
// an arrival at a, in whose phone more than n permits were granted after a − W. For n = 1 that is
// gap < W − (arrival − grant) of the message granted earlier. Delays hide
// breaches from it and never make one up; the two clocks must agree, as they
// do on one machine ([GatewayStats.Early] counts signs that they do not).
type arrivalCheck struct {
	rules  []queue.Rule // with sliding limits
	recent map[account]*judge.Arrivals
	phones map[string]int64 // µs of the last arrival
	ids    map[string]struct{}
	stats  GatewayStats
}

func newArrivalCheck(p Policy) *arrivalCheck {
	c := &arrivalCheck{recent: map[account]*judge.Arrivals{}, phones: map[string]int64{}, ids: map[string]struct{}{}}
	c.judge(p)
	return c
}

// judge adds the rules of a policy that it does not judge yet.
func (c *arrivalCheck) judge(p Policy) {
	for _, r := range p.Rules {
		if AtGateway(r) && !slices.ContainsFunc(c.rules, func(known queue.Rule) bool { return known.Name == r.Name }) {
			c.rules = append(c.rules, r)
		}
	}
}

// AtGateway says whether the gateway's clock judges a rule.
func AtGateway(r queue.Rule) bool { return r.Limit.Kind() == "sliding" }

// add takes the next arrival, in the order of arrival.
func (c *arrivalCheck) add(a Arrival) {
	c.stats.Messages++
	if _, ok := c.ids[a.ID]; ok {
		c.stats.Duplicates++
	}
	c.ids[a.ID] = struct{}{}
	if a.ArrivedUs < a.GrantedUs {
		c.stats.Early++
	}
	last, ok := c.phones[a.Key]
	if !ok {
		c.stats.Phones++
	} else if gap := micros(a.ArrivedUs - last); c.stats.MinGap == nil || gap < *c.stats.MinGap {
		c.stats.MinGap = &gap
	}
	c.phones[a.Key] = a.ArrivedUs
	for _, r := range c.rules {
		if c.breaks(r, a) {
			c.stats.Breaches++
			if c.stats.BrokenBy == nil {
				c.stats.BrokenBy = map[string]int{}
			}
			c.stats.BrokenBy[r.Name]++
		}
	}
}

// breaks adds an arrival to what its key got, and says whether that is too much.
func (c *arrivalCheck) breaks(r queue.Rule, a Arrival) bool {
	charge, ok := ChargeOf(a.Charges, r.Name, a.Key)
	if !ok {
		return false
	}
	of := account{r.Name, charge.Key}
	if c.recent[of] == nil {
		c.recent[of] = &judge.Arrivals{N: r.Limit.Permits(), Window: r.Limit.Window()}
	}
	return c.recent[of].Add(a.GrantedUs, a.ArrivedUs, charge.Cost)
}

// OverSlots counts the messages of a log that came to a key while all slots of its concurrent
// rule were taken by messages that were at work. A message is at work for a part of its lease:
// from its arrival until it was answered, or its sender was gone. So a lease that was granted
// too early may be missed, but none is found that was not.
func OverSlots(log []Arrival, r queue.Rule) int {
	over := 0
	ends := map[string][]int64{} // of those at work, by key
	for _, a := range log {
		c, ok := ChargeOf(a.Charges, r.Name, a.Key)
		if !ok || a.LeftUs == 0 {
			continue
		}
		atWork := slices.DeleteFunc(ends[c.Key], func(end int64) bool { return end <= a.ArrivedUs })
		if len(atWork) >= r.Limit.Permits() {
			over++
		}
		ends[c.Key] = append(atWork, a.LeftUs)
	}
	return over
}

// ReplayArrivals judges a gateway's log anew, or the logs of several merged. What
// is not in a log has its zero value: MostAtOnce and Faults.
func ReplayArrivals(log []Arrival, p Policy) GatewayStats {
	check := newArrivalCheck(p)
	for _, a := range slices.SortedStableFunc(slices.Values(log), func(a, b Arrival) int {
		return cmp.Compare(a.ArrivedUs, b.ArrivedUs)
	}) {
		check.add(a)
	}
	return check.stats
}

// WriteArrivals writes a log as JSON lines.
func WriteArrivals(w io.Writer, log []Arrival) error {
	buf := bufio.NewWriter(w)
	enc := json.NewEncoder(buf)
	for _, a := range log {
		if err := enc.Encode(a); err != nil {
			return fmt.Errorf("arrivals: %w", err)
		}
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("arrivals: %w", err)
	}
	return nil
}

// ReadArrivals reads what [WriteArrivals] wrote. A line that is no arrival is an
// error with its number.
func ReadArrivals(r io.Reader) ([]Arrival, error) {
	log, err := ReadLines(r, func(a Arrival) bool { return a.ID != "" && a.Key != "" })
	if err != nil {
		return nil, fmt.Errorf("arrivals: %w", err)
	}
	return log, nil
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
