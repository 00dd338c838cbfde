package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/headwayq/headway/event"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/internal/precheck"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/queue/schedule"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// TestOperate runs the program as an operator does, against a redis-server of each script.
func TestOperate(t *testing.T) {
	t.Parallel()
	servers, pools := &sync.Map{}, &sync.Map{} // by work directory
	starts := &starts{byTask: make(map[string]event.Granted)}
	book := func(ts *testscript.TestScript, tasks ...*queue.Task) {
		srv, _ := servers.Load(ts.Getenv("WORK"))
		policies, err := queue.ReadPolicyFiles(ts.MkAbs("policy.yaml"))
		ts.Check(err)
		client, err := queue.NewClient(srv.(*redistest.Server).Client(t), queue.ClientConfig{Policies: policies})
		ts.Check(err)
		for _, r := range client.BookMany(context.Background(), tasks) {
			ts.Check(r.Err)
		}
	}
	inspector := func(ts *testscript.TestScript) *inspect.Inspector {
		srv, _ := servers.Load(ts.Getenv("WORK"))
		policies, err := queue.ReadPolicyFiles(ts.MkAbs("policy.yaml"))
		ts.Check(err)
		i, err := inspect.New(srv.(*redistest.Server).Client(t), inspect.Config{Policies: policies})
		ts.Check(err)
		return i
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "operate"),
		Setup: func(e *testscript.Env) error {
			srv := redistest.Start(t, redistest.Own())
			servers.Store(e.WorkDir, srv)
			e.Setenv("HEADWAY_REDIS_URL", "redis://"+srv.Addr())
			e.Setenv("HEADWAY_WHO", "ann")
			return shutGates(filepath.Join(e.WorkDir, "policy.yaml"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// book N PHONES: N tasks t000, t001, ... to so many phones
			"book": func(ts *testscript.TestScript, _ bool, args []string) {
				n, _ := strconv.Atoi(args[0])
				phones, _ := strconv.Atoi(args[1])
				book(ts, crowd(n, phones)...)
			},
			// crowd: thousands of tasks to a hundred phones, and more of them to one
			"crowd": func(ts *testscript.TestScript, _ bool, _ []string) {
				n, phones := 5000, 100
				if testing.Short() {
					n, phones = 500, 10
				}
				tasks := crowd(n, phones)
				for i := range n/phones + 15 {
					tasks = append(tasks, queue.NewTask("sms", []byte(`{"to":"+15559999"}`), asynq.TaskID(fmt.Sprintf("long%02d", i))))
				}
				book(ts, tasks...)
			},
			// task TYPE ID PHONE
			"task": func(ts *testscript.TestScript, _ bool, args []string) {
				book(ts, queue.NewTask(args[0], fmt.Appendf(nil, `{"to":%q}`, args[2]), asynq.TaskID(args[1])))
			},
			// taskThatWaits TYPE ID PHONE: a task whose rule is closed. Pools may take that for open for half a
			// second yet. Then the task runs, and comes again, until it has waited for a second
			"taskThatWaits": func(ts *testscript.TestScript, _ bool, args []string) {
				i, since := inspector(ts), time.Now()
				await(ts, args[1]+" waits for a second", func() (bool, error) {
					e, err := i.Explain(context.Background(), "default", args[1])
					if e.State == inspect.StateMissing {
						book(ts, queue.NewTask(args[0], fmt.Appendf(nil, `{"to":%q}`, args[2]), asynq.TaskID(args[1])))
						err = nil
					}
					if e.State != inspect.StateClosed {
						since = time.Now()
					}
					return time.Since(since) > time.Second, err
				})
			},
			// started ID ...: the tasks have started, and have no places in a line any more
			"started": func(ts *testscript.TestScript, _ bool, ids []string) {
				for _, id := range ids {
					await(ts, id+" has started", func() (bool, error) { return starts.has(ts, id), nil })
				}
			},
			// soon ID: the task is to start within a minute
			"soon": func(ts *testscript.TestScript, _ bool, args []string) {
				i := inspector(ts)
				await(ts, args[0]+" is to start within a minute", func() (bool, error) {
					e, err := i.Explain(context.Background(), "default", args[0])
					return err == nil && e.At.Sub(e.Now) < time.Minute, err
				})
			},
			// startsAsExplained ID FILE: the task starts at the instant that an explanation told
			"startsAsExplained": func(ts *testscript.TestScript, _ bool, args []string) {
				var told explainAnswer
				ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &told))
				await(ts, args[0]+" has started", func() (bool, error) { return starts.has(ts, args[0]), nil })
				got := starts.of(ts, args[0])
				at := told.At
				for _, id := range told.Before { // one that was granted late on a busy machine moves those behind it
					at = at.Add(max(0, starts.of(ts, id).At.Sub(starts.of(ts, id).Promised)))
				}
				if got.Promised.Sub(at).Abs() > 25*time.Millisecond || got.At.Before(told.At.Add(-25*time.Millisecond)) {
					ts.Fatalf("it was explained to start at %v, which those before it moved to %v, was promised %v and granted %v", told.At, at, got.Promised, got.At)
				}
				ts.Logf("it started %v after the explained instant, on this machine", got.At.Sub(told.At)+got.Late)
			},
			// awaitKey RULE [KEY]: the key is the one that waits longest, or some key waits
			"awaitKey": func(ts *testscript.TestScript, _ bool, args []string) {
				i := inspector(ts)
				await(ts, "the key is known that waits longest", func() (bool, error) {
					keys, err := i.Keys(context.Background(), args[0], inspect.ByWait)
					return len(keys) > 0 && (len(args) == 1 || keys[0].Key == args[1]), err
				})
			},
			// enqueue N PHONES: as book, but without booking
			"enqueue": func(ts *testscript.TestScript, _ bool, args []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				client, err := queue.NewClient(srv.(*redistest.Server).Client(t), queue.ClientConfig{})
				ts.Check(err)
				n, _ := strconv.Atoi(args[0])
				phones, _ := strconv.Atoi(args[1])
				for i := range n {
					_, err := client.Enqueue(context.Background(), queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+1555010%02d"}`, i%phones), asynq.TaskID(fmt.Sprintf("t%03d", i))))
					ts.Check(err)
				}
			},
			// stoppool waits until nothing is pending or runs, and stops the last pool
			"stoppool": func(ts *testscript.TestScript, _ bool, _ []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				i, err := inspect.New(srv.(*redistest.Server).Client(t), inspect.Config{})
				ts.Check(err)
				await(ts, "nothing is pending or runs", func() (bool, error) {
					all, err := i.Queues(context.Background())
					return err == nil && len(all) == 1 && all[0].Pending+all[0].Active == 0, err
				})
				p, _ := pools.Load(ts.Getenv("WORK"))
				p.(*worker.Pool).Shutdown()
			},
			// pool FILE: a pool with the policies of a file, until the test ends
			"pool": func(ts *testscript.TestScript, _ bool, args []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				policies, err := queue.ReadPolicyFiles(ts.MkAbs(args[0]))
				ts.Check(err)
				rdb := srv.(*redistest.Server).Client(t)
				p, err := worker.New(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }), worker.Config{Policies: policies, Servers: 1, Observer: starts.observer(ts.Getenv("WORK"))})
				ts.Check(err)
				ts.Check(p.Start(context.Background()))
				ts.Defer(p.Shutdown)
				pools.Store(ts.Getenv("WORK"), p)
				before, _ := strconv.Atoi(args[1])
				awaitProcesses(ts, rdb, before+1)
			},
			// scheduler N: a scheduler and a feeder run until the test ends, beside so many processes
			"scheduler": func(ts *testscript.TestScript, _ bool, args []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				client, err := queue.NewClient(srv.(*redistest.Server).Client(t), queue.ClientConfig{})
				ts.Check(err)
				s, err := schedule.New(client, schedule.Config{},
					schedule.Entry{Name: "nightly", Spec: "30 2 * * *", Zone: time.UTC, Task: queue.NewTask("report", nil), Queue: "low"},
					schedule.Entry{Name: "hourly", Spec: "@every 1h", Task: queue.NewTask("sync", nil)})
				ts.Check(err)
				f, err := batch.NewFeeder(client, batch.FeederConfig{Queues: []string{"default"}, Sources: map[string]batch.Source{"csv": func(context.Context, batch.Spec, batch.Position) iter.Seq2[batch.Element, error] { return nil }}})
				ts.Check(err)
				ctx, stop := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() { _ = s.Run(ctx) })
				running.Go(func() { _ = f.Run(ctx) })
				ts.Defer(func() { stop(); running.Wait() })
				before, _ := strconv.Atoi(args[0])
				awaitProcesses(ts, srv.(*redistest.Server).Client(t), before+2)
			},
			// feed IDS: a batch of elements with these ids, fed until all are enqueued or refused
			"feed": func(ts *testscript.TestScript, _ bool, ids []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				client, err := queue.NewClient(srv.(*redistest.Server).Client(t), queue.ClientConfig{})
				ts.Check(err)
				var elements []batch.Element
				for _, id := range ids {
					elements = append(elements, batch.Element{ID: id})
				}
				list := batch.Seq(func(batch.Spec) iter.Seq[batch.Element] { return slices.Values(elements) })
				f, err := batch.NewFeeder(client, batch.FeederConfig{Queues: []string{"default"}, Sources: map[string]batch.Source{"list": list}})
				ts.Check(err)
				batches := batch.NewControl(client)
				_, err = batches.Start(context.Background(), batch.Spec{ID: "letter", Type: "sms", Source: "list", Args: "of +15550100"})
				ts.Check(err)
				ctx, stop := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() { _ = f.Run(ctx) })
				ts.Defer(func() { stop(); running.Wait() })
				await(ts, "all elements are read", func() (bool, error) {
					p, err := batches.Progress(context.Background(), "default", "letter")
					return p.Read == int64(len(ids)), err
				})
			},
			// ticked ENTRY: the entry has a tick of which the task is done and gone
			"ticked": func(ts *testscript.TestScript, _ bool, args []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				rdb := srv.(*redistest.Server).Client(t)
				at := time.Now().Add(-time.Hour).Truncate(time.Second).UnixMicro()
				ts.Check(rdb.LPush(context.Background(), "hw:{low}:ticks:"+args[0], fmt.Sprint(at, " 1 ", at)).Err())
			},
			// pairs: two tasks to one phone, and two to the next one, until the test ends
			"pairs": func(ts *testscript.TestScript, _ bool, _ []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				client, err := queue.NewClient(srv.(*redistest.Server).Client(t), queue.ClientConfig{})
				ts.Check(err)
				ctx, stop := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						_, _ = client.Enqueue(ctx, queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+1555010%04d"}`, n/2), asynq.TaskID(fmt.Sprintf("t%03d", n))))
						time.Sleep(10 * time.Millisecond)
					}
				})
				ts.Defer(func() { stop(); running.Wait() })
			},
			// unwatched: nobody looks any more
			"unwatched": func(ts *testscript.TestScript, _ bool, _ []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				rdb := srv.(*redistest.Server).Client(t)
				await(ts, "nobody looks", func() (bool, error) {
					channels, err := rdb.PubSubChannels(context.Background(), "hw:tail:*").Result()
					return len(channels) == 0, err
				})
			},
			// as ROLE: from now on the program is a user with the least rights of a role
			"as": func(ts *testscript.TestScript, _ bool, args []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				role := map[string]precheck.Role{"viewer": precheck.Viewer, "operator": precheck.Operator}[args[0]]
				user := []any{"acl", "setuser", args[0], "reset", "on", ">secret"}
				for _, rule := range precheck.ACL(role, "hw") {
					user = append(user, rule)
				}
				admin := srv.(*redistest.Server).Client(t)
				ts.Check(admin.Do(context.Background(), user...).Err())
				ts.Check(admin.ACLLogReset(context.Background()).Err())
				ts.Setenv("HEADWAY_REDIS_URL", "redis://"+args[0]+":secret@"+srv.(*redistest.Server).Addr())
			},
			// nothingRefused: the server has refused nothing to that user, but for the name of a connection, and for
			// functions, which the program tries before it runs scripts
			"nothingRefused": func(ts *testscript.TestScript, _ bool, _ []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				log, err := srv.(*redistest.Server).Client(t).ACLLog(context.Background(), 100).Result()
				ts.Check(err)
				for _, e := range log {
					if !slices.Contains([]string{"client|setname", "client|setinfo", "fcall", "function|load"}, e.Object) {
						ts.Fatalf("the server refused %s %q in %s", e.Reason, e.Object, e.Context)
					}
				}
			},
			// config NAME VALUE: of the server
			"config": func(ts *testscript.TestScript, _ bool, args []string) {
				srv, _ := servers.Load(ts.Getenv("WORK"))
				ts.Check(srv.(*redistest.Server).Client(t).ConfigSet(context.Background(), args[0], args[1]).Err())
			},
		},
	})
}

