package throttle

import (
	"fmt"
	"strings"
	"time"
)

// zoneRecipient stands for the zone that comes with each request.
const zoneRecipient = "recipient"

// ParseGate reads a gate from its text form, see [Gate]. The error says what was
// read and everything that is wrong with it; each fault is a [GateError].
func ParseGate(text string) (Gate, error) {
	p := gateParser{except: &holidays{}}
	if p.readText(text); len(p.faults) > 0 {
		return Gate{}, &gateTextError{text: text, faults: p.faults}
	}
	return gateOf(p.plan), nil
}

// gateParser reads the words of a text from left to right. A value that is wrong
// does not end it; a word that has no meaning does, since nobody knows what those
// after it are.
type gateParser struct {
	words  []gateWord
	faults gateFaults
	plan   *gatePlan
	except *holidays
}

// gateWord is a word, a quoted text, or a semicolon.
type gateWord struct {
	text   string
	quoted bool
}

func (w gateWord) is(text string) bool { return !w.quoted && w.text == text }

func (p *gateParser) readText(text string) {
	if len(text) > GateTextMax {
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
		p.faults.add("word", quote(p.words[0].text), "nothing after the zone, which stands once, at the end")
	}
	if len(p.faults) > 0 {
		return
	}
	p.build(s, zone)
}

// build puts the parts together once each of them is right.
func (p *gateParser) build(s schedule, zone string) {
	text := s.String() + " "
	if except := p.except.String(); except != "" {
		text += "except " + except + " "
	}
	p.plan = &gatePlan{text: text + zone, schedule: s}
	if len(p.plan.text) > GateTextMax {
		p.tooLong(p.plan.text, " as it is printed")
	}
	if c, ok := s.(*cronHours); ok {
		c.faults(&p.faults)
	}
	if zone != zoneRecipient {
		loaded, err := time.LoadLocation(zone)
		if err != nil { // it could be loaded just now
			p.faults.add("zone", quote(zone), err.Error())
		}
		p.plan.zone = loaded
	}
}

func (p *gateParser) tooLong(text, how string) {
	p.faults.add("text", fmt.Sprintf("of %d bytes%s", len(text), how), fmt.Sprintf("at most %d", GateTextMax))
}

// split cuts the text into words. False is a quoted text without an end.
func (p *gateParser) split(text string) bool {
	const space = " \t\r\n"
	for {
		text = strings.TrimLeft(text, space)
		switch {
		case text == "":
			return true
		case text[0] == ';':
			p.words = append(p.words, gateWord{text: ";"})
			text = text[1:]
		case text[0] == '"':
			quoted, rest, ok := strings.Cut(text[1:], `"`)
			if !ok {
				p.faults.add("word", quote(text), "a quote at its end")
				return false
			}
			p.words = append(p.words, gateWord{quoted, true})
			text = rest
		default:
			end := strings.IndexAny(text, space+`;"`)
			if end < 0 {
				end = len(text)
			}
			p.words = append(p.words, gateWord{text: text[:end]})
			text = text[end:]
		}
	}
}

func (p *gateParser) next() (gateWord, bool) {
	if len(p.words) == 0 {
		return gateWord{}, false
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w, true
}

// skip takes the next word if it is this one.
func (p *gateParser) skip(text string) bool {
	if len(p.words) == 0 || !p.words[0].is(text) {
		return false
	}
	p.words = p.words[1:]
	return true
}

// list takes the items of the next word. Each stands there once.
func (p *gateParser) list(field, want string, read func(item string) bool) bool {
	w, ok := p.next()
	if !ok || w.quoted || w.is(";") {
		value := "missing"
		if ok {
			value = quote(w.text)
		}
		p.faults.add(field, value, want)
		return false
	}
	seen := make(map[string]bool)
	for item := range strings.SplitSeq(w.text, ",") {
		switch {
		case seen[item]:
			p.faults.add(field, quote(item), "it once")
		case !read(item):
			p.faults.add(field, quote(item), want)
		}
		seen[item] = true
	}
	return true
}

// readZone reads the zone, and what may stand before it.
func (p *gateParser) readZone() string {
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
		p.faults.add("zone", quote(w.text), want)
	default:
		if want := zoneFault(w.text, time.LoadLocation); want != "" {
			p.faults.add("zone", quote(w.text), want+`; or "recipient"`)
		}
	}
	return w.text
}
