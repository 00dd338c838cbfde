package throttle_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

const dayLong = 24 * time.Hour

// faultsOf lists the fields of an error's faults, in order.
func faultsOf(t *testing.T, err error) []string {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		if err != nil {
			t.Errorf("%v holds no faults", err)
		}
		return nil
	}
	var fields []string
	for _, e := range joined.Unwrap() {
		f, ok := errors.AsType[*throttle.LimitError](e)
		if !ok || !errors.Is(e, throttle.ErrInvalidLimit) || f.Value == "" || f.Want == "" {
			t.Errorf("%v: %T, want a whole LimitError that unwraps to %v", e, e, throttle.ErrInvalidLimit)
			continue
		}
		fields = append(fields, f.Field)
	}
	return fields
}

func TestValidateReportsEveryFault(t *testing.T) {
	t.Parallel()
	const most, records, longest = throttle.PermitsMax, 1_000_000, throttle.WindowMax
	year := 365 * dayLong
	for name, tt := range map[string]struct {
		limit throttle.Limit
		want  string // fields at fault
	}{
		"zero": {throttle.Limit{}, "kind"},

		"sliding at the bounds":   {throttle.Sliding(records, longest), ""},
		"sliding, shortest":       {throttle.Sliding(1, throttle.WindowMin), ""},
		"sliding of nothing":      {throttle.Sliding(0, 0), "permits window"},
		"sliding, negative":       {throttle.Sliding(-1, -time.Second), "permits window"},
		"sliding, too much":       {throttle.Sliding(records+1, longest+time.Microsecond), "permits window"},
		"sliding, nanoseconds":    {throttle.Sliding(1, ms+1), "window"},
		"fixed at the bounds":     {throttle.Fixed(most, longest), ""},
		"fixed of nothing":        {throttle.Fixed(0, ms-1), "permits window"},
		"calendar":                {throttle.Calendar(most, throttle.Month, "Pacific/Apia"), ""},
		"calendar, no zone":       {throttle.Calendar(1, throttle.Day, ""), ""},
		"calendar, all wrong":     {throttle.Calendar(0, 0, "Mars/Olympus"), "permits unit zone"},
		"calendar, unknown unit":  {throttle.Calendar(1, throttle.Month+1, "UTC"), "unit"},
		"calendar, machine's":     {throttle.Calendar(1, throttle.Day, "Local"), "zone"},
		"calendar, localtime":     {throttle.Calendar(1, throttle.Day, "localtime"), "zone"},
		"calendar, leap seconds":  {throttle.Calendar(1, throttle.Day, "right/Europe/Berlin"), "zone"},
		"calendar, another path":  {throttle.Calendar(1, throttle.Day, "Europe//Berlin"), "zone"},
		"calendar, outside":       {throttle.Calendar(1, throttle.Day, "../etc/passwd"), "zone"},
		"bucket at the bounds":    {throttle.Bucket(most, longest, most), ""},
		"bucket below n":          {throttle.Bucket(10, time.Second, 1), ""},
		"bucket, all wrong":       {throttle.Bucket(0, 0, 0), "permits window burst"},
		"bucket, too large":       {throttle.Bucket(1, time.Second, most+1), "burst"},
		"bucket, filled at last":  {throttle.Bucket(1, year, 10), ""},
		"bucket, never filled":    {throttle.Bucket(1, year, 11), "burst"},
		"bucket, a fraction over": {throttle.Bucket(3, 2*year, 16), "burst"},
		"stepped":                 {throttle.SteppedBucket(10, time.Second, 10), ""},
		"stepped below n":         {throttle.SteppedBucket(10, time.Second, 9), "burst"},
		"stepped, all wrong":      {throttle.SteppedBucket(-1, 0, 0), "permits window burst"},
		"stepped, filled":         {throttle.SteppedBucket(3, 2*year, 15), ""},
		"stepped, never filled":   {throttle.SteppedBucket(3, 2*year, 16), "burst"},
		"gcra at the bounds":      {throttle.GCRA(most, throttle.WindowMin, most), ""},
		"gcra, no burst":          {throttle.GCRA(1, time.Second, 0), "burst"},
		"leaky":                   {throttle.Leaky(most, throttle.WindowMin), ""},
		"leaky of nothing":        {throttle.Leaky(0, 0), "permits window"},
		"smooth, nothing stored":  {throttle.Smooth(1, longest, 0), ""},
		"smooth, negative":        {throttle.Smooth(1, time.Second, -1), "burst"},
		"smooth, never stored":    {throttle.Smooth(1, 6*year, 2), "burst"},
		"warmup at the bounds":    {throttle.WarmUp(1, year/100, longest, 1000), ""},
		"warmup, shortest":        {throttle.WarmUp(1, longest, ms, 1), ""},
		"warmup without over":     {throttle.WarmUp(1, time.Second, 0, 3), "over"},
		"warmup, all wrong":       {throttle.WarmUp(0, 0, -1, 0), "permits window over cold"},
		"warmup, nanoseconds":     {throttle.WarmUp(1, time.Second, ms+1, 3), "over"},
		"warmup, NaN":             {throttle.WarmUp(1, time.Second, ms, math.NaN()), "cold"},
		"warmup, infinite":        {throttle.WarmUp(1, time.Second, ms, math.Inf(1)), "cold"},
		"warmup, -infinite":       {throttle.WarmUp(1, time.Second, ms, math.Inf(-1)), "cold"},
		"warmup, huge":            {throttle.WarmUp(1, time.Second, ms, math.MaxFloat64), "cold"},
		"warmup, warmer":          {throttle.WarmUp(1, time.Second, ms, 0.999), "cold"},
		"warmup, too cold":        {throttle.WarmUp(1, time.Second, ms, 1000.001), "cold"},
		"warmup, too fine":        {throttle.WarmUp(1, time.Second, ms, 1.0005), "cold"},
		"warmup, frozen":          {throttle.WarmUp(1, 4*dayLong, ms, 1000), "cold"},
		"warmup, too much stored": {throttle.WarmUp(most, ms, longest, 3), "over"},
	} {
		err := tt.limit.Validate()
		if got := strings.Join(faultsOf(t, err), " "); got != tt.want {
			t.Errorf("%s: Validate() = %v, faults of %q, want %q", name, err, got, tt.want)
		}
		if (err == nil) != (tt.want == "") || err != nil && !errors.Is(err, throttle.ErrInvalidLimit) {
			t.Errorf("%s: Validate() = %v", name, err)
		}
	}
}

