package inspect

import (
	"errors"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/history"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// What pools wrote is listed by minute or by hour without a gap, and added up.
func TestHistory(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	r := history.New(d.raw, "hw", func(string) string { return "sliding 2/1m" })
	r.Of("phone").Granted("+1", 1)
	r.Of("phone").Deferred("+1", time.Now().Add(time.Hour))
	r.Of("phone").Waited(3 * time.Second)
	r.Write(t.Context())
	d.timed.SetTime(time.Now())
	for span, steps := range map[time.Duration]int{time.Minute: 1, 10 * time.Minute: 10, 24 * time.Hour: 1440, 25 * time.Hour: 25, HistoryMax: 720} {
		h, err := i.History(t.Context(), "phone", span)
		if err != nil {
			t.Fatal(err)
		}
		if len(h.Points) != steps || h.Step != span/time.Duration(steps) {
			t.Errorf("a history of %v has %d points of %v, want %d", span, len(h.Points), h.Step, steps)
		}
		granted := int64(0)
		for n, p := range h.Points {
			granted += p.Granted
			if n > 0 && p.At.Sub(h.Points[n-1].At) != h.Step {
				t.Fatalf("point %d of %v begins at %v, the one before at %v", n, span, p.At, h.Points[n-1].At)
			}
		}
		if last := h.Points[steps-1].At; last.After(h.Now) || !last.Add(h.Step).After(h.Now) {
			t.Errorf("the last point of %v begins at %v, and it is %v", span, last, h.Now)
		}
		if span == time.Minute && h.Total.Granted == 0 {
			continue // it was written just before this minute
		}
		if granted != 1 || h.Total.Granted != 1 || h.Total.Deferred != 1 || h.Total.Limit != "sliding 2/1m" || h.Total.WaitedP50 < 2*time.Second || h.Total.WaitedP50 > 4*time.Second {
			t.Errorf("%v: granted %d, in all %+v", span, granted, h.Total)
		}
		if want := 1 / (2 * h.Step.Minutes()); h.Total.Used != want {
			t.Errorf("%v: the share of the limit is %v, want %v", span, h.Total.Used, want)
		}
	}
	for _, span := range []time.Duration{0, time.Second, HistoryMax + time.Hour} {
		if _, err := i.History(t.Context(), "phone", span); !errors.Is(err, ErrInvalidSpan) {
			t.Errorf("a history of %v: %v", span, err)
		}
	}
	if h, err := i.History(t.Context(), "nobody", time.Hour); err != nil || h.Total.Granted != 0 {
		t.Errorf("a rule that nothing is known of: %+v, %v", h.Total, err)
	}
}

// What a limit gives in some time is its permits, or those of each window that the time has;
// of slots it is not known.
func TestShareOfALimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		permits int64
		limit   string
		in      time.Duration
		want    float64
	}{
		{1, "sliding 1/20m", time.Minute, 1},
		{3, "sliding 1/20m", time.Hour, 1},
		{30, "sliding 1/1s", time.Minute, .5},
		{5, "concurrent 5 lease 1m", time.Minute, 0},
		{5, "", time.Minute, 0},
	} {
		if got := shareOf(tt.permits, tt.limit, tt.in); got != tt.want {
			t.Errorf("%d permits of %q in %v are a share of %v, want %v", tt.permits, tt.limit, tt.in, got, tt.want)
		}
	}
}

