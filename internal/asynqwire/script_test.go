package asynqwire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scriptCall is a call as asynq makes it.
type scriptCall struct {
	name string
	sha  string
	keys []string
	args []any
	op   Op
	want Call
}

// scriptCalls returns one call of each pinned script.
func scriptCalls(queue, id string) []scriptCall {
	p := "asynq:{" + queue + "}:"
	task, active, lease := p+"t:"+id, p+"active", p+"lease"
	day, failed, unique := p+"processed:2026-01-02", p+"failed:2026-01-02", p+"unique:sms:0f"
	msg := []byte("message of " + id)
	call := func(c Call) Call {
		c.Queue, c.ActiveKey, c.LeaseKey = queue, active, lease
		return c
	}
	finish := Call{TaskID: id, TaskKey: task}
	complete := Call{TaskID: id, TaskKey: task, Message: msg}
	fail := Call{TaskID: id, TaskKey: task, Message: msg, RetryKey: p + "retry"}
	retry := fail
	retry.Failure = true
	return []scriptCall{
		{"dequeue", "a8153319360adc71cdc370107f8ab9786f204765",
			[]string{p + "pending", p + "paused", active, lease}, []any{int64(30), p + "t:"},
			OpDequeue, call(Call{LeaseEnds: 30})},
		{"done", "1241eaa1c73409baaf1fea0c08d203a4911bda15",
			[]string{active, lease, task, day, p + "processed"}, []any{id, int64(1), int64(2)},
			OpDone, call(finish)},
		{"done unique", "a2631c71357a54b4c3e7450b1757e7f3f49d6c81",
			[]string{active, lease, task, day, p + "processed", unique}, []any{id, int64(1), int64(2)},
			OpDone, call(finish)},
		{"complete", "117dca952700588e559c7ace20b925096d587974",
			[]string{active, lease, p + "completed", task, day, p + "processed"},
			[]any{id, int64(1), int64(2), msg, int64(3)},
			OpComplete, call(complete)},
		{"complete unique", "ce6833ccce362a8c0ee53beee413341daf52e39c",
			[]string{active, lease, p + "completed", task, day, p + "processed", unique},
			[]any{id, int64(1), int64(2), msg, int64(3)},
			OpComplete, call(complete)},
		{"requeue", "f34cbfd11d1fc8019af55b50c447fc68eb8b29e5",
			[]string{active, lease, p + "pending", task}, []any{id},
			OpRequeue, call(finish)},
		{"retry", "65fa409c88198a681c53e0892d8276eca0145694",
			[]string{task, active, lease, p + "retry", day, failed, p + "processed", p + "failed"},
			[]any{id, msg, int64(1), int64(2), true, int64(3)},
			OpRetry, call(retry)},
		{"archive", "9c3b1eb9947ce2ee5304ac013a0a365ec364fd2d",
			[]string{task, active, lease, p + "archived", day, failed, p + "processed", p + "failed", p + "t:"},
			[]any{id, msg, int64(1), int64(2), 10000, int64(3), int64(4)},
			OpArchive, call(fail)},
	}
}

func TestRecognise(t *testing.T) {
	t.Parallel()
	if got, want := len(scriptCalls("q", "id")), len(scriptShapes); got != want {
		t.Fatalf("%d calls in this test, %d scripts are pinned", got, want)
	}
	for _, queue := range []string{"default", "a}:b", "{", "asynq:{x}:active", "größe"} {
		for _, id := range []string{"7", "t:7", "0b3c4f0e-1d2f-4a55-9f1e-2f5b3a1d9c10"} {
			for _, c := range scriptCalls(queue, id) {
				op, call := Recognise(c.sha, c.keys, c.args)
				if op != c.op {
					t.Errorf("Recognise(%s, queue %q, id %q) = %v, want %v", c.name, queue, id, op, c.op)
				}
				if diff := cmp.Diff(c.want, call, cmp.AllowUnexported(Call{})); diff != "" {
					t.Errorf("Recognise(%s, queue %q, id %q): call differs (-want +got):\n%s", c.name, queue, id, diff)
				}
			}
		}
	}
}

