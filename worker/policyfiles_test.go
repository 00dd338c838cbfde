package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/throttle/gate"
	"github.com/headwayq/headway/worker"
)

const policyText = `rules:
  sms: {limit: %s, key: $.to}
policies:
  sms: {rules: [sms]}
`

// policyFile is a policy file of one rule; write edits it.
type policyFile struct {
	*testing.T
	path string
}

func newPolicyFile(t *testing.T, limit string) policyFile {
	f := policyFile{t, filepath.Join(t.TempDir(), "policies.yaml")}
	f.write(fmt.Sprintf(policyText, limit))
	return f
}

func (f policyFile) write(text string) {
	f.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

func (f policyFile) limit(limit string) {
	f.Helper()
	f.write(fmt.Sprintf(policyText, limit))
}

func (f policyFile) config() worker.Config { return worker.Config{PolicyFiles: []string{f.path}} }

// wantLimit checks by which limit a process decides that has nothing to do with the pool.
func (r *rig) wantLimit(want string) {
	r.Helper()
	l := r.limiter("sms", throttle.Sliding(1, time.Hour))
	if got := l.LimitStatus(r.Context()); got.Err != nil || got.Limit.String() != want {
		r.Errorf("in force is %v, %v, want %v", got.Limit, got.Err, want)
	}
}

// warned are the warnings and errors with a text in them.
func (r *rig) warned(text string) (n int) {
	for _, e := range r.logs.FilterLevelExact(zap.WarnLevel).All() {
		if strings.Contains(e.Message, text) {
			n++
		}
	}
	return n
}

var nothing = asynq.NewServeMux()

// A file that is edited changes the limit of all processes, and what waits is planned anew.
func TestPolicyFileIsReloadedWhileThePoolRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := newPolicyFile(t, "1/1h")
	done := make(chan struct{}, 10)
	r.start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		done <- struct{}{}
		return nil
	}), f.config())
	for i := range 4 {
		r.enqueue("sms", fmt.Sprint(i), to("+1"))
	}
	r.eventually("three wait an hour", func() bool { return len(done) == 1 && r.queueInfo().Retry == 3 })
	f.limit("4/1h") // the pool looks every second
	r.eventually("all have run", func() bool { return len(done) == 4 })
	r.wantLimit("sliding 4/1h")
}

// A fault changes nothing, and is logged with the file and the line; so is a change that
// needs a restart, of which no half is taken over.
func TestPolicyFileWithAFaultChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := newPolicyFile(t, "1/1h")
	p, _ := r.start(nothing, f.config())
	for _, tt := range []struct {
		text, line string
		want       error
	}{
		{fmt.Sprintf(policyText, "4/1x"), "line 2, column 16", queue.ErrInvalidPolicy},
		{"", "empty", queue.ErrInvalidPolicy},
		{strings.Replace(fmt.Sprintf(policyText, "4/1h"), "$.to", "$.phone", 1), `line 2, column 3: rule "sms" has another key`, queue.ErrNeedsRestart},
		{fmt.Sprintf(policyText, "concurrent 4 lease 30s"), "line 2, column 3", queue.ErrNeedsRestart},
		{fmt.Sprintf(policyText, "4/1h") + "  more: {rules: [sms]}\n", `line 5, column 3: policy "more" is new`, queue.ErrNeedsRestart},
	} {
		f.write(tt.text)
		if err := p.ReloadPolicies(t.Context()); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.line) || !strings.Contains(err.Error(), f.path) {
			t.Errorf("ReloadPolicies = %v, want %v with the file and %q", err, tt.want, tt.line)
		}
		r.wantLimit("sliding 1/1h")
		if r.logs.FilterLevelExact(zap.ErrorLevel).FilterMessageSnippet("policy files").Len() == 0 {
			t.Errorf("nothing is logged about %v", tt.want)
		}
		r.logs.TakeAll()
	}
	f.limit("4/1h")
	if err := p.ReloadPolicies(t.Context()); err != nil {
		t.Error(err)
	}
	r.wantLimit("sliding 4/1h")
}

// A file that was edited while no pool ran counts at the next start, though another state
// of it is stored. An older copy does not bring an old limit back, and its owner is told.
func TestPolicyFileEditedWhileNoPoolRan(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := newPolicyFile(t, "1/1h")
	p, stop := r.start(nothing, f.config())
	f.limit("2/1h")
	if err := p.ReloadPolicies(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantLimit("sliding 2/1h")
	stop()

	f.limit("3/1h")
	_, stop = r.start(nothing, f.config())
	r.wantLimit("sliding 3/1h")
	if n := r.logs.FilterLevelExact(zap.WarnLevel).Len(); n != 0 {
		t.Errorf("%d warnings, want none: %v", n, r.logs.All())
	}
	stop()

	older := newPolicyFile(t, "2/1h")
	r.start(nothing, older.config())
	r.wantLimit("sliding 3/1h")
	if r.warned("older than the one whose limit is in force") != 1 {
		t.Errorf("no word about the older file: %v", r.logs.All())
	}
}

// What an operator stored goes before the file, at the start and when the file is edited,
// and is logged. When it is taken away the file counts, as it is then.
func TestPolicyFileLeavesAnOperatorsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := newPolicyFile(t, "1/1h")
	r.set(throttle.Sliding(9, time.Hour))
	p, _ := r.start(nothing, f.config())
	const said = "stored with SetLimit goes before the one in the policy file"
	if r.warned(said) != 1 {
		t.Errorf("no word about the stored limit: %v", r.logs.All())
	}
	f.limit("2/1h")
	if err := p.ReloadPolicies(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantLimit("sliding 9/1h")
	if err := r.limiter("sms", throttle.Sliding(1, time.Hour)).UnsetLimit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually("the file counts", func() bool {
		return r.limiter("sms", throttle.Sliding(1, time.Hour)).LimitStatus(t.Context()).Limit == throttle.Sliding(2, time.Hour)
	})
}

// While Redis is away an edit is not lost.
func TestPolicyFileEditedWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := newPolicyFile(t, "1/1h")
	p, _ := r.start(nothing, f.config())
	r.srv.Stop()
	f.limit("2/1h")
	if err := p.ReloadPolicies(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("ReloadPolicies = %v, want %v", err, throttle.ErrUnavailable)
	}
	r.srv.StartAgain()
	r.eventually("the edit counts", func() bool {
		return r.limiter("sms", throttle.Sliding(1, time.Hour)).LimitStatus(t.Context()).Limit == throttle.Sliding(2, time.Hour)
	})
}

