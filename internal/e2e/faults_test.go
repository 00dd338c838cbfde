package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/throttle"
)

func TestParseFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want Faults
		is   string // how it prints; "" is text
	}{
		{"429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7", Faults{50_000, 2 * time.Second, 10_000, 5000, 7}, ""},
		{"seed=18446744073709551615,timeout=0.0001%", Faults{Timeout: 1, Seed: 1<<64 - 1}, "timeout=0.0001%,seed=18446744073709551615"},
		{"429=100%", Faults{TooMany: shareAll, After: 30 * time.Second}, "429=100%,after=30s"},
		{"429=0%,after=1h", Faults{After: time.Hour}, "429=0%,after=3600s"},
		{"429=33.3%,5xx=33.3%,timeout=33.4%", Faults{333_000, 30 * time.Second, 333_000, 334_000, 0}, "429=33.3%,after=30s,5xx=33.3%,timeout=33.4%"},
		{"5xx=0%,seed=1", Faults{Seed: 1}, ""},
	} {
		got, err := ParseFaults(tt.text)
		if err != nil || got != tt.want {
			t.Errorf("ParseFaults(%q) = %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
		if tt.is == "" {
			tt.is = tt.text
		}
		if got := tt.want.String(); got != tt.is {
			t.Errorf("%q prints as %q, want %q", tt.text, got, tt.is)
		}
	}
	if s := (Faults{}).String(); s != "" {
		t.Errorf("no faults print as %q", s)
	}
}

func TestParseFaultsRefuses(t *testing.T) {
	t.Parallel()
	const share = "want 0% to 100%, with up to four decimals"
	for _, tt := range []struct {
		text string
		want []string // a line each, and no more
	}{
		{"", []string{`"" is none of 429, after, 5xx, timeout and seed`, "want at least one of 429, 5xx and timeout, such as 5xx=1%"}},
		{"5xx", []string{`5xx is "", ` + share}},
		{"5xx=1", []string{`5xx is "1", ` + share}},
		{"5xx=100.0001%", []string{`5xx is "100.0001%", ` + share}},
		{"5xx=0.00001%", []string{share}},
		{"5xx=-1%", []string{share}},
		{"5xx=+1%", []string{share}},
		{"5xx=1e1%", []string{share}},
		{"5xx=.5%", []string{share}},
		{"5xx=5.%", []string{share}},
		{"5xx=NaN%", []string{share}},
		{"5xx=1%,5xx=1%", []string{`"5xx" is given twice`}},
		{"5xx=1%, timeout=1%", []string{`" timeout" is none of`}},
		{"5xx=50%,timeout=50.5%", []string{"the shares add up to 100.5%, want 100% at most"}},
		{"5xx=1%,after=2s", []string{"after has no effect without 429"}},
		{"429=1%,after=0s", []string{`after is "0s", want whole seconds, 1s to 1h`}},
		{"429=1%,after=3601s", []string{`after is "3601s"`}},
		{"429=1%,after=1500ms", []string{`after is "1500ms"`}},
		{"429=1%,after=2", []string{`after is "2"`}},
		{"429=1%,seed=0", []string{`seed is "0", want 1 to 2^64-1`}},
		{"429=1%,seed=18446744073709551616", []string{"want 1 to 2^64-1"}},
		{"seed=7", []string{"want at least one of"}},
		{"429=200%,after=x,boss=1,seed=-1,5xx=60%,timeout=60%", []string{
			`429 is "200%"`, `after is "x"`, `"boss" is none of`, `seed is "-1"`, "add up to 120%",
		}},
	} {
		got, err := ParseFaults(tt.text)
		if err == nil || got != (Faults{}) {
			t.Errorf("ParseFaults(%q) = %+v, %v, want only an error", tt.text, got, err)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(tt.want) {
			t.Errorf("ParseFaults(%q): %d faults, want %d:\n%v", tt.text, len(lines), len(tt.want), err)
			continue
		}
		for i, want := range tt.want {
			if !strings.HasPrefix(lines[i], "-gateway-faults: ") || !strings.Contains(lines[i], want) {
				t.Errorf("ParseFaults(%q): fault %d is %q, want %q", tt.text, i+1, lines[i], want)
			}
		}
	}
}

func FuzzParseFaults(f *testing.F) {
	f.Add("429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7")
	f.Add("5xx=0%")
	f.Add("429=0%,timeout=99.9999%,after=1h0m0s")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseFaults(text)
		if err != nil {
			if got != (Faults{}) {
				t.Errorf("ParseFaults(%q) = %+v beside an error", text, got)
			}
			return
		}
		if got.TooMany < 0 || got.Unavailable < 0 || got.Timeout < 0 || got.TooMany+got.Unavailable+got.Timeout > shareAll {
			t.Errorf("ParseFaults(%q) = %+v, want shares of one whole", text, got)
		}
		if got == (Faults{}) {
			return // prints as nothing
		}
		if again, err := ParseFaults(got.String()); err != nil || again != got {
			t.Errorf("%q prints as %q, which is %+v, %v, want %+v", text, got, again, err, got)
		}
	})
}

