//go:build unix

package prove

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/e2e"
	"github.com/headwayq/headway/internal/faults"
)

// Worker runs a worker process of a run through faults if the environment asks for one, and says
// whether it did. A program calls it first of all, and exits with the code.
func Worker() (code int, is bool) { return faults.Worker() }

// listFaults is the argument that lists them.
const listFaults = "faults"

// judgeAgain is the argument that judges what runs have kept.
const judgeAgain = "judge"

// faultFlags are those of runs through faults.
type faultFlags struct {
	length, drain time.Duration
	long          bool
	together      int
	seed          uint64
	workers, rate int
	keep          string
	report, table string
}

// firstFlag is the index of the first flag, behind all other arguments.
func firstFlag(args []string) int {
	if n := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") }); n >= 0 {
		return n
	}
	return len(args)
}

// parse reads the names of faults and the flags behind them, and returns all that is wrong.
func (c *faultFlags) parse(args []string, stdout io.Writer) ([]faults.Fault, error) {
	n := firstFlag(args)
	fs := flag.NewFlagSet("headway prove "+strings.Join(args[:n], " "), flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&c.length, "for", time.Minute, "enqueue and strike for a `DURATION`")
	fs.BoolVar(&c.long, "long", false, "go through each fault for as long as it takes to happen often enough for docs/reliability.md, instead of -for")
	fs.IntVar(&c.together, "together", 1, "go through `N` faults at a time")
	fs.DurationVar(&c.drain, "drain", 4*time.Minute,
		"let what waits run for a `DURATION` longer than messages came, at most: what a killed process had comes back after a minute or two")
	fs.Uint64Var(&c.seed, "seed", 0, "strike as a run with that `SEED` did (default another each time)")
	fs.IntVar(&c.workers, "workers", 4, "start `N` worker processes")
	fs.IntVar(&c.rate, "rate", 50, "let `N` messages a second through")
	fs.StringVar(&c.keep, "keep", "", "keep what each run is judged by, and all logs, below `DIR` (default: only of a run that failed)")
	fs.StringVar(&c.report, "report", "", "write the reports as JSON to `FILE`")
	fs.StringVar(&c.table, "table", "", "write the reports as a Markdown table to `FILE`, in the place of an earlier one")
	err := fs.Parse(args[n:])
	if errors.Is(err, flag.ErrHelp) {
		_, _ = fmt.Fprintln(stdout, "headway prove FAULT... starts servers, a gateway and workers, strikes at random, and judges from outside what came of it.")
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	var chosen []faults.Fault
	for _, name := range args[:n] {
		f, ok := faults.Find(name)
		if !ok {
			bad("%q is no fault: \"headway prove %s\" lists them", name, listFaults)
		}
		chosen = append(chosen, f)
	}
	if fs.NArg() > 0 {
		bad("%s behind the flags: faults stand before them", e2e.Count(fs.NArg(), "argument"))
	}
	if c.length < time.Second || c.length > 24*time.Hour {
		bad("-for is %v, want 1s to 24h", c.length)
	}
	if c.drain < time.Second || c.drain > time.Hour {
		bad("-drain is %v, want 1s to 1h", c.drain)
	}
	if c.workers < 1 || c.workers > 100 {
		bad("-workers is %d, want 1 to 100", c.workers)
	}
	if c.together < 1 || c.together > 100 {
		bad("-together is %d, want 1 to 100", c.together)
	}
	if c.rate < 1 || c.rate > 1000 {
		bad("-rate is %d, want 1 to 1000", c.rate)
	}
	if c.seed == 0 {
		c.seed = drawSeed()
	}
	errs = append(errs, c.checkFiles(chosen)...)
	return chosen, errors.Join(errs...)
}

// checkFiles refuses now what could not be written when the work is done.
func (c *faultFlags) checkFiles(chosen []faults.Fault) []error {
	var errs []error
	if c.report != "" {
		f, err := os.OpenFile(c.report, os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			err = f.Close()
		}
		errs = append(errs, err)
	}
	if c.table != "" {
		errs = append(errs, faults.CheckTable(c.table))
	}
	for _, f := range chosen {
		if dir := filepath.Join(c.keep, f.Name); c.keep != "" && f.Name != "" {
			if _, err := os.Lstat(dir); err == nil {
				errs = append(errs, fmt.Errorf("-keep: %s is there already", dir))
			}
		}
	}
	return errs
}

// runFaults is the subcommand with names of faults.
func runFaults(ctx context.Context, args []string, e env) int {
	if slices.Equal(args, []string{listFaults}) {
		for _, f := range faults.All() {
			_, _ = fmt.Fprintf(e.stdout, "%-22s %s\n", f.Name, f.About)
		}
		return exitOK
	}
	if len(args) > 0 && args[0] == judgeAgain {
		return judgeKept(args[1:], e)
	}
	var c faultFlags
	chosen, err := c.parse(args, e.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n-h lists the flags\n", err)
		return exitUsage
	}
	reports, failed := c.all(ctx, chosen, e)
	if c.report != "" {
		failed = append(failed, faults.WriteFile(c.report, reports))
	}
	failed = append(failed, writeTable(c.table, reports, len(chosen)))
	if err := errors.Join(failed...); err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
		return exitRun
	}
	return exitOK
}

