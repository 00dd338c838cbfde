package queue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// inspector is one of the desk's pools.
func (d *desk) inspector(cfg throttle.Config, policies ...Policy) *Inspector {
	d.Helper()
	i, err := NewInspector(d.timed, cfg, policies...)
	if err != nil {
		d.Fatal(err)
	}
	return i
}

// why asks about a task of the default queue, and sees that nothing has changed by that.
func (d *desk) why(i *Inspector, id string, want Why) {
	d.Helper()
	before := content(d.T, d.raw)
	got, err := i.Why(d.Context(), "default", id)
	if err != nil {
		d.Errorf("Why(%s): %v", id, err)
	}
	if after := content(d.T, d.raw); !maps.Equal(before, after) {
		d.Errorf("Why(%s) changed what Redis holds", id)
	}
	clock, err := luascripts.Walk(d.Context(), d.timed, luascripts.QueueKeys("hw", "default"), time.Time{}, 0, 1)
	if err != nil || !got.Now.Equal(clock.Now) {
		d.Errorf("Why(%s) is as of %v, want %v, %v", id, got.Now, clock.Now, err)
	}
	got.Now = time.Time{}
	if diff := cmp.Diff(want, got); diff != "" {
		d.Errorf("Why(%s), want -, got +:\n%s", id, diff)
	}
}

// Who waits for permits is told for which rule, until when, and behind how many; the
// others where they are.
func TestWhy(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	deadline := d.start.Add(time.Hour)
	for n := range 4 {
		d.booked("+1", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("t", n)), asynq.Deadline(deadline))
	}
	d.why(i, "t0", Why{State: StatePending})
	d.why(i, "t1", Why{State: StateLimit, Rule: "phone", At: d.start.Add(time.Minute), Permits: 1, Jobs: 1, Booked: true, Deadline: deadline})
	d.why(i, "t3", Why{State: StateLimit, Rule: "phone", At: d.start.Add(3 * time.Minute), Permits: 3, Jobs: 3, Booked: true, Deadline: deadline})
	d.why(i, "nobody", Why{State: StateMissing})

	later := d.start.Add(time.Hour)
	plain := asynq.NewClientFromRedisClient(d.raw)
	for id, opt := range map[string]asynq.Option{"own": asynq.ProcessAt(later), "grouped": asynq.Group("g")} {
		if _, err := plain.Enqueue(asynq.NewTask("sms", nil), asynq.TaskID(id), opt); err != nil {
			t.Fatal(err)
		}
	}
	d.why(i, "own", Why{State: StateScheduled, At: later})
	d.why(i, "grouped", Why{State: StateGroup})
	if err := d.insp.ArchiveTask("default", "own"); err != nil {
		t.Fatal(err)
	}
	d.why(i, "own", Why{State: StateEnded})

	// Who leaves makes the others move up, also those who were told nothing of it.
	if _, err := d.policies["sms"].decide.Cancel(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", "t2")}); err != nil {
		t.Fatal(err)
	}
	d.why(i, "t3", Why{State: StateLimit, Rule: "phone", At: d.start.Add(2 * time.Minute), Permits: 2, Jobs: 2, Booked: true, Deadline: deadline})
	d.why(i, "t2", Why{State: StateNoPlace, At: d.start.Add(2 * time.Minute), Booked: true, Deadline: deadline})
}

