package throttle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/throttle/internal/errtext"
)

// ParseLimit reads a limit from its text form and validates it. The form is
// "[kind] n/duration [word value]...", without a kind sliding; durations are as
// in Go plus "d" for 24 hours, and a bare unit is one of it:
//
//	1/60s                           sliding 10/1h      fixed 10/h
//	calendar 10/day Asia/Shanghai   calendar 2/month   (without a zone UTC)
//	bucket 100/1s burst 200         bucket 10/1s burst 50 step
//	gcra 100/1s burst 20            leaky 10/1s        smooth 5/1s burst 5
//	warmup 2/1s over 4s cold 3      concurrent 50 lease 30s
//
// A missing burst is n, of gcra 1; a missing cold is 3. Days, weeks and months
// of a civil calendar are only those of calendar: "5/d" is 5 in any 24 hours.
// The error says what was read and everything that is wrong with it; each fault
// is a [LimitError].
func ParseLimit(s string) (Limit, error) {
	p := parser{words: strings.Fields(s)}
	p.readKind()
	if p.limit.kind != kindNone && p.readRate() {
		p.readWords()
	}
	if p.limit.kind != kindNone {
		p.validate()
	}
	if len(p.faults) > 0 {
		return Limit{}, &textError{text: errtext.Clip(s), faults: p.faults, example: kinds[max(p.limit.kind, kindSliding)].example}
	}
	return p.limit, nil
}

// textError is what is wrong with a text.
type textError struct {
	text    string
	faults  faultList
	example string
}

func (e *textError) Error() string {
	var all []string
	for _, f := range e.faults {
		all = append(all, f.short())
	}
	return fmt.Sprintf("%v: %q: %s; right is for example %q", ErrInvalidLimit, e.text, strings.Join(all, "; "), e.example)
}

func (e *textError) Unwrap() []error {
	var errs []error
	for _, f := range e.faults {
		errs = append(errs, f)
	}
	return errs
}

// parser reads the words of a text from left to right.
type parser struct {
	words  []string
	limit  Limit
	faults faultList
}

