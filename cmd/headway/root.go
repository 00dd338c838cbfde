package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headwayq/headway/cmd/headway/prove"
	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/phonezone"
	"github.com/headwayq/headway/throttle"
)

// env is what a command has of the world around it.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// Exit codes of all commands; those of prove are 0 to 2 of these.
const (
	exitOK      = 0
	exitRun     = 1 // it failed, or a check found something bad
	exitUsage   = 2 // an argument, a flag or a file is wrong; nothing was done
	exitAway    = 3 // Redis did not answer
	exitMissing = 4 // what was asked for is not there

	exitInterrupted = 130 // Ctrl-C or SIGTERM came before it was done; what goes on until Ctrl-C exits with 0 then
)

// usageError is a fault of the caller.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func badUsage(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

var (
	// errMissing is about what was asked for and is not there.
	errMissing = errors.New("not found")
	// errNotWell ends a check that has said what is wrong.
	errNotWell = errors.New("")
)

// app is one call of the program: its flags, and what it opened.
type app struct {
	env
	output   output
	redis    redisFlags
	prefix   string
	secret   string
	policies []string
	queue    string
	write    bool
	reason   string
	who      string
	showKeys bool
	watch    time.Duration

	started bool // the arguments were right
	rdb     redis.UniversalClient
	stop    func()         // ends what is embedded; nil for nothing
	known   []queue.Policy // of the files, or of the pools that run
}

// command runs the subcommand that the arguments name, and returns the exit code.
func command(ctx context.Context, args []string, e env) int {
	a := &app{env: e}
	root := a.root()
	code := exitOK
	root.AddCommand(&cobra.Command{
		Use: "prove [FAULT...] [flags]", Short: "send messages through faults, and prove that the limits held",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			code = prove.Run(ctx, args, e.stdin, e.stdout, e.stderr)
			return nil
		},
	})
	root.SetArgs(args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	var err error
	if d := strayDuration(args); d != "" {
		err = badUsage("--watch takes its duration behind an equals sign: give --watch=%s", d)
	} else {
		err = root.ExecuteContext(ctx)
	}
	if a.rdb != nil {
		_ = a.rdb.Close()
	}
	if a.stop != nil {
		a.stop()
	}
	if err == nil {
		return code
	}
	if interrupted(ctx, err) {
		_, _ = fmt.Fprintln(e.stderr, "headway: interrupted")
		return exitInterrupted
	}
	if text := err.Error(); text != "" {
		lines := strings.Split(text, "\n") // an error with several faults has a line for each
		for i := range lines {
			lines[i] = visible(lines[i])
		}
		_, _ = fmt.Fprintf(e.stderr, "headway: %s\n", strings.Join(lines, "\n"))
	}
	if !a.started {
		err = usageError{err}
		_, _ = fmt.Fprintln(e.stderr, `"headway help" lists the commands, and "headway COMMAND --help" explains one`)
	}
	return exitCode(err)
}

// strayDuration is a duration that follows --watch as an argument of its own, or empty. The flag may
// stand alone, so it does not take the next argument, which would pass for a task or a file.
func strayDuration(args []string) string {
	for n, arg := range args {
		if arg == "--" {
			break
		}
		if arg != "--watch" || n+1 == len(args) {
			continue
		}
		if _, err := time.ParseDuration(args[n+1]); err == nil {
			return args[n+1]
		}
	}
	return ""
}

// interrupted says that a command failed because its own context was cancelled, as by Ctrl-C. A call
// that was broken off then looks like one that Redis did not answer.
func interrupted(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, throttle.ErrUnavailable))
}

func exitCode(err error) int {
	_, usage := errors.AsType[usageError](err)
	switch {
	case errors.Is(err, errMissing):
		return exitMissing
	case usage, errors.Is(err, queue.ErrInvalidPolicy), errors.Is(err, throttle.ErrInvalidConfig), errors.Is(err, throttle.ErrInvalidLimit),
		errors.Is(err, throttle.ErrInvalidKey), errors.Is(err, inspect.ErrInvalidReason), errors.Is(err, inspect.ErrInvalidCursor),
		errors.Is(err, inspect.ErrInvalidSpan):
		return exitUsage
	case errors.Is(err, throttle.ErrUnavailable):
		return exitAway
	}
	return exitRun
}

