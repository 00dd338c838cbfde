package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
)

// A section measures some things and adds rows.
type section struct {
	name, title string
	run         func(ctx context.Context, b *bench) error
}

// bench is what a section is given to measure with. A section runs alone.
type bench struct {
	short  bool // each thing once, with small numbers
	rounds int

	out     io.Writer
	parts   []*part
	closers []func() error // of this section, last first
	redis   string         // the version of the servers
}

// part is what one section found.
type part struct {
	name, title string
	rows        []row
	remarks     []string
	charts      []chart
	took        time.Duration
}

// better says which of two figures wins.
type better int

const (
	higher better = iota
	lower
)

// row is one line of the table. Ours and Theirs are medians of the rounds, Ratio
// is Ours/Theirs, Low and High are its extremes over the rounds.
type row struct {
	What, Unit string
	Ours       float64
	Theirs     float64
	Rival      string // "" when there is nobody to compare with; then Theirs, Ratio, Low and High mean nothing
	Ratio      float64
	Low, High  float64
	Target     string // what the figure should reach, "" without one
	Holds      *bool  // nil without a target
	Better     better
}

// against compares two contenders of one interleave.
func against(what, unit string, wins better, rival string, ours, theirs []float64) row {
	r := row{What: what, Unit: unit, Better: wins, Rival: rival, Ours: median(ours), Theirs: median(theirs)}
	r.Ratio = r.Ours / r.Theirs
	each := make([]float64, len(ours))
	for i := range ours {
		each[i] = ours[i] / theirs[i]
	}
	r.Low, r.High = slices.Min(each), slices.Max(each)
	return r
}

// alone is a figure without a rival.
func alone(what, unit string, wins better, ours []float64) row {
	return row{What: what, Unit: unit, Better: wins, Ours: median(ours)}
}

// holding sets the target of a row and whether it holds.
func (r row) holding(target string, holds bool) row {
	r.Target, r.Holds = target, &holds
	return r
}

// row adds a line to the section's table.
func (b *bench) row(r row) {
	p := b.part()
	p.rows = append(p.rows, r)
	fmt.Fprintln(b.out, "  "+r.line())
}

// say prints a remark and puts it into the document, under the section's table.
func (b *bench) say(format string, args ...any) {
	p, text := b.part(), fmt.Sprintf(format, args...)
	p.remarks = append(p.remarks, text)
	fmt.Fprintln(b.out, "  "+text)
}

// draw puts a chart into the document, under the section's title.
func (b *bench) draw(c chart) {
	p := b.part()
	p.charts = append(p.charts, c)
}

func (b *bench) part() *part { return b.parts[len(b.parts)-1] }

// interleave measures each contender in turn, so many times as there are
// rounds: result[i] are the figures of contenders[i].
func (b *bench) interleave(contenders ...func() (float64, error)) ([][]float64, error) {
	return takeTurns(b.rounds, contenders...)
}

// takeTurns is interleave, so many times.
func takeTurns(times int, contenders ...func() (float64, error)) ([][]float64, error) {
	figures := make([][]float64, len(contenders))
	for range times {
		for i, measure := range contenders {
			v, err := measure()
			if err != nil {
				return nil, err
			}
			figures[i] = append(figures[i], v)
		}
	}
	return figures, nil
}

// server starts a redis-server without persistence and connects a client with
// the options that every contender gets. Both are closed at the section's end.
func (b *bench) server() (*redisserver.Process, *redis.Client, error) {
	dir, err := os.MkdirTemp("", "headway-bench")
	if err != nil {
		return nil, nil, err
	}
	b.onEnd(func() error { return os.RemoveAll(dir) })
	p, err := redisserver.Launch(dir)
	if err != nil {
		return nil, nil, err
	}
	b.onEnd(p.Close)
	rdb := redis.NewClient(clientOptions(p.Addr()))
	b.onEnd(rdb.Close)
	if b.redis == "" {
		info, err := rdb.Info(context.Background(), "server").Result()
		if err != nil {
			return nil, nil, err
		}
		b.redis = infoField(info, "redis_version")
	}
	return p, rdb, nil
}

// onEnd has f called when the section is over.
func (b *bench) onEnd(f func() error) { b.closers = append(b.closers, f) }

// runSection runs one section and closes what it opened.
func (b *bench) runSection(ctx context.Context, s section) error {
	fmt.Fprintf(b.out, "%s: %s\n", s.name, s.title)
	b.parts = append(b.parts, &part{name: s.name, title: s.title})
	began := time.Now()
	err := s.run(ctx, b)
	for _, f := range slices.Backward(b.closers) {
		err = errors.Join(err, f())
	}
	b.closers = nil
	b.part().took = time.Since(began)
	fmt.Fprintf(b.out, "  (%.1f s)\n", b.part().took.Seconds())
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// median returns the middle of the figures, or the mean of the two there.
func median(figures []float64) float64 {
	if len(figures) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(figures))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// runAll runs the sections with such names. One that fails does not stop the
// others, but then no document is written.
func (b *bench) runAll(ctx context.Context, names *regexp.Regexp, docs string) error {
	var errs []error
	for _, s := range sections {
		if !names.MatchString(s.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := b.runSection(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
	if len(b.parts) == 0 {
		return errors.New("no section has such a name")
	}
	fmt.Fprintln(b.out)
	b.printTable()
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if docs == "" {
		return nil
	}
	return b.writeDocs(docs)
}
