package gate

import (
	"slices"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/civil"
)

// holidays are dates on which a gate does not open. Dates are numbered by the
// days since 1970-01-01.
type holidays struct {
	texts  []string // sorted
	dates  []int64  // sorted
	yearly [13]uint32
	any    bool // something is in yearly
}

// add reads a date, and says whether there is such a date.
func (h *holidays) add(text string) bool {
	full := text
	if len(text) == len("01-02") {
		full = "2000-" + text // a leap year: 02-29 is a date
	}
	at, err := time.Parse(time.DateOnly, full)
	if err != nil {
		return false
	}
	h.texts = insert(h.texts, text)
	if full == text {
		h.dates = insert(h.dates, at.Unix()/civil.DaySeconds)
	} else {
		h.yearly[at.Month()] |= 1 << at.Day()
		h.any = true
	}
	return true
}

func insert[T string | int64](sorted []T, v T) []T {
	i, _ := slices.BinarySearch(sorted, v)
	return slices.Insert(sorted, i, v)
}

func (h *holidays) has(date int64) bool {
	if _, ok := slices.BinarySearch(h.dates, date); ok {
		return true
	}
	if !h.any {
		return false
	}
	_, month, day := time.Unix(date*civil.DaySeconds, 0).UTC().Date()
	return h.yearly[month]&(1<<day) != 0
}

// String returns the dates as a list, empty without any.
func (h *holidays) String() string { return strings.Join(h.texts, ",") }
