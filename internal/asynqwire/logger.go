package asynqwire

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	// asynqLogQuiet is the time within which a line like one before is not repeated.
	asynqLogQuiet = 3 * time.Second
	// asynqLogKinds bounds the kinds of lines that are told apart.
	asynqLogKinds = 256
)

// logger gives asynq's lines to another logger. It is safe for concurrent use.
//
// The level at which asynq logs is set by its own Config.LogLevel first; then
// that of the other logger decides. A line is a debug, info, warn or error entry as in asynq.
// Fatal is an error entry and does not end the process, although asynq's
// interface says so: v0.26.0 calls it nowhere (pinned by a test), and to end
// the process belongs to the host.
type logger struct {
	to   lines
	drop func(msg string) bool
	now  func() time.Time

	mu    sync.Mutex
	kinds map[logLine]*flood
}

// lines is where lines go.
type lines interface {
	enabled(level zapcore.Level) bool
	// write writes a line, and how many like it were left out before.
	write(level zapcore.Level, msg string, suppressed int)
}

// logLine is what makes two lines alike.
type logLine struct {
	level  zapcore.Level
	prefix string
}

type flood struct {
	logged     time.Time // the last line that was written
	suppressed int       // lines since then
}

// NewLogger returns the logger for asynq.Config.Logger. A nil log logs
// nothing; lines for which drop returns true are not logged (nil drops none).
//
// Of lines that are alike one is logged per 3 s, with the number of those
// left out since the one before as "suppressed": during an outage asynq repeats
// its errors for every component and task, and each server does. So all servers of a
// process share one logger. What is left out at the very end is not counted anywhere.
func NewLogger(log *zap.Logger, drop func(msg string) bool) asynq.Logger {
	if log == nil {
		log = zap.NewNop()
	}
	return newLogger(zapLines{log.With(zap.String("component", "asynq"))}, drop)
}

// Collapse is [NewLogger] for a logger of asynq's own kind. The number of lines left out stands at the
// end of a line.
func Collapse(to asynq.Logger, drop func(msg string) bool) asynq.Logger {
	return newLogger(asynqLines{to}, drop)
}

func newLogger(to lines, drop func(msg string) bool) *logger {
	return &logger{to: to, drop: drop, now: time.Now, kinds: make(map[logLine]*flood)}
}

type zapLines struct{ log *zap.Logger }

func (z zapLines) enabled(level zapcore.Level) bool { return z.log.Core().Enabled(level) }

func (z zapLines) write(level zapcore.Level, msg string, suppressed int) {
	if ce := z.log.Check(level, msg); ce != nil {
		if suppressed > 0 {
			ce.Write(zap.Int("suppressed", suppressed))
		} else {
			ce.Write()
		}
	}
}

type asynqLines struct{ to asynq.Logger }

func (asynqLines) enabled(zapcore.Level) bool { return true } // it decides itself

func (a asynqLines) write(level zapcore.Level, msg string, suppressed int) {
	if suppressed > 0 {
		msg = fmt.Sprintf("%s (suppressed=%d)", msg, suppressed)
	}
	switch level {
	case zapcore.DebugLevel:
		a.to.Debug(msg)
	case zapcore.InfoLevel:
		a.to.Info(msg)
	case zapcore.WarnLevel:
		a.to.Warn(msg)
	default:
		a.to.Error(msg)
	}
}

func (l *logger) Debug(args ...any) { l.write(zapcore.DebugLevel, args) }
func (l *logger) Info(args ...any)  { l.write(zapcore.InfoLevel, args) }
func (l *logger) Warn(args ...any)  { l.write(zapcore.WarnLevel, args) }
func (l *logger) Error(args ...any) { l.write(zapcore.ErrorLevel, args) }
func (l *logger) Fatal(args ...any) { l.write(zapcore.ErrorLevel, args) }

func (l *logger) write(level zapcore.Level, args []any) {
	if !l.to.enabled(level) {
		return
	}
	msg := fmt.Sprint(args...)
	if l.drop != nil && l.drop(msg) {
		return
	}
	msg = withoutUserData(msg)
	if suppressed, ok := l.admit(logLine{level, constantPrefix(msg)}); ok {
		l.to.write(level, msg, suppressed)
	}
}

// admit reports whether a line is logged now, and how many like it were left
// out before.
func (l *logger) admit(line logLine) (suppressed int, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.kinds[line]
	if f == nil {
		l.forgetLocked(now)
		if len(l.kinds) >= asynqLogKinds {
			line.prefix = "" // all further kinds share one line
		}
		if f = l.kinds[line]; f == nil {
			l.kinds[line] = &flood{logged: now}
			return 0, true
		}
	}
	if now.Sub(f.logged) < asynqLogQuiet {
		f.suppressed++
		return 0, false
	}
	suppressed = f.suppressed
	*f = flood{logged: now}
	return suppressed, true
}

// forgetLocked makes room once the map is full. A kind with a count to report
// is kept for a minute.
func (l *logger) forgetLocked(now time.Time) {
	if len(l.kinds) < asynqLogKinds {
		return
	}
	for line, f := range l.kinds {
		if age := now.Sub(f.logged); age > time.Minute || f.suppressed == 0 && age > asynqLogQuiet {
			delete(l.kinds, line)
		}
	}
}

// constantPrefix cuts a line before the first word that holds a digit, a quote,
// an assignment or a list: an id, an address, a count. "Retry exhausted for task
// id=b-7" and the same with id=c-9 are both "Retry exhausted for task ".
func constantPrefix(msg string) string {
	i := strings.IndexAny(msg, `0123456789"=[`)
	if i < 0 {
		return msg
	}
	return msg[:strings.LastIndexByte(msg[:i], ' ')+1]
}

const (
	// asynqScheduled starts the one line of asynq that holds a payload: the
	// scheduler's, at debug level, with the whole TaskInfo.
	asynqScheduled = "scheduler enqueued a task:"
	// asynqGroup precedes a quoted group key, which may be a user's.
	asynqGroup = `group="`
)

// withoutUserData cuts a payload and group keys out of a line. Task ids, task
// types and names of queues stay.
func withoutUserData(msg string) string {
	if strings.HasPrefix(msg, asynqScheduled) {
		return asynqScheduled[:len(asynqScheduled)-1]
	}
	i := strings.Index(msg, asynqGroup)
	if i < 0 {
		return msg
	}
	i += len(asynqGroup) - 1
	quoted, err := strconv.QuotedPrefix(msg[i:])
	if err != nil {
		return msg[:i]
	}
	return msg[:i] + `"..."` + msg[i+len(quoted):]
}

// asynqExhausted starts the warning that asynq logs before it archives a task
// on its last attempt, so also for one that the adapter then only defers.
const asynqExhausted = "Retry exhausted for task id="

// RetryExhaustedID returns the task id of asynq's warning that a task has no
// attempts left. The line names no queue: the id may be that of another queue's
// task too.
func RetryExhaustedID(msg string) (id string, ok bool) {
	id, ok = strings.CutPrefix(msg, asynqExhausted)
	return id, ok && id != ""
}