const long = `headway is the operator's tool: it says what waits, why, until when and behind whom,
and changes limits and closings while everything runs.

It reads unless --write is given, and every change needs a --reason, which is kept in
the audit list. Policies are read from the files of --policy. Without files they are
those that the running pools say.

Exit codes: 0 all is well, 1 it failed or a check found something, 2 an argument or a
file is wrong, 3 Redis does not answer, 4 what was asked for is not there, 130 it was
interrupted before it was done.`

// root is the tree of commands.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "headway", Short: "what waits, why, and until when", Long: long,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			_, rows := cmd.Annotations[csvToo]
			if err := a.output.check(a.stdout, rows); err != nil {
				return err
			}
			if a.watch < 0 || a.watch > 0 && a.watch < 100*time.Millisecond {
				return fmt.Errorf("--watch is %v, want at least 100ms", a.watch)
			}
			a.started = true
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return badUsage("want a command: \"headway help\" lists the commands")
		},
	}
	f := root.PersistentFlags()
	a.redis.add(f)
	f.StringVar(&a.prefix, "prefix", os.Getenv("HEADWAY_PREFIX"), "`PREFIX` of Headway's keys, as in throttle.Config (default hw; HEADWAY_PREFIX)")
	f.StringVar(&a.secret, "secret-file", os.Getenv("HEADWAY_SECRET_FILE"), "`FILE` with the Secret of throttle.Config (HEADWAY_SECRET_FILE)")
	f.StringSliceVarP(&a.policies, "policy", "p", split(os.Getenv("HEADWAY_POLICY")), "policy `FILE`, which may be given several times (HEADWAY_POLICY)")
	f.StringVarP(&a.queue, "queue", "q", "default", "`QUEUE` of tasks and batches")
	f.StringVarP(&a.output.format, "output", "o", "table", "`FORMAT` of answers: table or json")
	f.BoolVar(&a.output.noColour, "no-colour", os.Getenv("NO_COLOR") != "", "no colours, also on a terminal (NO_COLOR)")
	f.BoolVar(&a.showKeys, "show-keys", false, "show keys such as phone numbers in full")
	f.DurationVar(&a.watch, "watch", 0, "repeat what reads every `DURATION`, such as --watch=5s")
	f.Lookup("watch").NoOptDefVal = "2s"
	f.BoolVar(&a.write, "write", false, "allow a change")
	f.StringVar(&a.reason, "reason", "", "`WHY` something is changed, for the audit list")
	f.StringVar(&a.who, "who", os.Getenv("HEADWAY_WHO"), "`NAME` of who changes it (default your user and host; HEADWAY_WHO)")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddCommand(statusCommand(a), topCommand(a), explainCommand(a), lineCommand(a), rulesCommand(a), historyCommand(a), keysCommand(a),
		limitCommand(a), closeCommand(a), openCommand(a),
		pauseCommand(a), resumeCommand(a), cancelCommand(a), frontCommand(a), runNowCommand(a), drainCommand(a), batchesCommand(a), schedulesCommand(a),
		poolsCommand(a), auditCommand(a), doctorCommand(a), policyCommand(a), simulateCommand(a), serveCommand(a), tailCommand(a), devCommand(a))
	return root
}

func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// why is the reason of a change, which is refused without --write.
func (a *app) why() (inspect.Reason, error) {
	var errs []error
	if !a.write {
		errs = append(errs, errors.New("this changes what runs: give --write"))
	}
	if strings.TrimSpace(a.reason) == "" {
		errs = append(errs, errors.New("every change is noted: give --reason WHY"))
	}
	if a.watch != 0 {
		errs = append(errs, errors.New("--watch repeats only what reads"))
	}
	if err := errors.Join(errs...); err != nil {
		return inspect.Reason{}, usageError{err}
	}
	return inspect.Reason{Who: a.name(), Why: a.reason}, nil
}