// judgeKept judges runs again by the files that they left in directories, and writes a table of all of them where that is asked for.
func judgeKept(args []string, e env) int {
	n := firstFlag(args)
	dirs := args[:n]
	fs := flag.NewFlagSet("headway prove "+judgeAgain, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	path := fs.String("table", "", "")
	if err := fs.Parse(args[n:]); err != nil || len(dirs) == 0 || fs.NArg() > 0 {
		_, _ = fmt.Fprintf(e.stderr, "headway prove %s DIR... [-table FILE] judges runs again that left their files there, and writes their table\n", judgeAgain)
		return exitUsage
	}
	var failed []error
	if *path != "" {
		if err := faults.CheckTable(*path); err != nil {
			_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
			return exitUsage
		}
	}
	var reports []faults.Report
	for _, dir := range dirs {
		r, err := faults.Judge(dir)
		if err == nil {
			reports = append(reports, r)
			err = errors.Join(r.Print(e.stdout), r.Failed())
		}
		failed = append(failed, err)
	}
	failed = append(failed, writeTable(*path, reports, len(dirs)))
	if err := errors.Join(failed...); err != nil {
		_, _ = fmt.Fprintf(e.stderr, "headway prove: %v\n", err)
		return exitRun
	}
	return exitOK
}

// writeTable writes the reports of so many runs as a table to a file, unless one is missing.
func writeTable(path string, reports []faults.Report, runs int) error {
	switch {
	case path == "":
		return nil
	case len(reports) < runs:
		return errors.New("not all faults were run to the end: -table is not written")
	}
	return faults.WriteTable(path, reports)
}

// all runs faults, some of them at a time. The reports are in their order, without those of runs
// that were not led to their end.
func (c *faultFlags) all(ctx context.Context, chosen []faults.Fault, e env) ([]faults.Report, []error) {
	reports, failed := make([]*faults.Report, len(chosen)), make([]error, len(chosen))
	e.stdout, e.stderr = &lines{w: e.stdout}, &lines{w: e.stderr}
	slots := make(chan struct{}, c.together)
	var wg sync.WaitGroup
	for i, f := range chosen {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			r, err := c.one(ctx, f, e)
			if err == nil {
				var text bytes.Buffer
				err = errors.Join(r.Print(&text), r.Failed())
				_, _ = e.stdout.Write(text.Bytes())
				reports[i] = &r
			}
			failed[i] = err
		})
	}
	wg.Wait()
	whole := []faults.Report{} // not nil: it may be written as JSON
	for _, r := range reports {
		if r != nil {
			whole = append(whole, *r)
		}
	}
	return whole, failed
}

// lines is a writer for several goroutines.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// lengthOf is how long a run through a fault takes.
func (c *faultFlags) lengthOf(f faults.Fault) time.Duration {
	if c.long {
		return f.Long
	}
	return c.length
}

// one runs one fault. What it leaves is kept if that was asked for, or if it failed.
func (c *faultFlags) one(ctx context.Context, f faults.Fault, e env) (r faults.Report, err error) {
	var dir string
	if c.keep != "" {
		dir = filepath.Join(c.keep, f.Name)
		err = os.MkdirAll(c.keep, 0o700)
		if err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	} else {
		dir, err = os.MkdirTemp("", "headway-prove-")
	}
	if err != nil {
		return faults.Report{}, err
	}
	said := ""
	if c.together > 1 {
		said = f.Name + ": "
	}
	say := func(format string, a ...any) { _, _ = fmt.Fprintf(e.stderr, said+format+"\n", a...) }
	say("%s, seed %d: %s", f.Name, c.seed, f.About)
	r, err = faults.Run(ctx, faults.Spec{
		Fault: f, For: c.lengthOf(f), Drain: c.lengthOf(f) + c.drain, Seed: c.seed, Workers: c.workers, Others: c.together - 1, Rate: c.rate, Dir: dir, Log: say,
	})
	if err != nil || r.Failed() != nil || c.keep != "" {
		say("what it left is in %s: \"headway prove %s %[1]s\" judges it again", dir, judgeAgain)
		return r, err
	}
	return r, os.RemoveAll(dir)
}
