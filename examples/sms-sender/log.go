package main

import (
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Of lines that say the same, this many are written per window: a gateway that is
// down must not write a line per message. The numbers are in the summary, and each
// message's error is in asynq.
const (
	logWindow = 10 * time.Second
	logLines  = 5
)

// newLogger returns a logger of warnings and errors, for people. Whoever logs
// leaves phones and texts out.
func newLogger(w io.Writer) *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		TimeKey: "at", LevelKey: "level", MessageKey: "msg",
		EncodeTime:       zapcore.TimeEncoderOfLayout("15:04:05"),
		EncodeLevel:      zapcore.CapitalLevelEncoder,
		EncodeDuration:   zapcore.StringDurationEncoder,
		ConsoleSeparator: " ",
	})
	core := zapcore.NewCore(enc, zapcore.AddSync(w), zapcore.WarnLevel)
	return zap.New(zapcore.NewSamplerWithOptions(core, logWindow, logLines, 0))
}
