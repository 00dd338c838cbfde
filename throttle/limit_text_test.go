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
		{"5/3650d", throttle.Sliding(5, throttle.WindowMax), "sliding 5/3650d"},
		{"5/90s", throttle.Sliding(5, 90*time.Second), "sliding 5/1m30s"},
		{"5/20h", throttle.Sliding(5, 20*time.Hour), "sliding 5/20h"},
		{"5/1h10m", throttle.Sliding(5, 70*time.Minute), "sliding 5/1h10m"},
		{"5/.5s", throttle.Sliding(5, 500*ms), "sliding 5/500ms"},
		{"1/1ms", throttle.Sliding(1, ms), "sliding 1/1ms"},
		{"1/1001us", throttle.Sliding(1, 1001*time.Microsecond), "sliding 1/1.001ms"},
		{"1000000/1s", throttle.Sliding(1_000_000, time.Second), "sliding 1000000/1s"},
		{"fixed 10/h", throttle.Fixed(10, time.Hour), "fixed 10/1h"},
		{"calendar 10/day", throttle.Calendar(10, throttle.Day, ""), "calendar 10/day UTC"},
		{"calendar 10/day UTC", throttle.Calendar(10, throttle.Day, "UTC"), "calendar 10/day UTC"},
		{"calendar 10/day Asia/Shanghai", throttle.Calendar(10, throttle.Day, "Asia/Shanghai"), "calendar 10/day Asia/Shanghai"},
		{"calendar 2/month", throttle.Calendar(2, throttle.Month, "UTC"), "calendar 2/month UTC"},
		{"calendar 2/week", throttle.Calendar(2, throttle.Week, "UTC"), "calendar 2/week UTC"},
		{"calendar 2/hour", throttle.Calendar(2, throttle.Hour, "UTC"), "calendar 2/hour UTC"},
		{"calendar 2/minute", throttle.Calendar(2, throttle.Minute, "UTC"), "calendar 2/minute UTC"},
		{"bucket 100/1s", throttle.Bucket(100, time.Second, 100), "bucket 100/1s burst 100"},
		{"bucket 100/1s burst 200", throttle.Bucket(100, time.Second, 200), "bucket 100/1s burst 200"},
		{"bucket 10/1s step", throttle.SteppedBucket(10, time.Second, 10), "bucket 10/1s burst 10 step"},
		{"bucket 10/1s burst 50 step", throttle.SteppedBucket(10, time.Second, 50), "bucket 10/1s burst 50 step"},
		{"bucket 10/1s step burst 50", throttle.SteppedBucket(10, time.Second, 50), "bucket 10/1s burst 50 step"},
		{"gcra 100/1s", throttle.GCRA(100, time.Second, 1), "gcra 100/1s burst 1"},
		{"gcra 100/1s burst 20", throttle.GCRA(100, time.Second, 20), "gcra 100/1s burst 20"},
		{"leaky 10/1s", throttle.Leaky(10, time.Second), "leaky 10/1s"},
		{"smooth 5/1s", throttle.Smooth(5, time.Second, 5), "smooth 5/1s burst 5"},
		{"smooth 5/1s burst 0", throttle.Smooth(5, time.Second, 0), "smooth 5/1s burst 0"},
		{"warmup 2/1s over 4s", throttle.WarmUp(2, time.Second, 4*time.Second, 3), "warmup 2/1s over 4s cold 3"},
		{"warmup 2/1s cold 1.005 over 2d", throttle.WarmUp(2, time.Second, 48*time.Hour, 1.005), "warmup 2/1s over 2d cold 1.005"},
		{"warmup 2/s over s cold 1000.", throttle.WarmUp(2, time.Second, time.Second, 1000), "warmup 2/1s over 1s cold 1000"},
		{"concurrent 50 lease 30s", throttle.Concurrent(50, 30*time.Second), "concurrent 50 lease 30s"},
		{" concurrent  1000000 lease d", throttle.Concurrent(1_000_000, throttle.LeaseMax), "concurrent 1000000 lease 1d"},
		{"concurrent 1 lease 100ms", throttle.Concurrent(1, throttle.LeaseMin), "concurrent 1 lease 100ms"},
	} {
		got, err := throttle.ParseLimit(tt.text)
		if err != nil || got != tt.limit || got.String() != tt.print {
			t.Errorf("ParseLimit(%q) = %v, %v, want %v", tt.text, got, err, tt.print)
		}
	}
}

func TestParseLimitRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{ // fields at fault, and words of the error after a colon
		"": "rate", " ": "rate", "sliding": "rate", "1/60s sliding": `word: "sliding"`,
		"1": "kind", "60s": "kind", "Sliding 1/60s": `kind: "Sliding"`, "quantum 3/1s": `kind: want sliding, fixed, calendar, bucket, gcra, leaky, smooth, warmup, concurrent, or n/duration`,
		"/": "permits window", "1/": "window", "/60s": "permits", "0/60s": "permits", "-1/60s": "permits", "+1/60s": "permits",
		"01/60s": "permits", "1.5/60s": "permits", "1e3/60s": "permits", "١/60s": "permits", "sliding 1 60s": `rate: "1"`,
		"1/0s": "window", "1/-60s": "window", "1/60": "window", "1/1.5d": "window", "1/1d12h": "window", "1/sd": "window",
		"1/99999d": "window", "1/3651d": "window", "1/999us": "window", "1/1000.5us": "window", "1000001/1s": "permits",
		"1 / 60s": "kind", "1/60s/60s": "window", "1/60s\x00": "window", "99999999999999999999/60s": "permits",
		"0/0s": "permits window", "x/y": "permits window", "1/60s burst 2": `word: "burst", want nothing after n/duration`,
		strings.Repeat("9", 1000) + "/60s": "permits",

		"5/day": `window: "calendar 10/day"`, "sliding 2/month": `window: "calendar 10/month"`,
		"fixed 0/1ns": "permits window", "fixed 1/1s 2": `word: "2"`, "leaky 1/1s burst 2": `word: "burst"`,

		"calendar 1/1d": `unit: "1d", want minute, hour, day, week or month`, "calendar 0/days Mars/X": "unit permits zone", "calendar 1": `rate: n/unit`,
		"calendar 1/day Local": "zone: differs per machine", "calendar 1/day UTC UTC": `word: nothing after the zone`, "calendar 1/Day": "unit",
		"calendar 1/day Europe/Berlin2": "zone", "calendar 1/no unit": "unit zone",

		"bucket": "rate", "bucket 0/1ns burst 9999999999999": "permits window burst", "bucket 1/1s burst": "burst: missing", "bucket 1/1s burst x": `burst: "x"`,
		"bucket 1/1s burst 0": "burst", "bucket 1/1s burst 2 burst 3": `word: "burst", want it once`, "bucket 1/1s step step": `word: "step", want it once`,
		"bucket 10/1s burst 9 step": "burst: lost at every tick", "bucket x/1s burst y": "permits burst", "bucket x/1s": "permits", "bucket 1/1s size 3": `word: "size", want burst or step`,
		"bucket 1/1s burst step": `burst: "step"`, "bucket 1099511627777/1s": "permits burst",
		"gcra 1/1s step": `word: "step", want burst`, "gcra 1/1s burst -1": "burst", "smooth 1/1s burst -1": "burst",

		"concurrent": "permits lease: missing permits, want how many at once; lease missing", "concurrent 3": "lease: missing",
		"concurrent 3/1s": `permits lease: "3/1s" permits, want how many at once, without a duration`, "concurrent 3/1s lease 30s": "permits",
		"concurrent 0 lease 99ms": "permits lease: lease 99ms, want 100ms to 1d", "concurrent 1 lease 25h": "lease", "concurrent 1 lease": "lease: missing",
		"concurrent 1 lease x": `lease: "x"`, "concurrent 1 lease 30s lease 30s": `word: "lease", want it once`, "concurrent x lease y": "permits lease",
		"concurrent 1 lease 30s burst 2": `word: "burst", want lease`, "concurrent 1000001 lease 30s": "permits", "concurrent 1 lease 100.0001ms": "lease: whole microseconds",

		"warmup 1/1s": "over: missing", "warmup 1/1s over": "over", "warmup 1/1s over 0s": "over", "warmup 1/1s over x cold y": "over cold",
		"warmup 1/1s over 4s cold NaN": "cold", "warmup 1/1s over 4s cold Inf": "cold", "warmup 1/1s over 4s cold 0x3p0": "cold", "warmup 1/1s over 4s cold 0.5": "cold",
		"warmup 1/1s over 4s cold 1.0001": "cold", "warmup 1/1s over 4s cold 1.": "", "warmup 0/0s over 0s cold 0": "permits window over cold",
		"warmup 1/1s over 4s over 4s": `word: "over", want it once`, "warmup 1/1s over 4s cold 3e0": "cold", "warmup 1/1s over 4s cold " + strings.Repeat("9", 400): "cold",
	} {
		fields, words, _ := strings.Cut(want, ": ")
		got, err := throttle.ParseLimit(text)
		if fields == "" {
			if err != nil {
				t.Errorf("ParseLimit(%q): %v", text, err)
			}
			continue
		}
		if !errors.Is(err, throttle.ErrInvalidLimit) || got != (throttle.Limit{}) {
			t.Errorf("ParseLimit(%q) = %v, %v, want %v", text, got, err, throttle.ErrInvalidLimit)
			continue
		}
		if got := strings.Join(faultsOf(t, err), " "); got != fields || !strings.Contains(err.Error(), words) {
			t.Errorf("ParseLimit(%q): %v: faults of %q, want %q and %q", text, err, got, fields, words)
		}
		if len(err.Error()) > 600 {
			t.Errorf("ParseLimit(%q): an error of %d bytes", text, len(err.Error()))
		}
	}
}

