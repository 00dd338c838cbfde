package throttle

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/bounded"
	"github.com/headwayq/headway/internal/coalesce"
	"github.com/headwayq/headway/internal/giveback"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redisclock"
	"github.com/headwayq/headway/internal/rediserr"
)

// coalescer makes one script call of acquires that come while others of the same
// client are on their way to the same server: in the order of arrival, as much as is
// one script's work. See [coalesce.Batcher] for when. On Redis Cluster, where a
// script sees the keys of one hash slot, that is one script for each in one pipeline
// for each node. A node that is silent holds up its own keys only.
//
// Each call has its own answer. A call that failed inside a merged script is retried
// by itself; calls whose reply was lost are retried together, once, with the same
// tokens, which the scripts charge once. While Redis can't be reached no call waits
// for others. A caller whose context ends does not wait either: if its call was
// sent, the caller takes it back like any lost one.
type coalescer struct {
	rdb       redis.UniversalClient
	way       coalesce.Transport[*limitscripts.Call]
	scattered atomic.Bool // the keys are on servers that we don't know: each call goes by itself

	sole    *node                // the one server that has all keys
	cluster *redis.ClusterClient // nil where there is such a server
	nodes   sync.Map             // *node of a Cluster, by address
	known   atomic.Int64         // how many

	late *giveback.Queue // repeats what a server did not take back at once

	silent sync.Map // masters of a Cluster, by address, whose answer to a refresh is late: a *atomic.Bool that says whether the call has ended
}

// masterKnown is the address of the master of a Cluster that has a key, "" when the client does not know it. It asks nobody.
func (m *coalescer) masterKnown(key string) string {
	ctx, end := context.WithCancel(context.Background())
	end() // a client that knows no master yet would ask for them
	master, err := m.cluster.MasterForKey(ctx, key)
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// whileAnswering makes a call to a master, unless an earlier one is under way that was not answered in time. Nobody waits any longer when
// ctx ends: ok is false then.
func (m *coalescer) whileAnswering(ctx context.Context, addr string, call func() []limitscripts.RefreshReply) (_ []limitscripts.RefreshReply, ok bool) {
	if _, silent := m.silent.Load(addr); silent {
		return nil, false
	}
	ended := new(atomic.Bool)
	replies, ok := bounded.Call(ctx, func() []limitscripts.RefreshReply {
		defer func() {
			ended.Store(true)
			m.silent.CompareAndDelete(addr, ended)
		}()
		return call()
	})
	if !ok && errors.Is(ctx.Err(), context.DeadlineExceeded) { // not when the caller has gone
		m.silent.Store(addr, ended)
		if ended.Load() { // just now
			m.silent.CompareAndDelete(addr, ended)
		}
	}
	return replies, ok
}

// node is one server: what gathers the calls to it, and its clock.
type node struct {
	*coalesce.Batcher[*limitscripts.Call]
	clock redisclock.Clock
}

func (m *coalescer) newNode() *node { return &node{Batcher: coalesce.NewBatcher(&m.way)} }

// batchLeast is how many calls gather at least while one batch is on its way.
const batchLeast = 2

// nodesMax is how many nodes are kept. They come and go, and where each new one has an
// address of its own, those that are gone would grow for ever.
const nodesMax = 1024

func newCoalescer(rdb redis.UniversalClient, scattered bool) *coalescer {
	m := &coalescer{rdb: rdb, late: giveback.New(withdrawTimeout, whatGiveBackErrorMeans, nil)}
	m.way = coalesce.Transport[*limitscripts.Call]{
		Alone: m.send, Together: m.sendTogether, Patience: coalesce.PatienceDefault, Few: batchLeast,
		Weight: func(c *limitscripts.Call) int { return weightOf(&c.AcquireArgs) }, Most: limitscripts.CallsMax,
	}
	m.sole = m.newNode()
	// a client that a program has wrapped is called through its wrapper
	m.cluster, _ = rdb.(*redis.ClusterClient)
	m.scattered.Store(scattered && m.cluster == nil)
	return m
}

// acquire answers c. After an error the call may be under way still: c is not to be
// used again.
func (m *coalescer) acquire(ctx context.Context, c *limitscripts.Call) error {
	if len(c.Known) > 0 {
		err := m.send(ctx, c)
		if rediserr.Of(err) == rediserr.CrossSlot {
			m.scattered.Store(true)
		}
		return err
	}
	if m.scattered.Load() || c.Mode == limitscripts.Anew {
		return m.send(ctx, c)
	}
	to, err := m.nodeOf(ctx, c.Rules[0].Ledger())
	if err != nil {
		c.Err = err
		return c.Err
	}
	if err := to.Do(ctx, c); err != nil {
		return err
	}
	if errors.Is(c.Err, limitscripts.ErrRetrySingly) {
		return m.send(ctx, c)
	}
	return c.Err
}

// weightOf is how much of one script's work a call is: 1 for a rule, and more for many
// permits that are recorded one by one.
func weightOf(a *limitscripts.AcquireArgs) int {
	w := len(a.Rules)
	for i := range a.Rules {
		if a.Rules[i].Kind == limitscripts.Sliding {
			w += a.Rules[i].Cost / 128
		}
	}
	return w
}

// nodeOf is the server that has a key.
func (m *coalescer) nodeOf(ctx context.Context, key string) (*node, error) {
	if m.cluster == nil {
		return m.sole, nil
	}
	master, err := m.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("the node of a key: %w", err)
	}
	return m.nodeAt(master.Options().Addr), nil
}