// Policies of code and of files are one set, and all that is wrong with either is said.
func TestPolicyFilesAreHeldAgainstPoliciesInCode(t *testing.T) {
	t.Parallel()
	f := newPolicyFile(t, "1/1h")
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { rdb.Close() })
	cfg := f.config()
	cfg.Policies = []queue.Policy{smsLimit(throttle.Sliding(1, time.Hour))}
	if _, err := worker.New(rdb, nothing, cfg); !errors.Is(err, queue.ErrInvalidPolicy) || !strings.Contains(err.Error(), "same type") {
		t.Errorf("New = %v, want that the type has two policies", err)
	}
	f.limit("1/1x")
	cfg.Policies[0].Rules = nil
	if _, err := worker.New(rdb, nothing, cfg); err == nil || !strings.Contains(err.Error(), "line 2, column 16") || !strings.Contains(err.Error(), "no Rules") {
		t.Errorf("New = %v, want the faults of the file and of the code", err)
	}
	if _, err := worker.New(rdb, nothing, worker.Config{PolicyFiles: []string{"none.yaml"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("New = %v, want %v", err, os.ErrNotExist)
	}
}

// Whatever the file reader refuses of a policy, worker.New refuses in Go code, and what the
// one takes the other takes.
func TestFilesAndCodeAreRefusedAlike(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { rdb.Close() })
	to := queue.MustJSONKey("$.to")
	limit, slots := throttle.Sliding(1, time.Minute), throttle.Concurrent(1, time.Minute)
	a, b := queue.Rule{Name: "a", Limit: limit, Key: to}, queue.Rule{Name: "b", Limit: limit, Key: to}
	held := queue.Rule{Name: "s", Limit: slots, Key: to}
	day, err := gate.Parse("08:00-21:00 UTC")
	night, err2 := gate.Parse("22:00-23:00 UTC")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	gated, never := queue.Rule{Name: "g", Gate: day}, queue.Rule{Name: "h", Gate: night}
	const rules = `
  a: {limit: 1/1m, key: $.to}
  b: {limit: 1/1m, key: $.to}
  s: {limit: concurrent 1 lease 1m, key: $.to}
  g: {gate: "08:00-21:00 UTC"}
  h: {gate: "22:00-23:00 UTC"}
`
	for _, tt := range []struct {
		name string
		file string // policies
		code []queue.Policy
		good bool
	}{
		{"a limit", "t: {rules: [a]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{a}}}, true},
		{"a gate and a limit", "t: {rules: [g, a]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{gated, a}}}, true},
		{"a gate alone", "t: {rules: [g]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{gated}}}, false},
		{"gates that are never open together", "t: {rules: [g, h, a]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{gated, never, a}}}, false},
		{"a rule twice", "t: {rules: [a, a]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{a, a}}}, false},
		{"slots before a rate", "t: {rules: [s, a]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{held, a}}}, false},
		{"slots behind a rate", "t: {rules: [a, s]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{a, held}}}, true},
		{"two orders", "t: {rules: [a, b]}\n  u: {rules: [b, a]}", []queue.Policy{{Type: "t", Rules: []queue.Rule{a, b}}, {Type: "u", Rules: []queue.Rule{b, a}}}, false},
		{"no rules", "t: {rules: []}", []queue.Policy{{Type: "t"}}, false},
		{"a pattern", "'t:*': {rules: [a]}", []queue.Policy{{Type: "t:*", Rules: []queue.Rule{a}}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			listed := append(strings.FieldsFunc(tt.file, func(r rune) bool { return strings.ContainsRune(" ,[]}", r) }), "a")
			if strings.Contains(tt.file, "[g]") {
				listed = []string{"g"}
			}
			var used []string // a rule that nobody lists is a fault of a file alone
			for line := range strings.Lines(rules) {
				if name, _, _ := strings.Cut(strings.TrimSpace(line), ":"); slices.Contains(listed, name) {
					used = append(used, line)
				}
			}
			path := filepath.Join(t.TempDir(), "p.yaml")
			if err := os.WriteFile(path, []byte("rules:\n"+strings.Join(used, "")+"policies:\n  "+tt.file+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, file := worker.New(rdb, nothing, worker.Config{PolicyFiles: []string{path}, Logger: zap.NewNop()})
			_, code := worker.New(rdb, nothing, worker.Config{Policies: tt.code, Logger: zap.NewNop()})
			if (file == nil) != tt.good || (code == nil) != tt.good {
				t.Errorf("the file: %v; in code: %v; want it good: %v", file, code, tt.good)
			}
		})
	}
}
