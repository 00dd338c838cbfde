package luascripts

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/rediserr"
)

// way is how a server is asked to run a script.
type way bool

const (
	// byFunction calls a function of the library. It is tried first: Redis 7 makes the
	// functions of a library once, and those of a script at each call.
	byFunction way = false
	// byScript sends EVALSHA. It runs where there are no functions: on Redis before 7.0,
	// on miniredis, by a user who may not call them, and behind a client that is none of
	// go-redis itself.
	byScript way = true
)

// functionsAgain is how long a server is sent scripts that said that it has no functions, or none for this
// user. Then they are tried again: rights may have been mended, or another server may have become the master.
const functionsAgain = 10 * time.Second

// server is what is known of the server behind a client.
type server struct {
	scriptsUntil atomic.Int64 // it is sent scripts until then, in nanoseconds since 1970

	load func(ctx context.Context) error // loads the library on all masters that can be reached
}

// servers are those of the clients that are in use. A client does not stay in memory for
// its entry here.
var servers sync.Map // weak.Pointer of a client -> *server

// serverOf is what is known of a client's server, nil when something stands in front of it.
func serverOf(c redis.Scripter) *server {
	switch c := c.(type) {
	case *redis.Client:
		return knownServer(c, func(*redis.Client) {}, func(p *redis.Client, ctx context.Context) error { return loadLibrary(ctx, p) })
	case *redis.ClusterClient:
		return knownServer(c, prepareCluster, func(p *redis.ClusterClient, ctx context.Context) error { return p.ForEachMaster(ctx, loadLibrary) })
	default:
		return nil
	}
}

// knownServer is the entry of a client, which is prepared by first when it is new.
func knownServer[T any](c *T, first func(*T), load func(*T, context.Context) error) *server {
	key := weak.Make(c)
	if s, ok := servers.Load(key); ok {
		return s.(*server)
	}
	s, there := servers.LoadOrStore(key, &server{load: func(ctx context.Context) error { return load(key.Value(), ctx) }})
	if !there {
		first(c)
		runtime.AddCleanup(c, func(key weak.Pointer[T]) { servers.Delete(key) }, key)
	}
	return s.(*server)
}

// loadLibrary loads the library, unless another process has just done so.
func loadLibrary(ctx context.Context, c *redis.Client) error {
	err := c.FunctionLoad(ctx, theLibrary().program.text).Err()
	if err != nil && strings.Contains(err.Error(), "already exists") {
		return nil
	}
	return err
}

func (s *server) wayNow() way {
	if s == nil {
		return byScript
	}
	return way(time.Now().UnixNano() < s.scriptsUntil.Load())
}

// wayOf is how a call goes now.
func (s *server) wayOf(c *Command) way {
	if c.OnlyFunctions && s != nil {
		return byFunction
	}
	return s.wayNow()
}

// remedy is what a call needs when it did not run.
type remedy int

const (
	nothing     remedy = iota // it ran, or nothing helps
	loadFirst                 // the server does not have the library
	scriptOnce                // the server does not take a function now, but may take a script
	scriptsOnly               // the server has no functions, or none for this user
	textFirst                 // the server does not have the script
)

// remedyFor reads the error of a call that went a way.
func remedyFor(err error, by way) remedy {
	if err == nil {
		return nothing
	}
	if by == byScript {
		if rediserr.Of(err) == rediserr.NoScript {
			return textFirst
		}
		return nothing
	}
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "ERR Function not found"):
		return loadFirst
	case noFunctions(text):
		return scriptsOnly
	// A server that is full, can't save or lacks replicas refuses each function before it
	// begins, and a script only when it writes. A refusal by a limit needs no write.
	case strings.HasPrefix(text, "OOM "), strings.HasPrefix(text, "MISCONF "), strings.HasPrefix(text, "NOREPLICAS "):
		return scriptOnce
	}
	return nothing
}

