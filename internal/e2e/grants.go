package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/judge"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// Grant is one line of a grants file: a permit that Redis gave to an attempt.
type Grant struct {
	ID         string `json:"id"`          // of the message
	Phone      string `json:"phone"`       // masked, so not unique
	Key        string `json:"key"`         // groups by phone, see PhoneKey
	Attempt    string `json:"attempt"`     // the delivery that it was given to
	PromisedUs int64  `json:"promised_us"` // since 1970, Redis' clock; 0 if it was never told to wait
	GrantedUs  int64  `json:"granted_us"`  // since 1970, Redis' clock

	Charges []Charge `json:"charges,omitempty"` // by rule; none with -limit
	// Unused says that nothing was sent for sure, and its permits went back. Such a
	// line comes behind the one without it, and stands in its place.
	Unused bool `json:"unused,omitempty"`
}

// GrantWriter appends grants to a file, which several processes may share. It
// is safe for concurrent use.
type GrantWriter struct{ lines *LineWriter }

// OpenGrants opens the file at path to append to it, and creates it for its
// owner only.
func OpenGrants(path string) (*GrantWriter, error) {
	lines, err := OpenLines(path)
	if err != nil {
		return nil, fmt.Errorf("grants: %w", err)
	}
	return &GrantWriter{lines: lines}, nil
}

// Write appends g with one write: a process that is killed loses none that it wrote.
func (w *GrantWriter) Write(g Grant) error {
	if err := w.lines.Write(g); err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *GrantWriter) Close() error {
	if err := w.lines.Close(); err != nil {
		return fmt.Errorf("grants: %w", err)
	}
	return nil
}

// ReadGrants merges the grants files of the processes of a run, in the order
// of the grants. What is there twice counts once, be it a file that is named twice or a
// grant that an attempt was told twice.
func ReadGrants(paths ...string) ([]Grant, error) {
	var all []Grant
	for _, path := range paths {
		grants, err := readGrantsFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, grants...)
	}
	return compactGrants(all), nil
}

// compactGrants puts grants in their order, each once.
func compactGrants(all []Grant) []Grant {
	slices.SortFunc(all, func(a, b Grant) int {
		return cmp.Or(
			cmp.Compare(a.GrantedUs, b.GrantedUs),
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.ID, b.ID),
			cmp.Compare(a.Attempt, b.Attempt),
			compareUnused(a, b),
		)
	})
	return slices.CompactFunc(all, func(a, b Grant) bool {
		return a.GrantedUs == b.GrantedUs && a.Key == b.Key && a.ID == b.ID && a.Attempt == b.Attempt
	})
}

// compareUnused puts what is known last, that a grant was not used, first.
func compareUnused(a, b Grant) int {
	switch {
	case a.Unused == b.Unused:
		return 0
	case a.Unused:
		return -1
	}
	return 1
}

func readGrantsFile(path string) ([]Grant, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("grants: %w", err)
	}
	defer func() { _ = f.Close() }()
	// A line without a key or an instant would be left out of the count of breaches in silence.
	grants, err := ReadLines(f, func(g Grant) bool { return g.Key != "" && g.GrantedUs > 0 })
	if err != nil {
		return nil, fmt.Errorf("grants: %s: %w", path, err)
	}
	return grants, nil
}

// GrantLog remembers the grants of this process, and writes them to a file if
// there is one. It is safe for concurrent use.
type GrantLog struct {
	path string
	file *GrantWriter // nil without a path

	mu  sync.Mutex
	own []Grant
}

// OpenGrantLog opens the file at path, or none for "".
func OpenGrantLog(path string) (*GrantLog, error) {
	l := &GrantLog{path: path}
	if path == "" {
		return l, nil
	}
	file, err := OpenGrants(path)
	if err != nil {
		return nil, err
	}
	l.file = file
	return l, nil
}

// Add notes a grant. After an error nothing may be sent under it: it would be
// missing in the file.
func (l *GrantLog) Add(g Grant) error {
	l.mu.Lock()
	l.own = append(l.own, g)
	l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	return l.file.Write(g)
}

// All returns the grants of all processes that share the file, or else our own;
// with an error too.
func (l *GrantLog) All() ([]Grant, error) {
	l.mu.Lock()
	own := slices.Clone(l.own)
	l.mu.Unlock()
	if l.file == nil {
		return compactGrants(own), nil
	}
	merged, err := ReadGrants(l.path)
	if err != nil {
		return compactGrants(own), err
	}
	return merged, nil
}

// Close closes the file, if there is one.
func (l *GrantLog) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// LineWriter appends values to a file as JSON lines. Several processes may share the
// file: grants and the records of worker processes are written so. It is safe for
// concurrent use.
type LineWriter struct{ file *os.File }

// OpenLines opens the file at path to append to it, and creates it for its owner only.
func OpenLines(path string) (*LineWriter, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &LineWriter{file: f}, nil
}

// Write appends v with one write, unbuffered: with O_APPEND lines of several processes
// do not mix, and a process that is killed loses none that it wrote.
func (w *LineWriter) Write(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.file.Write(append(line, '\n'))
	}
	return err
}

