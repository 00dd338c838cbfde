// Package rediserr says what an error of a Redis call means: whether the server answered,
// whether its refusal passes, and whether the call may have run. Limiters, pools and clients
// decide by this list whether to send a call again; docs/architecture.md says who they are.
// internal/luascripts looks at the text itself where a server can't run its library of
// functions, and where a slot moves to another node.
package rediserr

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Kind is what an error means for the call that got it.
type Kind int

// The first seven are answers of a server, and the call has not run, except after [OK]. Our
// scripts refuse before their first write, and after it Redis stops no script for any of
// the reasons below. One reason is left, see [HalfDone].
const (
	// OK: there is no error, or the answer is that there is no value ([redis.Nil]).
	OK Kind = iota
	// Passing: the server can't run the call at the moment. The same call may succeed soon.
	Passing
	// NoScript: the server does not know the script. It needs the text.
	NoScript
	// NotFound: a script of asynq, or defer.lua, did not find the task.
	NotFound
	// CrossSlot: the keys of the call are on several servers of a Cluster.
	CrossSlot
	// Barred: the server refuses such calls until an operator mends it. It is full, its disk
	// fails, or the user lacks a right or a password. To repeat the call at once does not help.
	Barred
	// Refused: the same call gets the same answer, for good.
	Refused
	// Unsent: there was no connection to send the call on. It has not run.
	Unsent
	// TimedOut: an answer or a connection was waited for, and did not come. The call may
	// have run. To repeat it at once costs a second wait.
	TimedOut
	// Lost: the connection broke, the call was given up, or it is [HalfDone]. It may have run. Whoever repeats
	// it needs a call that may run twice, by its token for instance.
	Lost
)

// kinds are the codes of answers. What is not listed is Refused.
//
// CLUSTERDOWN and BUSY pass. A Cluster says CLUSTERDOWN while it elects a new master, which
// takes seconds. A server says BUSY while a script runs longer than busy-reply-threshold,
// until it ends. Neither has run the call, so it may be sent again. How often is bounded by
// who sends it, so a Cluster that stays down costs a few calls more.
//
// MOVED and ASK are Refused on purpose. A client of a Cluster follows them by itself, and our
// scripts wait for a slot that moves; any other client gets them for ever.
var kinds = map[string]Kind{
	"LOADING":     Passing, // the server starts
	"READONLY":    Passing, // a replica: another server becomes the master
	"MASTERDOWN":  Passing, // a replica without its master
	"TRYAGAIN":    Passing, // the keys of a slot are on their way to another server
	"CLUSTERDOWN": Passing,
	"BUSY":        Passing,
	"NOREPLICAS":  Passing, // too few replicas follow the master
	"OOM":         Barred,
	"MISCONF":     Barred, // it can't save
	"NOAUTH":      Barred,
	"WRONGPASS":   Barred,
	"NOPERM":      Barred,
	"NOSCRIPT":    NoScript,
	"CROSSSLOT":   CrossSlot,
}

// Those that have no code of one word.
const (
	notFound   = "NOT FOUND"
	maxClients = "max number of clients reached" // passes: other clients leave
	noRight    = "The user executing the script can't run this command"
)

// HalfDone stands in the answer to a script that has emptied one of its keys while their slot moves to another node of a Cluster. While
// a slot moves, its node refuses a command on a key that does not exist: the key may have moved. So it ends the script when that
// touches the empty key again. What the script has written stays.
const HalfDone = "attempted to access a non local key"

// Of says what an error means. It sees through wrapped errors.
func Of(err error) Kind {
	if err == nil || errors.Is(err, redis.Nil) {
		return OK
	}
	if answer, ok := errors.AsType[redis.Error](err); ok {
		return ofAnswer(answer.Error())
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return TimedOut
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return Unsent
	}
	for _, unsent := range []error{redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted} {
		if errors.Is(err, unsent) {
			return Unsent
		}
	}
	return Lost
}

// inScript is where the refusal of a command stands that a script called. Before 7.0 Redis put "Error running script" and the
// line before it.
var inScript = regexp.MustCompile(`^Error running script .*@user_script: \d+: -`)

// codeOf is the word by which an answer says what it means, and the text that begins with it.
func codeOf(answer string) (code, text string) {
	text = strings.TrimPrefix(answer, "ERR ")
	text = strings.TrimPrefix(text[len(inScript.FindString(text)):], "ERR ")
	code, _, _ = strings.Cut(text, " ")
	return code, text
}

// ofAnswer says what the text of an answer means.
func ofAnswer(answer string) Kind {
	code, text := codeOf(answer)
	kind, listed := kinds[code]
	switch {
	case listed:
		return kind
	case strings.HasPrefix(text, notFound):
		return NotFound
	case strings.HasPrefix(text, maxClients):
		return Passing
	case strings.HasPrefix(text, noRight):
		return Barred
	case strings.Contains(text, HalfDone):
		return Lost
	}
	return Refused
}

// NoPermission says that the user lacks a right, for the call or for what its script calls.
func NoPermission(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return false
	}
	code, text := codeOf(answer.Error())
	return code == "NOPERM" || strings.HasPrefix(text, noRight)
}

// MayPass says that the same call may succeed later, for those who can wait: when the server is there again, or is mended.
// It may have run. Nothing is sent any more on a client that its user has closed.
func MayPass(err error) bool {
	switch Of(err) {
	case Passing, Barred, TimedOut, Lost:
		return true
	case Unsent:
		return !errors.Is(err, redis.ErrClosed)
	}
	return false
}

// Answered says that the server itself answered.
func (k Kind) Answered() bool { return k <= Refused }

// Exec runs a pipeline after which each command carries its own error. go-redis gives the
// commands none when a server answers the handshake of a new connection with an error:
// a wrong password, a database that does not exist. Each command then looks like one whose
// reply is empty.
func Exec(ctx context.Context, pipe redis.Pipeliner) ([]redis.Cmder, error) {
	commands, err := pipe.Exec(ctx)
	if err == nil {
		return commands, nil
	}
	for _, c := range commands {
		if c.Err() != nil {
			return commands, err
		}
	}
	for _, c := range commands {
		c.SetErr(err)
	}
	return commands, err
}