// crowd are so many tasks to so many phones.
func crowd(n, phones int) (tasks []*queue.Task) {
	for i := range n {
		tasks = append(tasks, queue.NewTask("sms", fmt.Appendf(nil, `{"to":"+1555010%02d"}`, i%phones), asynq.TaskID(fmt.Sprintf("t%03d", i))))
	}
	return tasks
}

// shutGates puts opening hours into a policy file in place of GATE that begin in some hours.
func shutGates(file string) error {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	opening := time.Now().UTC().Add(3 * time.Hour).Hour()
	gate := fmt.Sprintf(`"%02d:00-%02d:59 UTC"`, opening, opening)
	return os.WriteFile(file, bytes.ReplaceAll(text, []byte("GATE"), []byte(gate)), 0o600)
}

// starts notes which tasks of each script have started, and when.
type starts struct {
	mu     sync.Mutex
	byTask map[string]event.Granted // by the script's work directory, and its id
}

func (s *starts) observer(dir string) event.Observer {
	return event.Observer{Granted: func(_ context.Context, e event.Granted) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.byTask[filepath.Join(dir, e.Task.ID)] = e
	}}
}

func (s *starts) of(ts *testscript.TestScript, id string) event.Granted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTask[filepath.Join(ts.Getenv("WORK"), id)]
}

