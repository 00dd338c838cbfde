package asynqwire

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"
)

// Version is the version of asynq whose scripts, keys and messages are
// pinned in this package. TestAsynqGolden says what another version changed.
const Version = "v0.26.0"

// Op names what a script call of asynq does to a task. Only the operations
// that take a task out of pending or out of active have a name: the adapter
// acts on nothing else.
//
//	pending --dequeue--> active --done-----> (deleted)
//	                            --complete-> completed
//	                            --requeue--> pending
//	                            --retry----> retry
//	                            --archive--> archived
type Op int

// What a script of asynq does to a task.
const (
	// OpOther is any other script, asynq's or not: enqueue, forward, inspector, ...
	OpOther Op = iota
	OpDequeue
	OpDone
	OpComplete
	OpRequeue
	OpRetry
	OpArchive
	// OpUnknown touches active and lease like the ones above but is not as
	// pinned: another version of asynq. It passes through and is reported.
	OpUnknown
)

func (o Op) String() string {
	switch o {
	case OpOther:
		return "other"
	case OpDequeue:
		return "dequeue"
	case OpDone:
		return "done"
	case OpComplete:
		return "complete"
	case OpRequeue:
		return "requeue"
	case OpRetry:
		return "retry"
	case OpArchive:
		return "archive"
	case OpUnknown:
		return "unknown"
	}
	return "invalid"
}

// Call is what a recognised call acts on. Every string is a part of the
// call's own keys and arguments, except the RetryKey of an archive.
type Call struct {
	Queue     string
	TaskID    string // empty for a dequeue: nobody knows yet
	TaskKey   string // empty for a dequeue
	ActiveKey string
	LeaseKey  string
	RetryKey  string // only for retry and archive: where a deferred task goes
	Message   []byte // as asynq is about to write it; only for retry, archive and complete
	LeaseEnds int64  // in seconds since 1970; only for a dequeue
	Failure   bool   // it counts as a failure; only for a retry
}

// How the last part of a key is pinned when it is not a constant.
const (
	keyTask   = "t:<id>"          // the id is ARGV[1]
	keyDone   = "processed:<day>" // one counter per UTC day
	keyFailed = "failed:<day>"
	keyUnique = "<unique>" // stored in the message, so perhaps by another version

	asynqKeyPrefix = "asynq:{"
	asynqActive    = "active"
)

// scriptShape is the second half of a script's identity: a call with a pinned
// SHA-1 but another shape is not acted on.
type scriptShape struct {
	op      Op
	keys    []string // what follows asynq:{<queue>}:
	args    int
	active  int // index of the active key; the lease key follows it
	message int // index of the encoded message in the arguments, 0 for none
}

// scriptShapes are the finishing and dequeuing scripts by the SHA-1 of their text.
var scriptShapes = map[string]*scriptShape{
	"a8153319360adc71cdc370107f8ab9786f204765": {op: OpDequeue, args: 2, active: 2,
		keys: []string{"pending", "paused", "active", "lease"}},
	"1241eaa1c73409baaf1fea0c08d203a4911bda15": {op: OpDone, args: 3,
		keys: []string{"active", "lease", keyTask, keyDone, "processed"}},
	"a2631c71357a54b4c3e7450b1757e7f3f49d6c81": {op: OpDone, args: 3,
		keys: []string{"active", "lease", keyTask, keyDone, "processed", keyUnique}},
	"117dca952700588e559c7ace20b925096d587974": {op: OpComplete, args: 5, message: 3,
		keys: []string{"active", "lease", "completed", keyTask, keyDone, "processed"}},
	"ce6833ccce362a8c0ee53beee413341daf52e39c": {op: OpComplete, args: 5, message: 3,
		keys: []string{"active", "lease", "completed", keyTask, keyDone, "processed", keyUnique}},
	"f34cbfd11d1fc8019af55b50c447fc68eb8b29e5": {op: OpRequeue, args: 1,
		keys: []string{"active", "lease", "pending", keyTask}},
	"65fa409c88198a681c53e0892d8276eca0145694": {op: OpRetry, args: 6, active: 1, message: 1,
		keys: []string{keyTask, "active", "lease", "retry", keyDone, keyFailed, "processed", "failed"}},
	"9c3b1eb9947ce2ee5304ac013a0a365ec364fd2d": {op: OpArchive, args: 7, active: 1, message: 1,
		keys: []string{keyTask, "active", "lease", "archived", keyDone, keyFailed, "processed", "failed", "t:"}},
}