// The keys on which jobs wait are listed with how they stand now, the longest wait first,
// and not those on which nobody waits any more.
func TestKeysThatWaitLongest(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	r := history.New(d.raw, "hw", func(string) string { return "" })
	for n, phone := range []string{"+1", "+2", "+2", "+3", "+3", "+3"} {
		b, err := d.Book(t.Context(), smsTo(phone))
		if err != nil {
			t.Fatal(err)
		}
		r.Of("phone").Granted(phone, n+1)
		r.Of("phone").Deferred(phone, b.At.Add(2*time.Hour)) // later than it is: the answer is Redis' all the same
	}
	r.Of("phone").Deferred("+9", time.Now().Add(3*time.Hour)) // cancelled since
	r.Write(t.Context())
	d.timed.SetTime(d.start)
	for order, want := range map[KeyOrder][]KeyStatus{
		ByWait:    {{Key: "+3", Waiting: 3, Permits: 15, Next: d.start.Add(3 * time.Minute)}, {Key: "+2", Waiting: 2, Permits: 5, Next: d.start.Add(2 * time.Minute)}, {Key: "+1", Waiting: 1, Permits: 1, Next: d.start.Add(time.Minute)}},
		ByPermits: {{Key: "+3", Waiting: 3, Permits: 15}, {Key: "+2", Waiting: 2, Permits: 5}, {Key: "+1", Waiting: 1, Permits: 1}},
	} {
		got, err := i.Keys(t.Context(), "phone", order)
		if err != nil || len(got) != len(want) {
			t.Fatalf("Keys(%v) = %+v, %v", order, got, err)
		}
		for n, k := range got {
			if w := want[n]; k.Key != w.Key || k.Waiting != w.Waiting || k.Permits != w.Permits || !w.Next.IsZero() && !k.Next.Equal(w.Next) {
				t.Errorf("in order %v key %d is %+v, want %+v", order, n, k, w)
			}
		}
	}
	if _, err := i.Keys(t.Context(), "nobody", ByWait); !errors.Is(err, queue.ErrInvalidPolicy) {
		t.Errorf("the keys of a rule that is not known: %v", err)
	}
}

// A key that can't be asked about is listed with what is wrong, before those that wait, and hides
// no other key. A Redis that is away is an error.
func TestKeysThatCannotBeRead(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	r := history.New(d.raw, "hw", func(string) string { return "" })
	for _, phone := range []string{"+1", "+2", "+2", "+3"} {
		b, err := d.Book(t.Context(), smsTo(phone))
		if err != nil {
			t.Fatal(err)
		}
		r.Of("phone").Granted(phone, 1)
		r.Of("phone").Deferred(phone, b.At.Add(time.Hour))
	}
	r.Write(t.Context())
	if err := d.raw.Set(t.Context(), "hw:{+3}:phone", "x", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	for _, order := range []KeyOrder{ByWait, ByPermits} {
		got, err := i.Keys(t.Context(), "phone", order)
		if err != nil {
			t.Fatalf("Keys(%v) with a ledger that can't be read: %v", order, err)
		}
		byKey := make(map[string]KeyStatus)
		for _, k := range got {
			byKey[k.Key] = k
		}
		if k := byKey["+3"]; k.Problem == "" || k.Permits != 1 || !k.Next.IsZero() || k.Now.IsZero() {
			t.Errorf("in order %v the key that can't be read is %+v", order, k)
		}
		if k := byKey["+2"]; k.Problem != "" || k.Waiting == 0 || len(got) != 3 {
			t.Errorf("in order %v %d keys are listed, want 3, and one is %+v", order, len(got), k)
		}
		if order == ByWait && got[0].Key != "+3" {
			t.Errorf("%+v is the first, want the key whose wait has no end that is known", got[0])
		}
	}
	if err := d.raw.Set(t.Context(), "hw:limit:phone", "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	again := d.inspector(throttle.Config{}, perMinute())
	if got, err := again.Keys(t.Context(), "phone", ByPermits); err != nil || len(got) != 3 || got[0].Problem == "" || got[2].Problem == "" {
		t.Errorf("with a stored limit that can't be read: %+v, %v, want 3 keys with a problem", got, err)
	}
	if err := d.raw.Del(t.Context(), "hw:limit:phone").Err(); err != nil {
		t.Fatal(err)
	}
	if err := d.raw.LPush(t.Context(), "hw:limit:phone", "x").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.inspector(throttle.Config{}, perMinute()).Keys(t.Context(), "phone", ByPermits); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("with a Redis that does not answer as it should: %v, want %v", err, throttle.ErrUnavailable)
	}
}
