package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/throttle"
)

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
	g := NewGateway(smsPolicy(limit), f, nil)
	g.now = func() time.Time { return now }
	c := client(t, "http://host/", 0)
	c.http.Transport = inMemory(g)
	m := Message{ID: firstID(t, f, faultUnavailable, faultTooMany, faultTimeout, faultNone), To: p1, Text: "hi"}
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
	g := NewGateway(smsPolicy(throttle.Sliding(1, time.Minute)), mustFaults(t, "timeout=100%"), nil)
	taken := make(chan struct{}, n)
	g.now = func() time.Time { taken <- struct{}{}; return time.Now() }
	if err := g.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := client(t, g.URL(), time.Minute)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			m := Message{ID: string(rune('a' + i)), To: p1, Text: "hi"}
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
	g := NewGateway(smsPolicy(throttle.Sliding(1, time.Minute)), mustFaults(t, "timeout=100%"), nil)
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		g.ServeHTTP(w, r)
	}))
	defer srv.Close()
	err := client(t, srv.URL, 100*time.Millisecond).Send(t.Context(), Message{ID: "1", To: p1, Text: "hi"}, 1)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send = %v, want a deadline exceeded", err)
	}
	<-ended
	if got := len(g.Arrivals()); got != 1 {
		t.Errorf("%d arrivals, want 1: it was taken", got)
	}
}
