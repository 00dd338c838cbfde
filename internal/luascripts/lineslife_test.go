package luascripts

import (
	"testing"
	"time"
)

// What was promised to one lives as long as its place, whoever comes to the key after
// it: it would be taken for late, and lose its turn.
func TestPromisesLiveAsLongAsTurns(t *testing.T) {
	t.Parallel()
	rdb, raw := timed(t)
	ctx := t.Context()
	phone := LimitKeys("hw", "phone", "1")
	loose, tight := Numbers{Kind: Sliding, Permits: 100, Window: time.Second}, Numbers{Kind: Sliding, Permits: 1, Window: 24 * time.Hour}
	token := uint64(0)
	ask := func(job, tenant string, n Numbers) AcquireReply {
		t.Helper()
		token++
		r, err := Acquire(ctx, rdb, AcquireArgs{
			Parts:  []Part{{Limit: phone, Numbers: loose, Cost: 1}, {Limit: LimitKeys("hw", "tenant", tenant), Numbers: n, Cost: 1}},
			Policy: "p", Token: token, Job: job, Mode: Grant, MaxWait: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	short := tight
	short.Window = time.Minute
	ask("spends", "slow", tight)
	ask("spends", "fast", short)
	if r := ask("far", "slow", tight); r.Status != Booked || r.Part != 2 {
		t.Fatalf("far = %+v, want it booked in the tenant's line", r)
	}
	turns := phone.turns("p")
	if r := ask("near", "fast", short); r.Status != Booked || r.Part != 2 {
		t.Fatalf("near = %+v, want it booked in the tenant's line", r)
	}
	if p, l := raw.PTTL(ctx, phone.promised).Val(), raw.PTTL(ctx, turns).Val(); p < l-time.Second || p < 24*time.Hour {
		t.Errorf("what was promised lives for %v, the turns for %v, want no less and above 24h", p, l)
	}
}

// A key whose promises are gone, which are one of two keys and may be evicted, gets
// new ones that have a life.
func TestPromisesHaveALifeWhenTheyWereLost(t *testing.T) {
	t.Parallel()
	rdb, raw := timed(t)
	ctx, n, k := t.Context(), Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}, LimitKeys("hw", "rule", "id")
	ask := func(job string, token uint64) {
		t.Helper()
		if _, err := Acquire(ctx, rdb, AcquireArgs{Parts: one(k, n, 1), Token: token, Job: job, Mode: Grant, MaxWait: -1}); err != nil {
			t.Fatal(err)
		}
	}
	for i, job := range []string{"spends", "a", "b", "c", "d"} {
		ask(job, uint64(i+1))
	}
	raw.Del(ctx, k.promised)
	ask("b", 6)
	keysHaveALife(t, raw)
}