// A key that is closed, slots that are taken, and a gate that is shut are told from
// permits that are spent.
func TestWhyNotPermits(t *testing.T) {
	t.Parallel()
	start := time.Now().UTC()
	opening := start.Truncate(time.Hour).Add(3 * time.Hour)
	gate, err := throttle.ParseGate(fmt.Sprintf("%s-%s UTC", opening.Format("15:04"), opening.Add(time.Hour).Format("15:04")))
	if opening.Hour() == 23 {
		gate, err = throttle.ParseGate("23:00-24:00 UTC")
	}
	if err != nil {
		t.Fatal(err)
	}
	key := MustJSONKey("$.to")
	policies := []Policy{
		perMinute(),
		{Type: "call", Rules: []Rule{{Name: "lines", Limit: throttle.Concurrent(1, time.Minute), Key: key}}},
		{Type: "ad", Rules: []Rule{{Name: "hours", Gate: gate}, {Name: "ads", Limit: throttle.Sliding(1, time.Minute), Key: key}}},
	}
	d := newDesk(t, policies...)
	i := d.inspector(throttle.Config{}, policies...)
	book := func(typ, id string) {
		t.Helper()
		if _, err := d.Book(t.Context(), NewTask(typ, []byte(`{"to":"+1"}`), asynq.TaskID(id))); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := d.policies["sms"].limits[0].limiter.CloseKey(t.Context(), "+1", time.Hour); err != nil {
		t.Fatal(err)
	}
	book("sms", "closed")
	open := d.start.Add(time.Hour)
	d.why(i, "closed", Why{State: StateClosed, Rule: "phone", At: open, Closed: open, Booked: true})

	if g, err := d.policies["call"].decide.TryAcquire(t.Context(), throttle.Request{Key: "+1", Cost: 1}); err != nil || !g.Granted {
		t.Fatal(g, err)
	}
	book("call", "first")
	book("call", "second")
	d.why(i, "first", Why{State: StateSlot, Rule: "lines", At: d.start.Add(time.Minute), Booked: true})
	d.why(i, "second", Why{State: StateSlot, Rule: "lines", At: d.start.Add(2 * time.Minute), Permits: 1, Jobs: 1, Booked: true})

	book("ad", "early")
	d.why(i, "early", Why{State: StateGate, Rule: "hours", At: opening.In(time.Local), Booked: true})
}

// Who is told an instant while the gate is open waits for it when it shuts before then.
func TestShutBetween(t *testing.T) {
	t.Parallel()
	var gates []throttle.GateAt
	for rule, text := range map[string]string{"days": "00:00-24:00 UTC", "hours": "09:00-21:00 UTC"} {
		gate, err := throttle.ParseGate(text)
		if err != nil {
			t.Fatal(err)
		}
		gates = append(gates, throttle.GateAt{Rule: rule, Gate: gate})
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now, at time.Duration
		rule    string
	}{
		{20 * time.Hour, 20*time.Hour + time.Minute, ""},
		{20 * time.Hour, 33 * time.Hour, "hours"},
		{20 * time.Hour, 33*time.Hour + time.Minute, "hours"},
		{22 * time.Hour, 33 * time.Hour, "hours"},
		{22 * time.Hour, 22 * time.Hour, "hours"},
		{9 * time.Hour, 8 * time.Hour, ""}, // overdue
	} {
		if rule, shut := shutBetween(gates, day.Add(tt.now), day.Add(tt.at)); rule != tt.rule || shut != (rule != "") {
			t.Errorf("between %v and %v %q is shut, %v, want %q", tt.now, tt.at, rule, shut, tt.rule)
		}
	}
}

// Of several rules the one is told in whose line the task stands; another inspector,
// which does not know them all, tells when it is woken.
func TestWhySeveralRules(t *testing.T) {
	t.Parallel()
	policy := perMinute()
	policy.Rules = append(policy.Rules, Rule{Name: "provider", Limit: throttle.Sliding(1, time.Second), Key: ConstantKey("acme")})
	d := newDesk(t, policy)
	i := d.inspector(throttle.Config{}, policy)
	for n, want := range []Why{
		{State: StatePending},
		{State: StateLimit, Rule: "phone", At: d.start.Add(time.Minute), Permits: 1, Jobs: 1, Booked: true},
		{State: StateLimit, Rule: "provider", At: d.start.Add(time.Second), Permits: 1, Jobs: 1, Booked: true},
	} {
		id := fmt.Sprint("t", n)
		if _, err := d.Book(t.Context(), smsTo([]string{"+1", "+1", "+2"}[n], asynq.TaskID(id))); err != nil {
			t.Fatal(err)
		}
		d.why(i, id, want)
	}
	d.why(d.inspector(throttle.Config{}, perMinute()), "t2", Why{State: StateLimit, At: d.start.Add(time.Second), Booked: true})
	d.why(d.inspector(throttle.Config{PerClient: true}, policy), "t2", Why{State: StateLimit, At: d.start.Add(time.Second), Booked: true})
}

// Who does not come at its instant stands aside, and first.
func TestWhyParked(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	for n := range 3 {
		d.booked("+1", time.Duration(n)*time.Minute, asynq.TaskID(fmt.Sprint("t", n)))
	}
	d.at(90 * time.Second)
	now := d.start.Add(90 * time.Second)
	d.why(i, "t1", Why{State: StateLimit, Rule: "phone", At: now, Booked: true, Parked: true})
	d.why(i, "t2", Why{State: StateLimit, Rule: "phone", At: now, Booked: true})
	p, err := i.LinePage(t.Context(), "phone", "+1", "", 10)
	want := []Waiting{
		{Queue: "default", ID: "t0", Cost: 1, At: d.start, Parked: true},
		{Queue: "default", ID: "t1", Cost: 1, At: d.start.Add(time.Minute), Parked: true},
		{Queue: "default", ID: "t2", Cost: 1, At: now},
	}
	if diff := cmp.Diff(want, p.Waiting); err != nil || diff != "" || p.All != 3 || !p.Now.Equal(now) || p.Next != "" {
		t.Errorf("LinePage = %+v, %v; want -, got +:\n%s", p, err, diff)
	}
}

// ids are the tasks of a list, in its order.
func ids(t *testing.T, list func(func(Waiting, error) bool)) (out []string) {
	t.Helper()
	for w, err := range list {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, w.ID)
	}
	return out
}

