package queue

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// optionCase gives a task one option and finds it again in Redis.
type optionCase struct {
	name  string
	opt   func(way string) asynq.Option // way makes ids and names differ
	check func(t *testing.T, rdb redis.UniversalClient, info *asynq.TaskInfo, way string)
}

var (
	inOneHour = time.Now().Add(time.Hour).Truncate(time.Second)

	optionCases = []optionCase{
		{
			"MaxRetry", func(string) asynq.Option { return asynq.MaxRetry(7) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, _ string) { want(t, info.MaxRetry, 7) },
		},
		{
			"Queue", func(way string) asynq.Option { return asynq.Queue("q-" + way) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, way string) {
				want(t, info.Queue, "q-"+way)
			},
		},
		{
			"Timeout", func(string) asynq.Option { return asynq.Timeout(90 * time.Second) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, _ string) {
				want(t, info.Timeout, 90*time.Second)
			},
		},
		{
			"Deadline", func(string) asynq.Option { return asynq.Deadline(inOneHour) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, _ string) {
				want(t, info.Deadline.Unix(), inOneHour.Unix())
				want(t, info.Timeout, 0) // not the default of 30 min
			},
		},
		{
			"Unique", func(string) asynq.Option { return asynq.Unique(time.Minute) },
			func(t *testing.T, rdb redis.UniversalClient, info *asynq.TaskInfo, way string) {
				wantLock(t, rdb, info, way)
			},
		},
		{
			"ProcessAt", func(string) asynq.Option { return asynq.ProcessAt(inOneHour) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, _ string) {
				want(t, info.State, asynq.TaskStateScheduled)
				want(t, info.NextProcessAt.Unix(), inOneHour.Unix())
			},
		},
		{
			"ProcessIn", func(string) asynq.Option { return asynq.ProcessIn(time.Hour) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, _ string) {
				want(t, info.State, asynq.TaskStateScheduled)
				if wait := time.Until(info.NextProcessAt); wait < 58*time.Minute || wait > time.Hour {
					t.Errorf("the task waits %v, want 1h", wait)
				}
			},
		},
		{
			"TaskID", func(way string) asynq.Option { return asynq.TaskID("id-" + way) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, way string) {
				want(t, info.ID, "id-"+way)
			},
		},
		{
			"Retention", func(string) asynq.Option { return asynq.Retention(2 * time.Hour) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, _ string) {
				want(t, info.Retention, 2*time.Hour)
			},
		},
		{
			"Group", func(way string) asynq.Option { return asynq.Group("g-" + way) },
			func(t *testing.T, _ redis.UniversalClient, info *asynq.TaskInfo, way string) {
				want(t, info.Group, "g-"+way)
				want(t, info.State, asynq.TaskStateAggregating)
			},
		},
	}

	// ways are the places where an option can stand.
	ways = map[string]func(ctx context.Context, c *Client, payload []byte, opt asynq.Option) (*asynq.TaskInfo, error){
		"task": func(ctx context.Context, c *Client, payload []byte, opt asynq.Option) (*asynq.TaskInfo, error) {
			return c.Enqueue(ctx, NewTask("sms:send", payload, opt))
		},
		"call": func(ctx context.Context, c *Client, payload []byte, opt asynq.Option) (*asynq.TaskInfo, error) {
			return c.Enqueue(ctx, NewTask("sms:send", payload), opt)
		},
		"many-task": func(ctx context.Context, c *Client, payload []byte, opt asynq.Option) (*asynq.TaskInfo, error) {
			r := c.EnqueueMany(ctx, []*Task{NewTask("sms:send", payload, opt)})[0]
			return r.Info, r.Err
		},
		"many-call": func(ctx context.Context, c *Client, payload []byte, opt asynq.Option) (*asynq.TaskInfo, error) {
			r := c.EnqueueMany(ctx, []*Task{NewTask("sms:send", payload)}, opt)[0]
			return r.Info, r.Err
		},
		"booked": func(ctx context.Context, c *Client, payload []byte, opt asynq.Option) (*asynq.TaskInfo, error) {
			switch opt.Type() {
			case asynq.ProcessAtOpt, asynq.ProcessInOpt, asynq.GroupOpt: // not for a booking
				return c.Enqueue(ctx, NewTask("sms:send", payload), opt)
			}
			b, err := c.Book(ctx, NewTask("sms:send", payload), opt)
			return b.Info, err
		},
	}
)

