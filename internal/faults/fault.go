package faults

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
	"github.com/headwayq/headway/throttle"
)

// Fault is a kind of fault that a run can be led through.
type Fault struct {
	Name  string
	About string
	// Forgets says that Redis itself forgets what it had accepted just before a strike, so that
	// grants and tasks may be lost. Such a run tells how many, and is no failure for that.
	Forgets bool
	// ForgetsAll says that Redis forgets all.
	ForgetsAll bool
	// KeepsLimits says that no limit is broken by what Redis forgets.
	KeepsLimits bool
	// MovesClock says that the clock of Redis jumps. Limits go by it, so the gateway's clock is no judge of them.
	MovesClock bool

	// Soak says that the load is a mixed one, and that one more process is never struck: it must not
	// need more and more, and nothing may be left in Redis that should be gone.
	Soak bool

	// Long is how long a run takes until the fault has happened as often as docs/reliability.md wants.
	Long time.Duration

	start         starter
	limits        throttle.Config // of the workers
	lag           time.Duration   // how far a replica, or a file, may lag behind what Redis answered; 0 for lagDefault
	jumpsForGood  bool            // the clock of Redis never comes back to where it was
	clocksWorkers bool            // the clocks of worker processes can be set
	takes         time.Duration   // by the gateway for a message; 0 for gatewayTakes
	bySlots       bool            // all slots of `concurrent` are taken, and hold up more than the provider's rate does
	refuses       bool            // the gateway of the run refuses a message now and then, as that of a soak
	atWorkers     bool            // strikes do not touch replies of Redis: they explain no message that is sent again
	every         time.Duration   // from the end of a strike to the next one, on average
	// strike does the fault once, and returns what it did when it is over. Nil does nothing.
	strike func(ctx context.Context, r *run) (what string, err error)
	// mixes are the names of faults whose strikes, one of them each time, are those of this one.
	mixes []string
}

const deployAbout = "worker processes are replaced one by one by those of another release, now and then with another policy, while limits change"

const slowProviderAbout = "nothing happens, but messages take so long that all slots are taken, and more wait for one"

const workerClockAbout = "the clock of a worker process jumps by 1 to 4 s or an hour, forward or back, and some seconds later to where it was"

