package throttle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/coalesce"
	"github.com/headwayq/headway/internal/luascripts"
)

// merger makes one script call of acquires that come while others of the same
// client are under way to the same server, in the order of arrival, as much as is one
// script's work; see [coalesce.Lane] for when.
// On Redis Cluster, where a script sees the keys of one slot, that is one script for
// each slot in one pipeline for each node: a node that is silent holds up its own keys
// only.
//
// Each call is answered alone: one that failed among others is sent again by itself.
// When their answer was lost they are sent again together, once; the tokens are the
// same, which the scripts charge once. While Redis can't be reached nobody waits for
// others. A caller whose context ends does not wait either; if its call was sent, the
// caller takes it back as it does any lost one.
type coalescer struct {
	rdb       redis.UniversalClient
	way       coalesce.Transport[*luascripts.Call]
	scattered atomic.Bool // the keys are on servers that we don't know: each call goes by itself

	sole    *batcher             // of the one server that has all keys
	cluster *redis.ClusterClient // nil where there is such a server
	nodes   sync.Map             // *lane of each node, by address
	known   atomic.Int64         // how many
}

type batcher = coalesce.Batcher[*luascripts.Call]

// crowdFew is how many gather at least before one flight is enough.
const crowdFew = 2

// nodesMax is how many lanes are kept: nodes come and go, and where each that comes has
// an address of its own those of nodes that are gone would grow for ever.
const nodesMax = 1024

func newCoalescer(rdb redis.UniversalClient, scattered bool) *coalescer {
	m := &coalescer{rdb: rdb}
	m.way = coalesce.Transport[*luascripts.Call]{
		Alone: m.send, Together: m.sendMany, Patience: coalesce.PatienceDefault, Few: crowdFew,
		Weight: func(c *luascripts.Call) int { return weightOf(&c.AcquireArgs) }, Most: luascripts.CallsMax,
	}
	m.sole = coalesce.NewBatcher(&m.way)
	// one that a program has put something in front of is asked as it asks to be
	m.cluster, _ = rdb.(*redis.ClusterClient)
	m.scattered.Store(scattered && m.cluster == nil)
	return m
}

// acquire answers c. After an error the call may be under way still: c is not to be
// used again.
func (m *coalescer) acquire(ctx context.Context, c *luascripts.Call) error {
	if m.scattered.Load() {
		return m.send(ctx, c)
	}
	l, err := m.batcher(ctx, c)
	if err != nil {
		c.Err = fmt.Errorf("the node of a key: %w", err)
		return c.Err
	}
	if err := l.Do(ctx, c); err != nil {
		return err
	}
	if errors.Is(c.Err, luascripts.ErrRetrySingly) {
		return m.send(ctx, c)
	}
	return c.Err
}

// weightOf is how much of one script's work a call is: 1 for a rule and a permit.
func weightOf(a *luascripts.AcquireArgs) int {
	w := len(a.Rules)
	for i := range a.Rules {
		w += a.Rules[i].Cost / 128
	}
	return w
}

// lane is where the server of a call's keys is asked.
func (m *coalescer) batcher(ctx context.Context, c *luascripts.Call) (*batcher, error) {
	if m.cluster == nil {
		return m.sole, nil
	}
	node, err := m.cluster.MasterForKey(ctx, c.Rules[0].Ledger())
	if err != nil {
		return nil, err
	}
	return m.batcherTo(node.Options().Addr), nil
}

// laneTo is the lane to the node of an address.
func (m *coalescer) batcherTo(addr string) *batcher {
	l, ok := m.nodes.Load(addr)
	if ok {
		return l.(*batcher)
	}
	l, ok = m.nodes.LoadOrStore(addr, coalesce.NewBatcher(&m.way))
	if !ok && m.known.Add(1) > nodesMax {
		m.forgetIdle(addr)
	}
	return l.(*batcher)
}

