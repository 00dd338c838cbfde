package throttle

import (
	"strconv"
	"strings"
	"time"
)

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
