package redisserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// clusterPatience is after how many milliseconds the others say that a node is gone.
const clusterPatience = "2000"

// Slots is how many slots a Redis Cluster has.
const Slots = 16384

// formsWithin is how long nodes may take until all of them know each other.
const formsWithin = 30 * time.Second

// Cluster is a Redis Cluster of our own, whose masters share the slots evenly. The order
// of the masters is that of their slots, and that of the replicas is that of their masters.
type Cluster struct {
	Masters, Replicas []*Process

	dir  string // where the nodes keep their files
	made int    // nodes that were started, for the names of their directories
}

// LaunchCluster starts masters, and a replica for each if they are replicated. A replica takes
// over about two seconds after its master died. The nodes keep their files below dir. The
// caller ends it with [Cluster.Close].
func LaunchCluster(dir string, masters int, replicated bool) (*Cluster, error) {
	c := &Cluster{dir: dir}
	err := c.form(masters)
	if err == nil && replicated {
		err = c.replicate()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Nodes returns all nodes, masters first.
func (c *Cluster) Nodes() []*Process {
	return append(append([]*Process(nil), c.Masters...), c.Replicas...)
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrsOf(c.Nodes()) }

// Close ends all nodes.
func (c *Cluster) Close() error { return closeAll(c.Nodes()) }

// AddMaster starts one more master, which has no slots.
func (c *Cluster) AddMaster() (*Process, error) {
	node, err := c.meet()
	if err != nil {
		return nil, err
	}
	c.Masters = append(c.Masters, node)
	return node, c.joined()
}

// RemoveMaster ends a master that has no slots any more, and lets the others forget it.
func (c *Cluster) RemoveMaster(node *Process) error {
	id, err := ask(node.Addr(), "cluster myid")
	if err != nil {
		return err
	}
	errs := []error{node.Close()}
	c.Masters = slices.DeleteFunc(c.Masters, func(m *Process) bool { return m == node })
	for _, other := range c.Nodes() {
		if other.Pid() != 0 {
			errs = append(errs, tell(other.Addr(), "cluster", "forget", id))
		}
	}
	return errors.Join(errs...)
}

// Unserve lets the owner of a slot serve it no more, and with it no slot at all, until serve is called.
func (c *Cluster) Unserve(ctx context.Context, slot int) (serve func() error, err error) {
	owner, err := c.Owner(ctx, slot)
	if err != nil {
		return nil, err
	}
	if err := tell(owner.Addr(), "cluster", "delslots", slot); err != nil {
		return nil, err
	}
	return func() error { return tell(owner.Addr(), "cluster", "addslots", slot) }, nil
}

// Shard is a master, who follows it, and its ranges of slots, first and last.
type Shard struct {
	Master   *Process
	Replicas []*Process
	Slots    [][2]int
}

// Has says whether the master has a slot.
func (s Shard) Has(slot int) bool {
	return slices.ContainsFunc(s.Slots, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}

// Shards returns who leads whom, as a node that runs says it.
func (c *Cluster) Shards(ctx context.Context) ([]Shard, error) {
	var errs []error
	for _, node := range c.Nodes() {
		if node.Pid() == 0 {
			continue
		}
		rdb := redis.NewClient(&redis.Options{Addr: node.Addr(), ReadTimeout: time.Second, MaxRetries: -1}) // it may stand still
		shards, err := rdb.ClusterShards(ctx).Result()
		_ = rdb.Close()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return c.shards(shards), nil
	}
	return nil, fmt.Errorf("redisserver: no node says who has which slots: %w", errors.Join(errs...))
}

func (c *Cluster) shards(told []redis.ClusterShard) []Shard {
	byAddr := map[string]*Process{}
	for _, node := range c.Nodes() {
		byAddr[node.Addr()] = node
	}
	var all []Shard
	for _, t := range told {
		var s Shard
		for _, n := range t.Nodes {
			switch node := byAddr[net.JoinHostPort(n.IP, strconv.FormatInt(n.Port, 10))]; {
			case node == nil:
			case n.Health == "fail" || n.Health == "failed": // it stays in the list, as a master
			case n.Role == "master":
				s.Master = node
			default:
				s.Replicas = append(s.Replicas, node)
			}
		}
		for _, r := range t.Slots {
			s.Slots = append(s.Slots, [2]int{int(r.Start), int(r.End)})
		}
		if s.Master != nil && len(s.Slots) > 0 { // one that failed and was replaced has none
			all = append(all, s)
		}
	}
	return all
}

// Owner returns the node that says of itself that it has a slot. The others may not have heard.
func (c *Cluster) Owner(ctx context.Context, slot int) (*Process, error) {
	for _, node := range c.Nodes() {
		if node.Pid() == 0 {
			continue
		}
		rdb := client(node.Addr())
		told, err := rdb.ClusterShards(ctx).Result()
		_ = rdb.Close()
		if err != nil {
			return nil, fmt.Errorf("redisserver: %w", err)
		}
		for _, s := range c.shards(told) {
			if s.Master == node && s.Has(slot) {
				return node, nil
			}
		}
	}
	return nil, fmt.Errorf("redisserver: nobody has slot %d", slot)
}

// Whole waits until all nodes that run say that all slots are served, and one of them says that
// each leads or follows, and that no master is without a replica.
func (c *Cluster) Whole(ctx context.Context, within time.Duration) error {
	return until(ctx, within, func() (bool, error) {
		running := 0
		for _, node := range c.Nodes() {
			if node.Pid() == 0 {
				continue
			}
			running++
			if info, err := ask(node.Addr(), "cluster info"); err != nil || !strings.Contains(info, "cluster_state:ok") {
				return false, err
			}
		}
		shards, err := c.Shards(ctx)
		listed := 0
		for _, s := range shards {
			listed += 1 + len(s.Replicas)
			if len(s.Replicas) == 0 && len(c.Replicas) > 0 {
				return false, err
			}
		}
		return listed == running, err
	})
}

// Move moves a slot with its keys from one node to another, while both serve it.
func (c *Cluster) Move(ctx context.Context, slot int, from, to *Process) error {
	return c.MoveAll(ctx, []int{slot}, from, to)
}

// moveTogether is how many slots MoveAll moves at a time.
const moveTogether = 64

// MoveAll moves slots with their keys from one node to another, while both serve them.
func (c *Cluster) MoveAll(ctx context.Context, slots []int, from, to *Process) error {
	for some := range slices.Chunk(slots, moveTogether) {
		m, err := c.BeginMove(ctx, some, from, to)
		if err != nil {
			return err
		}
		if err := m.MoveKeys(ctx, func(string) bool { return true }); err != nil {
			return err
		}
		if err := m.End(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Migration is slots on their way from one node to another. See [Cluster.BeginMove].
type Migration struct {
	cluster  *Cluster
	slots    []int
	from, to *Process
	targetID string
}

// BeginMove lets slots begin to move to another node. From now on the source sends calls about keys that it does not have to the
// target. The keys move with [Migration.MoveKeys], and the slots themselves with [Migration.End].
func (c *Cluster) BeginMove(ctx context.Context, slots []int, from, to *Process) (*Migration, error) {
	sourceID, err := ask(from.Addr(), "cluster myid")
	if err != nil {
		return nil, err
	}
	targetID, err := ask(to.Addr(), "cluster myid")
	if err != nil {
		return nil, err
	}
	// The source first: when it does not have a slot any more, nothing has been changed at the target.
	if err := setSlots(ctx, from, slots, "migrating", targetID); err != nil {
		return nil, errors.Join(err, setSlots(ctx, from, slots, "stable"))
	}
	if err := setSlots(ctx, to, slots, "importing", sourceID); err != nil {
		return nil, errors.Join(err, setSlots(ctx, from, slots, "stable"))
	}
	return &Migration{c, slots, from, to, targetID}, nil
}

// MoveKeys moves the keys of the slots for which which says so, as long as the source has any of them.
func (m *Migration) MoveKeys(ctx context.Context, which func(key string) bool) error {
	// A call that is repeated while the first one goes on would find keys at the target.
	source := redis.NewClient(&redis.Options{Addr: m.from.Addr(), MaxRetries: -1, ReadTimeout: 2 * migrateWithin})
	target := client(m.to.Addr())
	defer source.Close()
	defer target.Close()
	left := m.slots
	for most := 100; len(left) > 0; most *= 2 { // the first keys may be those that stay
		pipe := source.Pipeline()
		found := make([]*redis.StringSliceCmd, len(left))
		for i, slot := range left {
			found[i] = pipe.ClusterGetKeysInSlot(ctx, slot, most)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("redisserver: %w", err)
		}
		var more []int
		for i, slot := range left {
			keys := found[i].Val()
			if len(keys) == most {
				more = append(more, slot)
			}
			keys = slices.DeleteFunc(keys, func(key string) bool { return !which(key) })
			if len(keys) == 0 {
				continue
			}
			if err := migrate(ctx, source, m.to.Addr(), keys); err != nil {
				return fmt.Errorf("redisserver: %w%s", err, onBoth(ctx, source, target, keys))
			}
		}
		left = more
	}
	return nil
}

// migrateWithin is for how long a node waits for another one while it moves keys, and migrateTries is how often it tries.
const (
	migrateWithin = 5 * time.Second
	migrateTries  = 5
)

// migrate moves keys from a node to another one. On a busy machine the source may not hear in time that the target has a key, and keeps
// it. It goes on to serve the key, so its own copy is the right one, and replaces that of the target.
func migrate(ctx context.Context, source *redis.Client, target string, keys []string) error {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		args := []any{"migrate", host, port, "", 0, migrateWithin.Milliseconds()}
		if try > 1 {
			args = append(args, "replace")
		}
		args = append(args, "keys")
		for _, key := range keys {
			args = append(args, key)
		}
		if err = source.Do(ctx, args...).Err(); try == migrateTries || !redis.HasErrorPrefix(err, "IOERR") {
			return err
		}
	}
}

// End gives the slots to the target. The source must have none of their keys any more.
func (m *Migration) End(ctx context.Context) error {
	// A message that the source sent before it gave the slots up still claims them. The target
	// must know the epoch of the source by then: it gives a slot to who claims it with a
	// greater epoch than its own, and then nobody has it.
	if err := heardOf(ctx, m.to, m.from); err != nil {
		return err
	}
	// Others hear of it in time, and until then send clients to the wrong node.
	shards, err := m.cluster.Shards(ctx)
	if err != nil {
		return err
	}
	errs := []error{setSlots(ctx, m.to, m.slots, "node", m.targetID)}
	for _, s := range shards {
		if s.Master != m.to {
			errs = append(errs, setSlots(ctx, s.Master, m.slots, "node", m.targetID))
		}
	}
	return errors.Join(errs...)
}

// setSlots tells a node the same of some slots.
func setSlots(ctx context.Context, node *Process, slots []int, what ...any) error {
	rdb := client(node.Addr())
	defer rdb.Close()
	pipe := rdb.Pipeline()
	for _, slot := range slots {
		pipe.Do(ctx, append([]any{"cluster", "setslot", slot}, what...)...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("redisserver: %d slots from %d on, %v: %w", len(slots), slots[0], what, err)
	}
	return nil
}

// onBoth names the keys of a slot that moves which both nodes have, one behind the other in text: none of them can be moved.
func onBoth(ctx context.Context, source, target *redis.Client, keys []string) string {
	var text strings.Builder
	for _, key := range keys {
		pipe := target.Pipeline()
		pipe.Do(ctx, "asking")
		kind := pipe.Type(ctx, key)
		if _, err := pipe.Exec(ctx); err == nil && kind.Val() != "none" {
			fmt.Fprintf(&text, "; %s is a %s here and a %s there", key, source.Type(ctx, key).Val(), kind.Val())
		}
	}
	return text.String()
}

// heardOf waits until a node knows the epoch that another one claims its slots with.
func heardOf(ctx context.Context, node, other *Process) error {
	claimed, err := epoch(other, "cluster_my_epoch")
	if err != nil {
		return err
	}
	return until(ctx, formsWithin, func() (bool, error) {
		known, err := epoch(node, "cluster_current_epoch")
		return known >= claimed, err
	})
}

func epoch(node *Process, which string) (int64, error) {
	info, err := ask(node.Addr(), "cluster info")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(info, which+":")
	value, _, _ := strings.Cut(after, "\r\n")
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redisserver: %s of %q: %w", which, info, err)
	}
	return n, nil
}

// form starts the masters, and gives them their slots.
func (c *Cluster) form(masters int) error {
	for i := range masters {
		node, err := c.meet()
		if err != nil {
			return err
		}
		c.Masters = append(c.Masters, node)
		if err := tell(node.Addr(), "cluster", "addslotsrange", i*Slots/masters, (i+1)*Slots/masters-1); err != nil {
			return err
		}
	}
	return c.joined()
}

// replicate gives each master a replica that has its data.
func (c *Cluster) replicate() error {
	for range c.Masters {
		replica, err := c.meet()
		if err != nil {
			return err
		}
		c.Replicas = append(c.Replicas, replica)
	}
	if err := c.joined(); err != nil {
		return err
	}
	for i, replica := range c.Replicas {
		id, err := ask(c.Masters[i].Addr(), "cluster myid")
		if err != nil {
			return err
		}
		if err := tell(replica.Addr(), "cluster", "replicate", id); err != nil {
			return err
		}
	}
	for _, replica := range c.Replicas {
		if err := Following(replica); err != nil {
			return err
		}
	}
	return nil
}

// meet starts a node, which hears of the others.
func (c *Cluster) meet() (*Process, error) {
	n := c.made
	c.made++
	node, err := launchIn(c.dir, n, Arg("cluster-enabled", "yes"), Arg("cluster-node-timeout", clusterPatience), Arg("repl-diskless-sync-delay", "0"),
		Arg("cluster-allow-replica-migration", "no"), // else a master that gave its last slot away becomes a replica
		Arg("cluster-replica-validity-factor", "0"))  // else a replica tries to take over for half a minute only
	if err != nil {
		return nil, err
	}
	// Masters of one epoch part later, by themselves. A replica whose master does so and dies before it has told can't take over:
	// the others know a newer epoch of its slots.
	if err := tell(node.Addr(), "cluster", "set-config-epoch", c.made); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	if len(c.Masters) == 0 {
		return node, nil
	}
	host, port, err := net.SplitHostPort(c.Masters[0].Addr())
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	if err := tell(node.Addr(), "cluster", "meet", host, port); err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return node, nil
}

// joined waits until each node knows the whole cluster.
func (c *Cluster) joined() error {
	want := fmt.Sprintf("cluster_known_nodes:%d", len(c.Nodes()))
	for _, node := range c.Nodes() {
		rdb := client(node.Addr())
		var info string
		err := until(context.Background(), formsWithin, func() (done bool, err error) {
			info, err = rdb.ClusterInfo(context.Background()).Result()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, want), err
		})
		_ = rdb.Close()
		if err != nil {
			return fmt.Errorf("redisserver: the cluster did not form, a node says %q: %w", info, err)
		}
	}
	return nil
}

// Following waits until a replica has the data of its master.
func Following(replica *Process) error {
	var info string
	err := until(context.Background(), formsWithin, func() (done bool, err error) {
		info, err = ask(replica.Addr(), "info replication")
		return strings.Contains(info, "master_link_status:up"), err
	})
	if err != nil {
		return fmt.Errorf("redisserver: a replica did not follow its master, it says %q: %w", info, err)
	}
	return nil
}

// until waits until something is done. What goes wrong meanwhile is told when the time is over.
func until(ctx context.Context, within time.Duration, done func() (bool, error)) error {
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		if err == nil {
			err = errors.New("all answer, and it is not so yet")
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Now().After(end) {
			return fmt.Errorf("not after %v: %w", within, err)
		}
	}
}

// launchIn starts a server that keeps its files in the n-th directory below dir.
func launchIn(dir string, n int, opts ...Option) (*Process, error) {
	own := filepath.Join(dir, fmt.Sprint(n))
	if err := os.Mkdir(own, 0o700); err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	return Launch(own, opts...)
}

func addrsOf(all []*Process) []string {
	var addrs []string
	for _, p := range all {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

func closeAll(all []*Process) error {
	var errs []error
	for _, p := range all {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

func client(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr})
}

// tell sends a command to one node.
func tell(addr string, args ...any) error {
	c := client(addr)
	defer c.Close()
	if err := c.Do(context.Background(), args...).Err(); err != nil {
		return fmt.Errorf("redisserver: %v: %w", args, err)
	}
	return nil
}
