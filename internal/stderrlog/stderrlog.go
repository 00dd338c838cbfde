// Package stderrlog is the logger of a program that gives none. Whoever forgets to give a
// logger hears of what went wrong all the same.
package stderrlog

import "go.uber.org/zap"

// Or is the logger that is given, and without one a logger that writes warnings and
// errors to stderr, as zap's production configuration writes them. [zap.NewNop] silences
// it.
func Or(given *zap.Logger) *zap.Logger {
	if given != nil {
		return given
	}
	cfg := zap.NewProductionConfig()
	cfg.Level = zap.NewAtomicLevelAt(zap.WarnLevel)
	log, err := cfg.Build()
	if err != nil {
		panic("stderrlog: " + err.Error()) // the configuration is fixed, and opens no file
	}
	return log
}