// A known script with a shape that is not its own is not acted on.
func TestRecogniseShape(t *testing.T) {
	t.Parallel()
	changes := []struct {
		name   string
		change func(c *scriptCall)
	}{
		{"a key more", func(c *scriptCall) { c.keys = append(c.keys, "asynq:{q}:new") }},
		{"an argument more", func(c *scriptCall) { c.args = append(c.args, "new") }},
		{"no arguments", func(c *scriptCall) { c.args = nil }},
		{"last key of another queue", func(c *scriptCall) {
			// the unique key is the user's, so it is looked at last and only for emptiness
			i := len(c.keys) - 1
			if strings.Contains(c.keys[i], ":unique:") {
				i--
			}
			if strings.HasSuffix(c.keys[i], ":lease") {
				i = 0
			}
			c.keys[i] = strings.Replace(c.keys[i], "{q}", "{other}", 1)
		}},
		{"another id", func(c *scriptCall) { c.args[0], c.args[len(c.args)-1] = "other", "other" }},
		{"empty unique key", func(c *scriptCall) {
			if i := len(c.keys) - 1; strings.Contains(c.keys[i], ":unique:") {
				c.keys[i] = ""
			} else {
				c.keys = append(c.keys, "")
			}
		}},
		{"message as a number", func(c *scriptCall) {
			for i := range c.args {
				c.args[i] = 1
			}
		}},
		{"empty id", func(c *scriptCall) { c.args[0], c.args[len(c.args)-1] = "", "" }},
	}
	for _, ch := range changes {
		for _, c := range scriptCalls("q", "id") {
			ch.change(&c)
			op, call := Recognise(c.sha, c.keys, c.args)
			if want := (Call{Queue: "q"}); op != OpUnknown || !cmp.Equal(call, want, cmp.AllowUnexported(Call{})) {
				t.Errorf("%s, %s: Recognise = %v, %+v, want %v and the queue", c.name, ch.name, op, call, OpUnknown)
			}
		}
	}
}

// Another version of asynq: same work, other text.
func TestRecogniseUnknown(t *testing.T) {
	t.Parallel()
	sha := SHA("another version")
	for _, c := range scriptCalls("q", "id") {
		if op, call := Recognise(sha, c.keys, c.args); op != OpUnknown || call.Queue != "q" {
			t.Errorf("%s with another SHA: Recognise = %v, queue %q, want %v, queue q", c.name, op, call.Queue, OpUnknown)
		}
		slices.Reverse(c.keys)
		if op, _ := Recognise(sha, append(c.keys, "asynq:{q}:new"), nil); op != OpUnknown {
			t.Errorf("%s with another SHA and other keys: Recognise = %v, want %v", c.name, op, OpUnknown)
		}
	}
}

func TestRecogniseOther(t *testing.T) {
	t.Parallel()
	for _, keys := range [][]string{
		nil,
		{""},
		{"asynq:{q}:lease"}, // the recoverer's list
		{"asynq:{q}:t:id", "asynq:{q}:pending"},
		{"asynq:{q}:pending", "asynq:{q}:active", "asynq:{q}:scheduled", "asynq:{q}:retry", "asynq:{q}:archived", "asynq:{q}:lease"},
		{"asynq:{q}:active", "asynq:{other}:lease"},
		{"app:active", "app:lease"},
		{"asynq:{}:active", "asynq:{}:lease"},
		{"asynq:{q}:t:active", "asynq:{q}:t:lease"},
	} {
		if op, call := Recognise(SHA("a script"), keys, []any{"id"}); op != OpOther || call.Queue != "" {
			t.Errorf("Recognise(%q) = %v, %+v, want %v", keys, op, call, OpOther)
		}
	}
}

func TestRecogniseAllocates(t *testing.T) {
	for _, c := range scriptCalls("default", "0b3c4f0e-1d2f-4a55-9f1e-2f5b3a1d9c10") {
		want := 0.0
		if c.op == OpArchive {
			want = 1 // its RetryKey
		}
		if got := testing.AllocsPerRun(100, func() { Recognise(c.sha, c.keys, c.args) }); got != want {
			t.Errorf("Recognise(%s) allocates %v times, want %v", c.name, got, want)
		}
	}
}

