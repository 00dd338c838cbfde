package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// nodesGate is a hook that holds a Cluster client's scripts back until it is told to
// let them go, and counts: what comes meanwhile stands together.
type nodesGate struct {
	open              chan struct{} // closed: all go
	single, pipelines atomic.Int64  // round trips: of a script, of several to one node
	scripts           atomic.Int64  // in pipelines
	begun             atomic.Int64  // of both
}

func holdNodes(rdb *redis.ClusterClient) *nodesGate {
	g := &nodesGate{open: make(chan struct{})}
	rdb.AddHook(g)
	rdb.OnNewNode(func(node *redis.Client) { node.AddHook(nodeCount{g}) })
	_ = rdb.ForEachShard(context.Background(), func(_ context.Context, node *redis.Client) error {
		node.AddHook(nodeCount{g})
		return nil
	})
	return g
}

func (g *nodesGate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *nodesGate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			g.begun.Add(1)
			<-g.open
		}
		return next(ctx, cmd)
	}
}

func (g *nodesGate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if redistest.IsScript(cmds[0]) {
			g.begun.Add(1)
			<-g.open
		}
		return next(ctx, cmds)
	}
}

// nodeCount counts what really goes to a node.
type nodeCount struct{ *nodesGate }

func (g nodeCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			g.single.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (g nodeCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if redistest.IsScript(cmds[0]) {
			g.pipelines.Add(1)
			g.scripts.Add(int64(len(cmds)))
		}
		return next(ctx, cmds)
	}
}

// spread are n keys for each node of a Cluster, by its server's number.
func spread(t *testing.T, rdb *redis.ClusterClient, nodes []*redistest.Server, l *throttle.Limiter, n int) [][]string {
	t.Helper()
	keys := make([][]string, len(nodes))
	for i, full := 0, 0; full < len(nodes); i++ {
		key := fmt.Sprint("+49170", i)
		master, err := rdb.MasterForKey(t.Context(), l.Ledger(key))
		if err != nil {
			t.Fatal(err)
		}
		for k, node := range nodes {
			if node.Addr() == master.Options().Addr && len(keys[k]) < n {
				if keys[k] = append(keys[k], key); len(keys[k]) == n {
					full++
				}
			}
		}
	}
	return keys
}

// crowdOnNodes asks for each key of each node so often at once, with all calls but two
// for each node behind those, and returns the grants and the errors by key once
// meanwhile was called and the gate is open.
func crowdOnNodes(t *testing.T, rdb *redis.ClusterClient, gate *nodesGate, l *throttle.Limiter, keys [][]string, each int, meanwhile func()) (granted map[string]int, failed map[string][]error) {
	t.Helper()
	granted, failed = make(map[string]int), make(map[string][]error)
	var mu sync.Mutex
	var wg sync.WaitGroup
	all := 0
	for _, of := range keys {
		for _, key := range of {
			for range each {
				all++
				wg.Go(func() {
					d, err := l.TryAcquire(t.Context(), key, 1)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						failed[key] = append(failed[key], err)
					} else if d.Granted {
						granted[key]++
					}
				})
			}
		}
	}
	first := 2 * len(keys)
	waitFor(t, "two calls under way to each node and all others behind them", func() bool {
		return gate.begun.Load() == int64(first) && throttle.Gathered(rdb) == all-first
	})
	meanwhile()
	close(gate.open)
	wg.Wait()
	return granted, failed
}

// What comes on Cluster while calls to the same node are under way goes there in one
// pipeline, one script for each slot. Each is decided as if it had come alone.
func TestConcurrentAcquiresAreCoalescedOnCluster(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(2, time.Minute), throttle.Config{})
	throttle.Patient(rdb)
	const phones, each = 8, 5
	keys := spread(t, rdb, nodes, l, phones)
	for _, of := range keys { // all know the script
		if _, err := l.TryAcquire(t.Context(), of[0], 1); err != nil {
			t.Fatal(err)
		}
	}
	gate := holdNodes(rdb)
	granted, failed := crowdOnNodes(t, rdb, gate, l, keys, each, func() {})
	if len(failed) > 0 {
		t.Errorf("%d keys failed: %v", len(failed), failed)
	}
	for _, of := range keys {
		for i, key := range of {
			want := 2
			if i == 0 {
				want = 1
			}
			if granted[key] != want {
				t.Errorf("%s: %d granted, want %d", key, granted[key], want)
			}
		}
	}
	if single, pipelines := gate.single.Load(), gate.pipelines.Load(); single != 6 || pipelines != 3 {
		t.Errorf("%d scripts and %d pipelines for %d acquires, want 6 and 3", single, pipelines, 3*phones*each)
	}
	if n := gate.scripts.Load(); n < 3*(phones-2) || n > 3*phones {
		t.Errorf("%d scripts in pipelines, want one for each of the %d slots", n, 3*phones)
	}
}

