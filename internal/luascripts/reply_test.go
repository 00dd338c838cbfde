package luascripts_test

import (
	"context"
	"errors"
	"math"
	"path"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/batchscripts"
	"github.com/headwayq/headway/internal/limitscripts"
	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// readers are all functions that read a reply.
func readers(c redis.Scripter) map[string]error {
	ctx, k, q := context.Background(), limitscripts.NewLimitKeys("hw", "rule", "id"), queuescripts.NewQueueKeys("hw", "default")
	n := limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Second}
	_, acquire := limitscripts.Acquire(ctx, c, limitscripts.AcquireArgs{Rules: one(k, n)})
	_, cancel := limitscripts.Cancel(ctx, c, limitscripts.CancelArgs{Rules: one(k, n)})
	_, peek := limitscripts.Peek(ctx, c, k, limitscripts.PeekArgs{Numbers: n, Cost: 1, Most: 10})
	_, reset := limitscripts.Reset(ctx, c, k, n)
	_, closing := limitscripts.Close(ctx, c, limitscripts.CloseArgs{Rules: one(k, n), Rule: 1, For: time.Second})
	_, release := limitscripts.Release(ctx, c, one(k, n)[0], 1)
	_, adjust := limitscripts.Adjust(ctx, c, limitscripts.AdjustArgs{Rules: one(k, n)})
	_, fetch := queuescripts.Fetch(ctx, c, q, queuescripts.FetchArgs{Call: 1, Most: 1})
	_, requeue := queuescripts.Requeue(ctx, c, q, queuescripts.RequeueArgs{Call: 1, IDs: []string{"a"}})
	_, due := queuescripts.Due(ctx, c, q, queuescripts.DueArgs{Lead: time.Second, Room: 10})
	_, wake := queuescripts.Wake(ctx, c, q, []queuescripts.DueTask{{ID: "a"}, {ID: "b"}}, time.Now(), false)
	_, retime := queuescripts.RetimeEarlier(ctx, c, q, make([]queuescripts.Retiming, 2))
	_, rules := queuescripts.Rules(ctx, c, "hw", time.Second, []string{"a"})
	_, batchstart := batchscripts.Start(ctx, c, q, batchscripts.StartArgs{})
	_, batchclaim := batchscripts.Claim(ctx, c, q, batchscripts.ClaimArgs{})
	_, feed := batchscripts.Feed(ctx, c, q, batchscripts.FeedArgs{Tasks: make([]batchscripts.FeedTask, 2)})
	_, _, batchcount := batchscripts.Count(ctx, c, q, "b", batchscripts.OutcomeDone, "a")
	_, _, _, batchsweep := batchscripts.Sweep(ctx, c, q, "b", []string{"a"})
	_, batchlist := batchscripts.UnfinishedElements(ctx, c, q, "b", 0, 1)
	_, batchset := batchscripts.Set(ctx, c, q, batchscripts.SetArgs{})
	_, batchdrop := batchscripts.Drop(ctx, c, q, "b", []string{"a"})
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
		for op, err := range readers(redistest.Answering{Value: value}) {
			if (op == "rules" || op == "fetch") && (name == "nothing" || name == "numbers as text") {
				continue // any list of texts is right
			}
			if op == "requeue" && name == "short" {
				continue // it is right
			}
			if err == nil {
				t.Errorf("%s: %s answers no error", name, op)
			}
			if e, ok := errors.AsType[*luascripts.ReplyError](err); op != "rules" && (!ok || path.Base(e.Script) != op+".lua") {
				t.Errorf("%s: %s = %v, want a ReplyError", name, op, err)
			}
		}
	}
	down := errors.New("connection refused")
	for op, err := range readers(redistest.Answering{Err: down}) {
		if !errors.Is(err, down) {
			t.Errorf("%s = %v, want what the client said", op, err)
		}
	}
	// A count that the reply does not hold must not be believed.
	for _, listed := range []int64{-1, 2, math.MaxInt64, math.MinInt64} {
		if r, err := limitscripts.Peek(t.Context(), redistest.Answering{Value: []any{int64(1), int64(2), int64(3), int64(4), int64(5), int64(6), int64(0), listed, int64(7), "j", int64(1)}},
			limitscripts.NewLimitKeys("hw", "r", "k"), limitscripts.PeekArgs{Numbers: limitscripts.Numbers{Kind: limitscripts.Sliding, Permits: 1, Window: time.Second}, Cost: 1, Most: 10}); err == nil || len(r.Listed) > 1 {
			t.Errorf("Peek of %d places = %+v, %v, want an error", listed, r, err)
		}
		if r, err := queuescripts.Due(t.Context(), redistest.Answering{Value: []any{int64(1), int64(2), int64(0), listed, int64(4), "id", "retry", "", ""}},
			queuescripts.NewQueueKeys("hw", "q"), queuescripts.DueArgs{Room: 10}); err == nil || len(r.Tasks) > 1 {
			t.Errorf("Due of %d tasks = %+v, %v, want an error", listed, r, err)
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
		readers(redistest.Answering{Value: values})
		_ = limitscripts.AcquireMany(context.Background(), redistest.Answering{Value: values}, []*limitscripts.Call{{AcquireArgs: sample()}, {AcquireArgs: sample()}})
		for _, v := range values {
			readers(redistest.Answering{Value: v})
		}
	})
}