func TestFaultsDraw(t *testing.T) {
	t.Parallel()
	const n = 100_000
	f := Faults{TooMany: 50_000, Unavailable: 10_000, Timeout: 5000, Seed: 7}
	// As many draws of one message as of many: neither id nor attempt is a pattern.
	for name, draw := range map[string]func(i int) fault{
		"ids":      func(i int) fault { return f.draw(fmt.Sprint(i), 1) },
		"attempts": func(i int) fault { return f.draw("1", uint64(i)+1) },
	} {
		got := map[fault]int{}
		for i := range n {
			got[draw(i)]++
		}
		for kind, want := range map[fault]int{faultTooMany: 5000, faultUnavailable: 1000, faultTimeout: 500, faultNone: 93_500} {
			if diff := got[kind] - want; diff < -300 || diff > 300 { // over four standard deviations
				t.Errorf("%s: fault %d drawn %d times of %d, want about %d", name, kind, got[kind], n, want)
			}
		}
	}
	other, differ := f, 0
	other.Seed = 8
	for i := range 1000 {
		id := fmt.Sprint(i)
		first := f.draw(id, 1)
		if again := f.draw(id, 1); again != first {
			t.Errorf("message %s draws %d, and then %d", id, first, again)
		}
		if first != other.draw(id, 1) {
			differ++
		}
	}
	if differ < 50 || differ > 250 {
		t.Errorf("%d of 1000 messages draw another fault by another seed, want about 123", differ)
	}
	for i := range 1000 {
		if got := (Faults{Seed: 7}).draw(fmt.Sprint(i), 1); got != faultNone {
			t.Errorf("fault %d of no faults", got)
		}
		if got := (Faults{TooMany: shareAll, Seed: 7}).draw(fmt.Sprint(i), 1); got != faultTooMany {
			t.Errorf("fault %d, want 429 always", got)
		}
	}
}

