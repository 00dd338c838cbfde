package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
)

const usage = `headway is the operator's tool.

  headway prove [flags]   send messages through a gateway that may fail, and prove that the limits held
  headway help            print this

"headway prove -h" lists its flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C ends the process at once
	redis.SetLogger(e2e.Silence{})
	os.Exit(command(ctx, os.Args[1:], env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}

// command runs the subcommand that the arguments name, and returns the exit code.
func command(ctx context.Context, args []string, e env) int {
	if len(args) == 0 {
		_, _ = fmt.Fprint(e.stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "prove":
		return prove(ctx, args[1:], e)
	case "help", "-h", "-help", "--help":
		_, _ = fmt.Fprint(e.stdout, usage)
		return exitOK
	}
	_, _ = fmt.Fprintf(e.stderr, "headway: there is no command %q\n\n%s", args[0], usage)
	return exitUsage
}
