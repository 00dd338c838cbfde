package queuescripts

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// WaitRecord is what a deferred or a booked task waits for, as it is stored beside it: enough
// for any pool to check, to re-time and to give up its booking.
type WaitRecord struct {
	Deadline time.Time     // of the task, zero for none
	Booking  StoredBooking // empty when there is no booking
}

// StoredBooking is in whose lines a task stands, as text: "rules costs lengths ids", by
// rule joined with "+", but for the ids: they are the keys as Redis sees them (see
// throttle.Limiter.ID), any bytes, one after the other. Redis has it in a shorter form, as part of
// [WaitRecord.Text].
type StoredBooking string

// NewStoredBooking is for rules joined with "+", with the cost and the id of each.
func NewStoredBooking(rules string, costs []int, ids []string) StoredBooking {
	var texts, lengths []string
	for i, id := range ids {
		texts, lengths = append(texts, strconv.Itoa(costs[i])), append(lengths, strconv.Itoa(len(id)))
	}
	return StoredBooking(strings.Join([]string{rules, strings.Join(texts, "+"), strings.Join(lengths, "+"), strings.Join(ids, "")}, " "))
}

// Policy names the rules, as throttle.Policy.String does.
func (s StoredBooking) Policy() string {
	rules, _, _ := strings.Cut(string(s), " ")
	return rules
}

// Has says whether a rule is among them.
func (s StoredBooking) Has(rule string) bool {
	return s != "" && slices.Contains(strings.Split(s.Policy(), "+"), rule)
}

// Read takes a booking apart. ok is false when [NewStoredBooking] did not write it.
func (s StoredBooking) Read() (ids []string, costs []int, ok bool) {
	f := strings.SplitN(string(s), " ", 4)
	if len(f) != 4 {
		return nil, nil, false
	}
	rules, texts, lengths, rest := strings.Split(f[0], "+"), strings.Split(f[1], "+"), strings.Split(f[2], "+"), f[3]
	if len(texts) != len(rules) || len(lengths) != len(rules) || len(rules) > luascripts.RulesMax {
		return nil, nil, false
	}
	for i := range rules {
		cost, bad := strconv.Atoi(texts[i])
		n, worse := strconv.Atoi(lengths[i])
		if bad != nil || worse != nil || cost < 1 || n < 1 || n > len(rest) {
			return nil, nil, false
		}
		if strconv.Itoa(cost) != texts[i] || strconv.Itoa(n) != lengths[i] { // written in one way only
			return nil, nil, false
		}
		ids, costs, rest = append(ids, rest[:n]), append(costs, cost), rest[n:]
	}
	return ids, costs, rest == ""
}

// What ends the rules' names: a deadline follows, or none. It also tells the schema:
// what older ones wrote has none of these.
const (
	noDeadline      = 2
	deadlineFollows = 3
)

// Text is what is stored: the rules' names joined with "+", what ends them, the deadline in microseconds if there is one, the costs, and the ids as
// [appendKey] writes them. Numbers are varints.
func (p WaitRecord) Text() string {
	ids, costs, ok := p.Booking.Read()
	var b []byte
	if ok {
		b = append(b, p.Booking.Policy()...)
	}
	if p.Deadline.IsZero() {
		b = append(b, noDeadline)
	} else {
		b = binary.AppendUvarint(append(b, deadlineFollows), uint64(p.Deadline.UnixMicro()))
	}
	for _, cost := range costs {
		b = binary.AppendUvarint(b, uint64(cost))
	}
	for _, id := range ids {
		b = appendKey(b, id)
	}
	return string(b)
}

// ParseWaitRecord reads a record back; ok is false for one of another schema.
func ParseWaitRecord(text string) (p WaitRecord, ok bool) {
	end := strings.IndexAny(text, "\x00\x01\x02\x03")
	if end < 0 || text[end] < noDeadline {
		return WaitRecord{}, false
	}
	names, r := text[:end], bookingReader{rest: text[end+1:]}
	if text[end] == deadlineFollows {
		p.Deadline = time.UnixMicro(r.number(math.MaxInt64))
	}
	if names != "" {
		n := 1 + strings.Count(names, "+")
		if n > luascripts.RulesMax {
			return WaitRecord{}, false
		}
		costs, ids := make([]int, n), make([]string, n)
		for i := range n {
			costs[i] = int(r.number(math.MaxInt))
		}
		for i := range n {
			ids[i] = r.key()
		}
		p.Booking = NewStoredBooking(names, costs, ids)
	}
	if _, _, ok := p.Booking.Read(); r.bad || r.rest != "" || p.Booking != "" && !ok {
		return WaitRecord{}, false
	}
	return p, true
}

// appendKey writes a key as Redis sees it behind its length. Phone numbers, which
// most keys are, take half the bytes: two digits each.
func appendKey(b []byte, id string) []byte {
	digits, plus := strings.CutPrefix(id, "+")
	if !plus || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return append(binary.AppendUvarint(b, uint64(len(id))<<1), id...)
	}
	b = binary.AppendUvarint(b, uint64(len(digits))<<1|1)
	for i := 0; i < len(digits); i += 2 {
		low := byte(0)
		if i+1 < len(digits) {
			low = digits[i+1] - '0'
		}
		b = append(b, (digits[i]-'0')<<4|low)
	}
	return b
}

// bookingReader takes a text apart, and notes when that can't be done.
type bookingReader struct {
	rest string
	bad  bool
}

func (r *bookingReader) number(most uint64) int64 {
	n, used := binary.Uvarint([]byte(r.rest[:min(len(r.rest), binary.MaxVarintLen64)]))
	if used <= 0 || n > most {
		r.bad, r.rest = true, ""
		return 0
	}
	r.rest = r.rest[used:]
	return int64(n)
}

func (r *bookingReader) take(n int64) string {
	if n > int64(len(r.rest)) {
		r.bad = true
		return ""
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *bookingReader) key() string {
	head := r.number(math.MaxInt64)
	n := head >> 1
	if head&1 == 0 {
		return r.take(n)
	}
	digits := []byte("+")
	for _, b := range []byte(r.take(n/2 + n%2)) {
		digits = append(digits, '0'+b>>4, '0'+b&15)
	}
	if r.bad || n == 0 {
		r.bad = true
		return ""
	}
	digits = digits[:n+1]
	r.bad = strings.Trim(string(digits[1:]), "0123456789") != ""
	return string(digits)
}
