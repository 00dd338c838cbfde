package gate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// zoneRecipient stands for the zone that comes with each request.
const zoneRecipient = "recipient"

// Parse reads a gate from its text form, such as "09:00-21:00 Mon-Fri Europe/Berlin". [Gate]
// has the grammar. The zone is needed: the name of an IANA time zone, UTC, or "recipient" for
// the zone that comes with each request. Zones are read from the system, or from the program
// when it imports time/tzdata.
//
// The error says what was read and everything that is wrong with it. Each fault is an
// [Error], which says where in the text it is.
func Parse(text string) (Gate, error) {
	p := parser{except: &holidays{}}
	if p.readText(text); len(p.faults) > 0 {
		return Gate{}, &textError{text: text, faults: p.faults}
	}
	return canonical(p.plan), nil
}

// parser reads the words of a text from left to right. A value that is wrong
// does not end it; a word that has no meaning does, since nobody knows what those
// after it are.
type parser struct {
	words  []word
	faults faultList
	plan   *plan
	except *holidays
}

// word is a word, a quoted text, or a semicolon.
type word struct {
	text   string
	quoted bool
}

func (w word) is(text string) bool { return !w.quoted && w.text == text }

func (p *parser) readText(text string) {
	if len(text) > TextMax {
		p.tooLong(text, "")
		return
	}
	if !p.split(text) {
		return
	}
	var s schedule
	if len(p.words) > 0 && p.words[0].is("cron") {
		s = p.readCron()
	} else {
		s = p.readHours()
	}
	if s == nil {
		return
	}
	zone := p.readZone()
	if len(p.words) > 0 {
		p.faults.add("word", errtext.Quote(p.words[0].text), "nothing after the zone, which stands once, at the end")
	}
	if len(p.faults) > 0 {
		return
	}
	p.build(s, zone)
}

// build puts the parts together once each of them is right.
func (p *parser) build(s schedule, zone string) {
	text := s.String() + " "
	if except := p.except.String(); except != "" {
		text += "except " + except + " "
	}
	p.plan = &plan{text: text + zone, schedule: s}
	if len(p.plan.text) > TextMax {
		p.tooLong(p.plan.text, " as it is printed")
	}
	if c, ok := s.(*cronHours); ok {
		c.faults(&p.faults)
	}
	if zone != zoneRecipient {
		loaded, err := time.LoadLocation(zone)
		if err != nil { // it could be loaded just now
			p.faults.add("zone", errtext.Quote(zone), err.Error())
		}
		p.plan.zone = loaded
	}
}

func (p *parser) tooLong(text, how string) {
	p.faults.add("text", fmt.Sprintf("of %d bytes%s", len(text), how), fmt.Sprintf("at most %d", TextMax))
}

// split cuts the text into words. False is a quoted text without an end.
func (p *parser) split(text string) bool {
	const space = " \t\r\n"
	for {
		text = strings.TrimLeft(text, space)
		switch {
		case text == "":
			return true
		case text[0] == ';':
			p.words = append(p.words, word{text: ";"})
			text = text[1:]
		case text[0] == '"':
			quoted, rest, ok := strings.Cut(text[1:], `"`)
			if !ok {
				p.faults.add("word", errtext.Quote(text), "a quote at its end")
				return false
			}
			p.words = append(p.words, word{quoted, true})
			text = rest
		default:
			end := strings.IndexAny(text, space+`;"`)
			if end < 0 {
				end = len(text)
			}
			p.words = append(p.words, word{text: text[:end]})
			text = text[end:]
		}
	}
}

func (p *parser) next() (word, bool) {
	if len(p.words) == 0 {
		return word{}, false
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w, true
}

// skip takes the next word if it is this one.
func (p *parser) skip(text string) bool {
	if len(p.words) == 0 || !p.words[0].is(text) {
		return false
	}
	p.words = p.words[1:]
	return true
}

// list takes the items of the next word. Each stands there once.
func (p *parser) list(field, want string, read func(item string) bool) bool {
	w, ok := p.next()
	if !ok || w.quoted || w.is(";") {
		value := "missing"
		if ok {
			value = errtext.Quote(w.text)
		}
		p.faults.add(field, value, want)
		return false
	}
	seen := make(map[string]bool)
	for item := range strings.SplitSeq(w.text, ",") {
		switch {
		case seen[item]:
			p.faults.add(field, errtext.Quote(item), "it once")
		case !read(item):
			p.faults.add(field, errtext.Quote(item), want)
		}
		seen[item] = true
	}
	return true
}

// readZone reads the zone, and what may stand before it.
func (p *parser) readZone() string {
	if p.skip("except") {
		const want = "YYYY-MM-DD or MM-DD, a date that exists, in a list without spaces"
		if !p.list("date", want, p.except.add) {
			p.words = nil
			return ""
		}
	}
	const want = "a name of the time zone database such as Europe/Berlin, UTC, or recipient"
	w, ok := p.next()
	switch {
	case !ok:
		p.faults.add("zone", "missing", want)
	case w.is(zoneRecipient):
	case w.quoted || w.is(";"):
		p.faults.add("zone", errtext.Quote(w.text), want)
	default:
		if want := civil.ZoneFault(w.text, time.LoadLocation); want != "" {
			p.faults.add("zone", errtext.Quote(w.text), want+`; or "recipient"`)
		}
	}
	return w.text
}

// ErrInvalid says that opening hours make no sense. See [Error].
var ErrInvalid = errors.New("throttle: invalid gate")

// Error is one fault of a gate. It unwraps to [ErrInvalid].
type Error struct {
	Field string // what is wrong: "gate", "text", "hours", "weekday", "opening", "closing", "date", "zone", or "word"
	Value string // as it was given, clipped when long
	Want  string // what is right
}

func (e *Error) Error() string { return ErrInvalid.Error() + ": " + e.short() }

func (e *Error) Unwrap() error { return ErrInvalid }

func (e *Error) short() string { return e.Field + " " + e.Value + ", want " + e.Want }

// faultList collects what is wrong.
type faultList []*Error

func (f *faultList) add(field, value, want string) {
	*f = append(*f, &Error{Field: field, Value: value, Want: want})
}

// textError is what is wrong with a text.
type textError struct {
	text   string
	faults faultList
}

func (e *textError) Error() string {
	var all []string
	for _, f := range e.faults {
		all = append(all, f.short())
	}
	return fmt.Sprintf("%v: %s: %s; right is for example %q", ErrInvalid, errtext.Quote(e.text), strings.Join(all, "; "), exampleText)
}

const exampleText = "09:00-21:00 Mon-Fri Europe/Berlin"

func (e *textError) Unwrap() []error {
	var errs []error
	for _, f := range e.faults {
		errs = append(errs, f)
	}
	return errs
}
