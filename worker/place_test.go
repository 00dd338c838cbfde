package worker

import (
	"testing"
	"time"
)

func TestPlaceReadsBack(t *testing.T) {
	t.Parallel()
	for _, p := range []place{
		{},
		{pool: "a", rule: "sms", cost: 1, id: "+49 170 1234567"},
		{pool: "a", rule: "sms", cost: 7, deadline: time.UnixMicro(1763640000000001), id: "#x y  z"},
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