// Recognise says which of asynq's scripts a call is. It is on the path of every
// dequeue and every done, so it compares parts of the given strings and builds
// none (but the RetryKey of an archive).
//
// Headway's own scripts touch active and lease too, so they must be sent
// through the client inside of the adapter: here they would be OpUnknown.
func Recognise(sha string, keys []string, args []any) (Op, Call) {
	if s := scriptShapes[sha]; s != nil {
		if call, ok := s.match(keys, args); ok {
			return s.op, call
		}
	}
	if queue, ok := finishesLike(keys); ok {
		return OpUnknown, Call{Queue: queue}
	}
	return OpOther, Call{}
}

func (s *scriptShape) match(keys []string, args []any) (Call, bool) {
	if len(keys) != len(s.keys) || len(args) != s.args {
		return Call{}, false
	}
	call := Call{ActiveKey: keys[s.active], LeaseKey: keys[s.active+1]}
	var ok bool
	if call.Queue, ok = queueOf(call.ActiveKey); !ok {
		return Call{}, false
	}
	prefix := call.ActiveKey[:len(call.ActiveKey)-len(asynqActive)]
	if s.op == OpDequeue {
		// the script builds the task's key itself, from this prefix
		if p, ok := args[1].(string); !ok || !isKey(p, prefix, "t:") {
			return Call{}, false
		}
		if call.LeaseEnds, ok = args[0].(int64); !ok {
			return Call{}, false
		}
	} else if call.TaskID, ok = args[0].(string); !ok || call.TaskID == "" {
		return Call{}, false
	}
	for i, want := range s.keys {
		switch want {
		case keyTask:
			rest, ok := strings.CutPrefix(keys[i], prefix)
			if !ok || !isKey(rest, "t:", call.TaskID) {
				return Call{}, false
			}
			call.TaskKey = keys[i]
		case keyDone, keyFailed:
			rest, ok := strings.CutPrefix(keys[i], prefix)
			if !ok || !strings.HasPrefix(rest, want[:len(want)-len("<day>")]) {
				return Call{}, false
			}
		case keyUnique:
			if keys[i] == "" {
				return Call{}, false
			}
		default:
			if !isKey(keys[i], prefix, want) {
				return Call{}, false
			}
		}
	}
	if s.message > 0 {
		if call.Message, ok = args[s.message].([]byte); !ok {
			return Call{}, false
		}
	}
	switch s.op {
	case OpRetry:
		call.RetryKey = keys[s.active+2]
		call.Failure, _ = args[4].(bool)
	case OpArchive:
		call.RetryKey = prefix + "retry"
	}
	return call, true
}

// listExpired is the SHA-1 of the script by which asynq's recoverer finds the tasks of a
// queue whose leases have ended.
const listExpired = "16988a462595f6ee317be300951533b004f27f5c"

// ListsExpired says whether a script is the one by which a recoverer finds its tasks.
func ListsExpired(sha string) bool { return sha == listExpired }

