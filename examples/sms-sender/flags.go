package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// What a process does.
const (
	roleAll     = "all"
	roleEnqueue = "enqueue"
	roleWork    = "work"
)

// config is what the flags say.
type config struct {
	redis       *redis.Options // nil: embedded
	input       string         // "" is the sample, "-" is stdin
	gateway     string         // "" is embedded
	policy      e2e.Policy     // of the file or of the limit
	concurrency int
	role        string
	drain       bool
	report      string
	once        bool
	skipInvalid bool
}

// parseFlags reads the arguments, and returns all that is wrong with them. The error
// is [flag.ErrHelp] when help was asked for, which is then on stdout.
func parseFlags(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("sms-sender", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	addr := fs.String("redis", "", "Redis at `ADDR`, host:port or a redis:// URL (default embedded)")
	fs.StringVar(&c.input, "input", "", "read messages from `FILE`, CSV with the header to,text; - is stdin (default a sample)")
	fs.StringVar(&c.gateway, "gateway", "", "POST messages as JSON to `URL` (default an embedded gateway that sends nothing)")
	limit := fs.String("limit", "1/60s", "send each phone at most `n/duration`, in any window of that length")
	file := fs.String("policy", "", "send by the rules that a YAML `FILE` has for sms:send, in place of -limit")
	fs.IntVar(&c.concurrency, "concurrency", 10, "send `N` messages at once in this process")
	fs.StringVar(&c.role, "role", roleAll, "do `R` in this process: all, enqueue or work")
	fs.BoolVar(&c.drain, "drain", false, "exit when nothing is left (default with -role all)")
	fs.StringVar(&c.report, "report", "", "write the summary as JSON to `FILE`")
	fs.BoolVar(&c.skipInvalid, "skip-invalid", false, "send what is right in the input, and report the rest")
	fs.BoolVar(&c.once, "once", false, "enqueue a message again only 24 h after it was sent")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return c, err
	} else if err != nil {
		return c, fmt.Errorf("%w; -h lists the flags", err)
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["drain"] {
		c.drain = c.role == roleAll
	}
	var errs []error
	refuse := func(wrong bool, format string, a ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, a...))
		}
	}
	refuse(fs.NArg() > 0, "%s that no flag asks for", e2e.Count(fs.NArg(), "argument"))
	refuse(c.concurrency < 1 || c.concurrency > 10_000, "-concurrency is %d, want 1 to 10000", c.concurrency)
	refuse(c.role != roleAll && c.role != roleEnqueue && c.role != roleWork, "-role is %q, want all, enqueue or work", c.role)
	refuse(c.role != roleAll && !given["redis"], "-role %s needs -redis: no other process sees the embedded one", c.role)
	refuse(given["policy"] && given["limit"], "-policy and -limit exclude each other: the file has the limits")
	for _, name := range []string{"input", "skip-invalid", "once"} {
		refuse(c.role == roleWork && given[name], "-%s has no effect with -role work", name)
	}
	for _, name := range []string{"gateway", "concurrency", "drain", "report"} {
		refuse(c.role == roleEnqueue && given[name], "-%s has no effect with -role enqueue", name)
	}
	refuse(given["report"] && (c.report == "" || c.report == c.input), "-report is %q, want a file that is not the input", c.report)
	var err error
	if given["gateway"] {
		_, err = e2e.NewGatewayClient(c.gateway, 0)
		refuse(err != nil, "-gateway: %w", err)
	}
	if given["redis"] {
		c.redis, err = e2e.RedisOptions(*addr)
		refuse(err != nil, "-redis: %w", err)
	}
	if given["policy"] {
		c.policy, err = e2e.ReadPolicy(*file)
	} else {
		c.policy, err = phonePolicy(*limit)
	}
	return c, errors.Join(append(errs, err)...)
}

// phonePolicy is all that Headway has to be told: which tasks, how many of them, and
// what they are counted for.
func phonePolicy(text string) (e2e.Policy, error) {
	limit, err := throttle.ParseLimit(text)
	if err == nil && limit.Kind() != "sliding" {
		err = fmt.Errorf("%q is a %s limit, want a sliding one such as 1/60s; -policy takes all kinds", limit, limit.Kind())
	}
	if err != nil {
		return e2e.Policy{}, fmt.Errorf("-limit: %w", err)
	}
	return e2e.Policy{Policy: queue.Policy{
		Type:  e2e.TaskType,
		Rules: []queue.Rule{{Name: "sms-per-phone", Limit: limit, Key: queue.MustJSONKey("$.to")}},
	}}, nil
}
