package main

import (
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

const okBody = `{"id":"1","to":"+12025550117","text":"secret"}`

func TestGatewayAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, method, body, granted string
		want                        int
	}{
		{"good", "POST", okBody, "1000000", 202},
		{"no grant", "POST", okBody, "", 202},
		{"method", "GET", "", "", 405},
		{"not JSON", "POST", "to=+12025550117", "1", 400},
		{"no E.164", "POST", strings.Replace(okBody, "+", "", 1), "1", 400},
		{"no text", "POST", strings.Replace(okBody, "secret", "", 1), "1", 400},
		{"too large", "POST", okBody + strings.Repeat(" ", gatewayBodyMax), "1", 413},
		{"grant is no number", "POST", okBody, "now", 400},
		{"grant in nanoseconds", "POST", okBody, "1700000000000000000", 400},
	} {
		g := NewGateway(smsPolicy(throttle.Sliding(1, time.Minute)), Faults{}, []byte("secret"))
		r := httptest.NewRequestWithContext(t.Context(), tt.method, "/", strings.NewReader(tt.body))
		if tt.granted != "" {
			r.Header.Set(grantedHeader, tt.granted)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("%s: status %d, want %d", tt.name, w.Code, tt.want)
		}
		if strings.Contains(w.Body.String(), "2025550117") || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: the answer quotes the request: %s", tt.name, w.Body)
		}
		if got, want := g.Stats().Messages, map[bool]int{true: 1}[tt.want == 202]; got != want {
			t.Errorf("%s: %d messages, want %d", tt.name, got, want)
		}
	}
}

func TestGatewayChecksByItsOwnClock(t *testing.T) {
	t.Parallel()
	now := time.UnixMicro(1_000_000_000)
	g := NewGateway(smsPolicy(throttle.Sliding(1, time.Minute)), Faults{}, []byte("secret"))
	g.now = func() time.Time { return now }
	post := func(granted time.Time) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(okBody))
		if !granted.IsZero() {
			r.Header.Set(grantedHeader, fmt.Sprint(granted.UnixMicro()))
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != http.StatusAccepted {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
	post(now.Add(-200 * time.Millisecond)) // granted 0.2 s before
	now = now.Add(59800 * time.Millisecond)
	post(now)
	if got := g.Stats().Breaches; got != 0 {
		t.Errorf("%d breaches at 59.8 s, want 0", got)
	}
	now = now.Add(59900 * time.Millisecond)
	post(time.Time{}) // no header: the gap alone counts
	want := GatewayStats{Messages: 3, Duplicates: 2, Phones: 1, Breaches: 1, BrokenBy: map[string]int{ruleName: 1}, MinGap: new(59800 * time.Millisecond), MostAtOnce: 1}
	if diff := cmp.Diff(want, g.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	log := g.Arrivals()
	want.MostAtOnce = 0 // not in the log
	if diff := cmp.Diff(want, ReplayArrivals(log, smsPolicy(throttle.Sliding(1, time.Minute)))); diff != "" {
		t.Errorf("replayed (-want +got):\n%s", diff)
	}
	if log[0].Phone != "+12…0117" || log[0].Key != phoneKey([]byte("secret"), "+12025550117") {
		t.Errorf("log = %+v, want the phone masked and hashed", log[0])
	}
}

func TestGatewayServesManyAtOnce(t *testing.T) {
	t.Parallel()
	g, err := StartGateway(t.Context(), smsPolicy(throttle.Sliding(1, time.Minute)), Faults{}, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewGatewayClient(g.URL(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 25 {
				m := Message{ID: fmt.Sprint(i, j), To: fmt.Sprintf("+1202555%04d", 25*i+j), Text: "hi"}
				if err := c.Send(t.Context(), m, time.Now().UnixMicro()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := g.Stats()
	if got.MostAtOnce < 1 || got.MostAtOnce > 8 {
		t.Errorf("MostAtOnce = %d, want 1 to 8", got.MostAtOnce)
	}
	if diff := cmp.Diff(GatewayStats{Messages: 200, Phones: 200, MostAtOnce: got.MostAtOnce}, got); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	c.Close()
	for range 2 {
		if err := g.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
	if err := c.Send(t.Context(), Message{ID: "x", To: p1, Text: "hi"}, 1); err == nil {
		t.Error("Send after Shutdown = nil, want an error")
	}
	if err := NewGateway(smsPolicy(throttle.Sliding(1, time.Minute)), Faults{}, nil).Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown before the start: %v", err)
	}
}