// A line is listed in its order and to its end, and what leaves or comes between two
// pages moves nobody else out of the list.
func TestLine(t *testing.T) {
	t.Parallel()
	const n = PageMax + 7
	policy := Policy{Type: "sms", Rules: []Rule{{Name: "phone", Limit: throttle.Sliding(1, time.Second), Key: MustJSONKey("$.to")}}}
	d := newDesk(t, policy)
	i := d.inspector(throttle.Config{}, policy)
	var tasks []*Task
	var want []string
	for k := range n {
		want = append(want, fmt.Sprintf("t%03d", k))
		tasks = append(tasks, smsTo("+1", asynq.TaskID(want[k])))
	}
	for _, r := range d.BookMany(t.Context(), tasks) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	limiter := d.policies["sms"].limits[0].limiter
	if _, err := limiter.Book(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: "somebody"}); err != nil {
		t.Fatal(err)
	}
	before := content(t, d.raw)
	if got := ids(t, i.Line(t.Context(), "phone", "+1")); !slices.Equal(got, append(slices.Clone(want), "")) {
		t.Errorf("Line = %q, want %q and one that is no task", got, want)
	}
	if got := ids(t, i.Line(t.Context(), "phone", "+2")); len(got) != 0 {
		t.Errorf("the line of another key is %q", got)
	}
	if after := content(t, d.raw); !maps.Equal(before, after) {
		t.Error("a list changed what Redis holds")
	}

	leave := func(k int) {
		t.Helper()
		if _, err := limiter.Cancel(t.Context(), throttle.Request{Key: "+1", Cost: 1, Job: luascripts.JobID("default", want[k])}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := i.LinePage(t.Context(), "phone", "+1", "", 100)
	if err != nil || len(first.Waiting) != 100 || first.All != n+1 || first.Next == "" {
		t.Fatalf("the first page: %d places of %d, next %q, %v", len(first.Waiting), first.All, first.Next, err)
	}
	for k, w := range first.Waiting {
		if !w.At.Equal(d.start.Add(time.Duration(k)*time.Second)) || w.Cost != 1 || w.Queue != "default" || w.Parked {
			t.Fatalf("place %d is %+v", k, w)
		}
	}
	leave(0)
	leave(99) // the last of the page
	leave(150)
	second, err := i.LinePage(t.Context(), "phone", "+1", first.Next, 100)
	if err != nil || len(second.Waiting) != 100 || second.Waiting[0].ID != "t100" || second.Waiting[50].ID != "t151" {
		t.Fatalf("the second page has %d places from %+v on, %v, want 100 from t100 on, without t150", len(second.Waiting), second.Waiting[:1], err)
	}
	if at := d.start.Add(98 * time.Second); !second.Waiting[0].At.Equal(at) {
		t.Errorf("t100 comes at %v, want %v: two before it left", second.Waiting[0].At, at)
	}
	if w, err := i.Why(t.Context(), "default", "t151"); err != nil || !w.At.Equal(second.Waiting[50].At) || w.Jobs != 148 {
		t.Errorf("Why(t151) = %+v, %v, want as listed, %v, behind 148", w, err, second.Waiting[50].At)
	}
}

// Everything that pools will wake on a queue is listed once, the first to come first,
// also where many have one instant.
func TestPutAway(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	var tasks []*Task
	want := map[string]time.Time{}
	for k := range 2 * PageMax {
		phone, turn := fmt.Sprint("+", k%(PageMax-1)), k/(PageMax-1)
		id := fmt.Sprintf("t%03d", k)
		tasks = append(tasks, smsTo(phone, asynq.TaskID(id)))
		if turn > 0 {
			want[id] = d.start.Add(time.Duration(turn) * time.Minute)
		}
	}
	d.BookMany(t.Context(), tasks)
	for _, most := range []int{1, 100, PageMax} {
		got, last := map[string]time.Time{}, time.Time{}
		list := pages(func(from Cursor) (Page, error) { return i.PutAwayPage(t.Context(), "default", from, most) })
		for w, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := got[w.ID]; twice || w.At.Before(last) || w.Queue != "default" || !slices.Equal(w.Rules, []string{"phone"}) {
				t.Errorf("%+v comes after %v, twice is %v", w, last, twice)
			}
			got[w.ID], last = w.At, w.At
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d, want -, got +:\n%s", most, diff)
		}
	}
	if got := ids(t, i.PutAway(t.Context(), "default")); len(got) != len(want) {
		t.Errorf("PutAway lists %d, want %d", len(got), len(want))
	}
	if got := ids(t, i.PutAway(t.Context(), "other")); len(got) != 0 {
		t.Errorf("another queue has %q", got)
	}
}