// All returns the faults, in the order of the documentation.
func All() []Fault {
	always := []redisserver.Option{redisserver.AOF()}
	alwaysAndDebug := []redisserver.Option{redisserver.AOF(), redisserver.Arg("enable-debug-command", "yes")}
	everySecond := []redisserver.Option{redisserver.AOF(), redisserver.Arg("appendfsync", "everysec")}
	minReplicas := []redisserver.Option{redisserver.Arg("min-replicas-to-write", "1"), redisserver.Arg("min-replicas-max-lag", "2")}
	snapshots := []redisserver.Option{redisserver.Arg("save", "1", "1")}
	return []Fault{
		{Name: "none", About: "nothing happens: what to compare the others on one server with", Long: time.Minute, start: alone("one server")},
		{
			Name: "slow-provider", About: slowProviderAbout, Long: 4 * time.Minute, start: alone("one server"),
			takes: takesAllSlots, bySlots: true,
		},
		{
			Name: "workers", About: "again and again a worker process is killed, stands still for 3 s, or is stopped cleanly",
			Long: 4 * time.Minute, start: alone("one server"), atWorkers: true, every: time.Second, strike: strikeWorkers,
		},
		{
			Name: "workers-kill", About: "again and again a worker process is killed",
			Long: 18 * time.Minute, start: alone("one server"), atWorkers: true, every: 500 * time.Millisecond, strike: killWorker,
		},
		{
			Name: "deploy", About: deployAbout,
			Long: 4 * time.Minute, start: alone("one server"), atWorkers: true, every: 2 * time.Second, strike: strikeDeploy,
		},
		{
			Name: "restart-always", About: "Redis is killed and started again, often while it writes its file anew, with appendfsync always",
			Long: 9 * time.Minute, start: alone("one server, AOF always", always...), every: 4 * time.Second, strike: restartInRewrite,
		},
		{
			Name: "restart-everysec", About: "Redis is killed and started again, often while it writes its file anew, with appendfsync everysec", Forgets: true,
			Long: 18 * time.Minute, start: alone("one server, AOF everysec", everySecond...), every: 10 * time.Second, strike: restartInRewrite,
		},
		{
			Name: "restart-snapshot", About: "Redis is killed and started again, with a snapshot each second or two as its only file", Forgets: true,
			Long: 18 * time.Minute, start: alone("one server, snapshots", snapshots...), lag: 4 * time.Second, every: 10 * time.Second, strike: restart,
		},
		{
			Name: "restart-empty", About: "Redis without persistence is killed and started again: all is forgotten", Forgets: true, ForgetsAll: true,
			Long: 18 * time.Minute, start: alone("one server, no persistence"), every: 10 * time.Second, strike: restart,
		},
		{
			Name: "network", About: "latency and jitter, packets lost, connections cut, replies lost, connections that stay open and carry nothing, silence of 4 s",
			Long: 4 * time.Minute, start: behindProxy("one server behind a proxy"), every: 2 * time.Second, strike: strikeNetwork,
		},
		{
			Name: "silence", About: "Redis takes calls, and answers none for a minute",
			Long: 6 * time.Minute, start: alone("one server"), every: 20 * time.Second, strike: silence(time.Minute),
		},
		{
			Name:  "server",
			About: "full memory, CLIENT PAUSE, CLIENT KILL, SCRIPT FLUSH, FUNCTION FLUSH, a command that takes half a second, BGSAVE, a rewritten AOF",
			Long:  4 * time.Minute, start: alone("one server, AOF always", alwaysAndDebug...),
			every: 2 * time.Second, strike: strikeServer,
		},
		{
			Name: "clock", About: "the clock of Redis jumps by 1 to 4 s, forward or back, and some seconds later to where it was", MovesClock: true,
			Long: 4 * time.Minute, start: clocked(alone("one server whose clock jumps")), every: 4 * time.Second, strike: jumpClock,
		},
		{
			Name: "clock-hour", About: "the clock of Redis jumps an hour ahead, again and again", MovesClock: true, jumpsForGood: true,
			Long: 2 * time.Minute, start: clocked(alone("one server whose clock jumps")), every: 10 * time.Second, strike: jumpByAnHour,
		},
		{
			Name: "worker-clock", About: workerClockAbout,
			Long: 12 * time.Minute, start: alone("one server"), every: 4 * time.Second, strike: jumpWorkerClock(mostlyShort),
			clocksWorkers: true, takes: takesLong, refuses: true, atWorkers: true,
		},
		{
			Name: "soak", Soak: true,
			About: "what workers, deploy, restart-always, network and server do, in turns under a mixed load, and nothing may leak",
			Long:  time.Hour, start: behindProxy("one server behind a proxy, AOF always", alwaysAndDebug...),
			every: 4 * time.Second, mixes: []string{"workers", "deploy", "restart-always", "network", "server"},
		},
		{
			Name: "sentinel-kill", About: "the master is killed, and Sentinel makes a replica the master", Forgets: true,
			Long: 14 * time.Minute, start: watched(), every: 10 * time.Second, strike: killMaster,
		},
		{
			Name: "sentinel-kill-min-replicas", About: "as sentinel-kill, with min-replicas-to-write 1", Forgets: true,
			Long: 14 * time.Minute, start: watched(minReplicas...), every: 10 * time.Second, strike: killMaster,
		},
		{
			Name: "sentinel-kill-replicas", About: "as sentinel-kill, where both replicas must have a grant", Forgets: true, KeepsLimits: true,
			Long: 14 * time.Minute, start: watched(), limits: throttle.Config{Replicas: 2}, every: 10 * time.Second, strike: killMaster,
		},
		{
			Name: "sentinel-frozen", About: "the master stands still until Sentinel has replaced it, and comes back as a second master for a moment", Forgets: true,
			Long: 22 * time.Minute, start: watched(), every: 10 * time.Second, strike: freezeMaster,
		},
		{
			Name: "sentinel-min-replicas", About: "the master stands still, with min-replicas-to-write 1: without replicas it refuses to write", Forgets: true,
			Long: 22 * time.Minute, start: watched(minReplicas...),
			every: 10 * time.Second, strike: freezeMaster,
		},
		{
			Name: "sentinel-partition", Forgets: true,
			About: "for ten seconds the master is cut off from all but half of the workers, and Sentinel makes another one: there are two masters",
			Long:  16 * time.Minute, start: divisible(), every: 10 * time.Second, strike: divide(10 * time.Second),
		},
		{
			Name: "sentinel-partition-min-replicas", About: "as sentinel-partition, with min-replicas-to-write 1", Forgets: true,
			Long: 16 * time.Minute, start: divisible(minReplicas...), every: 10 * time.Second, strike: divide(10 * time.Second),
		},
		{
			Name: "sentinel-partition-replicas", About: "as sentinel-partition, where both replicas must have a grant", Forgets: true, KeepsLimits: true,
			Long: 16 * time.Minute, start: divisible(), limits: throttle.Config{Replicas: 2}, every: 10 * time.Second, strike: divide(10 * time.Second),
		},
		{
			Name: "sentinel-failover", About: "SENTINEL FAILOVER, as it is", Forgets: true,
			Long: 16 * time.Minute, start: watched(), every: 10 * time.Second, strike: failover(false),
		},
		{
			Name: "sentinel-paused", About: "SENTINEL FAILOVER after CLIENT PAUSE 5000 WRITE on the master, as docs/production.md says",
			Long: 13 * time.Minute, start: watched(), every: 5 * time.Second, strike: failover(true),
		},
		{
			Name: "sentinel-clock", MovesClock: true,
			About: "as sentinel-paused, in turns to a master whose clock is 1 to 4 s ahead or behind, and to one whose clock is right",
			Long:  8 * time.Minute, start: clocked(watched()), every: 5 * time.Second, strike: failoverToAnotherClock,
		},
		{
			Name: "sentinel-clock-hour", About: "as sentinel-paused, each time to a master whose clock is an hour ahead of the one before", MovesClock: true,
			jumpsForGood: true,
			Long:         4 * time.Minute, start: clocked(watched()), every: 5 * time.Second, strike: failoverToALaterClock,
		},
		{
			Name: "sentinel-held", About: "SENTINEL FAILOVER, with HoldAfterFailover", Forgets: true, KeepsLimits: true,
			Long: 16 * time.Minute, start: watched(), limits: throttle.Config{HoldAfterFailover: true}, every: 10 * time.Second,
			strike: failover(false),
		},
		{
			Name: "sentinel-replicas", About: "SENTINEL FAILOVER, where both replicas must have a grant", Forgets: true, KeepsLimits: true,
			Long: 16 * time.Minute, start: watched(), limits: throttle.Config{Replicas: 2}, every: 10 * time.Second,
			strike: failover(false),
		},
		{Name: "cluster-none", About: "nothing happens on a cluster", Long: time.Minute, start: cluster},
		{
			Name: "cluster-slow-provider", About: slowProviderAbout + ", on a cluster", Long: 4 * time.Minute, start: cluster,
			takes: takesAllSlots, bySlots: true,
		},
		{
			Name: "cluster-deploy", About: deployAbout + ", on a cluster",
			Long: 4 * time.Minute, start: cluster, atWorkers: true, every: 2 * time.Second, strike: strikeDeploy,
		},
		{
			Name: "cluster-kill", About: "a master of a cluster is killed, and its replica takes over", Forgets: true,
			Long: 13 * time.Minute, start: cluster, every: 10 * time.Second, strike: killNode,
		},
		{
			Name: "cluster-frozen", About: "a master of a cluster stands still, its replica takes over, and it comes back", Forgets: true,
			Long: 13 * time.Minute, start: cluster, every: 10 * time.Second, strike: freezeNode,
		},
		{
			Name: "cluster-failover", About: "CLUSTER FAILOVER on a replica",
			Long: 4 * time.Minute, start: cluster, every: 3 * time.Second, strike: clusterFailover,
		},
		{
			Name: "cluster-worker-clock", About: workerClockAbout,
			Long: 12 * time.Minute, start: cluster, every: 4 * time.Second, strike: jumpWorkerClock(mostlyShort),
			clocksWorkers: true, takes: takesLong, refuses: true, atWorkers: true,
		},
		{
			Name: "reshard", About: "slots move from one master of a cluster to another, that of the queue among them",
			Long: 2 * time.Minute, start: cluster, every: 2 * time.Second, strike: reshard,
		},
		{
			Name: "reshard-half", About: "half of all slots of a cluster move to other masters",
			Long: 4 * time.Minute, start: cluster, every: 4 * time.Second, strike: reshardHalf,
		},
		{
			Name: "cluster-nodes", About: "a master is added to a cluster, gets slots, gives them away, and is removed",
			Long: 2 * time.Minute, start: cluster, every: 2 * time.Second, strike: addAndRemoveNode,
		},
		{
			Name: "cluster-down", About: "a master of a cluster does not serve one of its slots, and so none, for two seconds",
			Long: 3 * time.Minute, start: cluster, every: 3 * time.Second, strike: unserveSlot,
		},
	}
}

