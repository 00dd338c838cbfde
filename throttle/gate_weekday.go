package throttle

import (
	"slices"
	"strings"
)

// weekdays is a set of them, bit 0 for Monday.
type weekdays uint8

const everyDay weekdays = 1<<7 - 1

var weekdayNames = []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}

// add reads a weekday, or from one to another.
func (w *weekdays) add(text string) bool {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	first, last := slices.Index(weekdayNames, from), slices.Index(weekdayNames, to)
	if first < 0 || last < 0 || ranged && first == last {
		return false
	}
	for d := first; ; d = (d + 1) % 7 {
		*w |= 1 << d
		if d == last {
			return true
		}
	}
}

func (w weekdays) has(d int) bool { return w&(1<<((d+7)%7)) != 0 }

// String returns the set as a list; three in a row are from one to another.
func (w weekdays) String() string {
	if w == everyDay {
		return "Mon-Sun"
	}
	var items []string
	for d := range 7 {
		if !w.has(d) || w.has(d-1) {
			continue
		}
		last := d
		for w.has(last + 1) {
			last++
		}
		switch name := weekdayNames[last%7]; last - d {
		case 0:
			items = append(items, name)
		case 1:
			items = append(items, weekdayNames[d], name)
		default:
			items = append(items, weekdayNames[d]+"-"+name)
		}
	}
	return strings.Join(items, ",")
}
