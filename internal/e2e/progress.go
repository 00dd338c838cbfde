package e2e

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
)

// How often progress is shown.
const (
	progressLive  = 200 * time.Millisecond // on a terminal
	progressPlain = 5 * time.Second        // elsewhere
)

// Snapshot is how far a run is.
type Snapshot struct {
	// Total is less than zero when nobody knows it.
	Total, Sent, Failed, Waiting int
	NextIn                       time.Duration // until the next message may go; 0 is not shown
}

// Progress shows how far a run is: on a terminal one line that is redrawn five
// times a second, elsewhere a plain line now and then and at the end. Other output
// to the same terminal goes through [Progress.Write]. It is safe for concurrent use.
type Progress struct {
	line  func(live bool) string // ASCII: it is cut by bytes
	plain time.Duration          // between two lines where none can be redrawn
	width func() int             // columns of the terminal; nil elsewhere

	mu   sync.Mutex
	out  io.Writer
	last string // plain line
}

// NewProgress shows on out what snapshot returns, which must be safe to call
// from another goroutine. Elsewhere than on a terminal it writes a line every 5 s.
func NewProgress(out io.Writer, snapshot func() Snapshot) *Progress {
	return NewProgressLine(out, progressPlain, func(live bool) string {
		s := snapshot()
		if live {
			return s.bar() + s.line()
		}
		return s.line()
	})
}

// NewProgressLine shows on out what line returns, which must be safe to call from
// another goroutine and is told whether it is for a terminal. An empty line is not
// shown. Elsewhere than on a terminal there is a line each plain, unless it says what
// the line before said.
func NewProgressLine(out io.Writer, plain time.Duration, line func(live bool) string) *Progress {
	p := &Progress{out: out, plain: plain, line: line}
	f, ok := out.(*os.File)
	if !ok {
		return p
	}
	fd := int(f.Fd())
	if term.IsTerminal(fd) && os.Getenv("TERM") != "dumb" {
		p.width = func() int {
			w, _, err := term.GetSize(fd)
			if err != nil || w < 1 {
				return 80
			}
			return w
		}
	}
	return p
}

// Run shows progress until ctx ends, and then once more if it has changed.
func (p *Progress) Run(ctx context.Context) {
	every := p.plain
	if p.width != nil {
		every = progressLive
		p.draw("")
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.draw("\n")
			return
		case <-ticker.C:
			p.draw("")
		}
	}
}

// Write writes whole lines of something else, such as a log, in place of the
// live line, which the next redraw puts below.
func (p *Progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width != nil {
		if _, err := io.WriteString(p.out, eraseLine); err != nil {
			return 0, err
		}
	}
	return p.out.Write(b)
}

// eraseLine goes to the start of the line and erases it.
const eraseLine = "\r\x1b[K"

// draw shows the present state. On a terminal the line ends with end, so that
// the last one stays. A terminal that is gone stops no run: errors are dropped.
func (p *Progress) draw(end string) {
	line := p.line(p.width != nil)
	if line == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.width == nil {
		if line != p.last {
			_, _ = io.WriteString(p.out, line+"\n")
		}
		p.last = line
		return
	}
	// A line as wide as the terminal wraps, and then only its last row is erased.
	line = line[:min(len(line), p.width()-1)]
	_, _ = io.WriteString(p.out, eraseLine+line+end)
}

// line is ASCII: it is cut by bytes.
func (s Snapshot) line() string {
	line := fmt.Sprintf("sent %d, waiting %d, failed %d", s.Sent, s.Waiting, s.Failed)
	if s.Total >= 0 {
		line = fmt.Sprintf("sent %d of %d, waiting %d, failed %d", s.Sent, s.Total, s.Waiting, s.Failed)
	}
	if s.NextIn > 0 {
		// Up to whole seconds: "next in 0s" would be there a second before it goes.
		line += fmt.Sprintf(", next in %v", (s.NextIn + time.Second - 1).Truncate(time.Second))
	}
	return line
}

// barWidth is the columns of a bar within its brackets.
const barWidth = 24

// bar is how much is done, or nothing when the total is not known.
func (s Snapshot) bar() string { return Bar(s.Sent+s.Failed, s.Total) }

// Bar is how much of total is done, in 27 columns, or nothing without a total.
func Bar(done, total int) string {
	if total <= 0 {
		return ""
	}
	full := barWidth * min(done, total) / total
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", barWidth-full) + "] "
}

// Of lines that say the same, this many are written per window: a gateway that is
// down must not write a line per message. The numbers are in the summary, and each
// message's error is in asynq.
const (
	logWindow = 10 * time.Second
	logLines  = 5
)

// NewLogger returns a logger of warnings and errors, for people. Whoever logs
// leaves phones and texts out.
func NewLogger(w io.Writer) *zap.Logger {
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

// InputLines are the lines of a terminal, until ctx ends. Who reads the terminal itself
// ends with the process, for a read can't be broken off.
func InputLines(ctx context.Context, r io.Reader) <-chan string {
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
