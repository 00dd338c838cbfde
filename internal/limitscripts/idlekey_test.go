package limitscripts

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

var lineOfStat = regexp.MustCompile(`(?m)^cmdstat_(\w+):calls=(\d+)`)

// commandsOf counts the commands that scripts made since they were counted last.
func commandsOf(t *testing.T, rdb *redis.Client) (sum int) {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range lineOfStat.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.Atoi(m[2])
		if m[1] != "eval" && m[1] != "evalsha" && m[1] != "info" {
			sum += n
		}
	}
	if err := rdb.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return sum
}

// A call that comes alone asks little of Redis: each command is a microsecond of what
// the call takes.
func TestCallOnAnIdleKeySendsFewCommands(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		n      Numbers
		before int
		want   Status
		most   int
	}{
		"a fresh key of one permit":  {Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}, 0, Granted, 4},
		"a spent key of one permit":  {Numbers{Kind: Sliding, Permits: 1, Window: time.Minute}, 1, Refused, 3},
		"a ring that grows":          {Numbers{Kind: Sliding, Permits: 1000, Window: time.Second}, 3, Granted, 12},
		"a spent ring":               {Numbers{Kind: Sliding, Permits: 3, Window: time.Second}, 3, Refused, 5},
		"a ring that may grow large": {Numbers{Kind: Sliding, Permits: 1_000_000, Window: time.Second}, 200, Granted, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, raw := redistest.StartTimed(t, redistest.Own())
			k := NewLimitKeys("hw", "rule", "id")
			for i := range tt.before + 1 {
				if i == tt.before {
					commandsOf(t, raw)
				}
				r, err := Acquire(t.Context(), rdb, AcquireArgs{Rules: one(k, tt.n, 1), Token: uint64(i + 1), Mode: Try, MaxWait: -1})
				if err != nil || i == tt.before && r.Status != tt.want {
					t.Fatalf("call %d: %+v, %v, want status %d", i+1, r, err, tt.want)
				}
			}
			if got := commandsOf(t, raw) - 1; got > tt.most { // CONFIG is one
				t.Errorf("%d commands, want %d at most", got, tt.most)
			}
		})
	}
}

// Old tokens are forgotten now and then, as many as come: a minute of them stays, and
// what comes until the next time.
func TestTokensDoNotPileUp(t *testing.T) {
	t.Parallel()
	for _, together := range []int{1, 2, 20} {
		t.Run(strconv.Itoa(together), func(t *testing.T) {
			t.Parallel()
			rdb, raw := redistest.StartTimedForLong(t)
			k, n, now, token := NewLimitKeys("hw", "rule", "id"), Numbers{Kind: Sliding, Permits: 1000, Window: time.Second}, start, uint64(0)
			for range 1500 {
				now = now.Add(time.Second)
				rdb.SetTime(now)
				var calls []*Call
				for range together {
					token++
					calls = append(calls, &Call{AcquireArgs: AcquireArgs{Rules: one(k, n, 1), Token: token, Mode: Try, MaxWait: -1}})
				}
				if err := AcquireMany(t.Context(), rdb, calls); err != nil {
					t.Fatal(err)
				}
			}
			if got, most := int(raw.ZCard(t.Context(), k.tokens).Val()), 61*together+2*32; got > most || got < 60*together {
				t.Errorf("%d tokens, want those of a minute, %d at most", got, most)
			}
		})
	}
}

// The same where the way of a lone call and the long one take turns: one job waits for the
// window to begin, and all others come alone.
func TestTokensOfBothWaysDoNotPileUp(t *testing.T) {
	t.Parallel()
	const permits = 30
	rdb, raw := redistest.StartTimedForLong(t)
	k, n, now, token := NewLimitKeys("hw", "rule", "id"), Numbers{Kind: Sliding, Permits: permits, Window: time.Second}, start, uint64(0)
	ask := func(mode Mode, job string, want Status) {
		t.Helper()
		token++
		r, err := Acquire(t.Context(), rdb, AcquireArgs{Rules: one(k, n, 1), Token: token, Mode: mode, Job: job, MaxWait: -1})
		if err != nil || r.Status != want {
			t.Fatalf("Acquire = %+v, %v, want status %d", r, err, want)
		}
	}
	for range 250 {
		now = now.Add(time.Second)
		rdb.SetTime(now)
		ask(GrantOrBook, "waits", Granted)
		for range permits - 1 {
			ask(Try, "", Granted)
		}
		ask(GrantOrBook, "waits", Booked)
	}
	if got, most := int(raw.ZCard(t.Context(), k.tokens).Val()), 61*permits+24; got > most || got < 60*permits {
		t.Errorf("%d tokens, want those of a minute, %d at most", got, most)
	}
}
