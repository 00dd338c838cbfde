// Package phonezone finds the time zone of a phone number. It is a package of its own
// because the numbering plans behind it make a program 2.8 MB larger and take some
// milliseconds at every start.
//
// Policy files that say "zone: phone $.to" are read with
//
//	queue.Funcs{PhoneZone: phonezone.Of}.ReadPolicyFiles(paths...)
package phonezone

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/nyaruka/phonenumbers"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/zones"
)

// Of returns a [queue.ZoneFunc] that finds the time zone of a phone number, which is
// what number finds, in E.164: "+4915112345678". It knows the zone of the country, and of
// the area where the number tells it: +1 212 is New York. It does not know where the
// phone is, and the plans give all mobile numbers of some wide countries one zone: those
// of Russia are in Moscow, those of Australia in Sydney. Where that matters, use
// [queue.JSONZone] and the address.
//
// A number that may be in several zones with different clocks, such as a Portuguese
// mobile number (Lisbon, or the Azores) or an American toll-free one, has no one zone.
// Neither has a satellite's. All of these get the zone otherwise. With a nil otherwise
// they are refused: a message in the wrong zone would come in somebody's night. Where the
// zones of a country are hours apart, only a gate that is narrower by as much keeps
// everybody's night. Zones whose clocks agree from 2026 to 2037 are one zone, the first
// by name. Text that is no possible number is always an error.
//
// The error unwraps to queue.ErrNoZone, and its text is without the number. What a country is and where its
// zones are is from the numbering plans in github.com/nyaruka/phonenumbers, of the version
// that the program is built with. The last few thousand numbers are remembered. Of panics
// when number is nil; what it returns is safe for concurrent use if number is.
func Of(number queue.KeyFunc, otherwise *time.Location) queue.ZoneFunc {
	if number == nil {
		panic("phonezone: no function that finds the number")
	}
	return func(task *asynq.Task) (*time.Location, error) {
		text, err := number(task)
		if err != nil {
			return nil, err
		}
		zone, zerr := phones.zone(text)
		switch {
		case zerr == nil:
			return zone, nil
		case otherwise != nil && (zerr == errNoPlace || zerr == errManyZones): // a possible number
			return otherwise, nil
		}
		return nil, zerr
	}
}

// What phones answers.
var (
	errNotE164    = &zones.PhoneError{Err: queue.ErrNoZone, Reason: "not in E.164: + and 7 to 15 digits, the first not 0"}
	errNoPhone    = &zones.PhoneError{Err: queue.ErrNoZone, Reason: "no number that its country's plan knows"}
	errNoPlace    = &zones.PhoneError{Err: queue.ErrNoZone, Reason: "a number without a place"}
	errManyZones  = &zones.PhoneError{Err: queue.ErrNoZone, Reason: "a number of several zones whose clocks differ"}
	errZoneAbsent = &zones.PhoneError{Err: queue.ErrNoZone, Reason: "a zone that the time zone database here does not have"}
)

// phones remembers the zones of numbers for all policies of the program.
var phones phoneCache

// phonesMax bounds each of the two generations of numbers that are remembered. A
// task asks when it is enqueued, when it is booked and when it is woken.
const phonesMax = 4096

// phoneCache finds zones of numbers. Its zero value remembers nothing yet.
type phoneCache struct {
	mu       sync.Mutex
	new, old map[string]phoneZone // by number
	places   map[string]phoneZone // by the names of zones; as many as the numbering plans have
}

type phoneZone struct {
	zone *time.Location
	err  *zones.PhoneError
}

func (c *phoneCache) zone(number string) (*time.Location, *zones.PhoneError) {
	if !isE164(number) {
		return nil, errNotE164
	}
	c.mu.Lock()
	z, ok := c.new[number]
	if !ok {
		z, ok = c.old[number]
	}
	c.mu.Unlock()
	if !ok {
		z = c.find(number)
	}
	if z.err != errZoneAbsent { // which may be a file that could not be opened just now
		c.remember(number, z)
	}
	return z.zone, z.err
}

func (c *phoneCache) remember(number string, z phoneZone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.new[number]; ok {
		return
	}
	if c.new == nil || len(c.new) == phonesMax {
		c.old, c.new = c.new, make(map[string]phoneZone)
	}
	c.new[strings.Clone(number)] = z
}

// isE164 is stricter than the library, which reads spaces, letters and
// extensions: a number in two spellings would have been two keys.
func isE164(number string) bool {
	digits, ok := strings.CutPrefix(number, "+")
	return ok && len(digits) >= 7 && len(digits) <= 15 && digits[0] != '0' && strings.Trim(digits, "0123456789") == ""
}

func (c *phoneCache) find(number string) phoneZone {
	parsed, err := phonenumbers.Parse(number, "")
	// possible and not valid: plans grow faster than programs are built
	if err != nil || phonenumbers.IsPossibleNumberWithReason(parsed) != phonenumbers.IS_POSSIBLE {
		return phoneZone{err: errNoPhone}
	}
	names, err := phonenumbers.GetTimezonesForNumber(parsed)
	if err != nil || len(names) == 0 || slices.Contains(names, phonenumbers.UNKNOWN_TIMEZONE) {
		return phoneZone{err: errNoPlace}
	}
	return c.place(names)
}

func (c *phoneCache) place(names []string) phoneZone {
	joined := strings.Join(names, " ")
	c.mu.Lock()
	z, ok := c.places[joined]
	c.mu.Unlock()
	if ok {
		return z
	}
	if z = oneZone(names, zones.Load); z.err == errZoneAbsent {
		return z
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places == nil {
		c.places = make(map[string]phoneZone)
	}
	c.places[joined] = z
	return z
}

// oneZone returns the first of the zones by name if their clocks agree.
func oneZone(names []string, load func(string) (*time.Location, error)) phoneZone {
	var first *time.Location
	for _, name := range slices.Sorted(slices.Values(names)) {
		zone, err := load(name)
		switch {
		case err != nil:
			return phoneZone{err: errZoneAbsent}
		case first == nil:
			first = zone
		case !sameClock(first, zone):
			return phoneZone{err: errManyZones}
		}
	}
	return phoneZone{zone: first}
}

// sameClock says whether two zones show the same time on each noon from 2026 to
// 2037, after which a database holds no more than the rule of its last year. The
// years are fixed: the answer for a number never changes while a program runs.
func sameClock(a, b *time.Location) bool {
	const day = 24 * time.Hour
	end := time.Date(2038, 1, 1, 0, 0, 0, 0, time.UTC)
	for t := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC); t.Before(end); t = t.Add(day) {
		_, offsetA := t.In(a).Zone()
		_, offsetB := t.In(b).Zone()
		if offsetA != offsetB {
			return false
		}
	}
	return true
}