// instants are the arguments of asynq's scripts, by their SHA-1, that are compared with what other processes wrote, or are
// written for them: instants by the local clock, in whole seconds but for those of nanoseconds. The end of a lease that a
// dequeue begins is [Call.LeaseEnds], and [ListsExpired] knows what lists those that have ended. Left out are how long
// statistics are kept, and instants that are only shown.
var instants = map[string]instantArgs{
	"522b1a6ae66fe79ea2f24a9af58798ab71879035": {seconds: []int{0}, nanoseconds: []int{2}}, // forward: what is due
	"49c4326d80c1db9c476da2aa7f4438d03688f82b": {seconds: []int{0}},                        // delete completed tasks: what is kept no longer
	"117dca952700588e559c7ace20b925096d587974": {seconds: []int{2}},                        // complete: until when the task is kept
	"ce6833ccce362a8c0ee53beee413341daf52e39c": {seconds: []int{2}},
	"65fa409c88198a681c53e0892d8276eca0145694": {seconds: []int{2}},    // retry: when the task is due
	"9c3b1eb9947ce2ee5304ac013a0a365ec364fd2d": {seconds: []int{2, 3}}, // archive: now, and what is kept no longer
}

type instantArgs struct{ seconds, nanoseconds []int }

// MoveInstants adds d to each instant among the arguments of one of asynq's scripts. It returns new arguments, because asynq
// may send the old ones again. When nothing moves it returns args.
func MoveInstants(sha string, args []any, d time.Duration) []any {
	at, ok := instants[sha]
	if !ok || d == 0 {
		return args
	}
	args = slices.Clone(args)
	move := func(indices []int, by int64) {
		for _, i := range indices {
			if i >= len(args) {
				continue
			}
			if instant, ok := args[i].(int64); ok {
				args[i] = instant + by
			}
		}
	}
	move(at.seconds, int64(d.Round(time.Second)/time.Second))
	move(at.nanoseconds, int64(d))
	return args
}

// IsLease says whether a key is that of asynq's leases of a queue.
func IsLease(key string) bool {
	return strings.HasPrefix(key, asynqKeyPrefix) && strings.HasSuffix(key, "}:lease")
}

// isKey reports whether key is prefix+rest, without building it.
func isKey(key, prefix, rest string) bool {
	return len(key) == len(prefix)+len(rest) && key[:len(prefix)] == prefix && key[len(prefix):] == rest
}

// queueOf cuts the queue out of asynq:{<queue>}:active. Both ends are constant,
// so a queue may have any name, braces and colons included.
func queueOf(activeKey string) (string, bool) {
	rest, ok := strings.CutPrefix(activeKey, asynqKeyPrefix)
	if !ok {
		return "", false
	}
	queue, ok := strings.CutSuffix(rest, "}:"+asynqActive)
	return queue, ok && queue != ""
}

// finishesLike reports whether keys are those of a script that dequeues or
// finishes a task, whatever else changed: an active and a lease key of one
// queue. A scheduled key excludes it: then it is the removal of a queue.
func finishesLike(keys []string) (queue string, ok bool) {
	for _, key := range keys {
		if queue, ok = queueOf(key); !ok {
			continue
		}
		prefix := key[:len(key)-len(asynqActive)]
		lease, scheduled := false, false
		for _, k := range keys {
			lease = lease || isKey(k, prefix, "lease")
			scheduled = scheduled || isKey(k, prefix, "scheduled")
		}
		return queue, lease && !scheduled
	}
	return "", false
}

// The cache of SHA keeps asynq's 49 scripts and as many of the user's. It is
// bounded because a program may generate script texts.
const (
	shaCacheMax     = 128
	shaCacheTextMax = 16 << 10 // bytes; a longer text is hashed each time
)

// shas is a cache of a pure function, which is why it may be a variable of the package.
var shas = shaCache{m: make(map[string]string)}

type shaCache struct {
	mu sync.RWMutex
	m  map[string]string
}

// SHA returns the SHA-1 by which Redis knows a script, in hex. It serves Eval,
// which go-redis falls back to when Redis does not have the script yet.
func SHA(text string) string {
	shas.mu.RLock()
	sha, ok := shas.m[text]
	shas.mu.RUnlock()
	if ok {
		return sha
	}
	sum := sha1.Sum([]byte(text))
	sha = hex.EncodeToString(sum[:])
	if len(text) > shaCacheTextMax {
		return sha
	}
	shas.mu.Lock()
	defer shas.mu.Unlock()
	if len(shas.m) < shaCacheMax {
		shas.m[text] = sha
	}
	return sha
}