// Close closes the file.
func (w *LineWriter) Close() error { return w.file.Close() }

// ReadLines reads JSON lines, each into a T that must be valid. Blank lines are left out.
func ReadLines[T any](r io.Reader, valid func(T) bool) ([]T, error) {
	var all []T
	buf := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := buf.ReadBytes('\n')
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var v T
			if json.Unmarshal(line, &v) != nil || !valid(v) {
				return nil, fmt.Errorf("line %d is not one of ours", number)
			}
			all = append(all, v)
		}
		if last {
			return all, nil
		}
	}
}

// slack is how far a granted instant, which is rounded up to a microsecond, may seem
// to be from an exact one.
const slack = 2 * time.Microsecond

// Breaches counts the grants that broke a rule: of a limit those that are too many
// for their key, of a gate those while it was shut. They may come in any order.
// What was given back counts for nothing. Limits that say how many run at once are
// not judged: a grant does not tell when its message was sent.
func Breaches(grants []Grant, r queue.Rule) int {
	if IsGate(r) {
		return whileShut(grants, r)
	}
	byKey, returned := map[string][]judge.Spent{}, map[string]bool{}
	for _, g := range grants {
		c, ok := ChargeOf(g.Charges, r.Name, g.Key)
		switch {
		case ok && g.Unused:
			returned[c.Key] = true
		case ok:
			byKey[c.Key] = append(byKey[c.Key], judge.Spent{At: g.GrantedUs, Cost: c.Cost})
		}
	}
	over := 0
	for key, spent := range byKey {
		slices.SortFunc(spent, func(a, b judge.Spent) int { return cmp.Compare(a.At, b.At) })
		over += breachesOf(r.Limit, spent, returned[key])
	}
	return over
}

// Judged says whether [Breaches] can tell anything about a rule.
func Judged(r queue.Rule) bool { return !r.Limit.IsConcurrent() }

// breachesOf counts the grants of one key that its limit does not allow:
//
//	sliding             more than n in a window that ends with it
//	fixed               more than n in the window that the first one outside of any began
//	calendar            more than n in the window of the civil calendar
//	bucket, gcra        more than burst + rate·t in a time t that ends with it; stepped: a step more
//	leaky, smooth,      it before all that came before in a time t was paid for at the rate,
//	warmup              but for what is stored
//
// These are what the limits promise. That of a stepped bucket and of a warm-up say a
// little less than the limit does.
func breachesOf(limit throttle.Limit, spent []judge.Spent, returned bool) int {
	n, window := limit.Permits(), limit.Window()
	rate := judge.Rate{N: n, Window: window, Burst: limit.Burst(), Slack: slack}
	switch limit.Kind() {
	case "sliding":
		return len(judge.Windows(spent, n, window))
	case "fixed":
		if returned { // it may have begun a window
			return len(judge.Windows(spent, 2*n, window))
		}
		return len(judge.FixedWindows(spent, n, window))
	case "calendar":
		return len(judge.NamedWindows(spent, n, civilLabel(limit)))
	case "bucket", "gcra":
		if strings.HasSuffix(limit.String(), " step") {
			rate.Burst += n
		}
	default: // leaky, smooth, warmup
		rate.PaidBefore = true
	}
	return len(rate.Breaches(spent))
}

// civilLabel names the window of a calendar limit in which an instant lies. An
// hour that comes twice has two names.
func civilLabel(limit throttle.Limit) func(us int64) string {
	_, rest, _ := strings.Cut(limit.String(), "/") // "day Asia/Shanghai"
	unit, name, _ := strings.Cut(rest, " ")
	zone, err := time.LoadLocation(name)
	if err != nil {
		zone = time.UTC // a limit with such a zone is refused
	}
	layout := map[string]string{
		"minute": "2006-01-02 15:04 -07:00:00", "hour": "2006-01-02 15 -07:00:00", "day": time.DateOnly, "month": "2006-01",
	}[unit]
	return func(us int64) string {
		at := time.UnixMicro(us).In(zone)
		if unit == "week" {
			at, layout = at.AddDate(0, 0, -(int(at.Weekday())+6)%7), time.DateOnly // its Monday
		}
		return at.Format(layout)
	}
}

// whileShut counts the grants while a gate was shut, in the recipient's zone if that
// is what it opens by.
func whileShut(grants []Grant, r queue.Rule) int {
	shut := 0
	zones := map[string]*time.Location{"": nil}
	for _, g := range grants {
		c, ok := ChargeOf(g.Charges, r.Name, g.Key)
		if !ok {
			continue
		}
		zone, known := zones[c.Zone]
		if !known {
			zone, _ = time.LoadLocation(c.Zone) // nil is shut: what can't be proved is a breach
			zones[c.Zone] = zone
		}
		if _, closed := gate.FirstClosed([]gate.InZone{{Rule: r.Name, Gate: r.Gate, In: zone}}, time.UnixMicro(g.GrantedUs)); closed {
			shut++
		}
	}
	return shut
}