// name is who changes something.
func (a *app) name() string {
	if a.who != "" {
		return a.who
	}
	who := "unknown"
	if u, err := user.Current(); err == nil {
		who = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		who += "@" + host
	}
	return who
}

// config is that of the pools, as the flags say.
func (a *app) config() (throttle.Config, error) {
	cfg := throttle.Config{Prefix: a.prefix}
	if a.secret != "" {
		secret, err := os.ReadFile(a.secret)
		if err != nil {
			return cfg, badUsage("--secret-file: %w", err)
		}
		cfg.Secret = []byte(strings.TrimRight(string(secret), "\r\n"))
	}
	return cfg, nil
}

// open connects to Redis.
func (a *app) open() (redis.UniversalClient, error) {
	if a.rdb == nil {
		rdb, err := a.redis.open()
		if err != nil {
			return nil, usageError{err}
		}
		a.rdb = rdb
	}
	return a.rdb, nil
}

// inspector knows the policies of the files, or else those that the pools say.
func (a *app) inspector(ctx context.Context) (*inspect.Inspector, error) {
	rdb, err := a.open()
	if err != nil {
		return nil, err
	}
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	if a.known == nil {
		if a.known, err = a.knownPolicies(ctx, rdb, cfg); err != nil {
			return nil, err
		}
	}
	return inspect.New(rdb, inspect.Config{Policies: a.known, Throttle: cfg})
}

// knows says whether a policy has a rule, also a gate.
func (a *app) knows(rule string) bool {
	for _, p := range a.known {
		for _, r := range p.Rules {
			if r.Name == rule {
				return true
			}
		}
	}
	return false
}

// unknownRule adds which rules are known here.
func (a *app) unknownRule(err error) error {
	if !strings.Contains(err.Error(), "no policy here has a limit") {
		return err
	}
	if len(a.known) == 0 {
		return fmt.Errorf("%w: no pool runs, so give the rules by --policy FILE: %w", errMissing, err)
	}
	return fmt.Errorf("%w: %w", errMissing, err)
}

func (a *app) knownPolicies(ctx context.Context, rdb redis.UniversalClient, cfg throttle.Config) ([]queue.Policy, error) {
	if len(a.policies) > 0 {
		return readPolicies(a.policies)
	}
	bare, err := inspect.New(rdb, inspect.Config{Throttle: cfg})
	if err != nil {
		return nil, err
	}
	running, _, err := bare.Processes(ctx)
	if err != nil {
		return nil, err
	}
	return inspect.PoliciesOf(running), nil
}

// key is a key of an answer, as far as it may be shown.
func (a *app) key(key string) string {
	if a.showKeys {
		return key
	}
	return inspect.Mask(key)
}

// forget lets the policies that the pools say be read anew: other pools may run by now. Those of
// files stay.
func (a *app) forget() {
	if len(a.policies) == 0 {
		a.known = nil
	}
}

// answer prints what a read returns, again and again with --watch.
func (a *app) answer(ctx context.Context, read func(context.Context) (answer, error)) error {
	for {
		got, err := read(ctx)
		if a.watch != 0 && interrupted(ctx, err) {
			return nil
		}
		if got != nil {
			if perr := a.output.print(a.stdout, got, a.watch != 0); perr != nil {
				return perr
			}
		}
		if a.watch == 0 || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(a.watch):
			a.forget()
		}
	}
}

// readPolicies reads policy files. A function of the program that a file names is not
// known here: what needs it says so.
func readPolicies(files []string) ([]queue.Policy, error) {
	funcs := queue.Funcs{Keys: map[string]queue.KeyFunc{}, Costs: map[string]queue.CostFunc{}, Zones: map[string]queue.ZoneFunc{}, PhoneZone: phonezone.Of}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, badUsage("--policy: %w", err)
		}
		nameFuncs(string(text), funcs)
	}
	policies, err := funcs.ReadPolicyFiles(files...)
	if err != nil {
		return nil, usageError{err}
	}
	return policies, nil
}

// errAway is the error of a Redis that did not answer.
func errAway(err error) error { return fmt.Errorf("%w: %w", throttle.ErrUnavailable, err) }