// Find returns the fault of a name.
func Find(name string) (Fault, bool) {
	all := All()
	i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, false
	}
	return all[i], true
}

// kinds are the faults that strike in a run of this one.
func (f Fault) kinds() []Fault {
	var kinds []Fault
	for _, name := range f.mixes {
		mixed, _ := Find(name)
		kinds = append(kinds, mixed)
	}
	if f.strike != nil {
		kinds = append(kinds, f)
	}
	return kinds
}

func strikeWorkers(_ context.Context, r *run) (string, error) {
	p, err := r.crew.pick(r.random)
	if err != nil {
		return "", err
	}
	switch r.kind(3) {
	case 0:
		p.kill()
		return workerKilled, r.crew.start()
	case 1:
		p.standStill(3 * time.Second)
		return "a worker stood still", nil
	}
	if err := p.stop(); err != nil {
		return "", err
	}
	return "a worker stopped", r.crew.start()
}

const workerKilled = "a worker killed"

func killWorker(_ context.Context, r *run) (string, error) {
	p, err := r.crew.pick(r.random)
	if err != nil {
		return "", err
	}
	p.kill()
	return workerKilled, r.crew.start()
}

func restart(_ context.Context, r *run) (string, error) {
	if err := r.system.one.Kill(); err != nil {
		return "", err
	}
	time.Sleep(r.upTo(time.Second))
	return "Redis killed", r.system.one.StartAgain()
}