// A lone call on Cluster is one script call, and waits for nobody.
func TestLoneAcquireOnClusterIsSentAtOnce(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 2)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	keys := spread(t, rdb, nodes, l, 6)
	gate := holdNodes(rdb)
	close(gate.open)
	for _, of := range keys {
		for _, key := range of {
			if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
			}
		}
	}
	// one more: behind the first call all nodes get the library
	if single, pipelines := gate.single.Load(), gate.pipelines.Load(); single != 13 || pipelines != 0 {
		t.Errorf("%d scripts and %d pipelines for 12 acquires, want 13 and 0", single, pipelines)
	}
}

// One node forgets the library: what it can't run is sent again, and the library is
// loaded once and not for each.
func TestCoalescedCallsOnANodeWithoutTheLibrary(t *testing.T) {
	redistest.NeedFunctions(t) // it looks at FCALL
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	throttle.Patient(rdb)
	keys := spread(t, rdb, nodes, l, 11)
	for i, of := range keys { // all nodes have the library, so that nobody loads it but for the one that forgets it
		if _, err := l.TryAcquire(t.Context(), of[0], 1); err != nil {
			t.Fatal(err)
		}
		keys[i] = of[1:]
	}
	gate := holdNodes(rdb)
	forgetful := &forgets{cluster: rdb, node: nodes[1].Client(t)}
	rdb.AddHook(forgetful)
	granted, failed := crowdOnNodes(t, rdb, gate, l, keys, 2, func() {})
	if len(failed) > 0 {
		t.Errorf("%d keys failed: %v", len(failed), failed)
	}
	for _, of := range keys {
		for _, key := range of {
			if granted[key] != 1 {
				t.Errorf("%s: %d granted, want 1", key, granted[key])
			}
		}
	}
	stats := forgetful.node.Info(t.Context(), "commandstats").Val()
	loads := regexp.MustCompile(`cmdstat_function\|load:calls=(\d+)`).FindStringSubmatch(stats)
	if loads == nil || loads[1] != "1" {
		t.Errorf("the library was loaded %q times after it was forgotten, want once", loads)
	}
}

// forgets lets a node forget its library, and its counts, before the first pipeline to it and
// behind the three calls that go alone: one before the crowd, and two before the others of it.
type forgets struct {
	cluster *redis.ClusterClient
	node    *redis.Client
	once    sync.Once
}

func (f *forgets) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *forgets) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f *forgets) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if args := cmds[0].Args(); redistest.IsScript(cmds[0]) {
			master, err := f.cluster.MasterForKey(ctx, args[3].(string))
			if err == nil && master.Options().Addr == f.node.Options().Addr {
				f.once.Do(func() {
					for !strings.Contains(f.node.Info(ctx, "commandstats").Val(), "cmdstat_fcall:calls=3,") && ctx.Err() == nil {
						runtime.Gosched()
					}
					f.node.FunctionFlush(ctx)
					f.node.ConfigResetStat(ctx)
				})
			}
		}
		return next(ctx, cmds)
	}
}

// One node of a Cluster is gone: only those fail whose keys it has.
func TestCoalescedCallsWithANodeDown(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	redistest.ServeInPart(t, nodes)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	throttle.Patient(rdb)
	keys := spread(t, rdb, nodes, l, 6)
	granted, failed := crowdOnNodes(t, rdb, holdNodes(rdb), l, keys, 3, nodes[1].Kill)
	for i, of := range keys {
		for _, key := range of {
			switch {
			case i != 1 && (granted[key] != 1 || len(failed[key]) > 0):
				t.Errorf("%s: %d granted, failed with %v, want 1 and no errors", key, granted[key], failed[key])
			case i == 1 && (granted[key] != 0 || len(failed[key]) != 3):
				t.Errorf("%s: %d granted, %d errors by a node that is gone", key, granted[key], len(failed[key]))
			}
			for _, err := range failed[key] {
				if !errors.Is(err, throttle.ErrUnavailable) {
					t.Errorf("%s: %v, want %v", key, err, throttle.ErrUnavailable)
				}
			}
		}
	}
}

