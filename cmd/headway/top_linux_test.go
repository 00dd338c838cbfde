package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/headwayq/headway/internal/redistest"
)

// terminal is both ends of one: what a person sees and presses, and what a program has.
func terminal(t *testing.T, width, height uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("there are no terminals here:", err)
	}
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("there are no terminals here:", err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		t.Fatal(err)
	}
	return person, program
}

// screenText is all that was written to a terminal.
type screenText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screenText) readFrom(f *os.File) {
	b := make([]byte, 4096)
	for {
		n, err := f.Read(b)
		s.mu.Lock()
		s.text.Write(b[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screenText) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

// On a terminal top shows what waits, again and again, and ends by a key or by its context. Then
// the terminal is as it was.
func TestTopOnTerminal(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	if err := srv.Client(t).SAdd(t.Context(), "asynq:queues", "default").Err(); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(person *os.File, interrupt func()){
		"q":       func(person *os.File, _ func()) { _, _ = person.WriteString("xq") },
		"Ctrl-C":  func(person *os.File, _ func()) { _, _ = person.WriteString("\x03") },
		"SIGTERM": func(_ *os.File, interrupt func()) { interrupt() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			person, program := terminal(t, 80, 24)
			var seen screenText
			var reading sync.WaitGroup
			reading.Go(func() { seen.readFrom(person) })
			defer func() { // a read of a terminal is not broken off by a Close
				_, _ = person.WriteString("q\n")
				_ = program.Close()
				reading.Wait()
				_ = person.Close()
			}()
			before, err := term.GetState(int(program.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var stderr bytes.Buffer
			code := make(chan int, 1)
			go func() {
				code <- command(ctx, []string{"top", "--redis", srv.Addr(), "--watch=100ms"}, env{stdin: program, stdout: program, stderr: &stderr})
			}()
			soon(t, "it shows the queue", func() bool { return seen.has("\x1b[?1049h") && seen.has("QUEUE ") && seen.has("default ") })
			if state, err := term.GetState(int(program.Fd())); err != nil || reflect.DeepEqual(state, before) {
				t.Errorf("keys are not read one by one: %v", err)
			}
			if err := srv.Client(t).SAdd(t.Context(), "asynq:queues", "later-"+strings.ToLower(name)).Err(); err != nil {
				t.Fatal(err)
			}
			soon(t, "it shows a queue that came later", func() bool { return seen.has("later-" + strings.ToLower(name)) })
			end(person, interrupt)
			if got := <-code; got != exitOK {
				t.Errorf("exit code %d, want %d: %s", got, exitOK, &stderr)
			}
			soon(t, "the screen is the one that was there", func() bool { return seen.has("\x1b[?25h\x1b[?1049l") })
			if state, err := term.GetState(int(program.Fd())); err != nil || !reflect.DeepEqual(state, before) {
				t.Errorf("the terminal is not as it was: %v", err)
			}
		})
	}
}