// restartInRewrite kills a server with an AOF, every second time shortly after it has begun to write that file anew.
func restartInRewrite(ctx context.Context, r *run) (string, error) {
	if r.random.IntN(2) == 0 {
		return restart(ctx, r)
	}
	rdb := redis.NewClient(&redis.Options{Addr: r.system.one.Addr()})
	err := unlessBusy(rdb.BgRewriteAOF(ctx).Err())
	_ = rdb.Close()
	if err != nil {
		return "", err
	}
	time.Sleep(r.upTo(100 * time.Millisecond))
	_, err = restart(ctx, r)
	return "Redis killed in a rewrite", err
}

// networkKinds and serverKinds are how many ways there are to strike.
const (
	networkKinds = 6
	serverKinds  = 8
)

func strikeNetwork(ctx context.Context, r *run) (string, error) {
	p := r.system.proxy
	what := ""
	switch r.kind(networkKinds) {
	case 0:
		what = latency
		for range 20 {
			p.Delay(r.upTo(25 * time.Millisecond))
			time.Sleep(100 * time.Millisecond)
		}
		p.Delay(0)
	case 1:
		what = "connections cut"
		for range 5 {
			p.Refuse(true)
			p.Refuse(false)
			time.Sleep(200 * time.Millisecond)
		}
	case 2:
		what = "replies lost"
		calls, before := 0, p.Cuts()
		p.CutReplies(func(request []byte) bool {
			if !bytes.Contains(request, []byte("fcall")) && !bytes.Contains(request, []byte("evalsha")) {
				return false
			}
			calls++
			return calls%20 == 0
		})
		time.Sleep(2 * time.Second)
		p.CutReplies(nil)
		if p.Cuts() == before {
			return "", errors.New("no reply was lost")
		}
	case 3:
		what = "connections dead"
		p.Deaden()
		time.Sleep(4 * time.Second) // longer than go-redis waits for a reply
	case 4:
		what = "packets lost"
		p.LosePackets(0.05)
		time.Sleep(3 * time.Second)
		p.LosePackets(0)
	case 5:
		var err error
		if what, err = silence(4*time.Second)(ctx, r); err != nil {
			return "", err
		}
	}
	if fault, ok := r.system.proxyFault.Load().(string); ok {
		return "", errors.New(fault)
	}
	return what, nil
}

