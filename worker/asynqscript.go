package worker

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"sync"
)

// asynqVersion is the version of asynq whose scripts, keys and messages are
// pinned in this package. TestAsynqGolden says what another version changed.
const asynqVersion = "v0.26.0"

// asynqOp names what a script call of asynq does to a task. Only the operations
// that take a task out of pending or out of active have a name: the adapter
// acts on nothing else.
//
//	pending --dequeue--> active --done-----> (deleted)
//	                            --complete-> completed
//	                            --requeue--> pending
//	                            --retry----> retry
//	                            --archive--> archived
type asynqOp int

const (
	// opOther is any other script, asynq's or not: enqueue, forward, inspector, ...
	opOther asynqOp = iota
	opDequeue
	opDone
	opComplete
	opRequeue
	opRetry
	opArchive
	// opUnknown touches active and lease like the ones above but is not as
	// pinned: another version of asynq. It passes through and is reported.
	opUnknown
)

func (o asynqOp) String() string {
	switch o {
	case opOther:
		return "other"
	case opDequeue:
		return "dequeue"
	case opDone:
		return "done"
	case opComplete:
		return "complete"
	case opRequeue:
		return "requeue"
	case opRetry:
		return "retry"
	case opArchive:
		return "archive"
	case opUnknown:
		return "unknown"
	}
	return "invalid"
}

// asynqCall is what a recognised call acts on. Every string is a part of the
// call's own keys and arguments, except the retryKey of an archive.
type asynqCall struct {
	queue     string
	taskID    string // empty for a dequeue: nobody knows yet
	taskKey   string // empty for a dequeue
	activeKey string
	leaseKey  string
	retryKey  string // only for retry and archive: where a deferred task goes
	message   []byte // as asynq is about to write it; only for retry, archive and complete
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

// asynqShape is the second half of a script's identity: a call with a pinned
// SHA-1 but another shape is not acted on.
type asynqShape struct {
	op      asynqOp
	keys    []string // what follows asynq:{<queue>}:
	args    int
	active  int // index of the active key; the lease key follows it
	message int // index of the encoded message in the arguments, 0 for none
}

// asynqShapes holds the finishing and dequeuing scripts by the SHA-1 of their text.
var asynqShapes = map[string]*asynqShape{
	"a8153319360adc71cdc370107f8ab9786f204765": {op: opDequeue, args: 2, active: 2,
		keys: []string{"pending", "paused", "active", "lease"}},
	"1241eaa1c73409baaf1fea0c08d203a4911bda15": {op: opDone, args: 3,
		keys: []string{"active", "lease", keyTask, keyDone, "processed"}},
	"a2631c71357a54b4c3e7450b1757e7f3f49d6c81": {op: opDone, args: 3,
		keys: []string{"active", "lease", keyTask, keyDone, "processed", keyUnique}},
	"117dca952700588e559c7ace20b925096d587974": {op: opComplete, args: 5, message: 3,
		keys: []string{"active", "lease", "completed", keyTask, keyDone, "processed"}},
	"ce6833ccce362a8c0ee53beee413341daf52e39c": {op: opComplete, args: 5, message: 3,
		keys: []string{"active", "lease", "completed", keyTask, keyDone, "processed", keyUnique}},
	"f34cbfd11d1fc8019af55b50c447fc68eb8b29e5": {op: opRequeue, args: 1,
		keys: []string{"active", "lease", "pending", keyTask}},
	"65fa409c88198a681c53e0892d8276eca0145694": {op: opRetry, args: 6, active: 1, message: 1,
		keys: []string{keyTask, "active", "lease", "retry", keyDone, keyFailed, "processed", "failed"}},
	"9c3b1eb9947ce2ee5304ac013a0a365ec364fd2d": {op: opArchive, args: 7, active: 1, message: 1,
		keys: []string{keyTask, "active", "lease", "archived", keyDone, keyFailed, "processed", "failed", "t:"}},
}

// recognise says which of asynq's scripts a call is. It is on the path of every
// dequeue and every done, so it compares parts of the given strings and builds
// none (but the retryKey of an archive).
//
// Headway's own scripts touch active and lease too, so they must be sent
// through the client inside of the adapter: here they would be opUnknown.
func recognise(sha string, keys []string, args []any) (asynqOp, asynqCall) {
	if s := asynqShapes[sha]; s != nil {
		if call, ok := s.match(keys, args); ok {
			return s.op, call
		}
	}
	if queue, ok := finishesLike(keys); ok {
		return opUnknown, asynqCall{queue: queue}
	}
	return opOther, asynqCall{}
}

func (s *asynqShape) match(keys []string, args []any) (asynqCall, bool) {
	if len(keys) != len(s.keys) || len(args) != s.args {
		return asynqCall{}, false
	}
	call := asynqCall{activeKey: keys[s.active], leaseKey: keys[s.active+1]}
	var ok bool
	if call.queue, ok = queueOf(call.activeKey); !ok {
		return asynqCall{}, false
	}
	prefix := call.activeKey[:len(call.activeKey)-len(asynqActive)]
	if s.op == opDequeue {
		// the script builds the task's key itself, from this prefix
		if p, ok := args[1].(string); !ok || !isKey(p, prefix, "t:") {
			return asynqCall{}, false
		}
	} else if call.taskID, ok = args[0].(string); !ok || call.taskID == "" {
		return asynqCall{}, false
	}
	for i, want := range s.keys {
		switch want {
		case keyTask:
			rest, ok := strings.CutPrefix(keys[i], prefix)
			if !ok || !isKey(rest, "t:", call.taskID) {
				return asynqCall{}, false
			}
			call.taskKey = keys[i]
		case keyDone, keyFailed:
			rest, ok := strings.CutPrefix(keys[i], prefix)
			if !ok || !strings.HasPrefix(rest, want[:len(want)-len("<day>")]) {
				return asynqCall{}, false
			}
		case keyUnique:
			if keys[i] == "" {
				return asynqCall{}, false
			}
		default:
			if !isKey(keys[i], prefix, want) {
				return asynqCall{}, false
			}
		}
	}
	if s.message > 0 {
		if call.message, ok = args[s.message].([]byte); !ok {
			return asynqCall{}, false
		}
	}
	switch s.op {
	case opRetry:
		call.retryKey = keys[s.active+2]
	case opArchive:
		call.retryKey = prefix + "retry"
	}
	return call, true
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

// The cache of shaOf keeps asynq's 49 scripts and as many of the user's. It is
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

// shaOf returns the SHA-1 by which Redis knows a script, in hex. It serves Eval,
// which go-redis falls back to when Redis does not have the script yet.
func shaOf(text string) string {
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
