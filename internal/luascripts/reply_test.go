package luascripts

import (
	"context"
	"errors"
	"math"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// answering is a Redis that answers every script with the same.
type answering struct {
	redis.Scripter
	value any
	err   error
}

func (a answering) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	return redis.NewCmdResult(a.value, a.err)
}

// readers are all functions that read a reply.
func readers(c redis.Scripter) map[string]error {
	ctx, k, q := context.Background(), NewLimitKeys("hw", "rule", "id"), NewQueueKeys("hw", "default")
	n := Numbers{Kind: Sliding, Permits: 1, Window: time.Second}
	_, acquire := Acquire(ctx, c, AcquireArgs{Rules: one(k, n, 1)})
	_, cancel := Cancel(ctx, c, CancelArgs{Rules: one(k, n, 1)})
	_, peek := Peek(ctx, c, k, PeekArgs{Numbers: n, Cost: 1, Most: 10})
	_, reset := Reset(ctx, c, k, n)
	_, closing := Close(ctx, c, CloseArgs{Rules: one(k, n, 1), Rule: 1, For: time.Second})
	_, release := Release(ctx, c, one(k, n, 1)[0], 1)
	_, adjust := Adjust(ctx, c, AdjustArgs{Rules: one(k, n, 1)})
	_, fetch := Fetch(ctx, c, q, FetchArgs{Call: 1, Most: 1})
	_, requeue := Requeue(ctx, c, q, RequeueArgs{Call: 1, IDs: []string{"a"}})
	_, due := Due(ctx, c, q, DueArgs{Lead: time.Second, Room: 10})
	_, wake := Wake(ctx, c, q, tasks("a", "b"), time.Now(), false)
	_, retime := RetimeEarlier(ctx, c, q, make([]Retiming, 2))
	_, rules := Rules(ctx, c, "hw", time.Second, []string{"a"})
	_, batchstart := BatchStart(ctx, c, q, BatchStartArgs{})
	_, batchclaim := BatchClaim(ctx, c, q, BatchClaimArgs{})
	_, feed := Feed(ctx, c, q, FeedArgs{Tasks: make([]FeedTask, 2)})
	_, _, batchcount := BatchCount(ctx, c, q, "b", OutcomeDone, "a")
	_, _, _, batchsweep := BatchSweep(ctx, c, q, "b", []string{"a"})
	_, batchlist := UnfinishedElements(ctx, c, q, "b", 0, 1)
	_, batchset := BatchSet(ctx, c, q, BatchSetArgs{})
	_, batchdrop := BatchDrop(ctx, c, q, "b", []string{"a"})
	return map[string]error{
		"batchstart": batchstart, "batchclaim": batchclaim, "feed": feed, "batchcount": batchcount, "batchsweep": batchsweep, "batchlist": batchlist, "batchset": batchset, "batchdrop": batchdrop,
		"fetch": fetch, "requeue": requeue,
		"acquire": acquire, "cancel": cancel, "close": closing, "release": release, "adjust": adjust, "peek": peek, "reset": reset, "due": due, "wake": wake, "retime": retime, "rules": rules,
	}
}

func TestReplies(t *testing.T) {
	t.Parallel()
	nine := make([]any, 9)
	for i := range nine {
		nine[i] = "text"
	}
	for name, value := range map[string]any{
		"nil": nil, "a number": int64(1), "text": "OK", "nothing": []any{}, "short": []any{int64(1)}, "nils": make([]any, 9),
		"numbers as text": nine, "a map": map[any]any{"a": 1},
	} {
		for op, err := range readers(answering{value: value}) {
			if (op == "rules" || op == "fetch") && (name == "nothing" || name == "numbers as text") {
				continue // any list of texts is right
			}
			if op == "requeue" && name == "short" {
				continue // it is right
			}
			if err == nil {
				t.Errorf("%s: %s answers no error", name, op)
			}
			if e, ok := errors.AsType[*ReplyError](err); op != "rules" && (!ok || path.Base(e.Script) != op+".lua") {
				t.Errorf("%s: %s = %v, want a ReplyError", name, op, err)
			}
		}
	}
	down := errors.New("connection refused")
	for op, err := range readers(answering{err: down}) {
		if !errors.Is(err, down) {
			t.Errorf("%s = %v, want what the client said", op, err)
		}
	}
	// A count that the reply does not hold must not be believed.
	for _, listed := range []int64{-1, 2, math.MaxInt64, math.MinInt64} {
		if r, err := Peek(t.Context(), answering{value: []any{int64(1), int64(2), int64(3), int64(4), int64(5), int64(6), int64(0), listed, int64(7), "j", int64(1)}},
			NewLimitKeys("hw", "r", "k"), PeekArgs{Numbers: Numbers{Kind: Sliding, Permits: 1, Window: time.Second}, Cost: 1, Most: 10}); err == nil || len(r.Listed) > 1 {
			t.Errorf("Peek of %d places = %+v, %v, want an error", listed, r, err)
		}
		if r, err := Due(t.Context(), answering{value: []any{int64(1), int64(2), int64(0), listed, int64(4), "id", "retry", "", ""}},
			NewQueueKeys("hw", "q"), DueArgs{Room: 10}); err == nil || len(r.Tasks) > 1 {
			t.Errorf("Due of %d tasks = %+v, %v, want an error", listed, r, err)
		}
	}
}