// noFunctions says that a server has no functions, or that the user may not use them.
func noFunctions(text string) bool {
	lower := strings.ToLower(text)
	return strings.HasPrefix(lower, "err unknown command") || strings.HasPrefix(lower, "err unknown subcommand") ||
		strings.HasPrefix(lower, "noperm") && (strings.Contains(lower, "'fcall") || strings.Contains(lower, "'function"))
}

// Command is a call of a script as Redis gets it: FCALL, the function, how many keys, the
// keys, the arguments.
type Command struct {
	script *Script
	args   []any
	keys   int

	Confirm       *Confirmation // nil when no replica need have it
	OnlyFunctions bool          // its function remembers from call to call, so a script won't do
	Once          bool          // the client must not repeat it by itself, see once.go
	Resumes       bool          // the same call does the rest when a slot that moves has ended the script half done
}

// Add adds keys, and behind the last key arguments.
func (c *Command) Add(values ...any) { c.args = append(c.args, values...) }

// needsFunctionsError is the answer to a call that needs functions where there are none. For whoever
// made the call it is an error of Redis.
type needsFunctionsError struct{}

func (needsFunctionsError) Error() string {
	return "HoldAfterFailover needs Redis functions: a script remembers nothing from call to call"
}

// RedisError makes it an answer of Redis.
func (needsFunctionsError) RedisError() {}

// runsNoFunction says that a call that needs a function did not run for want of one.
func runsNoFunction(err error) bool {
	_, without := errors.AsType[needsFunctionsError](err)
	return without || remedyFor(err, byFunction) == scriptOnce
}

// send sends the command a way: over a client, or into a pipeline.
func (c *Command) send(ctx context.Context, to redis.Scripter, by way) *redis.Cmd {
	if c.OnlyFunctions && by == byScript {
		cmd := redis.NewCmd(ctx, c.args...)
		cmd.SetErr(needsFunctionsError{})
		return cmd
	}
	if c.Confirm != nil {
		return c.sendConfirmed(ctx, to, by)
	}
	if by == byScript {
		if c.Once {
			return c.evalOnce(ctx, to, "evalsha", c.script.eval().Hash())
		}
		keys, args := c.split()
		return to.EvalSha(ctx, c.script.eval().Hash(), keys, args...)
	}
	cmd := redis.NewCmd(ctx, c.args...)
	cmd.SetFirstKeyPos(firstKey)
	if c.Once {
		processOnce(ctx, to.(processor), cmd)
		return cmd
	}
	_ = to.(processor).Process(ctx, cmd) // the command carries its error
	return cmd
}

// firstKey is where the keys of a command begin.
const firstKey = 3

// split are the keys and the arguments as [redis.Scripter] takes them.
func (c *Command) split() (keys []string, args []any) {
	keys, args = make([]string, 0, c.keys), make([]any, 0, len(c.args)-firstKey-c.keys)
	for i, v := range c.args[firstKey:] {
		if key, ok := v.(string); ok && i < c.keys {
			keys = append(keys, key)
			continue
		}
		args = append(args, v)
	}
	return keys, args
}

// sending is a call on its way to Redis.
type sending struct {
	call Command
	by   way
	cmd  *redis.Cmd // as it was sent last, with its answer
	load error      // what came of loading the library for it
}

// Send sends a call, and answers its command. It waits for a slot that moves.
func Send(ctx context.Context, c redis.Scripter, call Command) *redis.Cmd {
	refusal := movingSlot
	if call.Resumes {
		refusal = movingSlotOrHalfDone
	}
	return sendWhile(ctx, c, refusal, func() *redis.Cmd { return sendOnce(ctx, c, call) })
}

func sendOnce(ctx context.Context, c redis.Scripter, call Command) *redis.Cmd {
	s := serverOf(c)
	by := s.wayOf(&call)
	cmd := call.send(ctx, c, by)
	if remedyFor(cmd.Err(), by) == nothing {
		return cmd
	}
	a := sending{call: call, by: by, cmd: cmd}
	s.repair(ctx, c, []*sending{&a})
	return a.cmd
}

