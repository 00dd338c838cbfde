package throttle_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/throttle"
)

func TestParseLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text  string
		limit throttle.Limit
		print string
	}{
		{"1/60s", throttle.Sliding(1, time.Minute), "sliding 1/1m"},
		{"sliding 1/1m0s", throttle.Sliding(1, time.Minute), "sliding 1/1m"},
		{"sliding 10/1h", throttle.Sliding(10, time.Hour), "sliding 10/1h"},
		{"  sliding   10/h ", throttle.Sliding(10, time.Hour), "sliding 10/1h"},
		{"5/d", throttle.Sliding(5, 24*time.Hour), "sliding 5/1d"},
		{"5/24h", throttle.Sliding(5, 24*time.Hour), "sliding 5/1d"},
		{"5/7d", throttle.Sliding(5, 7*24*time.Hour), "sliding 5/7d"},
		{"5/366d", throttle.Sliding(5, throttle.WindowMax), "sliding 5/366d"},
		{"5/90s", throttle.Sliding(5, 90*time.Second), "sliding 5/1m30s"},
		{"5/20h", throttle.Sliding(5, 20*time.Hour), "sliding 5/20h"},
		{"5/1h10m", throttle.Sliding(5, 70*time.Minute), "sliding 5/1h10m"},
		{"5/.5s", throttle.Sliding(5, 500*ms), "sliding 5/500ms"},
		{"1/1ms", throttle.Sliding(1, ms), "sliding 1/1ms"},
		{"1/1001us", throttle.Sliding(1, 1001*time.Microsecond), "sliding 1/1.001ms"},
		{"1000000/1s", throttle.Sliding(throttle.PermitsMax, time.Second), "sliding 1000000/1s"},
	} {
		got, err := throttle.ParseLimit(tt.text)
		if err != nil || got != tt.limit || got.String() != tt.print {
			t.Errorf("ParseLimit(%q) = %v, %v, want %v", tt.text, got, err, tt.print)
		}
	}
}

func TestParseLimitRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "sliding", "/", "1/", "/60s", "1", "60s", "0/60s", "-1/60s", "+1/60s", "01/60s", "1.5/60s", "1e3/60s",
		"1/0s", "1/-60s", "1/60", "1/1.5d", "1/1d12h", "1/sd", "1/99999d", "1/367d", "1/999us", "1/1000.5us",
		"1000001/1s", "1/60s burst 2", "1 / 60s", "bucket 1/60s", "1/60s/60s", "١/60s", "1/60s\x00",
		"99999999999999999999/60s", strings.Repeat("9", 1000),
	} {
		got, err := throttle.ParseLimit(text)
		if !errors.Is(err, throttle.ErrInvalidLimit) || got != (throttle.Limit{}) {
			t.Errorf("ParseLimit(%q) = %v, %v, want %v", text, got, err, throttle.ErrInvalidLimit)
		} else if len(err.Error()) > 300 {
			t.Errorf("ParseLimit(%q): an error of %d bytes", text, len(err.Error()))
		}
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	t.Parallel()
	err := throttle.Sliding(0, 0).Validate()
	for _, want := range []string{"0 permits", "window 0s"} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("Validate() = %v, want %q in it", err, want)
		}
	}
	if err := throttle.Sliding(1, ms+1).Validate(); !errors.Is(err, throttle.ErrInvalidLimit) {
		t.Errorf("Validate() of a window with nanoseconds = %v, want %v", err, throttle.ErrInvalidLimit)
	}
	if err := throttle.Sliding(throttle.PermitsMax, throttle.WindowMax).Validate(); err != nil {
		t.Errorf("Validate() at the bounds = %v, want nil", err)
	}
}

func TestLimitAsText(t *testing.T) {
	t.Parallel()
	type config struct{ Limit throttle.Limit }
	b, err := json.Marshal(config{throttle.Sliding(1, time.Minute)})
	if want := `{"Limit":"sliding 1/1m"}`; string(b) != want || err != nil {
		t.Errorf("Marshal = %s, %v, want %s", b, err, want)
	}
	var c config
	if err := json.Unmarshal([]byte(`{"Limit":"3/10s"}`), &c); err != nil || c.Limit != throttle.Sliding(3, 10*time.Second) {
		t.Errorf("Unmarshal = %v, %v, want 3/10s", c, err)
	}
	if err := json.Unmarshal([]byte(`{"Limit":"3"}`), &c); !errors.Is(err, throttle.ErrInvalidLimit) {
		t.Errorf("Unmarshal = %v, want %v", err, throttle.ErrInvalidLimit)
	}
	if _, err := json.Marshal(config{}); !errors.Is(err, throttle.ErrInvalidLimit) {
		t.Errorf("Marshal of the zero Limit = %v, want %v", err, throttle.ErrInvalidLimit)
	}
}

func TestLimitPrintsAndParses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		us := rapid.Int64Range(int64(throttle.WindowMin/time.Microsecond), int64(throttle.WindowMax/time.Microsecond))
		unit := rapid.SampledFrom([]int64{1, 1e3, 1e6, 60e6, 3600e6, 86400e6}).Draw(rt, "unit")
		window := time.Duration(max(us.Draw(rt, "window")/unit, 1)*unit) * time.Microsecond
		want := throttle.Sliding(rapid.IntRange(1, throttle.PermitsMax).Draw(rt, "permits"), max(window, throttle.WindowMin))
		got, err := throttle.ParseLimit(want.String())
		if err != nil || got != want {
			rt.Fatalf("ParseLimit(%q) = %v, %v, want %v", want, got, err, want)
		}
		if strings.HasSuffix(want.String(), "m0s") || strings.HasSuffix(want.String(), "h0m") {
			rt.Fatalf("%q has zero parts", want)
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"1/60s", "sliding 10/1h", "5/7d", "5/.5s", "1/1d12h", "\xff/1s", "1/d", "sliding sliding 1/1s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := throttle.ParseLimit(s)
		if err != nil {
			if !errors.Is(err, throttle.ErrInvalidLimit) {
				t.Errorf("ParseLimit(%q): %v does not unwrap to %v", s, err, throttle.ErrInvalidLimit)
			}
			return
		}
		if again, err := throttle.ParseLimit(l.String()); err != nil || again != l {
			t.Errorf("ParseLimit(%q) = %v, which reads back as %v, %v", s, l, again, err)
		}
		if err := l.Validate(); err != nil {
			t.Errorf("ParseLimit(%q) = %v: %v", s, l, err)
		}
	})
}
