package luascripts

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// beside is a server on which a text of acquire.lua decides.
type beside struct {
	*redistest.Timed
	raw  *redis.Client
	text string
}

func newBeside(t *testing.T, text string) *beside {
	t.Helper()
	raw := redistest.Start(t).Client(t)
	rdb, err := redistest.NewTimed(t.Context(), redistest.LongLived{UniversalClient: raw}, start)
	if err != nil {
		t.Fatal(err)
	}
	return &beside{rdb, raw, text}
}

// acquire is what its text answers to calls, without the zeros at the ends.
func (b *beside) acquire(t *testing.T, calls []*Call) []any {
	t.Helper()
	command := acquireCommand(calls)
	keys, args := command.split()
	answer, err := b.Eval(t.Context(), b.text, keys, args...).Slice()
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range answer {
		if list, ok := v.([]any); ok {
			for len(list) > 0 && list[len(list)-1] == int64(0) {
				list = list[:len(list)-1]
			}
			answer[i] = list
		}
	}
	return answer
}

// What pair.lua answers and writes is what admit.lua would.
func TestPairIsAdmit(t *testing.T) {
	t.Parallel()
	const head = "local function pair_of(form)\n"
	short := newBeside(t, acquireScript.alone().text)
	long := newBeside(t, strings.Replace(acquireScript.alone().text, head, head+"do return nil end\n", 1))
	if short.text == long.text {
		t.Fatal("pair.lua takes no part")
	}
	granted := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		pick := func(of ...int) int { return of[r.IntN(len(of))] }
		phone := Numbers{Kind: Sliding, Permits: 1, Window: time.Duration(pick(100, 2_000, 61_000)) * time.Millisecond}
		wide := Numbers{Kind: Sliding, Permits: pick(2, 3, 7, 60), Window: time.Duration(pick(100, 1_000, 61_000)) * time.Millisecond}
		phones, inline := pick(2, 12), time.Duration(pick(0, 50))*time.Millisecond
		now, job := start, 0
		var waiting []*Call // booked
		call := func(mode Mode, id string, phone1 int) *Call {
			return &Call{AcquireArgs: AcquireArgs{
				Rules: []RuleCall{
					{LimitKeys: NewLimitKeys("hw", "phone", fmt.Sprint(seed, "/", phone1)), Numbers: phone, Cost: 1},
					{LimitKeys: NewLimitKeys("hw", "provider", fmt.Sprint(seed)), Numbers: wide, Cost: 1},
				},
				Policy: []string{"p", "q"}[pick(0, 0, 0, 0, 1)], Job: id, Token: r.Uint64() | 1, Mode: mode, Inline: inline, MaxWait: -1,
			}}
		}
		var log []string
		for step := range 60 + min(wide.Permits, 7) {
			var calls []*Call
			switch what := r.IntN(10); {
			case step < min(wide.Permits, 7): // grants at instants of their own
				calls = append(calls, call(GrantOrBook, "", 100+step))
				now = now.Add(time.Duration(r.IntN(40)) * time.Millisecond)
			case what < 4:
				for range pick(1, 3, 10) {
					job++
					calls = append(calls, call(Mode(pick(1, 3, 3, 3)), fmt.Sprint("job:", job), r.IntN(phones)))
				}
			case what < 8 && len(waiting) > 0: // redeemed, as a rule by those who come first
				for range pick(1, 1, 4) {
					w := waiting[min(r.IntN(len(waiting)), pick(0, 0, 1, 5))]
					again := *w
					if r.IntN(8) > 0 {
						again.Token = r.Uint64() | 1
					}
					again.Mode = GrantOrBook
					calls = append(calls, &Call{AcquireArgs: again.AcquireArgs})
				}
				if at := waiting[0].At.Add(time.Duration(pick(0, 0, -10, 5, 150)) * time.Millisecond); at.After(now) {
					now = at
				}
			default:
				now = now.Add(time.Duration(pick(0, 1, 99, 500, 2_000, 61_000, -150)) * time.Millisecond)
			}
			for _, b := range []*beside{short, long} {
				if err := b.SetTime(t.Context(), now); err != nil {
					t.Fatal(err)
				}
			}
			if len(calls) == 0 {
				continue
			}
			a, b := short.acquire(t, calls), long.acquire(t, calls)
			log = append(log, fmt.Sprintf("%v: %d calls of %v", now.Sub(start), len(calls), calls[0].Mode))
			if diff := gocmp.Diff(b, a); diff != "" {
				t.Fatalf("seed %d, %v and %v: %s\nthe last of\n%s", seed, phone, wide, diff, strings.Join(log, "\n"))
			}
			reply := acquireReply(calls, a, nil)
			if err := readMany(calls, &reply); err != nil {
				t.Fatal(err)
			}
			for _, c := range calls {
				switch c.Status {
				case Booked:
					if c.Mode != GrantOrBook {
						waiting = append(waiting, c)
					}
				case Granted:
					granted++
					for i, w := range waiting {
						if w.Job == c.Job {
							waiting = append(waiting[:i], waiting[i+1:]...)
							break
						}
					}
				}
			}
		}
		if diff := gocmp.Diff(content(t, long.raw), content(t, short.raw)); diff != "" {
			t.Fatalf("seed %d, %v and %v: %s\nafter\n%s", seed, phone, wide, diff, strings.Join(log, "\n"))
		}
	}
	if granted < 500 {
		t.Errorf("%d were granted, too few to say much", granted)
	}
}