// How long a call waits for a slot that moves, and how long between two looks.
const (
	moveWait     = 2 * time.Second
	movePauseMin = 10 * time.Millisecond
	movePauseMax = 200 * time.Millisecond
)

// movingSlot is the refusal of a Cluster's node when the keys of a call are on their way to another
// node. Nothing has run. go-redis asks both nodes, and gives up after a few questions.
var movingSlot = regexp.MustCompile(`(?:^|: )(?:TRYAGAIN|ASK|MOVED) `)

// movingSlotOrHalfDone is such a refusal, or that of a script which was ended half done, see [rediserr.HalfDone].
var movingSlotOrHalfDone = regexp.MustCompile(movingSlot.String() + "|" + rediserr.HalfDone)

// redirect is such a refusal by which a node names another one.
var redirect = regexp.MustCompile(`(?:^|: )(?:ASK|MOVED) `)

// slotMovesError stands for a redirect to which no answer came in time. Which node answers last depends on
// how many redirects the client follows. A redirect that is not followed is an error for good where the client
// knows no Cluster, see rediserr. Here the same call succeeds when the slot has moved.
type slotMovesError struct{}

func (slotMovesError) Error() string { return "TRYAGAIN the slot of the keys moves to another node" }

// RedisError makes it an answer of Redis.
func (slotMovesError) RedisError() {}

// withoutRedirect is the error of a call to a Cluster as its caller gets it.
func withoutRedirect(c redis.Scripter, err error) error {
	if err != nil && Sharded(c) && redirect.MatchString(err.Error()) {
		return slotMovesError{}
	}
	return err
}

// SendWhileSlotMoves is [WhileSlotMoves] for one command.
func SendWhileSlotMoves(ctx context.Context, c redis.Scripter, send func() *redis.Cmd) (cmd *redis.Cmd) {
	return sendWhile(ctx, c, movingSlot, send)
}

// sendWhile is [SendWhileSlotMoves] for refusals of one form.
func sendWhile(ctx context.Context, c redis.Scripter, refusal *regexp.Regexp, send func() *redis.Cmd) (cmd *redis.Cmd) {
	err := callWhile(ctx, c, refusal, func() error {
		cmd = send()
		return cmd.Err()
	})
	if err != nil {
		cmd.SetErr(err)
	}
	return cmd
}

// WhileSlotMoves makes a call, and makes it again while the slot of its keys moves to another node of
// the Cluster, for two seconds at most. A call to anything but a Cluster is made once.
func WhileSlotMoves(ctx context.Context, c redis.Scripter, call func() error) error {
	return callWhile(ctx, c, movingSlot, call)
}

// callWhile is [WhileSlotMoves] for refusals of one form.
func callWhile(ctx context.Context, c redis.Scripter, refusal *regexp.Regexp, call func() error) error {
	err := call()
	if err == nil || !Sharded(c) {
		return err
	}
	until := time.Now().Add(moveWait)
	for pause := movePauseMin; err != nil && refusal.MatchString(err.Error()) && time.Now().Before(until); pause = min(2*pause, movePauseMax) {
		select {
		case <-ctx.Done():
			return withoutRedirect(c, err)
		case <-time.After(pause):
		}
		err = call()
	}
	return withoutRedirect(c, err)
}

// SendAll sends calls of scripts, several in one pipeline, and answers the command of each,
// with its own error.
func SendAll(ctx context.Context, c redis.Scripter, calls []Command) []*redis.Cmd {
	s := serverOf(c)
	sendings := make([]*sending, len(calls))
	for i, call := range calls {
		sendings[i] = &sending{call: call, by: s.wayOf(&call)}
	}
	dispatch(ctx, c, sendings)
	s.repair(ctx, c, sendings)
	sent := make([]*redis.Cmd, len(calls))
	for i, a := range sendings {
		sent[i] = a.cmd
		if err := withoutRedirect(c, a.cmd.Err()); err != nil {
			a.cmd.SetErr(err)
		}
	}
	return sent
}