// A call's answer may be one integer.
func TestShortReplies(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000_000_000
	at := time.UnixMicro(now)
	for _, c := range []struct {
		short  any
		status Status
		at     time.Time
		from   time.Time
		fails  bool
	}{
		{short: int64(0), status: Granted, at: at, from: at},
		{short: int64(1_500_000), status: Granted, at: at, from: at.Add(-1500 * time.Millisecond)},
		{short: int64(now), status: Granted, at: at},
		{short: int64(-1), status: Granted, at: at},
		{short: int64(-2), status: askAlone},
		{short: []any{int64(-1)}, status: askAlone},
		{short: []any{int64(1), int64(0), int64(now), int64(now - 5)}, status: Granted, at: at, from: at.Add(-5 * time.Microsecond)},
		{short: int64(-3), fails: true},
		{short: int64(now + 1), fails: true},
		{short: int64(math.MaxInt64), fails: true},
		{short: int64(math.MinInt64), fails: true},
		{short: "0", fails: true},
	} {
		// the last is answered whatever the first is
		calls := []*Call{{AcquireArgs: sample()}, {AcquireArgs: sample()}}
		calls[1].WantLeft = true
		if err := AcquireMany(t.Context(), answering{value: []any{int64(now), c.short, int64(3)}}, calls); err != nil {
			t.Fatalf("%v: %v", c.short, err)
		}
		got := calls[0]
		switch _, broken := errors.AsType[*ReplyError](got.Err); {
		case c.fails != broken:
			t.Errorf("%v: the error is %v", c.short, got.Err)
		case c.fails:
		case errors.Is(got.Err, ErrRetrySingly) != (c.status == askAlone):
			t.Errorf("%v: the error is %v, the status %d", c.short, got.Err, got.Status)
		case got.Status != c.status || !got.At.Equal(c.at) || !got.From.Equal(c.from) || !got.Now.Equal(at) || len(got.Worth) != 2 || len(got.Left) != 2:
			t.Errorf("%v: read as %+v, want status %d at %v from %v", c.short, got.AcquireReply, c.status, c.at, c.from)
		}
		if last := calls[1]; last.Err != nil || last.Status != Granted || !last.From.Equal(at.Add(-3*time.Microsecond)) || len(last.Left) != 2 {
			t.Errorf("%v: the next is read as %+v, %v", c.short, last.AcquireReply, last.Err)
		}
	}
}

// Whatever Redis answers, the readers return and do not panic.
func FuzzReplies(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, int64(1), "job")
	f.Add([]byte{0, 0, 0, 0, 0, 0}, int64(math.MaxInt64), "")
	f.Add([]byte{0, 0, 0}, int64(-1), "")
	f.Add([]byte{1, 1, 1, 1, 1, 1, 1, 1}, int64(0), "x")
	f.Add([]byte{3, 2, 4, 0, 0, 1, 0, 5}, int64(5), "x")
	f.Add([]byte{5, 5}, int64(0), "")
	f.Add([]byte{0, 5, 3}, int64(-2), "")
	f.Add([]byte{5, 3, 5}, int64(math.MaxInt64), "")
	f.Fuzz(func(_ *testing.T, kinds []byte, n int64, text string) {
		values := make([]any, 0, len(kinds))
		for i, kind := range kinds {
			switch kind % 6 {
			case 0:
				values = append(values, n+int64(i))
			case 1:
				values = append(values, text)
			case 2:
				values = append(values, nil)
			case 3:
				values = append(values, []any{n, text})
			case 4:
				values = append(values, float64(n))
			case 5:
				values = append(values, n)
			}
		}
		readers(answering{value: values})
		_ = AcquireMany(context.Background(), answering{value: values}, []*Call{{AcquireArgs: sample()}, {AcquireArgs: sample()}})
		for _, v := range values {
			readers(answering{value: v})
		}
	})
}

// A record is read as far as it is one of ours.
func TestReadBatch(t *testing.T) {
	t.Parallel()
	fields := []any{"v", "1", "state", "paused", "total", "7", "until", "5", "t0", "9"}
	reply := append([]any{int64(1), int64(2), int64(3)}, fields...)
	got, err := BatchClaim(t.Context(), answering{value: reply}, NewQueueKeys("hw", "q"), BatchClaimArgs{ID: "b"})
	if err != nil || got.State != BatchPaused || got.Total != 7 || !got.Until.Equal(time.UnixMicro(5)) || got.Unfinished != 3 {
		t.Errorf("BatchClaim = %+v, %v, want what was answered", got, err)
	}
	for at, wrong := range map[int]any{4: "2", 8: "x", 10: "-1", 12: "1.5", 3: int64(4)} {
		broken := slices.Clone(reply)
		broken[at] = wrong
		if _, err := BatchClaim(t.Context(), answering{value: broken}, NewQueueKeys("hw", "q"), BatchClaimArgs{ID: "b"}); err == nil {
			t.Errorf("%v is read as a record", broken)
		}
	}
	if _, err := BatchClaim(t.Context(), answering{value: reply[:4]}, NewQueueKeys("hw", "q"), BatchClaimArgs{ID: "b"}); err == nil {
		t.Error("a field without a value is read")
	}
}

func TestMicrosRoundUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, 1000: 1, 1001: 2, time.Second: 1e6, -1: 0, -1500: -1} {
		if got := Micros(d); got != want {
			t.Errorf("Micros(%d) = %d, want %d", d, got, want)
		}
	}
}
