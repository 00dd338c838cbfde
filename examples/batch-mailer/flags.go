package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/e2e/mailtest"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

const batchMax = 100_000

// config is what the flags say.
type config struct {
	redis      *redis.Options // nil: embedded
	input      string         // "" is the sample
	gate       gate.Gate
	scale      int
	rate       throttle.Limit
	batch      int // mails of the sample
	killFeeder bool
}

// parseFlags reads the arguments, and returns all that is wrong with them, joined. The
// error is [flag.ErrHelp] when help was asked for, which is then on stdout.
func parseFlags(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("batch-mailer", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	addr := fs.String("redis", "", "Redis at `ADDR`, host:port or a redis:// URL (default embedded)")
	fs.StringVar(&c.input, "input", "", "send the mails of `FILE`, CSV with the header to,subject,text (default a sample)")
	gate := fs.String("gate", "09:00-21:00", "send only in these `HOURS` of the clock")
	fs.IntVar(&c.scale, "scale", 720, "let `N` seconds of the clock pass in one, 1 to 1440")
	rate := fs.String("rate", "10/1s", "send at most `n/duration` in all, by our own seconds, in any window of that length")
	fs.IntVar(&c.batch, "batch", 240, "send `N` mails of the sample")
	fs.BoolVar(&c.killFeeder, "kill-feeder", true, "stop the replica that feeds the batch when a third is sent")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(stdout, "batch-mailer sends a nightly batch of mails to an SMTP server that it brings along.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return c, err
	} else if err != nil {
		return c, err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return c, c.read(given, fs.NArg(), *addr, *gate, *rate)
}

// read takes what has a form of its own, and returns all faults.
func (c *config) read(given map[string]bool, extra int, addr, hours, rate string) error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if extra > 0 {
		bad("%s that no flag asks for", e2e.Count(extra, "argument"))
	}
	var err error
	if given["redis"] {
		if c.redis, err = e2e.RedisOptions(addr); err != nil {
			bad("-redis: %w", err)
		}
	}
	if c.gate, err = gate.Parse(hours + " recipient"); err != nil {
		bad("-gate: %w", err)
	}
	if c.rate, err = throttle.ParseLimit(rate); err != nil {
		bad("-rate: %w", err)
	} else if c.rate.Kind() != "sliding" {
		bad("-rate is a %s limit, want a sliding one such as 10/1s: the server judges by any window of that length", c.rate.Kind())
	}
	if c.scale < 1 || c.scale > mailtest.ScaleMax {
		bad("-scale is %d, want 1 to %d", c.scale, mailtest.ScaleMax)
	}
	if c.batch < 1 || c.batch > batchMax {
		bad("-batch is %d, want 1 to %d", c.batch, batchMax)
	}
	if given["input"] && c.input == "" {
		bad("-input is empty, want a file")
	}
	if given["input"] && given["batch"] {
		bad("-batch has no effect with -input: it is for the sample")
	}
	return errors.Join(errs...)
}

// perRecipient is how long an hour of the clock takes.
func (c config) perRecipient() time.Duration {
	return (time.Hour / time.Duration(c.scale)).Truncate(time.Microsecond)
}

// atLeast is how long it takes to send mails while the gate is open.
func (c config) atLeast(mails []mailtest.Mail) time.Duration {
	_, most := mailtest.Recipients(mails)
	n := c.rate.Permits()
	return max(time.Duration((len(mails)-1)/n)*c.rate.Window(), time.Duration(most-1)*c.perRecipient())
}
