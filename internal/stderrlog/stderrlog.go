// Package stderrlog is the logger of a program that gives none. Whoever forgets to give a
// logger hears of what went wrong all the same.
package stderrlog

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Or is the logger that is given, and without one a logger that writes warnings and
// errors to stderr, as zap's production configuration writes them, but with the time in
// ISO 8601 and without stack traces: the lines are about Redis or a task, and not about a place
// in the code. [zap.NewNop] silences it.
func Or(given *zap.Logger) *zap.Logger {
	if given != nil {
		return given
	}
	cfg := zap.NewProductionConfig()
	cfg.Level = zap.NewAtomicLevelAt(zap.WarnLevel)
	cfg.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	cfg.DisableStacktrace = true
	log, err := cfg.Build()
	if err != nil {
		panic("stderrlog: " + err.Error()) // the configuration is fixed, and opens no file
	}
	return log
}