func mustFaults(t *testing.T, text string) Faults {
	t.Helper()
	f, err := ParseFaults(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// firstID returns an id whose draws begin as wanted.
func firstID(t *testing.T, f Faults, want ...fault) string {
	t.Helper()
	for id := byte('!'); id < '~'; id++ {
		got := make([]fault, len(want))
		for i := range got {
			got[i] = f.draw(string(id), uint64(i)+1)
		}
		if cmp.Equal(got, want) {
			return string(id)
		}
	}
	t.Fatalf("no id draws %v", want)
	return ""
}

// TestFaultMakerCloses is the worked number: closed for 2 s from 10 s on. What was
// granted at 10.5 s or before was under way.
func TestFaultMakerCloses(t *testing.T) {
	t.Parallel()
	f := mustFaults(t, "429=50%,after=2s,seed=7")
	id := firstID(t, f, faultTooMany, faultNone, faultTooMany, faultNone)
	m := newFaultMaker(f)
	for _, tt := range []struct {
		at    time.Duration
		grant time.Duration
		id    string
		key   string
		want  fault
		after time.Duration
	}{
		{10 * sec, 10 * sec, id, "a", faultTooMany, 2 * sec},
		{10 * sec, 10 * sec, id, "a", faultTooMany, 2 * sec},
		{11500 * time.Millisecond, 10501 * time.Millisecond, id, "a", faultTooMany, sec}, // neither draws nor extends
		{11500 * time.Millisecond, 10500 * time.Millisecond, "another", "a", faultTooMany, sec},
		{11500 * time.Millisecond, 11500 * time.Millisecond, id, "b", faultNone, 0}, // another phone, the second draw
		{12*sec - 1, 11 * sec, id, "a", faultTooMany, sec},
		{12 * sec, 12 * sec, id, "a", faultTooMany, 2 * sec}, // open: the third draw, which closes it anew
		{14 * sec, 14 * sec, id, "a", faultNone, 0},
	} {
		got, after := m.next(Arrival{ID: tt.id, Key: tt.key, GrantedUs: tt.grant.Microseconds()}, time.UnixMicro(0).Add(tt.at))
		if got != tt.want || after != tt.after {
			t.Errorf("at %v: next(%q, %q) = %d, %v, want %d, %v", tt.at, tt.id, tt.key, got, after, tt.want, tt.after)
		}
	}
	if want := (FaultStats{TooMany: 2, EarlyAfter429: 2, UnderWay429: 2}); m.stats != want {
		t.Errorf("stats = %+v, want %+v", m.stats, want)
	}
}

// TestGatewayFaultAnswers wants that only what is taken is in the log and
// counts for the limit.
func TestGatewayFaultAnswers(t *testing.T) {
	t.Parallel()
	f := mustFaults(t, "429=25%,after=2s,5xx=25%,timeout=25%,seed=7")
	limit := throttle.Sliding(1, time.Minute)
	now := time.UnixMicro(1_000_000_000)
	g := NewGateway(PhoneLimit(limit), f, nil)
	g.now = func() time.Time { return now }
	c := client(t, "http://host/", 0)
	c.HTTP.Transport = InMemory(g)
	m := Message{ID: firstID(t, f, faultUnavailable, faultTooMany, faultTimeout, faultNone), To: "+12025550117", Text: "hi"}
	send := func(wantStatus int, wantAfter time.Duration) {
		t.Helper()
		err := c.Send(t.Context(), m, now.UnixMicro())
		later, ok := errors.AsType[*RetryLaterError](err)
		switch {
		case wantStatus == http.StatusTooManyRequests && (!ok || later.Status != wantStatus || later.After != wantAfter),
			wantStatus == http.StatusServiceUnavailable && (ok || err == nil || !strings.Contains(err.Error(), "status 503")):
			t.Errorf("Send = %v, want status %d after %v", err, wantStatus, wantAfter)
		}
	}
	send(http.StatusServiceUnavailable, 0)
	send(http.StatusTooManyRequests, 2*sec)
	now = now.Add(600 * time.Millisecond)
	send(http.StatusTooManyRequests, 2*sec)
	now = now.Add(1400 * time.Millisecond)
	if log := g.Arrivals(); len(log) != 0 {
		t.Errorf("log = %+v, want nothing taken yet", log)
	}

	ctx, giveUp := context.WithCancel(t.Context())
	g.now = func() time.Time { giveUp(); return now } // once it is at the gateway
	if err := c.Send(ctx, m, now.UnixMicro()); !errors.Is(err, context.Canceled) {
		t.Errorf("Send = %v, want no answer", err)
	}
	g.now = func() time.Time { return now }
	now = now.Add(time.Minute)
	if err := c.Send(t.Context(), m, now.UnixMicro()); err != nil {
		t.Errorf("Send = %v, want that it is taken", err)
	}
	want := GatewayStats{
		Messages: 2, Duplicates: 1, Phones: 1, MinGap: new(time.Minute), MostAtOnce: 1,
		Faults: &FaultStats{TooMany: 1, EarlyAfter429: 1, Unavailable: 1, TimedOut: 1},
	}
	if diff := cmp.Diff(want, g.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	if log := g.Arrivals(); len(log) != 2 || log[1].ArrivedUs-log[0].ArrivedUs != time.Minute.Microseconds() {
		t.Errorf("log = %+v, want two arrivals, a minute apart", log)
	}
}

// TestGatewayShutdownEndsTimeouts has senders that would wait for a minute.
func TestGatewayShutdownEndsTimeouts(t *testing.T) {
	t.Parallel()
	const n = 3
	g := NewGateway(PhoneLimit(throttle.Sliding(1, time.Minute)), mustFaults(t, "timeout=100%"), nil)
	taken := make(chan struct{}, n)
	g.now = func() time.Time { taken <- struct{}{}; return time.Now() }
	if err := g.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := client(t, g.URL(), time.Minute)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			m := Message{ID: string(rune('a' + i)), To: "+12025550117", Text: "hi"}
			if err := c.Send(t.Context(), m, 1); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Send = %v, want a connection that breaks", err)
			}
		})
	}
	for range n {
		<-taken
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := g.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	wg.Wait()
	if got := g.Stats(); got.Messages != n || got.MostAtOnce != n || got.Faults.TimedOut != n {
		t.Errorf("stats = %+v, want %d messages taken at once", got, n)
	}
}

// The gateway stops to wait when the sender does.
func TestGatewayTimeoutEndsWithItsSender(t *testing.T) {
	t.Parallel()
	g := NewGateway(PhoneLimit(throttle.Sliding(1, time.Minute)), mustFaults(t, "timeout=100%"), nil)
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		g.ServeHTTP(w, r)
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g.now = func() time.Time { cancel(); return time.Now() } // once the gateway has taken it
	err := client(t, srv.URL, time.Minute).Send(ctx, Message{ID: "1", To: "+12025550117", Text: "hi"}, 1)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Send = %v, want it canceled", err)
	}
	<-ended
	if got := len(g.Arrivals()); got != 1 {
		t.Errorf("%d arrivals, want 1: it was taken", got)
	}
}