// silence lets Redis stand still.
func silence(d time.Duration) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		if err := r.system.one.Pause(); err != nil {
			return "", err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return "silence", r.system.one.Resume()
	}
}

// What a strike is called that loses no reply, and so is no cause for a message to come again.
const (
	latency       = "latency"
	clientPause   = "CLIENT PAUSE"
	scriptFlush   = "SCRIPT FLUSH"
	functionFlush = "FUNCTION FLUSH"
	slowCommand   = "DEBUG SLEEP"
	bgSave        = "BGSAVE"
	bgRewrite     = "BGREWRITEAOF"
	clockAhead    = "the clock ahead"
	clockBehind   = "the clock behind"
)

var losesNoReply = []string{latency, clientPause, scriptFlush, functionFlush, slowCommand, bgSave, bgRewrite, clockAhead, clockBehind}

func strikeServer(ctx context.Context, r *run) (string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: r.system.one.Addr()})
	defer rdb.Close()
	do := func(args ...any) error { return rdb.Do(ctx, args...).Err() }
	switch r.kind(serverKinds) {
	case 0:
		err := do("config", "set", "maxmemory", "1")
		time.Sleep(time.Second)
		return "full memory", errors.Join(err, do("config", "set", "maxmemory", "0"))
	case 1:
		err := do("client", "pause", "1000", "all")
		time.Sleep(time.Second)
		return clientPause, err
	case 2:
		return "CLIENT KILL", do("client", "kill", "type", "normal", "skipme", "yes")
	case 3:
		return scriptFlush, do("script", "flush")
	case 4:
		return functionFlush, do("function", "flush")
	case 5:
		return slowCommand, do("debug", "sleep", "0.5")
	case 6:
		return bgSave, unlessBusy(do("bgsave", "schedule"))
	}
	return bgRewrite, unlessBusy(do("bgrewriteaof"))
}

// unlessBusy leaves out that the server does so already.
func unlessBusy(err error) error {
	if err != nil && redis.HasErrorPrefix(err, "ERR Background") {
		return nil
	}
	return err
}

// randomJump is by how much a clock jumps, and what that is called.
func randomJump(r *run) (ahead time.Duration, what string) {
	ahead = time.Second + r.upTo(3*time.Second)
	if r.kind(2) == 0 {
		return -ahead, clockBehind
	}
	return ahead, clockAhead
}

// jumpClock lets the clock of Redis jump away, and back.
func jumpClock(ctx context.Context, r *run) (string, error) {
	ahead, what := randomJump(r)
	if err := setAhead(ctx, r.system.one, ahead); err != nil {
		return "", err
	}
	time.Sleep(r.upTo(4 * time.Second))
	return what, setAhead(ctx, r.system.one, 0)
}

// jumpByAnHour lets the clock of Redis jump an hour ahead, for good: whoever waits for an instant before that may go.
func jumpByAnHour(ctx context.Context, r *run) (string, error) {
	return clockAhead, setAhead(ctx, r.system.one, hours(r))
}

// hours is how far the clock is ahead after one more strike of an hour.
func hours(r *run) time.Duration { return time.Duration(len(r.strikes)+1) * time.Hour }

// takesLong is how long the gateway works on a message where tasks must be active at most instants: asynq looks for
// those of dead processes once a minute, and all that a second's limit lets through may be sent at its begin.
const takesLong = 400 * time.Millisecond

// takesAllSlots is how long the gateway works on a message where slots hold up more than the provider's rate: they let 71 % of that
// rate through then. The schedule adds a message each second, also when the load is over: it must be sent before the next one comes.
const takesAllSlots = 700 * time.Millisecond