func TestValidateSaysWhatIsRight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit throttle.Limit
		want  string
	}{
		{throttle.Sliding(0, time.Second), "throttle: invalid limit: 0 permits, want 1 to 1000000"},
		{throttle.Sliding(1, time.Nanosecond), "throttle: invalid limit: window 1ns, want 1ms to 3650d"},
		{throttle.Sliding(1_000_001, time.Second), "throttle: invalid limit: 1000001 permits, want 1 to 1000000"},
		{throttle.Fixed(throttle.PermitsMax+1, time.Second), "throttle: invalid limit: 1099511627777 permits, want 1 to 1099511627776"},
		{throttle.Bucket(1, 365*dayLong, 11), "throttle: invalid limit: burst 11, want 1 to 10, what is filled within 3650d"},
		{throttle.SteppedBucket(3, time.Second, 2), "throttle: invalid limit: burst 2, want at least the 3 permits of a step: what does not fit would be lost at every tick"},
		{throttle.WarmUp(1, time.Second, time.Second, math.NaN()), "throttle: invalid limit: cold NaN, want 1 to 1000 in thousandths"},
		{throttle.WarmUp(1, time.Second, time.Second, math.Inf(1)), "throttle: invalid limit: cold +Inf, want 1 to 1000 in thousandths"},
		{throttle.WarmUp(1_000_000, ms, throttle.WindowMax, 3), "throttle: invalid limit: over 3650d, want a time in which at most 1000000000000 permits are stored, not 315360000000000000"},
		{throttle.Calendar(1, throttle.Day, "Local"), `throttle: invalid limit: zone "Local", want a name of the time zone database such as Europe/Berlin: this one differs per machine`},
		{throttle.Calendar(1, 0, "UTC"), "throttle: invalid limit: unit no unit, want minute, hour, day, week or month"},
	} {
		if err := tt.limit.Validate(); err == nil || err.Error() != tt.want {
			t.Errorf("Validate() = %v, want %v", err, tt.want)
		}
	}
}