// A silent node holds up its own keys only.
func TestSilentNodeHoldsUpItsOwnKeys(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	keys := spread(t, rdb, nodes, l, 30)
	for _, of := range keys { // connections and the script are there
		if _, err := l.TryAcquire(t.Context(), of[0], 1); err != nil {
			t.Fatal(err)
		}
	}
	nodes[1].Pause()
	var held sync.WaitGroup
	var early atomic.Int64
	for _, key := range keys[1][1:] {
		held.Go(func() {
			if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
				t.Errorf("TryAcquire = %v, %v, want a grant when the node is back", d, err)
			}
			early.Add(1)
		})
	}
	began := time.Now()
	var wg sync.WaitGroup
	for _, i := range []int{0, 2} {
		for _, key := range keys[i][1:] {
			wg.Go(func() {
				if d, err := l.TryAcquire(t.Context(), key, 1); err != nil || !d.Granted {
					t.Errorf("TryAcquire = %v, %v, want a grant", d, err)
				}
			})
		}
	}
	wg.Wait()
	if took := time.Since(began); took > 2*time.Second { // a read times out after 3 s
		t.Errorf("all others were answered after %v", took)
	}
	if n := early.Load(); n > 0 {
		t.Errorf("%d calls were answered by a node that is silent", n)
	}
	nodes[1].Resume()
	held.Wait()
}

// Slots move to another node while a crowd stands: who was sent to the old one is
// decided by the new one.
func TestCoalescedCallsFollowAMovedSlot(t *testing.T) {
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 2)
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
	throttle.Patient(rdb)
	keys := spread(t, rdb, nodes, l, 8)
	from, to := nodes[0].Client(t), nodes[1].Client(t)
	myID := func(node *redis.Client) string { return node.Do(t.Context(), "cluster", "myid").Val().(string) }
	granted, failed := crowdOnNodes(t, rdb, holdNodes(rdb), l, keys, 3, func() {
		for _, key := range keys[0][:4] {
			slot := rdb.ClusterKeySlot(t.Context(), l.Ledger(key)).Val()
			for _, move := range []struct {
				at, of *redis.Client
				how    string
			}{{to, from, "importing"}, {to, to, "node"}, {from, to, "node"}} { // only an import gives the new owner the last word
				if err := move.at.Do(t.Context(), "cluster", "setslot", slot, move.how, myID(move.of)).Err(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if len(failed) > 0 {
		t.Errorf("%d keys failed: %v", len(failed), failed)
	}
	for _, of := range keys {
		for _, key := range of {
			if granted[key] != 1 {
				t.Errorf("%s: %d granted, want 1", key, granted[key])
			}
		}
	}
	for _, key := range keys[0][:4] {
		if n := to.Exists(t.Context(), l.Ledger(key)).Val(); n != 1 {
			t.Errorf("%s is not where its slot is", key)
		}
	}
}

// A client of another type that stands before that of the Cluster is found out, and
// each call goes by itself then; nothing is granted twice on the way there.
func TestAcquiresAtOnceOnAHiddenCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	for i, rdb := range []redis.UniversalClient{cluster, struct{ redis.UniversalClient }{cluster}} {
		l := newLimiter(t, rdb, fmt.Sprint("sms", i), throttle.Sliding(3, time.Minute), throttle.Config{})
		const phones, each = 40, 10
		var granted [phones]atomic.Int64
		crowded(phones*each, func(i int) {
			d, err := l.TryAcquire(t.Context(), fmt.Sprint("+49170", i%phones), 1)
			if err != nil {
				t.Error(err)
			} else if d.Granted {
				granted[i%phones].Add(1)
			}
		})
		for i := range granted {
			if got := granted[i].Load(); got != 3 {
				t.Errorf("phone %d: %d granted, want 3", i, got)
			}
		}
	}
}
