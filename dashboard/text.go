package dashboard

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/headwayq/headway/inspect"
)

// textMax is how many characters of a text from Redis a page shows.
const textMax = 160

// safe makes a text from Redis fit for a page: control characters and those that change the
// direction of text are made visible, and what is too long is clipped. Templates escape
// markup.
func safe(s string) string { return safeIn(s, textMax) }

func safeIn(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range s[:min(len(s), 16*most)] {
		if n == most {
			b.WriteString("…")
			return b.String()
		}
		n++
		switch {
		case r == utf8.RuneError:
			b.WriteRune('\uFFFD')
		case r < 0x20:
			b.WriteRune(0x2400 + r) // its picture: ␊ for a line feed
		case r == 0x7F:
			b.WriteRune('␡')
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			b.WriteRune('\uFFFD')
		case unicode.Is(unicode.M, r) && n > 1 && stacked(b.String()):
			continue // a tower of accents would cover the lines around it
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// stacked says that a text ends in two combining characters.
func stacked(s string) bool {
	for range 2 {
		r, size := utf8.DecodeLastRuneInString(s)
		if !unicode.Is(unicode.M, r) {
			return false
		}
		s = s[:len(s)-size]
	}
	return true
}

// clip keeps an error readable.
func clip(s string, most int) string { return safeIn(s, most) }

// count writes a number with its thousands apart.
func count[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 && s[i-1] != '-' {
			b.WriteRune(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// throttled is how many tasks of a queue wait for instants that are still to come. metrics and "headway
// top" count the same.
func throttled(q inspect.QueueStatus) int { return max(0, q.Waiting-q.Overdue) }

// runnable is how many tasks of a queue a worker may run now: those that are pending, and those that waited
// and whose instants have come.
func runnable(q inspect.QueueStatus) int { return q.Pending + q.Overdue }

// ahead is how many of the throttled tasks of a queue come due within some time: inspect counts the overdue
// ones, too.
func ahead(within int, q inspect.QueueStatus) int { return max(0, within-q.Overdue) }

// plural is a number with its word.
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return count(n) + " " + word + "s"
}

// does is a verb for so many: "waits" for one, "wait" for several.
func does(n int, verb string) string {
	if n == 1 {
		return verb + "s"
	}
	return verb
}

// span is a length of time in at most two units, for a person.
func span(d time.Duration) string {
	d = d.Abs()
	two := func(a int64, au string, b int64, bu string) string {
		if b == 0 {
			return fmt.Sprintf("%d\u00A0%s", a, au)
		}
		return fmt.Sprintf("%d\u00A0%s %d\u00A0%s", a, au, b, bu)
	}
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d\u00A0ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f\u00A0s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d\u00A0s", int64(d.Round(time.Second)/time.Second))
	case d < time.Hour:
		s := int64(d.Round(time.Second) / time.Second)
		return two(s/60, "min", s%60, "s")
	case d < 48*time.Hour:
		m := int64(d.Round(time.Minute) / time.Minute)
		return two(m/60, "h", m%60, "min")
	default:
		h := int64(d.Round(time.Hour) / time.Hour)
		return two(h/24, "days", h%24, "h")
	}
}

// relative is an instant as seen from now.
func relative(at, now time.Time) string {
	switch d := at.Sub(now); {
	case at.IsZero():
		return "–"
	case d.Abs() < time.Millisecond:
		return "now"
	case d < 0:
		return span(d) + " ago"
	default:
		return "in " + span(d)
	}
}

// clockText is how far the clock of a process is from Redis'.
func clockText(p inspect.Process) string {
	switch {
	case p.ClockWithin == 0:
		return "–"
	case p.ClockAhead.Abs() <= max(p.ClockWithin, time.Millisecond):
		return "equal"
	case p.ClockAhead < 0:
		return span(p.ClockAhead) + " behind, ±" + span(p.ClockWithin)
	}
	return span(p.ClockAhead) + " ahead, ±" + span(p.ClockWithin)
}

// stamp is an instant as an element whose text is in the reader's zone where a script runs,
// and in UTC without one; the title has the exact instant.
func stamp(at time.Time) template.HTML {
	if at.IsZero() {
		return "–"
	}
	utc := at.UTC()
	layout := "2006-01-02 15:04:05"
	// The parts are digits of a time: nothing has to be escaped.
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s UTC">%s UTC</time>`, //nolint:gosec // digits alone
		utc.Format("2006-01-02T15:04:05.000Z"), utc.Format("2006-01-02 15:04:05.000"), utc.Format(layout)))
}

// sealer hides keys in links. A link must not show a phone number: it stands in histories
// and logs.
type sealer struct {
	aead cipher.AEAD
	mac  []byte
}

var errSeal = errors.New("the link was made by another process, or is damaged")

// newSealer makes links that stay valid as long as the secret is the same; without one, as
// long as the process runs.
func newSealer(secret []byte) (*sealer, error) {
	if len(secret) == 0 {
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // it never fails
	}
	derive := func(use string) []byte {
		m := hmac.New(sha256.New, secret)
		m.Write([]byte("headway dashboard " + use))
		return m.Sum(nil)
	}
	block, err := aes.NewCipher(derive("links"))
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &sealer{aead, derive("nonces")}, nil
}

// seal hides a text. The same text gives the same link, so that viewers share a page.
func (s *sealer) seal(text string) string {
	m := hmac.New(sha256.New, s.mac)
	m.Write([]byte(text))
	nonce := m.Sum(nil)[:s.aead.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nonce, nonce, []byte(text), nil))
}

func (s *sealer) open(token string) (string, error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if n := s.aead.NonceSize(); err == nil && len(raw) > n {
		if text, err := s.aead.Open(nil, raw[:n], raw[n:], nil); err == nil {
			return string(text), nil
		}
	}
	return "", errSeal
}