func TestLimitAccessors(t *testing.T) {
	t.Parallel()
	type facts struct {
		kind    string
		permits int
		window  time.Duration
		burst   int
		cost    int
	}
	for _, tt := range []struct {
		limit throttle.Limit
		want  facts
	}{
		{throttle.Limit{}, facts{}},
		{throttle.Sliding(3, time.Minute), facts{"sliding", 3, time.Minute, 0, 3}},
		{throttle.Fixed(3, time.Minute), facts{"fixed", 3, time.Minute, 0, 3}},
		{throttle.Calendar(3, throttle.Minute, ""), facts{"calendar", 3, time.Minute, 0, 3}},
		{throttle.Calendar(3, throttle.Hour, ""), facts{"calendar", 3, time.Hour, 0, 3}},
		{throttle.Calendar(3, throttle.Day, ""), facts{"calendar", 3, dayLong, 0, 3}},
		{throttle.Calendar(3, throttle.Week, ""), facts{"calendar", 3, 7 * dayLong, 0, 3}},
		{throttle.Calendar(3, throttle.Month, ""), facts{"calendar", 3, 31 * dayLong, 0, 3}},
		{throttle.Bucket(3, time.Minute, 2), facts{"bucket", 3, time.Minute, 2, 2}},
		{throttle.SteppedBucket(3, time.Minute, 5), facts{"bucket", 3, time.Minute, 5, 5}},
		{throttle.GCRA(3, time.Minute, 2), facts{"gcra", 3, time.Minute, 2, 2}},
		{throttle.Leaky(3, time.Minute), facts{"leaky", 3, time.Minute, 0, 15_768_000}},
		{throttle.Smooth(300_000_000, time.Minute, 2), facts{"smooth", 300_000_000, time.Minute, 2, throttle.PermitsMax}},
		{throttle.WarmUp(3, time.Minute, time.Hour, 3), facts{"warmup", 3, time.Minute, 0, 5_256_000}},
		// The debt of one job stays within the longest window.
		{throttle.Leaky(1, throttle.WindowMax), facts{"leaky", 1, throttle.WindowMax, 0, 1}},
		{throttle.Smooth(2, 365*dayLong, 0), facts{"smooth", 2, 365 * dayLong, 0, 20}},
		{throttle.WarmUp(2, 365*dayLong, time.Hour, 3), facts{"warmup", 2, 365 * dayLong, 0, 6}},
	} {
		l := tt.limit
		if got := (facts{l.Kind(), l.Permits(), l.Window(), l.Burst(), l.MaxCost()}); got != tt.want {
			t.Errorf("%v: %+v, want %+v", l, got, tt.want)
		}
	}
}

// A Limit that nothing can compare to itself would never be found again.
func TestLimitIsAValue(t *testing.T) {
	t.Parallel()
	count := map[throttle.Limit]int{}
	for range 2 {
		count[throttle.Calendar(1, throttle.Day, "")]++
		count[throttle.Calendar(1, throttle.Day, "UTC")]++
		count[throttle.Bucket(1, time.Second, 1)]++
		count[throttle.GCRA(1, time.Second, 1)]++
		count[throttle.SteppedBucket(1, time.Second, 1)]++
		count[throttle.WarmUp(1, time.Second, time.Second, 0.1*12)]++
		count[throttle.WarmUp(1, time.Second, time.Second, 1.2)]++
		count[throttle.WarmUp(1, time.Second, time.Second, math.NaN())]++
	}
	want := map[throttle.Limit]int{
		throttle.Calendar(1, throttle.Day, "UTC"):                 4,
		throttle.Bucket(1, time.Second, 1):                        2,
		throttle.GCRA(1, time.Second, 1):                          2,
		throttle.SteppedBucket(1, time.Second, 1):                 2,
		throttle.WarmUp(1, time.Second, time.Second, 1.2):         4,
		throttle.WarmUp(1, time.Second, time.Second, math.NaN()):  2,
		throttle.WarmUp(1, time.Second, time.Second, math.Inf(1)): 0,
		throttle.Calendar(1, throttle.Day, "Europe/Berlin"):       0,
		throttle.Calendar(1, throttle.Week, "UTC"):                0,
		throttle.WarmUp(1, time.Second, 2*time.Second, 1.2):       0,
		throttle.Smooth(1, time.Second, 0):                        0,
		throttle.Leaky(1, time.Second):                            0,
		throttle.Limit{}:                                          0,
		throttle.Sliding(1, time.Second):                          0,
	}
	for l, n := range want {
		if count[l] != n {
			t.Errorf("%v was counted %d times, want %d", l, count[l], n)
		}
	}
	if len(count) != 6 {
		t.Errorf("%d limits that differ, want 6", len(count))
	}
}