// workerClockKinds are how many ways there are to set the clock of a worker process.
const workerClockKinds = 4

// jumpWorkerClock lets the clock of a worker process jump away, and after some time back. The other processes and Redis have the right time.
func jumpWorkerClock(lasts func(*run) time.Duration) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		p, err := r.crew.pick(r.random)
		if err != nil {
			return "", err
		}
		few := time.Second + r.upTo(3*time.Second)
		kind, over := r.kind(workerClockKinds), lasts(r)
		ahead := [workerClockKinds]time.Duration{few, -few, time.Hour, -time.Hour}[kind]
		what := [workerClockKinds]string{"some seconds ahead", "some seconds behind", "an hour ahead", "an hour behind"}[kind]
		r.spec.Log("%6.1f s  the clock of worker process %d is set by %v, for %v", time.Since(r.began).Seconds(), p.number, ahead, over.Round(time.Millisecond))
		if err := r.clocked.set(p.number, ahead); err != nil {
			return "", err
		}
		select {
		case <-time.After(over):
		case <-ctx.Done():
		}
		return "the clock of a worker " + what, r.clocked.set(p.number, 0)
	}
}

// mostlyShort is how long the clock of a process is wrong. Once a minute asynq looks for tasks whose processes died, by its own
// clock: every third time it does so meanwhile.
func mostlyShort(r *run) time.Duration {
	if len(r.strikes)%3 == 2 {
		return 65 * time.Second
	}
	return 3*time.Second + r.upTo(5*time.Second)
}

// settlesWithin bounds the wait until all servers name the same master.
const settlesWithin = time.Minute

// anotherMaster waits until sentinels name another master.
func anotherMaster(ctx context.Context, r *run, before *redisserver.Process) error {
	return r.until(ctx, "sentinels name another master", func() bool { return isAnotherMaster(ctx, r, before) })
}

func isAnotherMaster(ctx context.Context, r *run, before *redisserver.Process) bool {
	now, err := r.system.watched.Master(ctx)
	return err == nil && now != before
}

// asksAgain is how long a failover that was asked for may take until it is asked for again. On a busy machine another sentinel may take
// the replica that was just promoted for one that is misled, and turn it back. Sentinels look each ten seconds: whoever asks in
// that rhythm meets the same again and again.
const asksAgain = 17 * time.Second

func killMaster(ctx context.Context, r *run) (string, error) {
	w := r.system.watched
	master, err := w.Master(ctx)
	if err != nil {
		return "", err
	}
	if err := master.Kill(); err != nil {
		return "", err
	}
	return "the master killed", errors.Join(anotherMaster(ctx, r, master), master.StartAgain(), w.Settled(ctx, settlesWithin))
}

func freezeMaster(ctx context.Context, r *run) (string, error) {
	w := r.system.watched
	master, err := w.Master(ctx)
	if err != nil {
		return "", err
	}
	if err := master.Pause(); err != nil {
		return "", err
	}
	return "the master stood still", errors.Join(anotherMaster(ctx, r, master), master.Resume(), w.Settled(ctx, settlesWithin))
}

// divide cuts the master off for so long, and half of the workers with it. The sentinels need about two seconds of it.
func divide(d time.Duration) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		w := r.system.watched
		master, err := w.Master(ctx)
		if err != nil {
			return "", err
		}
		over := time.After(d)
		w.Divide(master, true)
		err = anotherMaster(ctx, r, master)
		<-over
		w.Divide(master, false)
		return "two masters", errors.Join(err, w.Settled(ctx, settlesWithin))
	}
}

// failover asks the sentinels for another master. With paused nobody may write until it is there.
func failover(paused bool) func(context.Context, *run) (string, error) {
	return func(ctx context.Context, r *run) (string, error) {
		w := r.system.watched
		master, err := w.Master(ctx)
		if err != nil {
			return "", err
		}
		asked := time.Now()
		if paused {
			rdb := redis.NewClient(&redis.Options{Addr: master.Addr()})
			err := rdb.Do(ctx, "client", "pause", "5000", "write").Err()
			_ = rdb.Close()
			if err != nil {
				return "", err
			}
		}
		if err := w.Failover(ctx); err != nil {
			return "", err
		}
		again := asked
		err = r.until(ctx, "sentinels name another master", func() bool {
			if time.Since(again) > asksAgain {
				_ = w.Failover(ctx) // it may be under way
				again = time.Now()
			}
			return isAnotherMaster(ctx, r, master)
		})
		what := "SENTINEL FAILOVER"
		if paused && time.Since(asked) > 4*time.Second { // the recipe gives it five
			what, r.forgot = "SENTINEL FAILOVER slower than the pause", true
		}
		return what, errors.Join(err, w.Settled(ctx, settlesWithin))
	}
}