// Instants that others compare theirs with move; all else stays, also what asynq may send once more.
func TestMoveInstants(t *testing.T) {
	t.Parallel()
	const forward = "522b1a6ae66fe79ea2f24a9af58798ab71879035"
	calls := append(scriptCalls("q", "id"),
		scriptCall{name: "list expired", sha: listExpired, args: []any{int64(100), "asynq:{q}:t:"}},
		scriptCall{name: "forward", sha: forward, args: []any{int64(100), "asynq:{q}:t:", int64(100e9), "asynq:{q}:g:"}},
		scriptCall{name: "not asynq's", sha: SHA("a script"), args: []any{int64(100)}},
		scriptCall{name: "too few arguments", sha: forward, args: []any{int64(100)}},
	)
	moved := map[string][]int64{
		"complete": {2: -3600}, "complete unique": {2: -3600}, "retry": {2: -3600}, "archive": {2: -3600, 3: -3600},
		"forward": {0: -3600, 2: -3600e9}, "too few arguments": {-3600},
	}
	for _, c := range calls {
		before, want := slices.Clone(c.args), slices.Clone(c.args)
		for i, by := range moved[c.name] {
			if at, ok := want[i].(int64); ok {
				want[i] = at + by
			}
		}
		if diff := cmp.Diff(want, MoveInstants(c.sha, c.args, -time.Hour)); diff != "" {
			t.Errorf("%s: an hour earlier (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(before, c.args); diff != "" {
			t.Errorf("%s: the arguments of asynq changed (-before +after):\n%s", c.name, diff)
		}
		if got := MoveInstants(c.sha, c.args, 0); &got[0] != &c.args[0] {
			t.Errorf("%s: the arguments were copied although nothing moves", c.name)
		}
	}
}

func TestRecogniseSha(t *testing.T) {
	t.Parallel()
	const text, want = "return 1", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
	for range 2 { // the second time from the cache
		if got := SHA(text); got != want {
			t.Errorf("SHA(%q) = %s, want %s", text, got, want)
		}
	}
	for i := range 2 * shaCacheMax {
		SHA("return " + strconv.Itoa(i))
	}
	SHA(strings.Repeat(" ", shaCacheTextMax+1))
	shas.mu.RLock()
	defer shas.mu.RUnlock()
	if got := len(shas.m); got > shaCacheMax {
		t.Errorf("the cache holds %d texts, want at most %d", got, shaCacheMax)
	}
}

func TestRecogniseOpString(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for op := OpOther; op <= OpUnknown; op++ {
		if s := op.String(); s == "invalid" || seen[s] {
			t.Errorf("Op(%d).String() = %q, want a name of its own", op, s)
		} else {
			seen[s] = true
		}
	}
	if got := (OpUnknown + 1).String(); got != "invalid" {
		t.Errorf("Op(%d).String() = %q, want invalid", OpUnknown+1, got)
	}
}

func FuzzRecognise(f *testing.F) {
	pinned := scriptCalls("q", "id")
	for i, c := range pinned {
		f.Add(i, strings.Join(c.keys, "\n"), "id", 1, []byte("message"))
	}
	f.Fuzz(func(t *testing.T, i int, joined, id string, extra int, msg []byte) {
		keys := strings.Split(joined, "\n")
		c := pinned[uint(i)%uint(len(pinned))]
		args := slices.Clone(c.args)
		args[0] = id
		if extra%2 == 0 {
			args = append(args, msg)
		}
		op, call := Recognise(c.sha, keys, args)
		switch op {
		case c.op:
			if !strings.HasSuffix(call.ActiveKey, "{"+call.Queue+"}:active") ||
				op != OpDequeue && call.TaskKey != "asynq:{"+call.Queue+"}:t:"+id {
				t.Errorf("Recognise(%s, %q) = %v, %+v: keys and queue differ", c.name, keys, op, call)
			}
		case OpOther, OpUnknown:
		default:
			t.Errorf("Recognise(%s, %q) = %v", c.name, keys, op)
		}
	})
}

func BenchmarkRecognise(b *testing.B) {
	calls := scriptCalls("default", "0b3c4f0e-1d2f-4a55-9f1e-2f5b3a1d9c10")
	calls = append(calls, scriptCall{name: "enqueue", sha: "98d28b42650870a743450ffda9791e9e19c6991b",
		keys: []string{"asynq:{default}:t:0b3c4f0e-1d2f-4a55-9f1e-2f5b3a1d9c10", "asynq:{default}:pending"},
		args: []any{[]byte("message"), "id", int64(1)}})
	for _, c := range calls {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if op, _ := Recognise(c.sha, c.keys, c.args); op != c.op {
					b.Fatalf("recognise = %v, want %v", op, c.op)
				}
			}
		})
	}
}

func BenchmarkShaOf(b *testing.B) {
	for _, size := range []int{100, 1500} {
		text := strings.Repeat("-", size)
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				SHA(text)
			}
		})
	}
}