func (s *starts) has(ts *testscript.TestScript, id string) bool { return !s.of(ts, id).At.IsZero() }

// await waits until something is so, at most a minute.
func await(ts *testscript.TestScript, what string, is func() (bool, error)) {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	end := time.After(time.Minute)
	for {
		ok, err := is()
		ts.Check(err)
		if ok {
			return
		}
		select {
		case <-t.C:
		case <-end:
			ts.Fatalf("a minute later it is not so that %s", what)
		}
	}
}

// awaitProcesses waits until so many pools, feeders and schedulers say that they run.
func awaitProcesses(ts *testscript.TestScript, rdb redis.UniversalClient, n int) {
	i, err := inspect.New(rdb, inspect.Config{})
	ts.Check(err)
	await(ts, fmt.Sprintf("%d processes say that they run", n), func() (bool, error) {
		running, _, err := i.Processes(context.Background())
		return len(running) >= n, err
	})
}

// A URL, an address, TLS and sentinels are refused with all that is wrong, and no error
// shows a password.
func TestRedisFlagsAreChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		flags redisFlags
		want  string
	}{
		{redisFlags{url: "http://:secret@host"}, "--url: want a URL like redis://user:password@host:6379/0"},
		{redisFlags{url: "redis://h:1", addrs: []string{"h"}}, "--url and --redis exclude each other\n--redis: \"h\" is not HOST:PORT"},
		{redisFlags{addrs: []string{"redis://:secret@h:1"}}, "--redis: want HOST:PORT; a URL is given by --url"},
		{redisFlags{cluster: true, db: 1, sentinelMaster: "m"}, "--cluster and --sentinel-master exclude each other\n--db: a cluster has one database, 0"},
		{redisFlags{cacert: file}, "--cacert: " + file + " has no certificate"},
		{redisFlags{cert: file}, "--cert and --key are given together"},
	} {
		if _, err := tt.flags.open(); err == nil || err.Error() != tt.want {
			t.Errorf("open: %v, want %q", err, tt.want)
		}
	}
}

// What the flags say reaches the client.
func TestRedisFlagsReachTheClient(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	for _, flags := range []redisFlags{
		{url: "redis://" + srv.Addr(), timeout: time.Minute},
		{addrs: []string{srv.Addr()}, timeout: time.Minute},
	} {
		rdb, err := flags.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Errorf("%+v: %v", flags, err)
		}
		_ = rdb.Close()
	}
}

// An error of Redis and an error of the caller have exit codes of their own.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]int{
		badUsage("x"):                   exitUsage,
		fmt.Errorf("x: %w", errMissing): exitMissing,
		fmt.Errorf("%w: %w", errMissing, queue.ErrInvalidPolicy): exitMissing,
		errAway(os.ErrDeadlineExceeded):                          exitAway,
		errNotWell:                                               exitRun,
		throttle.ErrInvalidLimit:                                 exitUsage,
		fmt.Errorf("%w", inspect.ErrInvalidReason):               exitUsage,
	} {
		if got := exitCode(err); got != want {
			t.Errorf("exit code of %v is %d, want %d", err, got, want)
		}
	}
}