func (p *parser) next() (string, bool) {
	if len(p.words) == 0 {
		return "", false
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w, true
}

func (p *parser) readKind() {
	if len(p.words) == 0 || strings.Contains(p.words[0], "/") {
		p.limit.kind = kindSliding
		return
	}
	name, _ := p.next()
	for k := kindSliding; int(k) < len(kinds); k++ {
		if kinds[k].name == name {
			p.limit.kind = k
			return
		}
	}
	var names []string
	for _, k := range kinds[kindSliding:] {
		names = append(names, k.name)
	}
	p.faults.add("kind", errtext.Quote(name), strings.Join(slices.Compact(names), ", ")+", or n/duration")
}

// readRate reads n/duration; what is missing needs no further fault.
func (p *parser) readRate() bool {
	form := "n/duration"
	switch p.limit.kind {
	case kindCalendar:
		form = "n/unit"
	case kindConcurrent:
		p.readCount()
		return true
	}
	w, ok := p.next()
	if !ok {
		p.faults.add("rate", "missing", form)
		return false
	}
	count, per, ok := strings.Cut(w, "/")
	if !ok {
		p.faults.add("rate", errtext.Quote(w), form)
		return false
	}
	p.limit.permits = p.readInt("permits", count, 1)
	switch p.limit.kind {
	case kindCalendar:
		p.limit.unit = unitNamed(per)
		p.limit.window = units[p.limit.unit].nominal
		if p.limit.unit == 0 {
			p.faults.add("unit", errtext.Quote(per), unitNames)
		}
	default:
		p.limit.window = p.readDuration("window", per)
	}
	p.limit.burst = p.burstDefault()
	return true
}

// readCount reads the n of concurrent, which has no duration of its own.
func (p *parser) readCount() {
	w, ok := p.next()
	switch {
	case !ok:
		p.faults.add("permits", "missing", "how many at once")
	case strings.Contains(w, "/"):
		p.faults.add("permits", errtext.Quote(w), "how many at once, without a duration")
	default:
		p.limit.permits = p.readInt("permits", w, 1)
	}
}

func (p *parser) burstDefault() int {
	switch p.limit.kind {
	case kindBucket, kindSmooth:
		return p.limit.permits
	case kindGCRA:
		return 1
	}
	return 0
}

// readWords reads what follows n/duration. The first word that has no meaning
// there ends it: whether the next word is its value is not known.
func (p *parser) readWords() {
	l := &p.limit
	known := kinds[l.kind].words
	if l.kind == kindWarmUp {
		l.coldMilli = 3 * coldMilliMin
	}
	if l.kind == kindCalendar {
		l.zone = zoneDefault
		if w, ok := p.next(); ok {
			l.zone = w
		}
	}
	var seen []string
	for {
		w, ok := p.next()
		if !ok {
			break
		}
		if !slices.Contains(known, w) || slices.Contains(seen, w) {
			p.unknown(w, known, seen)
			return
		}
		seen = append(seen, w)
		p.readWord(w)
	}
	if l.kind == kindConcurrent && !slices.Contains(seen, "lease") {
		p.faults.add("lease", "missing", "how long a lease lives without being renewed, such as lease 30s")
	}
	if l.kind == kindWarmUp && !slices.Contains(seen, "over") {
		p.faults.add("over", "missing", "the time to warm up, such as over 4s")
	}
}

func (p *parser) readWord(w string) {
	l := &p.limit
	if w == "step" {
		l.kind = kindStepped
		return
	}
	value, ok := p.next()
	switch {
	case !ok:
		p.faults.add(w, "missing", "a value after the word")
	case w == "burst":
		low := 1
		if l.kind == kindSmooth {
			low = 0
		}
		l.burst = p.readInt(w, value, low)
	case w == "lease":
		l.window = p.readDuration(w, value)
	case w == "over":
		l.over = p.readDuration(w, value)
	case w == "cold":
		cold, err := strconv.ParseFloat(value, 64)
		if err != nil || strings.Trim(value, "0123456789.") != "" {
			p.faults.add(w, errtext.Quote(value), coldWant)
			return
		}
		warm := WarmUp(0, 0, 0, cold)
		l.coldMilli, l.coldBad = warm.coldMilli, warm.coldBad
	}
}

func (p *parser) unknown(w string, known, seen []string) {
	want := "nothing after n/duration"
	switch {
	case slices.Contains(seen, w):
		want = "it once"
	case p.limit.kind == kindCalendar:
		want = "nothing after the zone"
	case len(known) > 0:
		want = strings.Join(known, " or ")
	}
	p.faults.add("word", errtext.Quote(w), want)
}

// readInt refuses what does not print the same again, such as "+1" and "01".
func (p *parser) readInt(field, s string, low int) int {
	n, err := strconv.Atoi(s)
	if err != nil || s != strconv.Itoa(n) {
		p.faults.add(field, errtext.Quote(s), fmt.Sprintf("a whole number, %d to %d", low, p.limit.permitsMax()))
		return 0
	}
	return n
}

func (p *parser) readDuration(field, s string) time.Duration {
	d, err := parseWindow(s)
	if err == nil {
		return d
	}
	want := "a duration such as 60s, 1h30m or 7d"
	if unitNamed(s) != 0 {
		want += fmt.Sprintf("; civil units are those of calendar, such as %q", "calendar 10/"+s)
	}
	p.faults.add(field, errtext.Quote(s), want)
	return 0
}

// validate adds the faults of the numbers, except for those that were not even
// read.
func (p *parser) validate() {
	unread := make(map[string]bool)
	for _, f := range p.faults {
		unread[f.Field] = true
	}
	if unread["rate"] {
		return
	}
	for _, f := range p.limit.faults() {
		// A burst that was left out follows the permits.
		if unread[f.Field] || f.Field == "burst" && unread["permits"] {
			continue
		}
		p.faults = append(p.faults, f)
	}
}

// String returns the text form with every number, which [ParseLimit] reads back
// to the same value: "1/60s" prints as "sliding 1/1m".
func (l Limit) String() string {
	if l.kind == kindNone {
		return "invalid limit"
	}
	per := formatWindow(l.window)
	if l.kind == kindCalendar {
		per = l.unit.String() + " " + l.zone
	}
	if l.kind == kindConcurrent {
		return l.Kind() + " " + strconv.Itoa(l.permits) + " lease " + formatWindow(l.window)
	}
	s := l.Kind() + " " + strconv.Itoa(l.permits) + "/" + per
	switch l.kind {
	case kindBucket, kindGCRA, kindSmooth:
		s += " burst " + strconv.Itoa(l.burst)
	case kindStepped:
		s += " burst " + strconv.Itoa(l.burst) + " step"
	case kindWarmUp:
		s += " over " + formatWindow(l.over) + " cold " + l.coldText()
	}
	return s
}

// MarshalText implements [encoding.TextMarshaler].
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler] with [ParseLimit].
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// parseWindow reads a Go duration, whole days ("7d"), or a bare unit ("d", "s").
func parseWindow(s string) (time.Duration, error) {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		s = "1" + s
	}
	days, ok := strings.CutSuffix(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, err
	}
	return time.Duration(n) * day, nil
}

// formatWindow prints a duration without the zero parts that Go appends.
func formatWindow(d time.Duration) string {
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
