package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/throttle"
)

// Exit codes.
const (
	exitOK    = 0
	exitRun   = 1 // the run failed, or the limit was broken
	exitUsage = 2 // a flag or the input is wrong; nothing was done
)

// env is what a run has of the world around it.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	// For tests; nil means asynq's delays, [openRedis] and [openOutlet].
	retryDelay asynq.RetryDelayFunc
	openRedis  func(*redis.Options) (rdb redis.UniversalClient, closeRedis func(), err error)
	openOutlet func(ctx context.Context, url string, limit throttle.Limit, files []byte) (outlet, error)
}

// run is the program: it returns the exit code. Ending ctx ends it gracefully.
func run(ctx context.Context, args []string, e env) int {
	cfg, err := parseFlags(args, e.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "sms-sender: %v\n-h lists the flags\n", err)
		return exitUsage
	}
	var msgs []Message
	if cfg.role.enqueues() {
		if msgs, err = readMessages(cfg, e); err != nil {
			if invalid, ok := errors.AsType[*InputError](err); ok {
				printFaults(e.stderr, invalid, "")
			} else {
				_, _ = fmt.Fprintf(e.stderr, "sms-sender: %v\n", err)
			}
			return exitUsage
		}
	}
	grants, err := openFiles(cfg)
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "sms-sender: %v\n", err)
		return exitUsage
	}
	s := newSession(cfg, e, msgs, grants)
	if err := errors.Join(s.run(ctx), grants.close()); err != nil {
		_, _ = fmt.Fprintf(e.stderr, "sms-sender: %v\n", err)
		return exitRun
	}
	return exitOK
}

// readMessages returns the messages to send, with ids. Invalid ones are an
// error, unless they are to be skipped and others remain: then they are only
// reported.
func readMessages(cfg config, e env) ([]Message, error) {
	msgs := Sample()
	if cfg.input != "" {
		var err error
		msgs, err = ReadInputFile(cfg.input, e.stdin)
		invalid, ok := errors.AsType[*InputError](err)
		switch {
		case ok && cfg.skipInvalid && len(msgs) > 0:
			printFaults(e.stderr, invalid, ", skipped")
		case err != nil:
			return nil, err
		}
	}
	if cfg.once {
		SetOnceIDs(msgs)
	} else {
		SetRandomIDs(msgs)
	}
	return msgs, nil
}

// printFaults prints all faults of an input, however many.
func printFaults(w io.Writer, invalid *InputError, what string) {
	_, _ = fmt.Fprintf(w, "input: %s%s\n", count(len(invalid.Faults), "fault"), what)
	for _, f := range invalid.Faults {
		_, _ = fmt.Fprintf(w, "  line %d: %s\n", f.Line, f.What)
	}
}

// openFiles opens what will be written: a path that cannot be is refused now,
// not when the work is done.
func openFiles(cfg config) (*grantLog, error) {
	for _, path := range []string{cfg.report, cfg.arrivals} {
		if path == "" {
			continue
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return openGrantLog(cfg.grants)
}

// count prints a number with its noun: "1 message", "2 messages".
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// atLeast returns how long the limit makes msgs take: the phone with the most
// messages decides.
func atLeast(msgs []Message, limit throttle.Limit) time.Duration {
	most, perPhone := 0, map[string]int{}
	for _, m := range msgs {
		perPhone[m.To]++
		most = max(most, perPhone[m.To])
	}
	return time.Duration(max(0, most-1)/limit.Permits()) * limit.Window()
}

// phoneCount returns how many phones msgs go to.
func phoneCount(msgs []Message) int {
	phones := map[string]struct{}{}
	for _, m := range msgs {
		phones[m.To] = struct{}{}
	}
	return len(phones)
}
