// Command sms-sender sends messages through an HTTP gateway: at most one SMS per
// phone number in any 60 seconds, whatever number of processes does it.
//
//	go run ./examples/sms-sender
//
// Without flags it needs nothing. It embeds a Redis and a gateway that sends nothing,
// takes a sample of 24 messages to 12 phones, ends after about two minutes and prints
// what each phone got. On a real Redis one process enqueues and many work:
//
//	sms-sender -redis localhost:6379 -role enqueue -input messages.csv -once
//	sms-sender -redis localhost:6379 -role work -gateway https://sms.example/send -drain
//
// A message becomes an asynq task with a JSON payload. Its phone number is the key of a
// limit, or of several with -policy (policy.yaml). A pool calls the handler when the
// limits allow it (sender.go). A message that may not go yet waits in Redis and takes no
// worker. What a gateway answers decides what becomes of a message (answer in sender.go).
//
// Input, progress, summary, the gateway and its client come from internal/e2e: they are not
// what this example is about. "headway prove" is the same program with a gateway that
// fails when it is told to.
//
// Exit codes: 0 if all is well, 1 if the run failed or a limit was broken, 2 if a flag
// or the input is wrong; then nothing was enqueued.
//
// Phone numbers are masked in all that is printed, and hashed in Headway's keys. asynq
// keeps payloads as they are until the messages are sent; with -once 24 hours longer.
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
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle/gate"
)

const queueName = "sms-sender"

// Exit codes.
const (
	exitOK    = 0
	exitRun   = 1
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process at once
	redis.SetLogger(e2e.Silence{})
	os.Exit(run(ctx, os.Args[1:], env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}

// env is what a run has of the world around it. Tests bring their own Redis and gateway.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	rdb            redis.UniversalClient // nil: what -redis says
	gateway        *e2e.Gateway          // nil: what -gateway says
}

// run is the program. It returns the exit code.
func run(ctx context.Context, args []string, e env) int {
	cfg, err := parseFlags(args, e.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	var msgs []e2e.Message
	if err == nil && cfg.role != roleWork {
		msgs, err = readMessages(cfg, e)
	}
	if err == nil && cfg.report != "" { // a file that cannot be written is refused now, not after the work
		err = touch(cfg.report)
	}
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "sms-sender: %v\n", err)
		return exitUsage
	}
	if err := runRole(ctx, cfg, e, msgs); err != nil {
		_, _ = fmt.Fprintf(e.stderr, "sms-sender: %v\n", err)
		return exitRun
	}
	return exitOK
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("-report: %w", err)
	}
	return f.Close()
}

// runRole enqueues, works, or does both.
func runRole(ctx context.Context, cfg config, e env, msgs []e2e.Message) error {
	rdb := e.rdb
	if rdb == nil {
		opened, closeRedis, err := e2e.OpenRedis(cfg.redis)
		if err != nil {
			return err
		}
		defer closeRedis()
		rdb = opened
	}
	if cfg.role == roleEnqueue {
		n, err := enqueue(ctx, rdb, cfg, msgs)
		_, _ = fmt.Fprintf(e.stderr, "%d of %s enqueued\n", n, e2e.Count(len(msgs), "message"))
		return err
	}
	s, err := newSender(ctx, rdb, cfg, e)
	if err != nil {
		return err
	}
	defer s.close()
	return s.work(ctx, rdb, msgs)
}

// readMessages returns the messages to send, with ids. If one of them is wrong, all are
// refused, unless the others are to be sent.
func readMessages(cfg config, e env) ([]e2e.Message, error) {
	msgs := e2e.Sample()
	if cfg.input != "" {
		var err error
		msgs, err = e2e.ReadInputFile(cfg.input, e.stdin)
		if invalid, ok := errors.AsType[*e2e.InputError](err); ok && cfg.skipInvalid && len(msgs) > 0 {
			e2e.PrintFaults(e.stderr, invalid, ", skipped")
		} else if err != nil {
			return nil, err
		}
	}
	if cfg.once { // the same file has the same ids each time
		e2e.SetOnceIDs(msgs)
	} else {
		e2e.SetRandomIDs(msgs)
	}
	var good []e2e.Message
	var faults []error
	for _, m := range msgs {
		demand, err := cfg.policy.DemandOf(m)
		if err != nil { // such as a number in several zones, for a gate that needs one
			faults = append(faults, fmt.Errorf("message to %s: %w", e2e.Mask(m.To), err))
			continue
		}
		if rule, shut := gate.FirstClosed(demand.Gates, time.Now()); shut && cfg.input == "" {
			_, _ = fmt.Fprintf(e.stderr, "sample: the message to %s is left out: gate %q is shut now\n", e2e.Mask(m.To), rule)
			continue
		}
		good = append(good, m)
	}
	err := errors.Join(faults...)
	if err == nil || cfg.skipInvalid && len(good) > 0 {
		if err != nil {
			_, _ = fmt.Fprintf(e.stderr, "skipped, as the policy never lets them through:\n%v\n", err)
		}
		return good, nil
	}
	return nil, fmt.Errorf("the policy never lets %s through\n%w", e2e.Count(len(faults), "message"), err)
}

// enqueue enqueues messages one after the other, so that those to one phone go out in
// the order of the file. It returns how many of them were not there yet.
func enqueue(ctx context.Context, rdb redis.UniversalClient, cfg config, msgs []e2e.Message) (n int, err error) {
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{cfg.policy.Policy}})
	if err != nil {
		return 0, err
	}
	for i, m := range msgs {
		opts := []asynq.Option{asynq.Queue(queueName), asynq.TaskID(m.ID)}
		if cfg.once { // while a task is kept, its id cannot be enqueued again
			opts = append(opts, asynq.Retention(24*time.Hour))
		}
		payload, err := m.Encode()
		if err != nil {
			return n, err
		}
		_, err = client.Enqueue(ctx, queue.NewTask(e2e.TaskType, payload, opts...))
		switch {
		case err == nil:
			n++
		case !errors.Is(err, asynq.ErrTaskIDConflict):
			return n, fmt.Errorf("enqueued %d of %d: %w", i, len(msgs), err)
		case !cfg.once:
			n++ // the id is random: Redis took it before, and its answer was lost
		}
	}
	return n, nil
}
