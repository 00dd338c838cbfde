package queuescripts

import (
	"testing"
	"time"
)

func TestPlaceReadsBack(t *testing.T) {
	t.Parallel()
	for _, p := range []WaitRecord{
		{},
		{Deadline: time.UnixMicro(1763640000000001)},
		{Booking: "sms 1 14 +4917012345678"}, {Booking: "sms 1 13 +491701234567"}, {Booking: "sms 1 1 +"}, {Booking: "sms 1 2 +a"}, {Booking: "sms 1 4 +1 2"},
		{Booking: "sms 1 15 +49 170 1234567"},
		{Booking: "sms 7 7 #x y  z", Deadline: time.UnixMicro(1763640000000001)},
		{Booking: "sms+day+all 1+1+300 3+3+4 a ba bacme", Deadline: time.UnixMicro(1763640000000001)},
	} {
		if got, ok := ParseWaitRecord(p.Text()); !ok || got != p {
			t.Errorf("ParseWaitRecord(%q) = %+v, %v, want %+v", p.Text(), got, ok, p)
		}
	}
}

// Whatever stands beside a deferred task is read back as it was written, or is
// nobody's.
func FuzzPlace(f *testing.F) {
	for _, s := range []string{
		"", "\x02", "\x03\x05", "\x03\xff", "sms\x02\x01\x04id", "sms\x02\x01\x05\x12\x34", "sms\x02\x01\x05\x1a", "sms\x02\x01\x03\x15",
		"sms\x02\x00\x04id", "sms\x02\x01\x06id", "sms\x02\x01\x00", "sms\x02\x01\x01", "sms+all\x03\x07\x01\x02\x04ab\x08acme",
		"+\x02\x01\x01\x02a\x02b", "a b\x02\x01\x02a", "1 a sms 1 0 id", "2 a 0 sms+all 1+2 3+4 a bacme", "3sms\x00\x01\x04id", "sms\x02\x81\x00\x02a",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := ParseWaitRecord(text)
		if !ok {
			return
		}
		if again, ok := ParseWaitRecord(p.Text()); !ok || again != p {
			t.Errorf("ParseWaitRecord(%q) = %+v, and of %q %+v, %v", text, p, p.Text(), again, ok)
		}
	})
}