// repair sends again what a server did not run because it lacks the library or the script:
// at most as often as there are remedies that can follow each other.
func (s *server) repair(ctx context.Context, c redis.Scripter, sendings []*sending) {
	for range 3 {
		sendings = s.mend(ctx, c, sendings)
		dispatch(ctx, c, sendings)
	}
}

// dispatch sends one call by itself, and several in a pipeline. Where one is to be confirmed, each
// has a pipeline of its own.
func dispatch(ctx context.Context, c redis.Scripter, sendings []*sending) {
	switch len(sendings) {
	case 0:
		return
	case 1:
		a := sendings[0]
		a.cmd = a.call.send(ctx, c, a.by)
		return
	}
	if slices.ContainsFunc(sendings, func(a *sending) bool { return a.call.Confirm != nil }) {
		var wg sync.WaitGroup
		for _, a := range sendings {
			wg.Go(func() { a.cmd = a.call.send(ctx, c, a.by) })
		}
		wg.Wait()
		return
	}
	pipe := c.(redis.UniversalClient).Pipeline()
	for _, a := range sendings {
		a.cmd = a.call.send(ctx, pipe, a.by)
	}
	_, _ = rediserr.Exec(ctx, pipe) // each command carries its own error
}

// mend does what the calls need that did not run, and answers which are to be sent again.
func (s *server) mend(ctx context.Context, c redis.Scripter, sendings []*sending) []*sending {
	var again []*sending
	var load, text func() error // what several need is done once
	for _, a := range sendings {
		remedy := remedyFor(a.cmd.Err(), a.by)
		if remedy == scriptOnce && a.call.OnlyFunctions {
			continue
		}
		switch remedy {
		case nothing:
			continue
		case loadFirst:
			if a.load != nil { // it was tried, and the server still lacks the library
				a.cmd.SetErr(a.load)
				continue
			}
			if load == nil {
				load = sync.OnceValue(func() error { return s.load(ctx) })
			}
			a.load = load()
			s.heed(a.load, a)
		case scriptsOnly, scriptOnce:
			s.heed(a.cmd.Err(), a)
		case textFirst:
			if len(sendings) == 1 && a.call.Confirm == nil { // alone it is sent with the text
				if a.call.Once {
					a.cmd = a.call.evalOnce(ctx, c, "eval", a.call.script.alone().text)
					continue
				}
				keys, args := a.call.split()
				a.cmd = a.call.script.eval().Eval(ctx, c, keys, args...)
				continue
			}
			if text == nil {
				text = sync.OnceValue(func() error { return loadTexts(ctx, c, sendings) })
			}
			if err := text(); err != nil {
				a.cmd.SetErr(err)
				continue
			}
		}
		again = append(again, a)
	}
	return again
}

// heed lets a call go as a script where an error says that functions don't run, and with it all calls of the
// next seconds where they do not run for this user at all.
func (s *server) heed(err error, a *sending) {
	switch remedyFor(err, byFunction) {
	case scriptsOnly:
		s.scriptsUntil.Store(time.Now().Add(functionsAgain).UnixNano())
		a.by = byScript
	case scriptOnce:
		a.by = byScript
	}
}

// loadTexts loads the scripts of the calls that the server does not have.
func loadTexts(ctx context.Context, c redis.Scripter, sendings []*sending) error {
	loaded := make(map[*Script]bool)
	for _, a := range sendings {
		if remedyFor(a.cmd.Err(), a.by) != textFirst || loaded[a.call.script] {
			continue
		}
		loaded[a.call.script] = true
		if err := a.call.script.eval().Load(ctx, c).Err(); err != nil {
			return err
		}
	}
	return nil
}
