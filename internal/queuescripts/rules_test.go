package queuescripts

import (
	"slices"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

func TestRules(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	ctx := t.Context()
	say := func(at time.Duration, own ...string) []string {
		t.Helper()
		rdb.SetTime(start.Add(at))
		got, err := Rules(ctx, rdb, "hw", time.Minute, own)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		return got
	}
	say(0, "sms 1/1m")
	if got := say(30*time.Second, "sms 1/2m", "mail 5/1s"); !slices.Equal(got, []string{"mail 5/1s", "sms 1/1m", "sms 1/2m"}) {
		t.Errorf("Rules = %v, want all that were said", got)
	}
	if got := say(61 * time.Second); !slices.Equal(got, []string{"mail 5/1s", "sms 1/2m"}) {
		t.Errorf("Rules = %v, want those of the last minute", got)
	}
	redistest.KeysHaveALife(t, raw)
	if ttl := raw.PTTL(ctx, rulesKey("hw")).Val(); ttl <= 0 || ttl > time.Minute+time.Second {
		t.Errorf("the rules live %v, want a minute", ttl)
	}
}
