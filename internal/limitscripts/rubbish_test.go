package limitscripts

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// anyList is a list of values of the kinds that some bytes say.
func anyList(kinds []byte, numbers [4]int64, text string) []any {
	list := make([]any, 0, len(kinds))
	for _, kind := range kinds {
		switch kind % 8 {
		case 0, 1, 2, 3:
			list = append(list, numbers[kind%4])
		case 4:
			list = append(list, int64(kind/8))
		case 5:
			list = append(list, text)
		case 6:
			list = append(list, "1:"+text)
		case 7:
			list = append(list, nil)
		}
	}
	return list
}

// isGrant says whether acquire.lua may mean a grant by an answer to a call of two rules: it is written from the text of acquire.lua.
func isGrant(answer any, now int64) bool {
	if now < 1 {
		return false
	}
	if ago, short := answer.(int64); short {
		return ago >= -1 && ago <= now
	}
	list, _ := answer.([]any)
	integers := make([]int64, 0, len(list))
	for _, v := range list {
		n, ok := v.(int64)
		if !ok {
			break
		}
		integers = append(integers, n)
	}
	const untilPromotions = 7 + 2*2
	if len(integers) < 3 || integers[0] != 1 || integers[1] != 0 || integers[2] == 0 {
		return false
	}
	if len(list) <= untilPromotions {
		return len(integers) == len(list) && (len(list) < 7 || integers[6] == 0)
	}
	if len(integers) < untilPromotions || integers[6] != int64(len(list)-untilPromotions)/3 || (len(list)-untilPromotions)%3 != 0 {
		return false
	}
	for at := untilPromotions; at < len(list); at += 3 {
		rule, _ := list[at].(int64)
		_, isInstant := list[at+1].(int64)
		member, _ := list[at+2].(string)
		cost, _, isMember := strings.Cut(member, ":")
		if _, err := strconv.Atoi(cost); rule < 1 || rule > 2 || !isInstant || !isMember || err != nil {
			return false
		}
	}
	return true
}

// Only an answer that is a grant grants, whatever a server answers.
func FuzzGrants(f *testing.F) {
	const now = 1_700_000_000_000_000
	for _, numbers := range [][4]int64{{0, 1, 2, now}, {-1, 1, math.MaxInt64, math.MinInt64}} {
		for _, kinds := range []string{
			"\x00", "\x01", "\x05", "\x07",
			"\x01\x00\x03", "\x01\x00\x03\x00", "\x01\x00\x00", "\x01\x01\x03", "\x02\x01\x03", "\x01\x00\x05", // the first values of one
			"\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00",             // all of a grant
			"\x01\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00",         // a value too many
			"\x01\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x01\x03\x06", // with a promotion
			"\x01\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x03\x03\x06", // of no rule
			"\x01\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x01\x03\x05", // of no member
			"\x01\x00\x03\x00\x00\x00\x02\x00\x00\x00\x00\x01\x03\x06", // that lacks the second one
		} {
			f.Add([]byte(kinds), len(kinds) == 1, int64(now), numbers[0], numbers[1], numbers[2], numbers[3], "job")
		}
	}
	f.Fuzz(func(t *testing.T, kinds []byte, alone bool, now, a, b, c, d int64, text string) {
		list := anyList(kinds, [4]int64{a, b, c, d}, text)
		var answer any = list
		if alone && len(list) > 0 {
			answer = list[0]
		}
		calls := []*Call{{AcquireArgs: sample()}, {AcquireArgs: sample()}}
		err := AcquireMany(t.Context(), redistest.Answering{Value: []any{now, int64(-1), answer}}, calls)
		granted := err == nil && calls[1].Err == nil && calls[1].Status == Granted
		if want := isGrant(answer, now); granted != want {
			t.Errorf("%v at %d: granted is %t, want %t: %+v, %v", answer, now, granted, want, calls[1].AcquireReply, calls[1].Err)
		}
		if e := calls[1].Err; e != nil && !errors.Is(e, ErrRetrySingly) {
			if _, ok := errors.AsType[*luascripts.ReplyError](e); !ok {
				t.Errorf("%v: the error is %v", answer, e)
			}
		}
	})
}
