package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/queue"
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
		{"too large", "POST", okBody + strings.Repeat(" ", GatewayBodyMax), "1", 413},
		{"grant is no number", "POST", okBody, "now", 400},
		{"grant in nanoseconds", "POST", okBody, "1700000000000000000", 400},
	} {
		g := NewGateway(PhoneLimit(throttle.Sliding(1, time.Minute)), Faults{}, []byte("secret"))
		r := httptest.NewRequestWithContext(t.Context(), tt.method, "/", strings.NewReader(tt.body))
		if tt.granted != "" {
			r.Header.Set(GrantedHeader, tt.granted)
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
	g := NewGateway(PhoneLimit(throttle.Sliding(1, time.Minute)), Faults{}, []byte("secret"))
	g.now = func() time.Time { return now }
	post := func(granted time.Time) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(okBody))
		if !granted.IsZero() {
			r.Header.Set(GrantedHeader, fmt.Sprint(granted.UnixMicro()))
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
	want := GatewayStats{Messages: 3, Duplicates: 2, Phones: 1, Breaches: 1, BrokenBy: map[string]int{RuleName: 1}, MinGap: new(59800 * time.Millisecond), MostAtOnce: 1}
	if diff := cmp.Diff(want, g.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	log := g.Arrivals()
	want.MostAtOnce = 0 // not in the log
	if diff := cmp.Diff(want, ReplayArrivals(log, PhoneLimit(throttle.Sliding(1, time.Minute)))); diff != "" {
		t.Errorf("replayed (-want +got):\n%s", diff)
	}
	if log[0].Phone != "+12…0117" || log[0].Key != PhoneKey([]byte("secret"), "+12025550117") {
		t.Errorf("log = %+v, want the phone masked and hashed", log[0])
	}
}

func TestGatewayServesManyAtOnce(t *testing.T) {
	t.Parallel()
	g, err := StartGateway(t.Context(), PhoneLimit(throttle.Sliding(1, time.Minute)), Faults{}, []byte("secret"))
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
	if err := c.Send(t.Context(), Message{ID: "x", To: "+12025550117", Text: "hi"}, 1); err == nil {
		t.Error("Send after Shutdown = nil, want an error")
	}
	if err := NewGateway(PhoneLimit(throttle.Sliding(1, time.Minute)), Faults{}, nil).Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown before the start: %v", err)
	}
}

const sec = time.Second

func arrival(id, key string, granted, arrived time.Duration) Arrival {
	return Arrival{ID: id, Key: key, Phone: "+12…0117", GrantedUs: granted.Microseconds(), ArrivedUs: arrived.Microseconds()}
}

func TestArrivalCheck(t *testing.T) {
	t.Parallel()
	one, two := throttle.Sliding(1, time.Minute), throttle.Sliding(2, time.Minute)
	for _, tt := range []struct {
		name  string
		limit throttle.Limit
		log   []Arrival
		want  GatewayStats
	}{
		{"none", one, nil, GatewayStats{}},
		{
			"the first was 0.2 s on its way", one,
			[]Arrival{arrival("1", "a", 0, 200*time.Millisecond), arrival("2", "a", 60*sec, 60*sec)},
			GatewayStats{Messages: 2, Phones: 1, MinGap: new(59800 * time.Millisecond)},
		},
		{
			"0.1 s less than that", one,
			[]Arrival{arrival("1", "a", 0, 200*time.Millisecond), arrival("2", "a", 59900*time.Millisecond, 59900*time.Millisecond)},
			GatewayStats{Messages: 2, Phones: 1, Breaches: 1, BrokenBy: map[string]int{RuleName: 1}, MinGap: new(59700 * time.Millisecond)},
		},
		{
			"a microsecond less", one,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "a", time.Minute-1000, time.Minute-1000)},
			GatewayStats{Messages: 2, Phones: 1, Breaches: 1, BrokenBy: map[string]int{RuleName: 1}, MinGap: new(time.Minute - 1000)},
		},
		{
			"the second overtook the first", one,
			[]Arrival{arrival("2", "a", 60*sec, 61*sec), arrival("1", "a", 0, 62*sec), arrival("3", "a", 120*sec, 120*sec)},
			GatewayStats{Messages: 3, Phones: 1, MinGap: new(sec)},
		},
		{
			"two phones at once", one,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "b", 0, 0)},
			GatewayStats{Messages: 2, Phones: 2},
		},
		{
			"the same message twice, as the limit allows", one,
			[]Arrival{arrival("1", "a", 0, 0), arrival("1", "a", 60*sec, 60*sec)},
			GatewayStats{Messages: 2, Phones: 1, Duplicates: 1, MinGap: new(60 * sec)},
		},
		{
			"before it was granted", one,
			[]Arrival{arrival("1", "a", 2*sec, sec)},
			GatewayStats{Messages: 1, Phones: 1, Early: 1},
		},
		{
			"two a minute", two,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "a", 10*sec, 10*sec), arrival("3", "a", 60*sec, 60*sec), arrival("4", "a", 70*sec, 70*sec)},
			GatewayStats{Messages: 4, Phones: 1, MinGap: new(10 * sec)},
		},
		{
			"three a minute", two,
			[]Arrival{arrival("1", "a", 0, 0), arrival("2", "a", 10*sec, 10*sec), arrival("3", "a", 59*sec, 59*sec)},
			GatewayStats{Messages: 3, Phones: 1, Breaches: 1, BrokenBy: map[string]int{RuleName: 1}, MinGap: new(10 * sec)},
		},
	} {
		if diff := cmp.Diff(tt.want, ReplayArrivals(tt.log, PhoneLimit(tt.limit))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		backwards := slices.Clone(tt.log)
		slices.Reverse(backwards)
		if diff := cmp.Diff(tt.want, ReplayArrivals(backwards, PhoneLimit(tt.limit))); diff != "" {
			t.Errorf("%s, merged in another order (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestArrivalsRoundTrip(t *testing.T) {
	t.Parallel()
	want := []Arrival{arrival("1", "a", 1, 2), arrival("2", "b", 3, 4)}
	var buf bytes.Buffer
	if err := WriteArrivals(&buf, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadArrivals(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
	_, err = ReadArrivals(strings.NewReader("\n{\"id\":\"+12025550117\"}\n"))
	if want := "arrivals: line 2 is not one of ours"; err == nil || err.Error() != want {
		t.Errorf("ReadArrivals = %v, want %s", err, want)
	}
}

// TestGatewayKeepsWaiting: a gateway that takes its time, a phone that is closed for one
// message, and what the log says of both.
func TestGatewayKeepsWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGateway(Policy{}, Faults{}, nil)
		g.SetTakes(200 * time.Millisecond)
		g.Postpone("+12025550117", 2*time.Second)
		post := func(ctx context.Context, sender string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(okBody))
			r.Header.Set(SenderHeader, sender)
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			return w
		}
		if w := post(t.Context(), "1"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "2" {
			t.Errorf("a closed phone: status %d, Retry-After %q, want 429 and 2", w.Code, w.Header().Get("Retry-After"))
		}
		if w := post(t.Context(), "2"); w.Code != http.StatusAccepted {
			t.Errorf("the message after it: status %d, want 202", w.Code)
		}
		gone, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer leave()
		post(gone, "3")
		var took []time.Duration
		var senders []int
		for _, a := range g.Arrivals() {
			took, senders = append(took, micros(a.LeftUs-a.ArrivedUs)), append(senders, a.Sender)
		}
		if diff := cmp.Diff([]time.Duration{200 * time.Millisecond, 50 * time.Millisecond}, took); diff != "" {
			t.Errorf("time at the gateway (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int{2, 3}, senders); diff != "" {
			t.Errorf("senders (-want +got):\n%s", diff)
		}
		if refused := g.Refused(); len(refused) != 1 || refused[0].Sender != 1 {
			t.Errorf("refused = %+v, want the first message", refused)
		}
		if again := g.Repeated(); g.Answered() != 1 || len(again) != 1 || again[0] != "1" {
			t.Errorf("%d answered, %q of them again, want message 1 twice", g.Answered(), again)
		}
	})
}

// Messages of several task types are judged by their own policies, and rules of one name together.
func TestGatewayOfSeveralTypes(t *testing.T) {
	t.Parallel()
	phone := queue.Rule{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: queue.MustJSONKey("$.to")}
	text := queue.Rule{Name: "text", Limit: throttle.Sliding(2, time.Minute), Key: queue.MustJSONKey("$.text")}
	policy := func(kind string, rules ...queue.Rule) Policy {
		return Policy{Policy: queue.Policy{Type: kind, Rules: rules}, PerRule: true}
	}
	now := time.UnixMicro(1_000_000_000)
	g := NewGateway(policy(TaskType, phone), Faults{}, []byte("secret"))
	g.Also(policy("mail:send", phone, text))
	g.Also(policy("plain"))
	g.now = func() time.Time { return now }
	for _, step := range []struct {
		path, phone string
		want        map[string]int
	}{
		{"/", "+12025550101", nil},
		{"/plain", "+12025550101", nil},
		{"/mail:send", "+12025550101", map[string]int{"phone": 1}},
		{"/mail:send", "+12025550102", map[string]int{"phone": 1}},
		{"/mail:send", "+12025550103", map[string]int{"phone": 1, "text": 1}},
		{"/", "+12025550104", map[string]int{"phone": 1, "text": 1}},
	} {
		now = now.Add(time.Second)
		body := fmt.Sprintf(`{"id":"1","to":%q,"text":"hi"}`, step.phone)
		g.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, step.path, strings.NewReader(body)))
		if diff := cmp.Diff(step.want, g.Stats().BrokenBy); diff != "" {
			t.Errorf("after %s to %s the rules are broken (-want +got):\n%s", step.path, step.phone, diff)
		}
	}
}

// A message is over the slots of its key when as many as there are slots are at work on it.
func TestOverSlots(t *testing.T) {
	t.Parallel()
	rule := queue.Rule{Name: "slots", Limit: throttle.Concurrent(2, time.Minute)}
	arrival := func(key string, arrived, left int64) Arrival {
		return Arrival{ArrivedUs: arrived, LeftUs: left, Charges: []Charge{{Rule: "slots", Key: key, Cost: 1}}}
	}
	for _, tt := range []struct {
		name string
		log  []Arrival
		want int
	}{
		{"two at once", []Arrival{arrival("a", 1, 9), arrival("a", 2, 5), arrival("b", 3, 4), arrival("a", 5, 9), arrival("a", 9, 10)}, 0},
		{"three at once", []Arrival{arrival("a", 1, 9), arrival("a", 2, 6), arrival("a", 5, 7), arrival("a", 7, 8)}, 1},
		{"not charged", []Arrival{arrival("a", 1, 9), arrival("a", 2, 9), {ArrivedUs: 3, LeftUs: 4, Charges: []Charge{{Rule: "other", Key: "a", Cost: 1}}}}, 0},
		{"not known when it ended", []Arrival{arrival("a", 1, 0), arrival("a", 2, 9), arrival("a", 3, 9)}, 0},
	} {
		if got := OverSlots(tt.log, rule); got != tt.want {
			t.Errorf("%s: OverSlots = %d, want %d", tt.name, got, tt.want)
		}
	}
}
