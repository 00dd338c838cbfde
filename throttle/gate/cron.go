package gate

import (
	"math/bits"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/headwayq/headway/internal/civil"
	"github.com/headwayq/headway/internal/cronspec"
	"github.com/headwayq/headway/throttle/internal/errtext"
)

// cronHours are opening hours by two cron expressions. Only their reading is the
// library's: its walk over the ticks of a zone loses and repeats some where the
// clock is changed. Here ticks are times of a clock that never is.
type cronHours struct {
	open, close cronTicks
	except      *holidays
}

// cronTicks is one expression.
type cronTicks struct {
	text string
	spec *cron.SpecSchedule
}

// cronReach is longer than from any tick to the next: a February 29th comes
// after 8 years at the latest, in 2104.
const cronReach = 9 * 366 * civil.DaySeconds

// readCron reads: cron "expression" to "expression". Nil is an end.
func (p *parser) readCron() schedule {
	p.skip("cron")
	c := &cronHours{except: p.except}
	if !p.readTicks("opening", &c.open) {
		return nil
	}
	if !p.skip("to") {
		value := "missing"
		if len(p.words) > 0 {
			value = errtext.Quote(p.words[0].text)
		}
		p.faults.add("word", value, `to, and "a cron expression" for the closing`)
		return nil
	}
	if !p.readTicks("closing", &c.close) {
		return nil
	}
	return c
}

func (p *parser) readTicks(field string, t *cronTicks) bool {
	const want = `a cron expression in quotes, such as "0 9 * * 1-5"`
	w, ok := p.next()
	if !ok || !w.quoted {
		value := "missing"
		if ok {
			value = errtext.Quote(w.text)
		}
		p.faults.add(field, value, want)
		return false
	}
	spec, wrong := readCronSpec(w.text)
	if wrong != "" {
		p.faults.add(field, errtext.Quote(w.text), wrong)
	}
	t.text, t.spec = strings.ToLower(strings.Join(strings.Fields(w.text), " ")), spec
	return true
}

// readCronSpec reads an expression, or says what is right.
func readCronSpec(text string) (*cron.SpecSchedule, string) {
	const want = "minute, hour, day of month, month and weekday as in cron, @hourly, @daily, @weekly, @monthly or @yearly"
	text = strings.TrimSpace(text)
	if strings.Contains(text, "=") || strings.HasPrefix(text, "@every") {
		return nil, want + "; no TZ= and no @every"
	}
	spec, err := cronspec.Parse(text, cronspec.Standard)
	if err != nil {
		return nil, want + " (" + errtext.Clip(err.Error()) + ")"
	}
	return spec, ""
}

func (c *cronHours) String() string {
	return `cron "` + c.open.text + `" to "` + c.close.text + `"`
}

// faults adds what is wrong with expressions that were read: they must open and
// close. After 28 years dates have been on each weekday, also February 29th.
func (c *cronHours) faults(f *faultList) {
	lo := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	hi := time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	yearly := &cronHours{open: c.open, close: c.close, except: &holidays{yearly: c.except.yearly, any: c.except.any}}
	_, opens := tickFrom(lo, hi, c.open.on)
	_, closes := tickFrom(lo, hi, c.close.on)
	const want = "a date that exists"
	if !opens {
		f.add("opening", errtext.Quote(c.open.text), want)
	}
	if !closes {
		f.add("closing", errtext.Quote(c.close.text), want)
	}
	if _, ok := tickFrom(lo, hi, yearly.openings); !ok && opens && closes {
		f.add("opening", errtext.Quote(c.open.text), "one that is not always that of a closing or on an excepted date")
	}
}

// ticks are those of a date, a bit for each minute of an hour.
type ticks [24]uint64

// on are the ticks on a date, and whether there are any.
func (t cronTicks) on(date int64) (ticks, bool) {
	const star = 1 << 63 // the field was "*"
	at := time.Unix(date*civil.DaySeconds, 0).UTC()
	_, month, dom := at.Date()
	byMonth, byWeek := t.spec.Dom&(1<<dom) != 0, t.spec.Dow&(1<<at.Weekday()) != 0
	if (t.spec.Dom|t.spec.Dow)&star != 0 {
		byMonth = byMonth && byWeek
		byWeek = byMonth
	}
	var out ticks
	if t.spec.Month&(1<<month) == 0 || !byMonth && !byWeek {
		return out, false
	}
	for h := range out {
		if t.spec.Hour&(1<<h) != 0 {
			out[h] = t.spec.Minute &^ star
		}
	}
	return out, true
}

// openings are the ticks at which it opens on a date.
func (c *cronHours) openings(date int64) (ticks, bool) {
	out, ok := c.open.on(date)
	if !ok || c.except.has(date) {
		return ticks{}, false
	}
	closings, _ := c.close.on(date)
	for h := range out {
		out[h] &^= closings[h]
	}
	return out, true
}

// tickFrom is the first tick at or after lo and before hi.
func tickFrom(lo, hi int64, on func(date int64) (ticks, bool)) (int64, bool) {
	for date := (lo - civil.Mod(lo, civil.DaySeconds)) / civil.DaySeconds; date*civil.DaySeconds < hi; date++ {
		of, ok := on(date)
		if !ok {
			continue
		}
		minute := max((lo-date*civil.DaySeconds+59)/60, 0)
		for h := minute / 60; h < 24; h++ {
			mask := of[h]
			if h == minute/60 {
				mask &= ^uint64(0) << (minute % 60)
			}
			if mask != 0 {
				at := date*civil.DaySeconds + h*3600 + int64(bits.TrailingZeros64(mask))*60
				return at, at < hi
			}
		}
	}
	return 0, false
}

// tickUntil is the last tick at or before hi, or lo without one from there on.
func tickUntil(lo, hi int64, on func(date int64) (ticks, bool)) int64 {
	for date := (hi - civil.Mod(hi, civil.DaySeconds)) / civil.DaySeconds; (date+1)*civil.DaySeconds > lo; date-- {
		of, ok := on(date)
		if !ok {
			continue
		}
		minute := min((hi-date*civil.DaySeconds)/60, minutesOfDay-1)
		for h := minute / 60; h >= 0; h-- {
			mask := of[h]
			if h == minute/60 {
				mask &= 1<<(minute%60+1) - 1
			}
			if mask != 0 {
				return max(lo, date*civil.DaySeconds+h*3600+int64(bits.Len64(mask)-1)*60)
			}
		}
	}
	return lo
}

func (c *cronHours) stretches(lo, hi int64) []stretch {
	at := tickUntil(lo-cronReach, lo, c.close.on)
	var out []stretch
	for len(out) < stretchesMax {
		open, ok := tickFrom(at, hi, c.openings)
		if !ok {
			break
		}
		at, ok = tickFrom(open, open+cronReach, c.close.on)
		if !ok {
			break
		}
		out = append(out, stretch{open, at})
	}
	return overlapping(out, lo, hi)
}