// What can't be asked is refused, by an error that says what and shows no key.
func TestInspectorRefuses(t *testing.T) {
	t.Parallel()
	d := newDesk(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	alone := d.inspector(throttle.Config{PerClient: true}, perMinute())
	line := func(i *Inspector, rule, key string, from Cursor, most int) error {
		_, err := i.LinePage(t.Context(), rule, key, from, most)
		return err
	}
	queue := func(from Cursor, most int) error {
		_, err := i.PutAwayPage(t.Context(), "default", from, most)
		return err
	}
	const phone = "+15550100"
	for name, tt := range map[string]struct{ got, want error }{
		"no such rule":      {line(i, "phones", phone, "", 1), ErrInvalidPolicy},
		"no key":            {line(i, "phone", "", "", 1), throttle.ErrInvalidKey},
		"a long key":        {line(i, "phone", strings.Repeat(phone, 200), "", 1), throttle.ErrInvalidKey},
		"a line of its own": {line(alone, "phone", phone, "", 1), throttle.ErrInvalidConfig},
		"no places":         {line(i, "phone", phone, "", 0), ErrInvalidCursor},
		"too many places":   {queue("", PageMax+1), ErrInvalidCursor},
		"no number":         {line(i, "phone", phone, "x.1", 1), ErrInvalidCursor},
		"no skip":           {queue("1", 1), ErrInvalidCursor},
		"a skip below one":  {queue("1.0", 1), ErrInvalidCursor},
		"another spelling":  {queue("+1.1", 1), ErrInvalidCursor},
		"more behind it":    {queue("1.1.1", 1), ErrInvalidCursor},
	} {
		if !errors.Is(tt.got, tt.want) || tt.got != nil && strings.Contains(tt.got.Error(), phone) {
			t.Errorf("%s: %v, want %v", name, tt.got, tt.want)
		}
	}
	if _, err := NewInspector(d.timed, throttle.Config{Secret: []byte("short")}, Policy{}); !errors.Is(err, ErrInvalidPolicy) {
		t.Errorf("NewInspector with a faulty policy = %v, want %v", err, ErrInvalidPolicy)
	}
}

// FuzzCursor: what is read is written back the same, and all else is refused.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"", "1.1", "-4503599627366400.1", "1772352000000000.12", "1", ".", "1.", "01.1", "9223372036854775808.1"} {
		f.Add(seed, 1)
	}
	f.Fuzz(func(t *testing.T, text string, most int) {
		number, skip, err := Cursor(text).read(most)
		switch {
		case err == nil && (most < 1 || most > PageMax):
			t.Errorf("a page of %d is read", most)
		case err == nil && text != "" && (skip < 1 || cursorOf(number, skip) != Cursor(text)):
			t.Errorf("%q is read as %d, %d", text, number, skip)
		case err != nil && (!errors.Is(err, ErrInvalidCursor) || number != 0 || skip != 0):
			t.Errorf("%q: %d, %d, %v", text, number, skip, err)
		}
	})
}

