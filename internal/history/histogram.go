package history

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// Histogram counts durations in buckets. Bucket 0 ends at a millisecond, and the ends go on
// with 1.5, 2, 3, 4, 6, 8, 12 and so on; the last begins at 37 days and has no end. A bucket has 64
// bits: what all processes saw in a month may not fit into 32.
type Histogram [2*doublings + 1]uint64

const doublings = 32

// bucketMax bounds what one minute or hour that Redis keeps has in a bucket. The sum of a month of hours
// fits into an int64 then, whatever stands there.
const bucketMax = 1<<32 - 1

// end is where a bucket ends.
func end(bucket int) time.Duration {
	whole := time.Millisecond << (bucket / 2)
	if bucket%2 == 1 {
		return whole + whole/2
	}
	return whole
}

func (h *Histogram) add(d time.Duration) {
	h[bucketOf(d)]++
}

// bucketOf is the first bucket that does not end before d.
func bucketOf(d time.Duration) int {
	if d <= time.Millisecond {
		return 0
	}
	n := bits.Len64(uint64((d-1)/time.Millisecond)) - 1 //nolint:gosec // d is above zero
	n = min(n, doublings-1)
	for b := 2 * n; b < 2*doublings; b++ {
		if d <= end(b) {
			return b
		}
	}
	return 2 * doublings
}

// write writes it as record.lua adds it up.
func (h *Histogram) write(b *strings.Builder, name string) {
	for i, n := range h {
		if n > 0 {
			fmt.Fprintf(b, "%s%d:%d ", name, i, n)
		}
	}
}

// Add adds another one.
func (h *Histogram) Add(other *Histogram) {
	for i, n := range other {
		h[i] += n
	}
}

// Count is how many durations it has.
func (h *Histogram) Count() (n int64) {
	for _, in := range h {
		n += int64(in) //nolint:gosec // see bucketMax
	}
	return n
}

// Quantile is the duration that so many of all do not exceed, 0 < q <= 1, as far as the
// buckets tell; zero without any.
func (h *Histogram) Quantile(q float64) time.Duration {
	all := h.Count()
	if all == 0 {
		return 0
	}
	rank, below := q*float64(all), 0.0
	for i, n := range h {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		from := time.Duration(0)
		if i > 0 {
			from = end(i - 1)
		}
		if i == len(h)-1 {
			return from
		}
		return from + time.Duration((rank-below)/float64(n)*float64(end(i)-from))
	}
	return end(len(h) - 2)
}