// forgetIdle drops the lanes on which nobody is, but for one. Who was just about to enter
// one of them is served there, beside the one that comes in its place.
func (m *coalescer) forgetIdle(but string) {
	m.nodes.Range(func(addr, l any) bool {
		if addr != but && l.(*batcher).Idle() && m.nodes.CompareAndDelete(addr, l) {
			m.known.Add(-1)
		}
		return true
	})
}

// ask sends a call by itself.
func (m *coalescer) send(ctx context.Context, c *luascripts.Call) error {
	c.AcquireReply, c.Err = luascripts.Acquire(ctx, m.rdb, c.AcquireArgs)
	return c.Err
}

// askMany sends calls together.
func (m *coalescer) sendMany(ctx context.Context, calls []*luascripts.Call) error {
	err := sendMany(ctx, m.rdb, calls)
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		m.scattered.Store(true)
	}
	return err
}

// askMany asks for some calls at once, as much as is one script's work. Those whose
// answer was lost are asked for again, once. Each call has its own error then:
// ErrRetrySingly where what it comes back with alone is its answer. What is returned is the
// error of all of them, or the first that was none of Redis' answers.
func sendMany(ctx context.Context, rdb redis.UniversalClient, calls []*luascripts.Call) error {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return sendSlots(ctx, cluster, calls)
	}
	err := luascripts.AcquireMany(ctx, rdb, calls)
	if err != nil && ctx.Err() == nil && worthRepeating(err) {
		err = luascripts.AcquireMany(ctx, rdb, calls)
	}
	if err != nil {
		each := err
		if redis.HasErrorPrefix(err, "CROSSSLOT") { // a Cluster that its client does not show
			each = luascripts.ErrRetrySingly
		}
		for _, c := range calls {
			c.Err = each
		}
	}
	return err
}

// askSlots is [askMany] on Cluster. What a node answered an error to may be about where
// the keys are by now, for which go-redis looks when a call comes alone.
func sendSlots(ctx context.Context, cluster *redis.ClusterClient, calls []*luascripts.Call) (silent error) {
	luascripts.AcquireSlots(ctx, cluster, calls)
	var lost []*luascripts.Call
	for _, c := range calls {
		if c.Err != nil && ctx.Err() == nil && worthRepeating(c.Err) {
			lost = append(lost, c)
		}
	}
	if len(lost) > 0 {
		luascripts.AcquireSlots(ctx, cluster, lost)
	}
	for _, c := range calls {
		switch {
		case c.Err == nil:
		case coalesce.Answered(c.Err):
			c.Err = luascripts.ErrRetrySingly
		case silent == nil && !errors.Is(c.Err, luascripts.ErrRetrySingly):
			silent = c.Err
		}
	}
	return silent
}

// worthRepeating says that an answer was lost on its way, and Redis seems to be there:
// a time-out was waited for once.
func worthRepeating(err error) bool {
	if coalesce.Answered(err) || coalesce.TimedOut(err) {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial"
}

// mergers has one for each client that a limiter is on.
var mergers = struct {
	mu    sync.Mutex
	alive map[redis.UniversalClient]weak.Pointer[coalescer]
}{alive: make(map[redis.UniversalClient]weak.Pointer[coalescer])}

// mergerOf is the merger of a client. What can't be compared shares none.
func coalescerOf(rdb redis.UniversalClient, scattered bool) *coalescer {
	fresh := newCoalescer(rdb, scattered)
	if !reflect.ValueOf(rdb).Comparable() {
		return fresh
	}
	mergers.mu.Lock()
	defer mergers.mu.Unlock()
	if earlier := mergers.alive[rdb].Value(); earlier != nil {
		return earlier
	}
	mergers.alive[rdb] = weak.Make(fresh)
	runtime.AddCleanup(fresh, forgetCoalescer, rdb)
	return fresh
}

func forgetCoalescer(rdb redis.UniversalClient) {
	mergers.mu.Lock()
	defer mergers.mu.Unlock()
	// the client may have a new one before this cleanup ran
	if mergers.alive[rdb].Value() == nil {
		delete(mergers.alive, rdb)
	}
}
