package throttle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of a limit.
const (
	PermitsMax = 1_000_000            // permits per window, at most
	WindowMin  = time.Millisecond     // shortest window
	WindowMax  = 366 * 24 * time.Hour // longest window
)

const day = 24 * time.Hour

// Limit is an algorithm with its numbers, such as "at most 1 in any 60 s". It
// is a comparable value; the zero Limit is invalid. Its text form is
// "[sliding] n/duration" with the duration as in Go plus "d" for 24 hours:
// "1/60s", "sliding 10/1h", "5/d".
type Limit struct {
	permits int
	window  time.Duration
}

// Sliding is the exact sliding-window log: at most n permits in any window of
// length per, however the window is laid. Windows are half open: with
// Sliding(1, time.Minute) a permit at 8:00:00 lets the next one go at 8:01:00
// sharp, and a call at 8:00:30 is told to wait 30 s.
//
// n is 1 to [PermitsMax], per is [WindowMin] to [WindowMax] in whole
// microseconds; [Limit.Validate] says what is wrong with others. An idle key
// costs one small Redis string, and each further permit in the window 7 bytes.
//
// The algorithm is that of Redisson's RRateLimiter, with an exact wait for n
// permits and a place in line instead of one delay for all.
func Sliding(n int, per time.Duration) Limit { return Limit{permits: n, window: per} }

// Permits returns how many permits a window holds.
func (l Limit) Permits() int { return l.permits }

// Window returns the length of the window.
func (l Limit) Window() time.Duration { return l.window }

// Validate returns everything that is wrong with l, joined, or nil. Each fault
// unwraps to [ErrInvalidLimit].
func (l Limit) Validate() error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidLimit}, a...)...))
	}
	if l.permits < 1 || l.permits > PermitsMax {
		bad("%d permits, want 1 to %d", l.permits, PermitsMax)
	}
	if l.window < WindowMin || l.window > WindowMax {
		bad("window %v, want %v to %v", l.window, WindowMin, WindowMax)
	} else if l.window%time.Microsecond != 0 {
		bad("window %v, want whole microseconds", l.window)
	}
	return errors.Join(errs...)
}

// String returns the text form, which [ParseLimit] reads back to the same
// value: "sliding 1/1m0s" prints as "sliding 1/1m".
func (l Limit) String() string {
	return "sliding " + strconv.Itoa(l.permits) + "/" + formatWindow(l.window)
}

// ParseLimit reads a limit from its text form and validates it. The error says
// what was read and unwraps to [ErrInvalidLimit].
func ParseLimit(s string) (Limit, error) {
	fail := func(format string, a ...any) (Limit, error) {
		return Limit{}, fmt.Errorf("%w: %q: %s, want for example %q", ErrInvalidLimit, clip(s), fmt.Sprintf(format, a...), "1/60s")
	}
	words := strings.Fields(s)
	if len(words) > 0 && words[0] == "sliding" {
		words = words[1:]
	}
	if len(words) == 0 {
		return fail("no n/duration")
	}
	if len(words) > 1 {
		return fail("unexpected word %q", clip(words[1]))
	}
	count, per, ok := strings.Cut(words[0], "/")
	if !ok {
		return fail("no slash")
	}
	n, err := strconv.Atoi(count)
	if err != nil || count != strconv.Itoa(n) {
		return fail("%q is not a whole number", clip(count))
	}
	window, err := parseWindow(per)
	if err != nil {
		return fail("%q is not a duration", clip(per))
	}
	l := Sliding(n, window)
	if err := l.Validate(); err != nil {
		return Limit{}, err
	}
	return l, nil
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

// clip keeps an error readable when somebody passes a whole file as a limit.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
