package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process as if we had never listened
	redis.SetLogger(silence{})
	os.Exit(run(ctx, os.Args[1:], env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}

// silence takes what go-redis writes to stderr on its own, into our live line:
// errors that matter come back from the calls as well.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
