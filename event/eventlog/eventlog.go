// Package eventlog writes events to a logger.
package eventlog

import (
	"context"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/headwayq/headway/event"
)

// New returns an observer that writes each event as a line. What happens to single tasks has
// the level Debug, a change by an operator or a provider Info; a refusal, a lost lease and a
// Redis that is away are warnings.
func New(log *zap.Logger) event.Observer {
	return event.Observer{
		Granted: logged(log, zap.DebugLevel, "granted", func(e event.Granted) []zap.Field {
			return append(task(e.Task), zap.String("rule", strings.Join(e.Rules, "+")), zap.Time("at", e.At), zap.Bool("waited", !e.Promised.IsZero()),
				zap.Duration("late", e.Late), zap.Bool("shadowed", e.Shadowed), zap.Bool("fallback", e.Fallback), zap.Bool("forced", e.Forced))
		}),
		Refused: logged(log, zap.WarnLevel, "refused", func(e event.Refused) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Rule), zap.String("reason", string(e.Reason)))
		}),
		Deferred: logged(log, zap.DebugLevel, "deferred", func(e event.Deferred) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Rule), zap.String("reason", string(e.Reason)), zap.Time("at", e.At), zap.Duration("wait", e.Wait))
		}),
		Moved: logged(log, zap.DebugLevel, "moved", func(e event.Moved) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Rule), zap.Time("at", e.At), zap.Time("was", e.Was))
		}),
		Promoted: logged(log, zap.DebugLevel, "promoted", func(e event.Promoted) []zap.Field {
			return append(task(e.Task), zap.Time("at", e.At), zap.Bool("offered", e.Offered))
		}),
		Woken: logged(log, zap.DebugLevel, "woken", func(e event.Woken) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Policy), zap.Time("at", e.At))
		}),
		Postponed: logged(log, zap.InfoLevel, "postponed", func(e event.Postponed) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Rule), zap.Duration("wait", e.Wait), zap.Int("times", e.Times))
		}),
		LeaseLost: logged(log, zap.WarnLevel, "lease lost", func(e event.LeaseLost) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Rule))
		}),
		Adjusted: logged(log, zap.DebugLevel, "adjusted", func(e event.Adjusted) []zap.Field {
			return append(task(e.Task), zap.String("rule", e.Rule), zap.Int("from", e.From), zap.Int("to", e.To))
		}),
		Unlimited: logged(log, zap.DebugLevel, "unlimited", func(e event.Unlimited) []zap.Field {
			return append(task(e.Task), zap.Bool("fails", e.Fails))
		}),
		LimitChanged: logged(log, zap.InfoLevel, "limit changed", func(e event.LimitChanged) []zap.Field {
			return []zap.Field{zap.String("rule", e.Rule), zap.String("limit", e.Limit), zap.Bool("stored", e.Stored), zap.Time("closed", e.Closed)}
		}),
		KeyClosed: logged(log, zap.InfoLevel, "key closed", func(e event.KeyClosed) []zap.Field {
			return []zap.Field{zap.String("rule", e.Rule), zap.Time("until", e.Until)}
		}),
		RedisAway: logged(log, zap.WarnLevel, "redis is away", func(e event.RedisAway) []zap.Field {
			return []zap.Field{zap.Error(e.Err)}
		}),
		RedisBack: logged(log, zap.InfoLevel, "redis is back", func(e event.RedisBack) []zap.Field {
			return []zap.Field{zap.Duration("for", e.For)}
		}),
		RedisReplaced: logged(log, zap.WarnLevel, "another redis server answers", func(e event.RedisReplaced) []zap.Field {
			return []zap.Field{zap.String("addr", e.Addr)}
		}),
		ClockJumped: logged(log, zap.WarnLevel, "the clock of redis jumped", func(e event.ClockJumped) []zap.Field {
			return []zap.Field{zap.String("addr", e.Addr), zap.Duration("by", e.By)}
		}),
	}
}

func logged[E event.Event](log *zap.Logger, level zapcore.Level, message string, fields func(E) []zap.Field) func(context.Context, E) {
	return func(_ context.Context, e E) {
		if c := log.Check(level, message); c != nil {
			c.Write(fields(e)...)
		}
	}
}

func task(t event.Task) []zap.Field {
	return []zap.Field{zap.String("queue", t.Queue), zap.String("type", t.Type), zap.String("task", t.ID)}
}