func TestEveryOptionArrives(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	client := newClient(t, rdb, smsPolicy())
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for _, tt := range optionCases {
		for way, enqueue := range ways {
			t.Run(tt.name+"/"+way, func(t *testing.T) {
				payload := fmt.Appendf(nil, `{"to":"%s %s"}`, tt.name, way)
				info, err := enqueue(t.Context(), client, payload, tt.opt(way))
				if err != nil {
					t.Fatal(err)
				}
				// what Redis holds, not what the enqueueing call believes
				stored, err := inspector.GetTaskInfo(info.Queue, info.ID)
				if err != nil {
					t.Fatalf("GetTaskInfo(%s, %s): %v", info.Queue, info.ID, err)
				}
				want(t, string(stored.Payload), string(payload))
				tt.check(t, rdb, stored, way)
			})
		}
	}
}

// TestEveryOptionIsKnown holds the table above against the functions of asynq that make
// options: a new one has to be looked at, for asynq alters some of them without a word.
func TestEveryOptionIsKnown(t *testing.T) {
	t.Parallel()
	var known []string
	for _, tt := range optionCases {
		known = append(known, tt.name)
		if err := checkOptions([]asynq.Option{tt.opt("x")}); err != nil {
			t.Errorf("checkOptions(%s) = %v", tt.name, err)
		}
	}
	slices.Sort(known)
	if diff := cmp.Diff(optionsOfAsynq(t), known); diff != "" {
		t.Errorf("options of asynq (-) and those that are known here (+):\n%s", diff)
	}
}