// nodeAt is the node of an address.
func (m *coalescer) nodeAt(addr string) *node {
	l, ok := m.nodes.Load(addr)
	if ok {
		return l.(*node)
	}
	l, ok = m.nodes.LoadOrStore(addr, m.newNode())
	if !ok && m.known.Add(1) > nodesMax {
		m.forgetIdle(addr)
	}
	return l.(*node)
}

// forgetIdle drops the nodes without a call, but for one. A call that was just
// about to go to a dropped one is served there, beside the one that takes its
// place.
func (m *coalescer) forgetIdle(but string) {
	m.nodes.Range(func(addr, l any) bool {
		if addr == but {
			return true
		}
		waiting, inFlight := l.(*node).Calls()
		if waiting == 0 && inFlight == 0 && m.nodes.CompareAndDelete(addr, l) {
			m.known.Add(-1)
		}
		return true
	})
}

// send sends a call by itself.
func (m *coalescer) send(ctx context.Context, c *limitscripts.Call) error {
	c.AcquireReply, c.Err = limitscripts.Acquire(ctx, m.rdb, c.AcquireArgs)
	return c.Err
}

// sendTogether is [sendMany], and notes that keys are on servers that the client does
// not show.
func (m *coalescer) sendTogether(ctx context.Context, calls []*limitscripts.Call) error {
	err := sendMany(ctx, m.rdb, calls)
	if rediserr.Of(err) == rediserr.CrossSlot {
		m.scattered.Store(true)
	}
	return err
}

// sendMany sends calls together, at most as much as is one script's work. Calls
// whose reply was lost are sent again, once: not after a time-out, which was waited for
// already, and not where Redis can't be reached. Then each call has its own error:
// ErrRetrySingly where it has to be sent by itself. The result is the error of all
// of them, or the first that was not an answer of Redis.
func sendMany(ctx context.Context, rdb redis.UniversalClient, calls []*limitscripts.Call) error {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return sendSlots(ctx, cluster, calls)
	}
	err := limitscripts.AcquireMany(ctx, rdb, calls)
	if err != nil && ctx.Err() == nil && rediserr.Of(err) == rediserr.Lost {
		err = limitscripts.AcquireMany(ctx, rdb, calls)
	}
	if err != nil {
		each := err
		if rediserr.Of(err) == rediserr.CrossSlot { // a Cluster that its client does not show
			each = limitscripts.ErrRetrySingly
		}
		for _, c := range calls {
			c.Err = each
		}
	}
	return err
}

// sendSlots is [sendMany] on Redis Cluster. An error that a node answered may be
// about keys that have moved: go-redis finds them when the call is sent by itself.
func sendSlots(ctx context.Context, cluster *redis.ClusterClient, calls []*limitscripts.Call) (silent error) {
	limitscripts.AcquireHashSlots(ctx, cluster, calls)
	var lost []*limitscripts.Call
	for _, c := range calls {
		if c.Err != nil && ctx.Err() == nil && rediserr.Of(c.Err) == rediserr.Lost && !unreplicated(c) {
			lost = append(lost, c)
		}
	}
	if len(lost) > 0 {
		limitscripts.AcquireHashSlots(ctx, cluster, lost)
	}
	for _, c := range calls {
		switch {
		case c.Err == nil, unreplicated(c):
		case rediserr.Of(c.Err).Answered():
			c.Err = limitscripts.ErrRetrySingly
		case silent == nil && !errors.Is(c.Err, limitscripts.ErrRetrySingly):
			silent = c.Err
		}
	}
	return silent
}

// unreplicated says that a call was answered by a server that waited for its replicas in vain.
func unreplicated(c *limitscripts.Call) bool {
	_, is := errors.AsType[*luascripts.NotReplicatedError](c.Err)
	return is
}

// coalescers has one for each client that a limiter is on.
var coalescers = struct {
	mu    sync.Mutex
	alive map[redis.UniversalClient]weak.Pointer[coalescer]
}{alive: make(map[redis.UniversalClient]weak.Pointer[coalescer])}

// coalescerOf is the one coalescer of a client. A client that can't be compared gets
// a new one each time.
func coalescerOf(rdb redis.UniversalClient, scattered bool) *coalescer {
	fresh := newCoalescer(rdb, scattered)
	if !reflect.ValueOf(rdb).Comparable() {
		return fresh
	}
	coalescers.mu.Lock()
	defer coalescers.mu.Unlock()
	if earlier := coalescers.alive[rdb].Value(); earlier != nil {
		return earlier
	}
	coalescers.alive[rdb] = weak.Make(fresh)
	runtime.AddCleanup(fresh, forgetCoalescer, rdb)
	return fresh
}

func forgetCoalescer(rdb redis.UniversalClient) {
	coalescers.mu.Lock()
	defer coalescers.mu.Unlock()
	// the client may have a new one before this cleanup ran
	if coalescers.alive[rdb].Value() == nil {
		delete(coalescers.alive, rdb)
	}
}
