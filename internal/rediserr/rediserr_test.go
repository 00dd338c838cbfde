package rediserr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// answer is an error that a server answered.
type answer string

func (a answer) Error() string { return string(a) }
func (a answer) RedisError()   {}

func TestKindOfEachError(t *testing.T) {
	t.Parallel()
	refusedDial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	for _, tc := range []struct {
		err  error
		want Kind
	}{
		{nil, OK},
		{redis.Nil, OK},
		// what passes
		{answer("LOADING Redis is loading the dataset in memory"), Passing},
		{answer("LOADING"), Passing},
		{answer("READONLY You can't write against a read only replica."), Passing},
		{answer("MASTERDOWN Link with MASTER is down"), Passing},
		{answer("TRYAGAIN Multiple keys request during rehashing of slot"), Passing},
		{answer("CLUSTERDOWN The cluster is down"), Passing},
		{answer("CLUSTERDOWN Hash slot not served"), Passing},
		{answer("BUSY Redis is busy running a script."), Passing},
		{answer("NOREPLICAS Not enough good replicas to write."), Passing},
		{answer("ERR max number of clients reached"), Passing},
		{answer("ERR LOADING by a server that puts ERR first"), Passing},
		{answer("ERR Error running script (call to f_67ed): @user_script:4: @user_script: 4: -READONLY You can't write against a read only replica."), Passing},
		// what has its own way on
		{answer("NOSCRIPT No matching script. Please use EVAL."), NoScript},
		{redis.ErrNoScript, NoScript},
		{answer("NOT FOUND"), NotFound},
		{answer("CROSSSLOT Keys in request don't hash to the same slot"), CrossSlot},
		{redis.ErrCrossSlot, CrossSlot},
		// what an operator mends
		{answer("OOM command not allowed when used memory > 'maxmemory'."), Barred},
		{answer("MISCONF Redis is configured to save RDB snapshots"), Barred},
		{answer("NOAUTH Authentication required."), Barred},
		{answer("WRONGPASS invalid username-password pair"), Barred},
		{answer("NOPERM this user has no permissions"), Barred},
		{answer("ERR The user executing the script can't run this command or subcommand script: 67ed, on @user_script:1."), Barred},
		{answer("ERR Error running script (call to f_67ed): @user_script:4: @user_script: 4: -MISCONF Redis is configured to save RDB snapshots"), Barred},
		// what stays as it is
		{answer("ERR Error running script (call to f_67ed): @user_script:4: @user_script: 4: -WRONGTYPE Operation against a key"), Refused},
		{answer("ERR Error running script (call to f_67ed): @user_script:4: user_script:4: attempt to index a nil value"), Refused},
		{answer("MOVED 3999 127.0.0.1:6381"), Refused},
		{answer("ERR Script attempted to access a non local key in a cluster node script: headway_1_acquire, on @user_function:2133."), Lost},
		{answer("ERR Error running script (call to f_67ed): @user_script:4: @user_script: 4: Lua script attempted to access a non local key in a cluster node"), Lost},
		{answer("ASK 3999 127.0.0.1:6381"), Refused},
		{answer("WRONGTYPE Operation against a key holding the wrong kind of value"), Refused},
		{answer("EXECABORT Transaction discarded"), Refused},
		{answer("BUSYKEY Target key name already exists."), Refused},
		{answer("BUSYGROUP Consumer Group name already exists"), Refused},
		{answer("ERR unknown command"), Refused},
		{answer(""), Refused},
		// what never left
		{refusedDial, Unsent},
		{redis.ErrClosed, Unsent},
		{redis.ErrPoolTimeout, Unsent},
		{redis.ErrPoolExhausted, Unsent},
		// what was waited for
		{&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, TimedOut},
		{&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, TimedOut},
		{context.DeadlineExceeded, TimedOut},
		// what is lost
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, Lost},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, Lost},
		{io.EOF, Lost},
		{io.ErrUnexpectedEOF, Lost},
		{context.Canceled, Lost},
		{errors.New("LOADING, in the words of somebody else"), Lost},
	} {
		for _, err := range []error{tc.err, fmt.Errorf("a call: %w", tc.err)} {
			if tc.err == nil {
				err = nil
			}
			if got := Of(err); got != tc.want {
				t.Errorf("Of(%v) = %d, want %d", err, got, tc.want)
			}
		}
	}
}

// A server answered some kinds, and not the others.
func TestAnswered(t *testing.T) {
	t.Parallel()
	for _, k := range []Kind{OK, Passing, NoScript, NotFound, CrossSlot, Barred, Refused} {
		if !k.Answered() {
			t.Errorf("kind %d is not an answer, want one", k)
		}
	}
	for _, k := range []Kind{Unsent, TimedOut, Lost} {
		if k.Answered() {
			t.Errorf("kind %d is an answer, want none", k)
		}
	}
}

// What somebody repeats who can wait is not what stays as it is.
func TestMayPass(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{redis.Nil, false},
		{answer("LOADING Redis is loading the dataset in memory"), true},
		{answer("MISCONF Redis is configured to save RDB snapshots"), true},
		{answer("NOPERM this user has no permissions"), true},
		{answer("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{redis.ErrNoScript, false},
		{redis.ErrCrossSlot, false},
		{redis.ErrPoolTimeout, true},
		{redis.ErrClosed, false},
		{context.DeadlineExceeded, true},
		{io.EOF, true},
	} {
		if got := MayPass(tc.err); got != tc.want {
			t.Errorf("MayPass(%v) = %v, want %v", tc.err, got, tc.want)
		}
	}
}

// A user may lack a right for a call, or for what its script calls. Other refusals are not about rights.
func TestNoPermission(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"NOPERM this user has no permissions to run the 'info' command":                                                                           true,
		"ERR The user executing the script can't run this command or subcommand script: x, on @user_function:7.":                                  true,
		"ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -NOPERM this user has no permissions to access one of the keys": true,
		"NOAUTH Authentication required.": false,
		"ERR NOPERMS are told":            false,
	} {
		for _, err := range []error{answer(text), fmt.Errorf("a call: %w", answer(text))} {
			if got := NoPermission(err); got != want {
				t.Errorf("NoPermission(%v) = %v, want %v", err, got, want)
			}
		}
	}
	for _, err := range []error{nil, errors.New("NOPERM, in the words of somebody else")} {
		if NoPermission(err) {
			t.Errorf("NoPermission(%v) = true, want false", err)
		}
	}
}