// With a Secret the inspector finds a line by its key in clear, and neither an answer nor
// Redis shows that key.
func TestInspectorWithSecret(t *testing.T) {
	t.Parallel()
	const phone = "+15550100"
	cfg := throttle.Config{Secret: []byte("0123456789abcdef"), Prefix: "mine"}
	d := newDesk(t, perMinute())
	c, err := NewClientWith(d.timed, cfg, perMinute())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if _, err := c.Book(t.Context(), smsTo(phone, asynq.TaskID(fmt.Sprint("t", n)))); err != nil {
			t.Fatal(err)
		}
	}
	i := d.inspector(cfg, perMinute())
	w, err := i.Why(t.Context(), "default", "t1")
	if err != nil || w.Jobs != 1 || w.Rule != "phone" {
		t.Errorf("Why = %+v, %v, want one behind another", w, err)
	}
	p, err := i.LinePage(t.Context(), "phone", phone, "", 10)
	if err != nil || len(p.Waiting) != 2 {
		t.Errorf("LinePage = %+v, %v, want two", p, err)
	}
	away, err := i.PutAwayPage(t.Context(), "default", "", 10)
	if err != nil || len(away.Waiting) != 1 {
		t.Errorf("PutAwayPage = %+v, %v, want one", away, err)
	}
	if shown := fmt.Sprintf("%+v %+v %+v", w, p, away); strings.Contains(shown, phone[1:]) {
		t.Errorf("an answer shows the phone: %s", shown)
	}
}

// While Redis is away that is what every answer says, and a list ends with it.
func TestInspectorWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	i, err := NewInspector(rdb, throttle.Config{}, perMinute())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Why(t.Context(), "default", "a"); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Why = %v, want %v", err, throttle.ErrUnavailable)
	}
	for name, list := range map[string]func(func(Waiting, error) bool){
		"Line": i.Line(t.Context(), "phone", "+1"), "PutAway": i.PutAway(t.Context(), "default"),
	} {
		n := 0
		for _, err := range list {
			if n++; !errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("%s = %v, want %v", name, err, throttle.ErrUnavailable)
			}
		}
		if n != 1 {
			t.Errorf("%s answers %d times, want once", name, n)
		}
	}
}

// On Redis Cluster each queue and each key has its slot.
func TestInspectorOnCluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3)
	c := newClient(t, rdb, perMinute())
	i, err := NewInspector(rdb, throttle.Config{}, perMinute())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{} // by phone
	for k := range 12 {
		id, queue, phone := fmt.Sprint("t", k), fmt.Sprint("q", k%2), fmt.Sprint("+", k%3)
		if k < 3 { // or the first may run, and falls out of the line when no pool takes it
			if g, err := c.policies["sms"].decide.TryAcquire(t.Context(), throttle.Request{Key: phone, Cost: 1}); err != nil || !g.Granted {
				t.Fatal(g, err)
			}
		}
		b, err := c.Book(t.Context(), smsTo(phone, asynq.TaskID(id), asynq.Queue(queue)))
		if err != nil {
			t.Fatal(err)
		}
		w, err := i.Why(t.Context(), queue, id)
		if err != nil || w.State != StateLimit || w.Rule != b.Rule || !w.At.Equal(b.At) || w.Jobs != k/3 {
			t.Errorf("Why(%s) = %+v, %v, want it as it was booked, %+v, behind %d", id, w, err, b, k/3)
		}
		want[phone] = append(want[phone], id)
	}
	for phone, want := range want {
		if got := ids(t, i.Line(t.Context(), "phone", phone)); !slices.Equal(got, want) {
			t.Errorf("the line of %s is %q, want %q", phone, got, want)
		}
	}
	if got := ids(t, i.PutAway(t.Context(), "q0")); len(got) != 6 {
		t.Errorf("on one queue %q are put away, want 6", got)
	}
}
