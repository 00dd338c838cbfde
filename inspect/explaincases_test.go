package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
)

// sketch is an explanation in one line: the state with the rule and the instant, the
// tasks before it, and what each rule says, with a star at the one that binds.
func (d *rig) sketch(e Explanation) string {
	in := func(at time.Time) string {
		if at.IsZero() {
			return "?"
		}
		return at.Sub(e.Now).Round(time.Millisecond).String()
	}
	words := []string{e.State.String()}
	if e.Rule != "" {
		words = append(words, e.Rule)
	}
	if !e.At.IsZero() {
		words = append(words, in(e.At))
	}
	var before []string
	for _, w := range e.Before {
		before = append(before, w.ID)
	}
	if e.Jobs > 0 {
		words = append(words, fmt.Sprintf("behind %d %v", e.Jobs, before))
	}
	for _, v := range e.Rules {
		text := v.Rule
		if v.Binds {
			text += "*"
		}
		switch {
		case v.Err != nil:
			text += " ?"
		case v.Admits:
			text += " now"
		case v.Why != "":
			text += fmt.Sprintf(" closed %s by %s: %s", in(v.Closed), v.Who, v.Why)
		case !v.Closed.IsZero():
			text += " closed " + in(v.Closed)
		default:
			text += " " + in(v.At)
		}
		words = append(words, "|", text)
	}
	return strings.Join(words, " ")
}

// says asks about a task, sees that nothing has changed by that, and compares the sketch.
func (d *rig) says(i *Inspector, id, want string) Explanation {
	d.Helper()
	before := redistest.Content(d.T, d.raw)
	e, err := i.Explain(d.Context(), "default", id)
	if got := d.sketch(e); err != nil || got != want {
		d.Errorf("Explain(%s), %v:\n got %s\nwant %s", id, err, got, want)
	}
	if _, err := i.Position(d.Context(), "default", id); err != nil {
		d.Errorf("Position(%s): %v", id, err)
	}
	if !maps.Equal(before, redistest.Content(d.T, d.raw)) {
		d.Errorf("Explain(%s) changed what Redis holds", id)
	}
	return e
}

// wouldBe asks about a task that does not exist, and sees that nothing has changed by that.
func (d *rig) wouldBe(i *Inspector, typ, payload, want string) Explanation {
	d.Helper()
	before := redistest.Content(d.T, d.raw)
	e, err := i.ExplainNew(d.Context(), typ, []byte(payload))
	if got := d.sketch(e); err != nil || got != want {
		d.Errorf("ExplainNew(%s, %s), %v:\n got %s\nwant %s", typ, payload, err, got, want)
	}
	if !maps.Equal(before, redistest.Content(d.T, d.raw)) {
		d.Errorf("ExplainNew(%s) changed what Redis holds", typ)
	}
	return e
}

func (d *rig) book(typ, id, payload string) queue.Booked {
	d.Helper()
	b, err := d.Book(d.Context(), queue.NewTask(typ, []byte(payload), asynq.TaskID(id)))
	if err != nil {
		d.Fatalf("Book(%s, %s): %v", typ, id, err)
	}
	return b
}

// takes does to a pending task what asynq does when a worker takes it.
func (d *rig) takes(id string) {
	d.Helper()
	q := "asynq:{default}:"
	_, err := d.raw.TxPipelined(d.Context(), func(p redis.Pipeliner) error {
		p.LRem(d.Context(), q+"pending", 1, id)
		p.LPush(d.Context(), q+"active", id)
		p.HSet(d.Context(), q+"t:"+id, "state", "active")
		p.HDel(d.Context(), q+"t:"+id, "pending_since")
		return nil
	})
	if err != nil {
		d.Fatal(err)
	}
}

// wakes does to a booked task what a pool does when its instant comes.
func (d *rig) wakes(id string) {
	d.Helper()
	keys := queuescripts.NewQueueKeys("hw", "default")
	f, err := queuescripts.GetTask(d.Context(), d.timed, keys, id)
	if err != nil {
		d.Fatal(err)
	}
	if codes, err := queuescripts.Wake(d.Context(), d.timed, keys, []queuescripts.DueTask{{ID: id, At: f.At, Record: f.Record}}, d.start, false); err != nil || codes[0] != queuescripts.Woken {
		d.Fatal(codes, err)
	}
}

