package prove

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/throttle"
)

// concurrencyMax bounds the sends at once: each may hold a connection.
const concurrencyMax = 10_000

// role is what a process does of the work.
type role string

const (
	roleAll     role = "all"
	roleEnqueue role = "enqueue"
	roleWork    role = "work"
)

func (r role) enqueues() bool { return r != roleWork }
func (r role) works() bool    { return r != roleEnqueue }

// config is what the flags say.
type config struct {
	redis       *redis.Options // nil: embedded
	redisAddr   string         // as given
	input       string         // "" is the sample, "-" is stdin
	gateway     string         // "" is embedded
	gwFaults    e2e.Faults     // of the embedded gateway, with a seed; zero is none
	limit       throttle.Limit // per phone, without a policy file
	policyFile  string
	policy      e2e.Policy // of the file or of the limit; set when the file is read
	concurrency int
	role        role
	drain       bool
	report      string
	grants      string
	arrivals    string
	skipInvalid bool
	once        bool
}

// parseFlags reads the arguments, and returns what is wrong with them, joined.
// The error is [flag.ErrHelp] when help was asked for, which is then on stdout.
func parseFlags(args []string, stdout io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("headway prove", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.redisAddr, "redis", "", "Redis at `ADDR`, host:port or a redis:// URL (default embedded)")
	fs.StringVar(&c.input, "input", "", "read messages from `FILE`, CSV with the header to,text; - is stdin (default a sample)")
	fs.StringVar(&c.gateway, "gateway", "", "POST messages as JSON to `URL` (default an embedded gateway that sends nothing)")
	faults := fs.String("gateway-faults", "", "let the embedded gateway fail now and then, by a `SPEC` like "+
		"429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7 (default never)")
	limit := fs.String("limit", "1/60s", "send each phone at most `n/duration`, in any window of that length; no other kind of limit")
	fs.StringVar(&c.policyFile, "policy", "", "send by the rules that a YAML `FILE` has for sms:send, in place of -limit")
	fs.IntVar(&c.concurrency, "concurrency", 10, "send `N` messages at once in this process")
	asRole := fs.String("role", string(roleAll), "do `R` in this process: all, enqueue or work")
	fs.BoolVar(&c.drain, "drain", false, "exit when nothing is left (default with -role all)")
	fs.StringVar(&c.report, "report", "", "write the summary as JSON to `FILE`")
	fs.StringVar(&c.grants, "grants", "", "append a JSON line per grant to `FILE`, which processes may share")
	fs.StringVar(&c.arrivals, "arrivals", "", "write what came to the embedded gateway as JSON lines to `FILE`")
	fs.BoolVar(&c.skipInvalid, "skip-invalid", false, "send what is right in the input, and report the rest")
	fs.BoolVar(&c.once, "once", false, "enqueue a message again only 24 h after it was sent")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(stdout, "headway prove sends at most one SMS per phone number per 60 seconds, and proves it. Without flags it shows how.\n"+
			"headway prove faults lists what it can be led through, and headway prove FAULT -h how.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return c, err
	} else if err != nil {
		return c, err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	c.role = role(*asRole)
	if !given["drain"] {
		c.drain = c.role == roleAll
	}
	var errs []error
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("%s that no flag asks for", e2e.Count(fs.NArg(), "argument")))
	}
	var err error
	if c.limit, err = parseLimit(*limit); err != nil {
		errs = append(errs, fmt.Errorf("-limit: %w", err))
	}
	c.policy = e2e.PhoneLimit(c.limit)
	if given["gateway-faults"] {
		if c.gwFaults, err = e2e.ParseFaults(*faults); err != nil {
			errs = append(errs, err)
		}
		c.gwFaults.Seed = cmp.Or(c.gwFaults.Seed, drawSeed())
	}
	if given["redis"] {
		if c.redis, err = e2e.RedisOptions(c.redisAddr); err != nil {
			errs = append(errs, fmt.Errorf("-redis: %w", err))
		}
	}
	return c, errors.Join(append(errs, c.faults(given)...)...)
}

// drawSeed returns a seed that may be given as seed=, short enough to be typed.
func drawSeed() uint64 {
	var b [4]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return 1 + uint64(binary.BigEndian.Uint32(b[:]))
}

// parseLimit reads a limit of the one kind that the proofs know: the gateway of
// internal/e2e judges arrivals by sliding windows.
func parseLimit(text string) (throttle.Limit, error) {
	limit, err := throttle.ParseLimit(text)
	if kind := limit.Kind(); err == nil && kind != "sliding" {
		return throttle.Limit{}, fmt.Errorf("%q is a %s limit, want a sliding one such as 1/60s: grants and arrivals are judged by any window of "+
			"that length", limit, kind)
	}
	return limit, err
}

// faults returns what is wrong beyond the form of single flags.
func (c config) faults(given map[string]bool) []error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.concurrency < 1 || c.concurrency > concurrencyMax {
		bad("-concurrency is %d, want 1 to %d", c.concurrency, concurrencyMax)
	}
	flagOf := map[string]string{} // by file
	for _, f := range []struct{ flag, file string }{
		{"input", c.input}, {"policy", c.policyFile}, {"report", c.report}, {"grants", c.grants}, {"arrivals", c.arrivals},
	} {
		switch other := flagOf[f.file]; {
		case !given[f.flag]:
		case f.file == "":
			bad("-%s is empty, want a file", f.flag)
		case other != "":
			bad("-%s and -%s name the same file", other, f.flag)
		default:
			flagOf[f.file] = f.flag
		}
	}
	if given["policy"] && given["limit"] {
		bad("-policy and -limit exclude each other: the file has the limits")
	}
	if given["gateway"] {
		if _, err := e2e.NewGatewayClient(c.gateway, 0); err != nil {
			bad("-gateway: %w", err)
		}
	}
	// What would have no effect is refused: it was meant to have one.
	idle := func(why string, names ...string) {
		for _, name := range names {
			if given[name] && (name != "drain" || c.drain) {
				bad("-%s has no effect %s", name, why)
			}
		}
	}
	switch c.role {
	case roleAll:
	case roleEnqueue:
		idle("with -role enqueue", "gateway", "gateway-faults", "concurrency", "drain", "grants", "arrivals")
	case roleWork:
		idle("with -role work", "input", "skip-invalid", "once")
	default:
		bad("-role is %q, want all, enqueue or work", string(c.role))
	}
	if c.role != roleAll && !given["redis"] {
		bad("-role %s needs -redis: the embedded one is seen by no other process", c.role)
	}
	if given["gateway"] {
		idle("with -gateway: only the embedded gateway has a log", "arrivals")
		idle("with -gateway: only the embedded gateway can be told to fail", "gateway-faults")
	}
	return errs
}
