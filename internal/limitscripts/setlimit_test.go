package limitscripts

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redistest"
)

// wantSet sets a limit and checks the answer.
func wantSet(t *testing.T, rdb redis.Scripter, a SetLimitArgs, done bool, version time.Duration) {
	t.Helper()
	got, v, err := SetLimit(t.Context(), rdb, "hw", "sms", a)
	if err != nil || got != done || v != start.Add(version).UnixMicro() {
		t.Errorf("SetLimit(%+v) = %v, %v after the start, %v, want %v, %v", a, got, time.UnixMicro(v).Sub(start), err, done, version)
	}
}

func TestSetLimit(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t, redistest.Own()) // it hears all that is published
	at := func(d time.Duration) {
		rdb.SetTime(start.Add(d))
	}
	const key = "hw:limit:sms"
	sub := raw.Subscribe(t.Context(), key)
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	life := func(least, most time.Duration) {
		t.Helper()
		if ttl := raw.PTTL(t.Context(), key).Val(); ttl < least || ttl > most {
			t.Errorf("the life of %q is %v, want %v to %v", raw.Get(t.Context(), key).Val(), ttl, least, most)
		}
	}
	at(0)
	wantSet(t, rdb, SetLimitArgs{Limit: "1/1m", TTL: time.Minute}, true, 0)
	life(59*time.Second, time.Minute+time.Second)
	at(-time.Hour) // a failover: later all the same, by two microseconds, for versions are even
	wantSet(t, rdb, SetLimitArgs{Limit: "2/1m"}, true, 2*time.Microsecond)
	life(-1, -1)
	wantSet(t, rdb, SetLimitArgs{Limit: "3/1m", Absent: true}, false, 2*time.Microsecond)
	wantSet(t, rdb, SetLimitArgs{}, true, 4*time.Microsecond)
	life(time.Minute, time.Hour+time.Second)
	wantSet(t, rdb, SetLimitArgs{}, false, 4*time.Microsecond)
	at(time.Second)
	wantSet(t, rdb, SetLimitArgs{Limit: "sliding 3/1m", Absent: true}, true, time.Second)
	raw.Set(t.Context(), "hw:limit:strange", "3/1m", 0)
	raw.LPush(t.Context(), "hw:limit:list", "x")
	got := StoredLimits(t.Context(), rdb, "hw", []string{"none", "sms", "strange", "list"})
	if want := (StoredLimit{Text: "sliding 3/1m", Version: start.Add(time.Second).UnixMicro()}); !reflect.DeepEqual(got[:2], []StoredLimit{{}, want}) {
		t.Errorf("StoredLimits = %+v, want none and %+v", got, want)
	}
	if got[2].Err == nil || got[3].Err == nil {
		t.Errorf("StoredLimits = %+v, want errors for what has another form", got)
	}
	// one message for each change, none for what was not done
	for range 4 {
		if _, err := sub.ReceiveTimeout(t.Context(), 5*time.Second); err != nil {
			t.Fatalf("a change was not told: %v", err)
		}
	}
	if m, err := sub.ReceiveTimeout(t.Context(), 50*time.Millisecond); err == nil {
		t.Errorf("told as well: %v", m)
	}
}

// A limit of a policy file is stored only if nothing has changed since it was read, and
// with what it replaced.
func TestSetLimitOfAFile(t *testing.T) {
	t.Parallel()
	rdb, raw := redistest.StartTimed(t)
	rdb.SetTime(start)
	stored := func() StoredLimit { return StoredLimits(t.Context(), raw, "hw", []string{"sms"})[0] }
	wantSet(t, rdb, SetLimitArgs{Limit: "2/1m", Replaced: []string{"1/1m"}, Version: 1}, false, -time.Duration(start.UnixMicro())*time.Microsecond)
	wantSet(t, rdb, SetLimitArgs{Limit: "2/1m", Replaced: []string{"1/1m"}}, true, 0)
	first := start.UnixMicro()
	wantSet(t, rdb, SetLimitArgs{Limit: "9/1m", Replaced: []string{"1/1m"}}, false, 0)
	if want := (StoredLimit{Text: "2/1m", Version: first, Replaced: []string{"1/1m"}}); !reflect.DeepEqual(stored(), want) {
		t.Errorf("stored is %+v, want %+v", stored(), want)
	}
	wantSet(t, rdb, SetLimitArgs{Limit: "3/1m", Replaced: []string{"2/1m", "1/1m"}, Version: first}, true, 2*time.Microsecond)
	if want := (StoredLimit{Text: "3/1m", Version: first + 2, Replaced: []string{"2/1m", "1/1m"}}); !reflect.DeepEqual(stored(), want) {
		t.Errorf("stored is %+v, want %+v", stored(), want)
	}
	wantSet(t, rdb, SetLimitArgs{Limit: "4/1m"}, true, 4*time.Microsecond) // an operator
	if got := stored(); got.Replaced != nil {
		t.Errorf("an operator's limit replaced %q, want nothing", got.Replaced)
	}
	wantSet(t, rdb, SetLimitArgs{Limit: "5/1m", Replaced: []string{"3/1m"}, Version: first + 2}, false, 4*time.Microsecond)
}

// A user who may not publish may set.
func TestSetLimitWithoutARightToPublish(t *testing.T) {
	t.Parallel()
	_, raw := redistest.StartTimed(t)
	if err := raw.Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">pw", "allcommands", "allkeys", "resetchannels").Err(); err != nil {
		t.Skipf("no ACL here: %v", err)
	}
	t.Cleanup(func() { raw.Do(t.Context(), "ACL", "DELUSER", "mute") })
	o := *raw.Options()
	o.Username, o.Password = "mute", "pw"
	c := redis.NewClient(&o)
	defer c.Close()
	if done, _, err := SetLimit(t.Context(), c, "hw", "sms", SetLimitArgs{Limit: "1/1s"}); !done || err != nil {
		t.Errorf("SetLimit = %v, %v, want it done", done, err)
	}
}

// Whatever stands in the key of a stored limit is read, or refused as none.
func FuzzStored(f *testing.F) {
	for _, s := range []string{"1763640000000000 sliding 1/1m", "1763640000000000 ", "1 x y", " ", "", "0 a", "-1 a", "9223372036854775808 a", "1", "1 a\nb\nc", "1 a\n", "1 \n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s := readStored(value)
		if s.Err != nil {
			if s.Version != 0 || s.Text != value {
				t.Errorf("readStored(%q) = %+v, want the value with its error", value, s)
			}
			return
		}
		back := fmt.Sprintf("%d %s", s.Version, strings.Join(append([]string{s.Text}, s.Replaced...), "\n"))
		if s.Version < 1 || !reflect.DeepEqual(readStored(back), s) {
			t.Errorf("readStored(%q) = %+v, and of %q %+v", value, s, back, readStored(back))
		}
	})
}
