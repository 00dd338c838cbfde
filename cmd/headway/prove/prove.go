package prove

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
)

// env is what a run has of the world around it.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	// For tests; nil means asynq's delays, [openRedis] and [openOutlet].
	retryDelay asynq.RetryDelayFunc
	openRedis  func(*redis.Options) (rdb redis.UniversalClient, closeRedis func(), err error)
	openOutlet func(ctx context.Context, cfg config, files []byte) (outlet, error)
}

// Exit codes.
const (
	exitOK    = 0
	exitRun   = 1 // it failed, or a limit was broken
	exitUsage = 2 // an argument, a flag or a file is wrong; nothing was done
)

// Run is the subcommand: it returns the exit code. Ending ctx ends it gracefully.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return run(ctx, args, env{stdin: stdin, stdout: stdout, stderr: stderr})
}

func run(ctx context.Context, args []string, e env) int {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return runFaults(ctx, args, e)
	}
	cfg, err := parseFlags(args, e.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n-h lists the flags\n", err)
		return exitUsage
	}
	if cfg.policyFile != "" {
		if cfg.policy, err = e2e.ReadPolicy(cfg.policyFile); err != nil {
			_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
			return exitUsage
		}
	}
	var msgs []e2e.Message
	if cfg.role.enqueues() {
		if msgs, err = readMessages(cfg, e); err != nil {
			if invalid, ok := errors.AsType[*e2e.InputError](err); ok {
				e2e.PrintFaults(e.stderr, invalid, "")
			} else {
				_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
			}
			return exitUsage
		}
	}
	grants, err := openFiles(cfg)
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
		return exitUsage
	}
	s := newSession(cfg, e, msgs, grants)
	if err := errors.Join(s.run(ctx), grants.Close()); err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
		return exitRun
	}
	return exitOK
}

// readMessages returns the messages to send, with ids. Invalid ones are an
// error, unless they are to be skipped and others remain: then they are only
// reported.
func readMessages(cfg config, e env) ([]e2e.Message, error) {
	msgs := e2e.Sample()
	if cfg.input != "" {
		var err error
		msgs, err = e2e.ReadInputFile(cfg.input, e.stdin)
		invalid, ok := errors.AsType[*e2e.InputError](err)
		switch {
		case ok && cfg.skipInvalid && len(msgs) > 0:
			e2e.PrintFaults(e.stderr, invalid, ", skipped")
		case err != nil:
			return nil, err
		}
	}
	if cfg.once {
		e2e.SetOnceIDs(msgs)
	} else {
		e2e.SetRandomIDs(msgs)
	}
	if cfg.input == "" {
		msgs = sampleByDay(msgs, cfg.policy, e.stderr)
	}
	return admissible(msgs, cfg, e.stderr)
}

// sampleByDay leaves out of the sample what a gate of the policy holds up: it is to
// show something at once. A sample of which nothing is left waits.
func sampleByDay(msgs []e2e.Message, p e2e.Policy, w io.Writer) []e2e.Message {
	now := time.Now()
	free, held := holdUps(p, msgs, now)
	if len(held) == 0 || len(free) == 0 {
		return msgs
	}
	_, _ = fmt.Fprintf(w, "sample: %s of %d left out, which would wait:\n", e2e.Count(len(msgs)-len(free), "message"), len(msgs))
	for _, h := range held {
		_, _ = fmt.Fprintf(w, "  %s\n", h.text(now))
	}
	return free
}

// admissible returns the messages that the policy can ever let through: none if
// others are among them, unless these are to be skipped.
func admissible(msgs []e2e.Message, cfg config, w io.Writer) ([]e2e.Message, error) {
	var good []e2e.Message
	var faults []error
	for _, m := range msgs {
		if _, err := cfg.policy.DemandOf(m); err != nil {
			faults = append(faults, fmt.Errorf("message to %s: %w", e2e.Mask(m.To), err))
			continue
		}
		good = append(good, m)
	}
	if len(faults) == 0 {
		return good, nil
	}
	err := fmt.Errorf("-policy: %s that it never lets through\n%w", e2e.Count(len(faults), "message"), errors.Join(faults...))
	if !cfg.skipInvalid || len(good) == 0 {
		return nil, err
	}
	_, _ = fmt.Fprintf(w, "skipped: %v\n", err)
	return good, nil
}

// openFiles opens what will be written: a path that cannot be is refused now,
// not when the work is done.
func openFiles(cfg config) (*e2e.GrantLog, error) {
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
	return e2e.OpenGrantLog(cfg.grants)
}

// phoneCount returns how many phones msgs go to.
func phoneCount(msgs []e2e.Message) int {
	phones := map[string]struct{}{}
	for _, m := range msgs {
		phones[m.To] = struct{}{}
	}
	return len(phones)
}