// failoverToAnotherClock makes a replica the master that has had a clock of its own before: one that is ahead or behind, and
// the next time one that is right.
func failoverToAnotherClock(ctx context.Context, r *run) (string, error) {
	ahead, clock := time.Duration(0), "the clock right again"
	if len(r.strikes)%2 == 0 {
		ahead, clock = randomJump(r)
	}
	what, err := failoverToClock(ctx, r, ahead)
	return what + ", " + clock, err
}

// failoverToALaterClock makes a replica the master whose clock is an hour ahead of that of the master before.
func failoverToALaterClock(ctx context.Context, r *run) (string, error) {
	what, err := failoverToClock(ctx, r, hours(r))
	return what + ", " + clockAhead, err
}

// failoverToClock makes a replica the master whose clock has been ahead for so long before.
func failoverToClock(ctx context.Context, r *run, ahead time.Duration) (string, error) {
	master, err := r.system.watched.Master(ctx)
	if err != nil {
		return "", err
	}
	for _, s := range r.system.watched.Servers {
		if s == master {
			continue
		}
		if err := setReplicaAhead(ctx, s, ahead); err != nil {
			return "", err
		}
	}
	return failover(true)(ctx, r)
}

// shard returns a shard of the cluster at random, when each has its replica.
func shard(ctx context.Context, r *run) (redisserver.Shard, error) {
	if err := r.system.cluster.Whole(ctx, settlesWithin); err != nil {
		return redisserver.Shard{}, err
	}
	all, err := r.system.cluster.Shards(ctx)
	if err != nil {
		return redisserver.Shard{}, err
	}
	if len(all) == 0 {
		return redisserver.Shard{}, errors.New("the cluster has no shard")
	}
	return all[r.random.IntN(len(all))], nil
}

func freezeNode(ctx context.Context, r *run) (string, error) {
	s, err := shard(ctx, r)
	if err != nil {
		return "", err
	}
	if err := s.Master.Pause(); err != nil {
		return "", err
	}
	err = r.until(ctx, "a replica takes over", func() bool { return replaced(ctx, r, s) })
	if err := errors.Join(err, s.Master.Resume()); err != nil {
		return "", err
	}
	return "a master stood still", errors.Join(redisserver.Following(s.Master), r.system.cluster.Whole(ctx, settlesWithin))
}

func killNode(ctx context.Context, r *run) (string, error) {
	s, err := shard(ctx, r)
	if err != nil {
		return "", err
	}
	if err := s.Master.Kill(); err != nil {
		return "", err
	}
	err = r.until(ctx, "a replica takes over", func() bool { return replaced(ctx, r, s) })
	if err := errors.Join(err, s.Master.StartAgain()); err != nil {
		return "", err
	}
	return "a master killed", errors.Join(redisserver.Following(s.Master), r.system.cluster.Whole(ctx, settlesWithin))
}

func clusterFailover(ctx context.Context, r *run) (string, error) {
	s, err := shard(ctx, r)
	if err != nil {
		return "", err
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Replicas[0].Addr()})
	defer rdb.Close()
	if err := rdb.ClusterFailover(ctx).Err(); err != nil {
		return "", err
	}
	err = r.until(ctx, "the replica takes over", func() bool { return replaced(ctx, r, s) })
	if err != nil {
		return "", err
	}
	return "CLUSTER FAILOVER", errors.Join(redisserver.Following(s.Master), r.system.cluster.Whole(ctx, settlesWithin))
}

