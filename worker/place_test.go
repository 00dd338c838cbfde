package worker

import (
	"testing"
	"time"
)

func TestPlaceReadsBack(t *testing.T) {
	t.Parallel()
	for _, p := range []place{
		{},
		{pool: "a", stands: "sms 1 15 +49 170 1234567"},
		{pool: "a", stands: "sms 7 7 #x y  z", deadline: time.UnixMicro(1763640000000001)},
		{pool: "a", stands: "sms+day+all 1+1+300 3+3+4 a ba bacme", deadline: time.UnixMicro(1763640000000001)},
	} {
		if got, ok := readPlace(p.text()); !ok || got != p {
			t.Errorf("readPlace(%q) = %+v, %v, want %+v", p.text(), got, ok, p)
		}
	}
}

// Whatever stands beside a deferred task is read back as it was written, or is
// nobody's.
func FuzzPlace(f *testing.F) {
	for _, s := range []string{
		"", "1", "1 a sms 1 0 id", "1 a * 1 0 ", "2 a sms 1 0 id", "1 a sms x 0 id", "1 a sms 1 x id", "1  sms 1 -5 i d", "1 a sms 1 9223372036854775807 id",
		"2 a 0 sms+all 1+2 3+4 a bacme", "2 a 0 sms+all 1+2 3+5 a bacme", "2 a 0 sms+all 1 3 a b", "2 a -7 sms 0 1 a",
		"1   01 0 0", "1 a sms 01 0 id", "2 a 0 sms 01 1 x", "2 a 0 sms 1 01 x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, ok := readPlace(text)
		if !ok {
			return
		}
		if again, ok := readPlace(p.text()); !ok || again != p {
			t.Errorf("readPlace(%q) = %+v, and of %q %+v, %v", text, p, p.text(), again, ok)
		}
	})
}