// redeem asks for a task to a phone as a worker does.
func (d *rig) redeem(i *Inspector, id, phone string, granted bool) throttle.Decision {
	d.Helper()
	r := throttle.Request{Key: phone, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: luascripts.JobID("default", id)}
	g, err := i.set.Lookup("phone+provider").Redeem(d.Context(), r)
	if err != nil || g.Granted != granted {
		d.Fatalf("Redeem(%s) = %v, %v, want granted %v", id, g, err, granted)
	}
	return g
}

// defers defers an active task, with the place of a task to a phone if one is given.
func (d *rig) defers(id string, at time.Time, phone string) {
	d.Helper()
	args := queuescripts.DeferArgs{ID: id, Token: 7, At: at, Wait: at.Sub(d.start), Record: queuescripts.WaitRecord{}.Text()}
	if phone != "" {
		args.Record = queuescripts.WaitRecord{Booking: queuescripts.NewStoredBooking("phone+provider", []int{1, 1}, []string{phone, "acme"})}.Text()
	}
	if err := queuescripts.Defer(d.Context(), d.timed, queuescripts.NewQueueKeys("hw", "default"), args).Err(); err != nil {
		d.Fatal(err)
	}
}

// fails lets an asynq server of its own run the tasks of a queue, and fail them, until one
// waits for its next attempt.
func (d *rig) fails(q, id, text string) {
	d.Helper()
	srv := asynq.NewServerFromRedisClient(d.raw, asynq.Config{Queues: map[string]int{q: 1}, Logger: silent{}})
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New(text) })); err != nil {
		d.Fatal(err)
	}
	defer srv.Shutdown()
	for {
		info, err := d.asynq.GetTaskInfo(q, id)
		if err != nil || d.Context().Err() != nil {
			d.Fatal(err, d.Context().Err())
		}
		if info.State == asynq.TaskStateRetry {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

// Of each kind of limit it is told until when a task waits, behind whom, and what becomes of
// one that is enqueued next: the very instant that its booking gets then.
func TestExplainEachKind(t *testing.T) {
	t.Parallel()
	kinds := []string{
		"sliding 1/1m", "fixed 1/1m", "calendar 1/minute UTC", "gcra 1/1m burst 1", "bucket 1/1m burst 1", "bucket 1/1m burst 1 step",
		"leaky 1/1m", "smooth 1/1m burst 0", "warmup 1/1m over 2m", "concurrent 1 lease 1m",
	}
	var policies []queue.Policy
	for n, text := range kinds {
		limit, err := throttle.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, queue.Policy{Type: text, Rules: []queue.Rule{{Name: fmt.Sprint("r", n), Limit: limit, Key: queue.MustJSONKey("$.to")}}})
	}
	d := newRig(t, policies...)
	i := d.inspector(throttle.Config{}, policies...)
	for n, p := range policies {
		rule, state := p.Rules[0].Name, "limit"
		if p.Rules[0].Limit.IsConcurrent() {
			state = "slot"
		}
		payload := `{"to":"+1"}`
		d.wouldBe(i, p.Type, payload, "pending 0s | "+rule+" now")
		ids := []string{fmt.Sprint(n, "a"), fmt.Sprint(n, "b"), fmt.Sprint(n, "c")}
		d.book(p.Type, ids[0], payload)
		d.says(i, ids[0], "pending | "+rule+" now")
		for k, id := range ids[1:] {
			next, err := i.ExplainNew(t.Context(), p.Type, []byte(payload))
			b := d.book(p.Type, id, payload)
			if err != nil || !next.At.Equal(b.At) || next.Jobs != k+1 || next.Rule != rule {
				t.Errorf("%s: ExplainNew = %s, %v, and then it is booked for %v", p.Type, d.sketch(next), err, b.Wait)
			}
			wait := b.Wait.Round(time.Millisecond)
			d.says(i, id, fmt.Sprintf("%s %s %v behind %d %v | %s* %v", state, rule, wait, k+1, ids[:k+1], rule, wait))
		}
	}
}

// Of several rules each is told, with the one that binds; with closings, who closed what and
// why; gates, leases, batches, and what asynq has of a task.
func TestExplainCases(t *testing.T) {
	t.Parallel()
	opening := time.Now().UTC().Truncate(time.Hour).Add(3 * time.Hour)
	hours, err := gate.Parse(fmt.Sprintf("%s-%s UTC", opening.Format("15:04"), opening.Add(30*time.Minute).Format("15:04")))
	if err != nil {
		t.Fatal(err)
	}
	always, err := gate.Parse("00:00-24:00 recipient")
	if err != nil {
		t.Fatal(err)
	}
	key := queue.MustJSONKey("$.to")
	phone := queue.Rule{Name: "phone", Limit: throttle.Sliding(1, time.Minute), Key: key}
	provider := queue.Rule{Name: "provider", Limit: throttle.Sliding(2, 10*time.Second), Constant: "acme", Cost: queue.MustJSONCost("$.n")}
	lines := queue.Rule{Name: "lines", Limit: throttle.Concurrent(1, time.Minute), Key: key}
	policies := []queue.Policy{
		{Type: "sms", Rules: []queue.Rule{phone, provider}},
		{Type: "call", Rules: []queue.Rule{lines}},
		{Type: "ad", Rules: []queue.Rule{{Name: "day", Gate: always, Zone: queue.MustJSONZone("$.zone")}, {Name: "hours", Gate: hours}, phone}},
	}
	d := newExactRig(t, policies...)
	i := d.inspector(throttle.Config{}, policies...)
	until := opening.Sub(d.start).Round(time.Millisecond).String()

	one := `{"to":"+1","n":1}`
	d.wouldBe(i, "sms", one, "pending 0s | phone now | provider now")
	d.book("sms", "a", one)
	d.book("sms", "b", one)
	d.says(i, "a", "pending | phone now | provider now")
	d.says(i, "b", "limit phone 1m0s behind 1 [] | phone* 1m0s | provider now") // a keeps its turn at the phone
	d.book("sms", "c", `{"to":"+2","n":2}`)
	d.book("sms", "d", `{"to":"+3","n":2}`)
	d.says(i, "c", "limit provider 10s behind 1 [a] | phone now | provider* 10s")
	d.says(i, "d", "limit provider 20s behind 2 [a c] | phone now | provider* 20s")
	d.wouldBe(i, "sms", `{"to":"+4","n":2}`, "limit provider 30s behind 3 [a c d] | phone now | provider* 30s")
	d.wouldBe(i, "sms", one, "limit phone 1m0s behind 1 [b] | phone* 1m0s | provider 30s") // the turn of a is not seen
	d.says(d.inspector(throttle.Config{}, policies[1]), "d", "limit 20s")                  // of rules that nobody here knows
	if e := d.says(i, "d", "limit provider 20s behind 2 [a c] | phone now | provider* 20s"); e.Rules[0].Key != "+3" || e.Rules[1].Key != "acme" ||
		e.Rules[1].Cost != 2 || e.Rules[1].Limit != "sliding 2/10s" || e.Asynq.State != "scheduled" || e.Asynq.MaxRetry != 25 || e.Type != "sms" {
		t.Errorf("Explain(d) = %+v", e)
	}
	if p, err := i.Position(t.Context(), "default", "d"); err != nil || !p.Known || p.Begun || p.Place != 3 || p.Start.Sub(p.Now) != 20*time.Second {
		t.Errorf("Position(d) = %+v, %v, want the third place", p, err)
	}

	// A worker takes it, and another one has to wait.
	d.takes("a")
	d.redeem(i, "a", "+1", true)
	d.says(i, "a", "active")
	if p, err := i.Position(t.Context(), "default", "a"); err != nil || !p.Begun || !p.Start.IsZero() {
		t.Errorf("Position(a) = %+v, %v, want it to have begun", p, err)
	}
	d.says(i, "b", "limit phone 1m0s | phone* 1m0s | provider 30s")
	if _, err := d.Enqueue(t.Context(), queue.NewTask("sms", []byte(`{"to":"+9","n":1}`), asynq.TaskID("v"))); err != nil {
		t.Fatal(err)
	}
	d.says(i, "v", "pending | phone now | provider 30s")
	d.takes("v")
	place := d.redeem(i, "v", "+9", false)
	d.defers("v", place.At, "+9")
	d.says(i, "v", "limit provider 30s behind 2 [c d] | phone now | provider* 30s")

	// What is closed, who closed it and why.
	_, err = i.CloseKey(t.Context(), "phone", "+1", time.Hour, Reason{"ann", "wrong number"})
	d.says(i, "b", "closed phone 1h0m0s | phone* closed 1h0m0s by ann: wrong number | provider 30s")
	d.wouldBe(i, "sms", one, "closed phone 1h1m0s behind 1 [b] | phone* closed 1h0m0s by ann: wrong number | provider 30s")
	_, err2 := i.CloseRule(t.Context(), "provider", 2*time.Hour, Reason{"bob", "outage"})
	d.says(i, "c", "closed provider 2h0m0s | phone now | provider* closed 2h0m0s by bob: outage")
	if err := errors.Join(err, err2, i.OpenRule(t.Context(), "provider", because), i.OpenKey(t.Context(), "phone", "+1", because)); err != nil {
		t.Fatal(err)
	}
	d.says(i, "b", "limit phone 1m0s | phone* 1m0s | provider 30s")
	if _, err := i.set.Limiter("phone").CloseKey(t.Context(), "+1", time.Hour); err != nil { // as a Retry-After does
		t.Fatal(err)
	}
	d.says(i, "b", "closed phone 1h0m0s | phone* closed 1h0m0s | provider 30s")

	// Slots, and who did not come at its instant.
	d.wouldBe(i, "call", one, "pending 0s | lines now")
	if g, err := i.set.Limiter("lines").TryAcquire(t.Context(), "+1", 1); err != nil || !g.Granted {
		t.Fatal(g, err)
	}
	d.book("call", "first", one)
	d.book("call", "second", one)
	d.says(i, "first", "slot lines 1m0s | lines* 1m0s")
	d.says(i, "second", "slot lines 2m0s behind 1 [first] | lines* 2m0s")
	d.wouldBe(i, "call", one, "slot lines 3m0s behind 2 [first second] | lines* 3m0s")

	// Gates.
	ad := `{"to":"+7","zone":"Europe/Berlin"}`
	d.wouldBe(i, "ad", ad, "gate hours "+until+" | day now | hours* closed "+until+" | phone now")
	d.book("ad", "early", ad)
	d.says(i, "early", "gate hours "+until+" | day now | hours* closed "+until+" | phone now")
	if _, err := i.ExplainNew(t.Context(), "ad", []byte(`{"to":"+7","zone":"Mars"}`)); !errors.Is(err, queue.ErrNoZone) {
		t.Errorf("ExplainNew of a zone that there is not: %v", err)
	}

	// Batches.
	id := batchscripts.TaskID("news", "1")
	if _, err := batchscripts.Start(t.Context(), d.timed, i.keys("default"), batchscripts.StartArgs{Token: 1, Batch: batchscripts.Batch{ID: "news", Name: "n", Type: "sms", Source: "s", Window: 10, Weight: 100}}); err != nil {
		t.Fatal(err)
	}
	d.book("sms", id, `{"to":"+8","n":1}`)
	if e := d.says(i, id, "limit provider 30s behind 3 [c d v] | phone now | provider* 30s"); e.Batch != "news" {
		t.Errorf("of batch %q, want news", e.Batch)
	}
	d.wakes(id)
	d.says(i, id, "pending | phone now | provider 30s")
	d.takes(id)
	if _, err := i.set.Lookup("phone+provider").Cancel(t.Context(), throttle.Request{Key: "+8", Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: luascripts.JobID("default", id)}); err != nil {
		t.Fatal(err)
	}
	d.defers(id, d.start.Add(time.Minute), "")
	d.says(i, id, "no place 1m0s | phone now | provider 30s")
	if _, err := batchscripts.Set(t.Context(), d.timed, i.keys("default"), batchscripts.SetArgs{ID: "news", What: batchscripts.Pause}); err != nil {
		t.Fatal(err)
	}
	d.says(i, id, "paused 1m0s | phone now | provider 30s")

	// What asynq keeps.
	plain := asynq.NewClientFromRedisClient(d.raw)
	later := d.start.Add(time.Hour)
	for id, opt := range map[string]asynq.Option{"own": asynq.ProcessAt(later), "grouped": asynq.Group("g"), "other": asynq.MaxRetry(3)} {
		if _, err := plain.Enqueue(asynq.NewTask("call", []byte(one)), asynq.TaskID(id), opt); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := plain.Enqueue(asynq.NewTask("call", []byte(`{}`)), asynq.TaskID("broken")); err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Enqueue(asynq.NewTask("unlimited", nil), asynq.TaskID("free")); err != nil {
		t.Fatal(err)
	}
	d.says(i, "own", "scheduled 1h0m0s | lines 3m0s")
	d.says(i, "grouped", "group | lines 3m0s")
	d.says(i, "other", "pending | lines 3m0s")
	d.says(i, "broken", "pending | lines ?")
	d.says(i, "free", "pending")
	d.says(i, "nobody", "missing")
	for _, id := range []string{"own", "broken"} {
		if err := d.asynq.ArchiveTask("default", id); err != nil {
			t.Fatal(err)
		}
	}
	if e := d.says(i, "own", "ended"); e.Never != nil {
		t.Errorf("of a task with all that its rules need: it can never run: %v", e.Never)
	}
	if e := d.says(i, "broken", "ended"); !errors.Is(e.Never, queue.ErrNoKey) || !strings.Contains(e.Says(), "$.to is missing") {
		t.Errorf("of a task without a key: %v; %s", e.Never, e.Says())
	}
	if _, err := plain.Enqueue(asynq.NewTask("call", []byte(one)), asynq.TaskID("failed"), asynq.MaxRetry(3), asynq.Queue("failing")); err != nil {
		t.Fatal(err)
	}
	d.fails("failing", "failed", "no answer")
	e, err := i.Explain(t.Context(), "failing", "failed")
	if err != nil || e.State != StateRetry || e.Asynq.Retried != 1 || e.Asynq.MaxRetry != 3 || e.Asynq.LastError != "no answer" || len(e.Rules) != 1 {
		t.Errorf("Explain of a failed task is %+v, %v", e, err)
	}

	// A task that comes too late for its place stands before the others.
	d.at(70 * time.Second)
	d.says(i, "second", "slot lines 0s | lines* now")
	if e := d.says(i, "first", "slot lines 0s | lines* now"); !e.Parked {
		t.Error("first is not told to be too late")
	}
}

// Rules are asked one after the other, while the clock runs: one that admits the task holds
// nothing up.
func TestExplainNewWhileTheClockRuns(t *testing.T) {
	t.Parallel()
	policy := perMinute()
	policy.Rules = append(policy.Rules, queue.Rule{Name: "provider", Limit: throttle.Sliding(1, time.Second), Constant: "acme"})
	i, err := New(redistest.Client(t), Config{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := i.ExplainNew(t.Context(), "sms", []byte(`{"to":"+1"}`))
	if err != nil || e.State != StatePending || e.Rule != "" || !e.At.Equal(e.Now) || e.Now.IsZero() || !e.Rules[0].Admits || !e.Rules[1].Admits {
		t.Errorf("ExplainNew = %+v, %v, want it to run at once", e, err)
	}
}

// A question about a type without a policy, a task that costs too much, and lines of which
// only their processes know are answered with errors.
func TestExplainNewFaults(t *testing.T) {
	t.Parallel()
	policy := perMinute()
	policy.Rules[0].Cost = queue.MustJSONCost("$.n")
	d := newRig(t, policy)
	i := d.inspector(throttle.Config{}, policy)
	for payload, want := range map[string]error{`{"to":"+1","n":2}`: throttle.ErrExceedsLimit, `{"n":1}`: queue.ErrNoKey, `{"to":"+1","n":-1}`: queue.ErrBadCost} {
		if _, err := i.ExplainNew(t.Context(), "sms", []byte(payload)); !errors.Is(err, want) || strings.Contains(err.Error(), "+1") {
			t.Errorf("ExplainNew(%s): %v, want %v", payload, err, want)
		}
	}
	if _, err := i.ExplainNew(t.Context(), "mail", nil); !errors.Is(err, queue.ErrInvalidPolicy) {
		t.Errorf("ExplainNew of a type without policy: %v", err)
	}
	if _, err := d.inspector(throttle.Config{PerClient: true}, policy).ExplainNew(t.Context(), "sms", nil); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("ExplainNew with PerClient: %v", err)
	}
}