func TestParseLimitSaysWhatWasReadAndWhatIsRight(t *testing.T) {
	t.Parallel()
	_, err := throttle.ParseLimit("bucket 0/1s burst x")
	const want = `throttle: invalid limit: "bucket 0/1s burst x": burst "x", want a whole number, 1 to 1099511627776; ` +
		`0 permits, want 1 to 1099511627776; right is for example "bucket 100/1s burst 200"`
	if err == nil || err.Error() != want {
		t.Errorf("ParseLimit = %v, want %v", err, want)
	}
}

// What an error offers as right must be right.
func TestParseLimitExamplesParse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sliding", "fixed", "calendar", "bucket", "gcra", "leaky", "smooth", "warmup"} {
		_, err := throttle.ParseLimit(kind)
		if err == nil {
			t.Fatalf("ParseLimit(%q) = nil", kind)
		}
		_, example, _ := strings.Cut(err.Error(), "right is for example ")
		l, err := throttle.ParseLimit(strings.Trim(example, `"`))
		if err != nil || l.Kind() != kind {
			t.Errorf("ParseLimit(%s) = %v, %v, want a %s", example, l, err, kind)
		}
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
	if err := json.Unmarshal([]byte(`{"Limit":"3"}`), &c); !errors.Is(err, throttle.ErrInvalidLimit) || c.Limit != throttle.Sliding(3, 10*time.Second) {
		t.Errorf("Unmarshal = %v, %v, want %v and the old limit", c, err, throttle.ErrInvalidLimit)
	}
	if _, err := json.Marshal(config{}); !errors.Is(err, throttle.ErrInvalidLimit) {
		t.Errorf("Marshal of the zero Limit = %v, want %v", err, throttle.ErrInvalidLimit)
	}
	if _, err := throttle.ParseLimit(throttle.Limit{}.String()); err == nil {
		t.Errorf("the zero Limit prints as %q, which reads as a limit", throttle.Limit{})
	}
}

func TestLimitPrintsAndParses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		want := anyLimit(rt)
		got, err := throttle.ParseLimit(want.String())
		if err != nil || got != want {
			rt.Fatalf("ParseLimit(%q) = %v, %v, want %v", want, got, err, want)
		}
		for w := range strings.FieldsSeq(want.String()) {
			if strings.HasSuffix(w, "m0s") || strings.HasSuffix(w, "h0m") {
				rt.Fatalf("%q has zero parts", want)
			}
		}
		if c := want.MaxCost(); c < 1 || c > throttle.PermitsMax {
			rt.Fatalf("%q: MaxCost() = %d", want, c)
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{
		"1/60s", "sliding 10/1h", "5/7d", "5/.5s", "1/1d12h", "\xff/1s", "1/d", "sliding sliding 1/1s", "fixed 10/1h",
		"calendar 10/day Asia/Shanghai", "calendar 1/week", "calendar 1/day ../x", "bucket 100/1s burst 200", "bucket 10/1s step burst 50",
		"bucket 1/10m burst 999999", "gcra 100/1s burst 20", "leaky 10/1s", "smooth 5/1s burst 0", "warmup 2/1s over 4s cold 3.5", "warmup 1/9d over 1ms cold NaN",
		"concurrent 50 lease 30s", "concurrent 0 lease 1ns", "concurrent 3/1s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := throttle.ParseLimit(s)
		if err != nil {
			if !errors.Is(err, throttle.ErrInvalidLimit) || len(faultsOf(t, err)) == 0 {
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
		if l.MaxCost() < 1 {
			t.Errorf("ParseLimit(%q) = %v, which grants nothing", s, l)
		}
	})
}
