package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/term"
)

// Exit codes.
const (
	exitOK    = 0
	exitRun   = 1 // the run failed, or a mail went wrong
	exitUsage = 2 // a flag or the input is wrong; nothing was done
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process as if we had never listened
	redis.SetLogger(silence{})
	e := env{stdout: os.Stdout, stderr: os.Stderr}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		e.keys = os.Stdin
	}
	os.Exit(run(ctx, os.Args[1:], e))
}

// silence takes what go-redis writes to stderr on its own: errors that matter come back
// from the calls as well.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// env is what a run has of the world around it.
type env struct {
	stdout, stderr io.Writer
	keys           io.Reader // lines "p" and "r" pause and resume; nil for none

	// For tests; zero means leadDefault, asynq's delays and a server that takes all.
	lead       int
	retryDelay asynq.RetryDelayFunc
	refuse     func(to string) error
}

// run is the program: it returns the exit code. Ending ctx ends it gracefully.
func run(ctx context.Context, args []string, e env) int {
	fail := func(code int, err error) int {
		_, _ = fmt.Fprintf(e.stderr, "batch-mailer: %v\n", err)
		return code
	}
	cfg, err := parseFlags(args, e.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		return fail(exitUsage, fmt.Errorf("%w\n-h lists the flags", err))
	}
	mails := Sample(cfg.batch)
	if cfg.input != "" {
		if mails, err = ReadMailsFile(cfg.input); err != nil {
			return fail(exitUsage, err)
		}
	}
	if e.lead == 0 {
		e.lead = leadDefault
	}
	s := newSession(cfg, e, mails)
	if err := s.run(ctx); errors.Is(err, errUsage) {
		return fail(exitUsage, err)
	} else if err != nil {
		return fail(exitRun, err)
	}
	return exitOK
}

// count prints a number with its noun: "1 mail", "2 mails".
func count[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
