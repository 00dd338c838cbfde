package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/headwayq/headway/queue/batch"
	"github.com/headwayq/headway/throttle/gate"
)

// plainEach is how often progress is written where no line can be redrawn.
const plainEach = time.Second

// eraseLine goes to the start of the line and erases it.
const eraseLine = "\r\x1b[K"

// screen is where people look: lines of what happens, and below them, on a terminal,
// one that tells how far the batch is and is redrawn; elsewhere that is a plain line
// each second. Errors of a terminal that is gone are dropped. It is safe for concurrent
// use.
type screen struct {
	width func() int // columns of the terminal; nil elsewhere

	mu    sync.Mutex
	out   io.Writer
	live  string
	wrote time.Time // the last plain line
	kept  string    // one that came too soon after it
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return s
	}
	s.width = func() int {
		w, _, err := term.GetSize(int(f.Fd()))
		if err != nil || w < 1 {
			return 80
		}
		return w
	}
	return s
}

// say writes a line of what happened, with the time of the clock.
func (s *screen) say(clock, text string) { _, _ = fmt.Fprintf(s, "%s  %s\n", clock, text) }

// Write writes whole lines above the live one.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != "" {
		b = []byte(eraseLine + string(b) + s.live)
	}
	return s.out.Write(b)
}

// show tells how far the batch is.
func (s *screen) show(clock, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := clock + "  " + text
	if s.width == nil {
		s.kept = line
		if now := time.Now(); now.Sub(s.wrote) >= plainEach {
			s.wrote, s.kept = now, ""
			_, _ = io.WriteString(s.out, line+"\n")
		}
		return
	}
	// A line as wide as the terminal wraps, and then only its last row is erased. It is
	// ASCII, and cut by bytes.
	s.live = line[:min(len(line), s.width()-1)]
	_, _ = io.WriteString(s.out, eraseLine+s.live)
}

// end leaves what was shown last as it is.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != "" || s.kept != "" {
		_, _ = io.WriteString(s.out, s.kept+"\n")
	}
	s.live, s.kept = "", ""
}

// progressText is a batch in a line.
func progressText(p batch.Progress, c Clock, hours gate.Gate) string {
	const width = 24
	bar := ""
	if p.Total > 0 {
		done := int(width * min(p.Done+p.Failed+p.Refused, p.Total) / p.Total)
		bar = "[" + strings.Repeat("#", done) + strings.Repeat("-", width-done) + "] "
	}
	end := "end not known yet"
	if !p.ExpectedEnd.IsZero() {
		end = "end about " + c.showFrom(p.Now, p.ExpectedEnd)
	}
	if p.State == batch.Ended {
		end = "ended at " + c.showFrom(p.Now, p.Ended)
	}
	state := string(p.State)
	if len(hours.Openings(p.Now, p.Now.Add(time.Nanosecond), c.Zone)) == 0 && p.State == batch.Running {
		state += ", gate shut"
	}
	if !p.Fed && p.State == batch.Running {
		state += ", nobody feeds it"
	}
	return fmt.Sprintf("%ssent %d of %d, %d open, %.1f/s, %s, %s", bar, p.Done, p.Total, p.Open, p.Rate, end, state)
}

// keysOf are the lines of a terminal, until ctx ends. Who reads the terminal itself
// ends with the process, for a read can't be broken off.
func keysOf(ctx context.Context, r io.Reader) <-chan string {
	if r == nil {
		return nil
	}
	keys := make(chan string)
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			select {
			case keys <- strings.TrimSpace(lines.Text()):
			case <-ctx.Done():
				return
			}
		}
	}()
	return keys
}

// newLogger returns a logger of warnings and errors, for people. Of lines that say the
// same it writes five in 10 s.
func newLogger(w io.Writer) *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		TimeKey: "at", LevelKey: "level", MessageKey: "msg",
		EncodeTime:       zapcore.TimeEncoderOfLayout("15:04:05"),
		EncodeLevel:      zapcore.CapitalLevelEncoder,
		EncodeDuration:   zapcore.StringDurationEncoder,
		ConsoleSeparator: " ",
	})
	core := zapcore.NewCore(enc, zapcore.AddSync(w), zapcore.WarnLevel)
	return zap.New(zapcore.NewSamplerWithOptions(core, 10*time.Second, 5, 0))
}