// replaced says whether another server has the slots of a shard, as far as the others know. A master
// that is only known to be gone must not come back: without persistence it would be empty.
func replaced(ctx context.Context, r *run, s redisserver.Shard) bool {
	all, err := r.system.cluster.Shards(ctx)
	return err == nil && slices.ContainsFunc(all, func(now redisserver.Shard) bool {
		return now.Has(s.Slots[0][0]) && now.Master != s.Master
	})
}

// movedKeys is how many slots with keys move in a strike.
const movedKeys = 30

func reshard(ctx context.Context, r *run) (string, error) {
	slots, err := usedSlots(ctx, r, movedKeys)
	if err != nil {
		return "", err
	}
	for _, slot := range slots {
		if err := moveSlot(ctx, r, slot); err != nil {
			return "", err
		}
	}
	return "slots moved", nil
}

// reshardHalf moves half of the slots of each master to another one.
func reshardHalf(ctx context.Context, r *run) (string, error) {
	all, err := r.system.cluster.Shards(ctx)
	if err != nil {
		return "", err
	}
	half := r.random.IntN(2)
	for i, s := range all {
		var slots []int
		for _, reach := range s.Slots {
			for slot := reach[0]; slot <= reach[1]; slot++ {
				slots = append(slots, slot)
			}
		}
		middle := len(slots) / 2
		if half == 0 {
			slots = slots[:middle]
		} else {
			slots = slots[middle:]
		}
		to := all[(i+1+r.random.IntN(len(all)-1))%len(all)].Master
		if err := r.system.cluster.MoveAll(ctx, slots, s.Master, to); err != nil {
			return "", err
		}
	}
	return "half of the slots moved", nil
}

// usedSlots are the slot of the queue, and those of some keys at random.
func usedSlots(ctx context.Context, r *run, n int) ([]int, error) {
	all, err := r.system.cluster.Shards(ctx)
	if err != nil {
		return nil, err
	}
	keys := []string{"{" + queueName + "}"}
	for len(keys) < n {
		rdb := redis.NewClient(&redis.Options{Addr: all[r.random.IntN(len(all))].Master.Addr()})
		key, err := rdb.RandomKey(ctx).Result()
		_ = rdb.Close()
		if errors.Is(err, redis.Nil) {
			continue // this one has none at the moment
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	var slots []int
	for _, key := range keys {
		slot, err := r.client.ClusterKeySlot(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		slots = append(slots, int(slot))
	}
	return slots, nil
}

// moveSlot moves a slot from the master that has it to another one.
func moveSlot(ctx context.Context, r *run, slot int) error {
	from, err := r.system.cluster.Owner(ctx, slot)
	if err != nil {
		return err
	}
	all, err := r.system.cluster.Shards(ctx)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(all, func(s redisserver.Shard) bool { return s.Master == from })
	return r.system.cluster.Move(ctx, slot, from, others[r.random.IntN(len(others))].Master)
}

func addAndRemoveNode(ctx context.Context, r *run) (string, error) {
	cluster := r.system.cluster
	slots, err := usedSlots(ctx, r, movedKeys/2)
	if err != nil {
		return "", err
	}
	slices.Sort(slots)
	slots = slices.Compact(slots)
	added, err := cluster.AddMaster()
	if err != nil {
		return "", err
	}
	for _, slot := range slots {
		owner, err := cluster.Owner(ctx, slot)
		if err != nil {
			return "", err
		}
		if err := cluster.Move(ctx, slot, owner, added); err != nil {
			return "", err
		}
	}
	time.Sleep(r.upTo(time.Second))
	for _, slot := range slots {
		if err := moveSlot(ctx, r, slot); err != nil {
			return "", err
		}
	}
	return "a node added and removed", errors.Join(cluster.RemoveMaster(added), cluster.Whole(ctx, settlesWithin))
}

func unserveSlot(ctx context.Context, r *run) (string, error) {
	slots, err := usedSlots(ctx, r, 2)
	if err != nil {
		return "", err
	}
	serve, err := r.system.cluster.Unserve(ctx, slots[r.random.IntN(len(slots))])
	if err != nil {
		return "", err
	}
	time.Sleep(2 * time.Second)
	return "a slot not served", errors.Join(serve(), r.system.cluster.Whole(ctx, settlesWithin))
}