// anyLimit draws a valid limit of any kind.
func anyLimit(rt *rapid.T) throttle.Limit {
	units := []time.Duration{time.Microsecond, ms, time.Second, time.Minute, time.Hour, dayLong}
	duration := func(name string) time.Duration {
		unit := rapid.SampledFrom(units).Draw(rt, name+" unit")
		d := time.Duration(rapid.Int64Range(1, int64(throttle.WindowMax/unit)).Draw(rt, name)) * unit
		return max(d, throttle.WindowMin)
	}
	n := rapid.IntRange(1, throttle.PermitsMax).Draw(rt, "permits")
	per := duration("window")
	burst := rapid.IntRange(1, throttle.PermitsMax).Draw(rt, "burst")
	var l throttle.Limit
	switch rapid.IntRange(0, 9).Draw(rt, "kind") {
	case 0:
		l = throttle.Sliding(n, per)
	case 1:
		l = throttle.Fixed(n, per)
	case 2:
		zone := rapid.SampledFrom([]string{"", "UTC", "Asia/Shanghai", "Etc/GMT+5", "America/Argentina/Buenos_Aires"}).Draw(rt, "zone")
		l = throttle.Calendar(n, throttle.Unit(rapid.IntRange(1, 5).Draw(rt, "unit")), zone)
	case 3:
		l = throttle.Bucket(n, per, burst)
	case 4:
		l = throttle.SteppedBucket(n, per, max(n, burst))
	case 5:
		l = throttle.GCRA(n, per, burst)
	case 6:
		l = throttle.Leaky(n, per)
	case 7:
		l = throttle.Smooth(n, per, burst-1)
	case 8:
		l = throttle.WarmUp(n, per, duration("over"), float64(rapid.IntRange(1000, 1000_000).Draw(rt, "cold"))/1000)
	case 9:
		l = throttle.Concurrent(n, min(max(per, throttle.LeaseMin), throttle.LeaseMax))
	}
	if l.Validate() != nil {
		rt.Skip("takes too long to fill")
	}
	return l
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	l := throttle.Concurrent(50, 30*time.Second)
	if !l.IsConcurrent() || throttle.Sliding(50, 30*time.Second).IsConcurrent() {
		t.Error("IsConcurrent is wrong")
	}
	if l.Kind() != "concurrent" || l.Permits() != 50 || l.Window() != 30*time.Second || l.MaxCost() != 1 || l.Burst() != 0 {
		t.Errorf("%v is %q of %d in %v, costs up to %d, burst %d", l, l.Kind(), l.Permits(), l.Window(), l.MaxCost(), l.Burst())
	}
	for _, tt := range []struct {
		limit throttle.Limit
		want  string // fields at fault
	}{
		{throttle.Concurrent(1, throttle.LeaseMin), ""}, {throttle.Concurrent(1_000_000, throttle.LeaseMax), ""},
		{throttle.Concurrent(0, 0), "permits lease"}, {throttle.Concurrent(-1, -time.Second), "permits lease"},
		{throttle.Concurrent(1_000_001, throttle.LeaseMax+time.Microsecond), "permits lease"},
		{throttle.Concurrent(1, throttle.LeaseMin-1), "lease"}, {throttle.Concurrent(1, time.Second+1), "lease"},
	} {
		if got := strings.Join(faultsOf(t, tt.limit.Validate()), " "); got != tt.want {
			t.Errorf("Validate of %v names %q, want %q", tt.limit, got, tt.want)
		}
	}
}

// What runs at once and what runs per window are kept apart: neither is changed
// into the other, nor read as the other when it is stored all the same.
func TestConcurrentIsNotChangedIntoAnother(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	rate, lease := throttle.Sliding(1, time.Minute), throttle.Concurrent(1, time.Minute)
	for _, tt := range []struct{ code, other throttle.Limit }{{rate, lease}, {lease, rate}} {
		l := s.limiter("sms", tt.code)
		for _, options := range []throttle.SetLimitOptions{{}, {For: time.Minute}, {IfUnset: true}} {
			_, err := l.SetLimit(t.Context(), tt.other, options)
			e, ok := errors.AsType[*throttle.LimitError](err)
			if !ok || e.Field != "kind" || !errors.Is(err, throttle.ErrInvalidLimit) {
				t.Errorf("%v: SetLimit(%v, %+v) = %v, want a fault of the kind", tt.code, tt.other, options, err)
			}
		}
		if keys := redistest.Keys(t, s.raw, "hw:*"); len(keys) != 0 {
			t.Errorf("keys = %q, want none", keys)
		}
		if err := setLimit(t.Context(), s.limiter("sms", tt.other), tt.other); err != nil {
			t.Fatal(err)
		}
		_, err := l.TryAcquire(t.Context(), key, 1)
		if !errors.Is(err, throttle.ErrStoredLimit) || !strings.Contains(err.Error(), `"sms"`) {
			t.Errorf("%v with %v stored: TryAcquire = %v, want %v", tt.code, tt.other, err, throttle.ErrStoredLimit)
		}
		s.raw.Del(t.Context(), storedKey)
	}
}