// optionsOfAsynq are the names of asynq's functions that return an Option.
func optionsOfAsynq(t *testing.T) []string {
	t.Helper()
	pkg, err := build.Import(asynqPackage, ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(pkg.Dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of asynq in %s, %v", len(files), pkg.Dir, err)
	}
	var names []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() || fn.Type.Results.NumFields() != 1 {
				continue
			}
			if result, ok := fn.Type.Results.List[0].Type.(*ast.Ident); ok && result.Name == "Option" {
				names = append(names, fn.Name.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// An option that only a newer asynq has was refused once as a foreign one. Options are told
// by the package of their type, so each of asynq's passes without being listed.
func TestUnknownOptionsOfAsynqPass(t *testing.T) {
	t.Parallel()
	for _, tt := range optionCases {
		if opt := tt.opt("x"); !madeByAsynq(opt) {
			t.Errorf("%s is not taken for one of asynq's", tt.name)
		}
	}
	for _, opt := range []asynq.Option{nil, foreignOption{asynq.TaskID("x")}, &foreignOption{}, MaxWait(1)} {
		if madeByAsynq(opt) {
			t.Errorf("%T is taken for one of asynq's", opt)
		}
	}
}

// newerOption stands for an option of a newer asynq.
type newerOption struct{ asynq.Option }

func (newerOption) String() string         { return "Newer()" }
func (newerOption) Type() asynq.OptionType { return asynq.GroupOpt + 1 }
func (newerOption) Value() any             { return "x" }

//nolint:paralleltest // for a moment this package counts as asynq's
func TestNewerOptionsOfAsynqAreNotRefused(t *testing.T) {
	defer func(was string) { asynqPackage = was }(asynqPackage)
	asynqPackage = reflect.TypeFor[newerOption]().PkgPath()
	newer := []asynq.Option{newerOption{}}
	if err := checkOptions(newer); err != nil {
		t.Errorf("checkOptions = %v, want nil", err)
	}
	if _, err := checkBooking(newer); err != nil {
		t.Errorf("checkBooking = %v, want nil", err)
	}
}

// wantLock looks for the lock of a unique task: one key with 1 minute to live.
func wantLock(t *testing.T, rdb redis.UniversalClient, info *asynq.TaskInfo, way string) {
	t.Helper()
	locks := redistest.Keys(t, rdb, "asynq:{default}:unique:*")
	for _, lock := range locks {
		if owner := rdb.Get(t.Context(), lock).Val(); owner != info.ID {
			continue
		}
		if ttl := rdb.TTL(t.Context(), lock).Val(); ttl < 50*time.Second || ttl > time.Minute {
			t.Errorf("the lock of %s lives for %v, want 1m", way, ttl)
		}
		return
	}
	t.Errorf("no lock for %s in %v", way, locks)
}

// foreignOption looks like asynq's Timeout and is ignored by asynq.
type foreignOption struct{ asynq.Option }

func TestCheckOptions(t *testing.T) {
	t.Parallel()
	const secret = "13612345678"
	tests := []struct {
		name string
		opts []asynq.Option
		want []OptionError
	}{
		{"none", nil, nil},
		{"time-out", []asynq.Option{asynq.Timeout(0), asynq.Timeout(time.Second), asynq.Timeout(90 * time.Minute)}, nil},
		{"retention", []asynq.Option{asynq.Retention(0), asynq.Retention(time.Second)}, nil},
		{"unique", []asynq.Option{asynq.Unique(time.Second)}, nil},
		{"fractions elsewhere", []asynq.Option{asynq.ProcessIn(time.Millisecond), asynq.Deadline(time.Now())}, nil},
		{"short time-out", []asynq.Option{asynq.Timeout(500 * time.Millisecond)}, []OptionError{{"Timeout(500ms)", "want whole seconds"}}},
		{"broken time-out", []asynq.Option{asynq.Timeout(1500 * time.Millisecond)}, []OptionError{{"Timeout(1.5s)", "want whole seconds"}}},
		{"negative time-out", []asynq.Option{asynq.Timeout(-time.Second)}, []OptionError{{"Timeout(-1s)", "want at least 0s"}}},
		{"short retention", []asynq.Option{asynq.Retention(1)}, []OptionError{{"Retention(1ns)", "want whole seconds"}}},
		{"negative retention", []asynq.Option{asynq.Retention(-1)}, []OptionError{{"Retention(-1ns)", "want at least 0s"}}},
		{"no lock", []asynq.Option{asynq.Unique(0)}, []OptionError{{"Unique(0s)", "want at least 1s"}}},
		{"broken lock", []asynq.Option{asynq.Unique(1500 * time.Millisecond)}, []OptionError{{"Unique(1.5s)", "want whole seconds"}}},
		{"nil", []asynq.Option{nil}, []OptionError{{"<nil>", "not made by asynq, which would ignore it"}}},
		{
			"foreign, and its text is not printed",
			[]asynq.Option{foreignOption{asynq.TaskID(secret)}},
			[]OptionError{{"queue.foreignOption", "not made by asynq, which would ignore it"}},
		},
		{
			"overridden, and all at once",
			[]asynq.Option{asynq.Timeout(1), asynq.Retention(1), asynq.Timeout(time.Second)},
			[]OptionError{{"Timeout(1ns)", "want whole seconds"}, {"Retention(1ns)", "want whole seconds"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := checkOptions(tt.opts)
			var got []OptionError
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				for _, fault := range joined.Unwrap() {
					got = append(got, *errorAs(t, fault))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("checkOptions (-want +got):\n%s", diff)
			}
			if (err != nil) != errors.Is(err, ErrInvalidOption) {
				t.Errorf("checkOptions = %v, want ErrInvalidOption", err)
			}
		})
	}
}

func want[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// errorAs is the OptionError that err is.
func errorAs(t *testing.T, err error) *OptionError {
	t.Helper()
	fault, ok := errors.AsType[*OptionError](err)
	if !ok {
		t.Fatalf("%v is no OptionError", err)
	}
	return fault
}
