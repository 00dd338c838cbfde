package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A quantile is at most half above or below the right one, as wide as the buckets are.
func TestQuantile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h Histogram
		var all []time.Duration
		for _, ms := range rapid.SliceOfN(rapid.Int64Range(1, 1_000_000_000), 1, 200).Draw(t, "ms") {
			d := time.Duration(ms) * time.Millisecond
			all = append(all, d)
			h.add(d)
		}
		slices.Sort(all)
		for _, q := range []float64{.01, .5, .99, 1} {
			want := all[max(0, int(q*float64(len(all))+.999999)-1)]
			if got := h.Quantile(q); got > want*3/2 || got < want*2/3-time.Millisecond {
				t.Fatalf("the quantile %v of %v is %v, want about %v", q, all, got, want)
			}
		}
	})
}

func TestBuckets(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int{
		-time.Second: 0, 0: 0, time.Millisecond: 0, time.Millisecond + 1: 1, 1500 * time.Microsecond: 1, 2 * time.Millisecond: 2,
		2*time.Millisecond + 1: 3, 1 << 62: 2 * doublings,
	} {
		if got := bucketOf(d); got != want {
			t.Errorf("%v is in bucket %d, want %d", d, got, want)
		}
	}
	for b := 1; b < 2*doublings; b++ {
		if got := bucketOf(end(b)); got != b || bucketOf(end(b)+1) != b+1 {
			t.Errorf("the end of bucket %d is in %d, and a moment later in %d", b, got, bucketOf(end(b)+1))
		}
	}
	if (&Histogram{}).Quantile(.5) != 0 {
		t.Error("a quantile of nothing is not zero")
	}
}

// Buckets that are added up hold more than 32 bits can.
func TestSumOfLargeBuckets(t *testing.T) {
	t.Parallel()
	sum, other := Histogram{1 << 31}, Histogram{1 << 31}
	sum.Add(&other)
	if got := sum.Count(); got != 1<<32 {
		t.Errorf("two times 1<<31 durations are counted as %d, want %d", got, int64(1)<<32)
	}
	if got := sum.Quantile(.5); got <= 0 || got > time.Millisecond {
		t.Errorf("the median of them is %v, want within the first bucket", got)
	}
	month := Counts{}
	for range 31 * 24 {
		c, _ := Read("w0:9000000000000000000 w5:9000000000000000000")
		month.Add(&c)
	}
	if got := month.Waited.Count(); got != 31*24*2*bucketMax {
		t.Errorf("a month of hours that make no sense has %d durations, want %d", got, int64(31*24*2*bucketMax))
	}
}

// A key that makes up more than its share is kept among a hundred thousand others, and the
// sketch stays small.
func TestSketchKeepsBusyKeys(t *testing.T) {
	t.Parallel()
	var s sketch
	for n := range 200_000 {
		s.add(fmt.Sprint("k", rand.N(100_000)), 1)
		if n%50 == 0 {
			s.add("busy", 1)
		}
		if len(s.counts) > keysMax {
			t.Fatalf("%d keys are kept, want at most %d", len(s.counts), keysMax)
		}
	}
	if top := byNumber(s.counts); top[0].ID != "busy" || top[0].N < 2000 || top[0].N > 4000 {
		t.Errorf("the busiest key is %v, want busy with 2,000 to 4,000", top[0])
	}
}

func newRecorder(rdb *redis.Client) *Recorder {
	return New(rdb, "hw", func(string) string { return "sliding 1/1m" })
}

// in reads what stands in Redis about the last minutes or hours.
func in(t *testing.T, rdb *redis.Client, step time.Duration) (all Counts, limit string) {
	t.Helper()
	now := time.Now()
	values, err := Values(t.Context(), rdb, "hw", "phone", now.Add(-2*step), now.Add(step), step)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		c, text := Read(v.Value)
		all.Add(&c)
		limit = text
	}
	return all, limit
}

// What two processes wrote is added up, in the minute and in the hour; the busiest key is
// that of both.
func TestProcessesAreAddedUp(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	a, b := newRecorder(rdb), newRecorder(rdb)
	later := time.Now().Add(time.Hour)
	for _, r := range []*Recorder{a, b, a} { // a writes twice
		rule := r.Of("phone")
		rule.Granted("+1", 2)
		rule.Granted("+2", 1)
		rule.Refused()
		rule.Deferred("+1", later)
		rule.Deferred("", time.Time{})
		rule.Waited(time.Second)
		rule.Started(2 * time.Millisecond)
		r.Write(t.Context())
	}
	a.Write(t.Context()) // nothing more
	for _, step := range []time.Duration{time.Minute, time.Hour} {
		got, limit := in(t, rdb, step)
		want := Counts{Granted: 6, Permits: 9, Refused: 3, Deferred: 6, Peak: got.Peak}
		want.Waited[bucketOf(time.Second)], want.Late[2] = 3, 3
		if diff := cmp.Diff(want, got); diff != "" || limit != "sliding 1/1m" {
			t.Errorf("in steps of %v, limit %q, want -, got +:\n%s", step, limit, diff)
		}
		if got.Peak != 6 && got.Peak != 4 { // 4 when a minute or an hour ended between the writes
			t.Errorf("in steps of %v the busiest key got %d permits, want 6", step, got.Peak)
		}
	}
	if waiting, err := WaitingKeys(t.Context(), rdb, "hw", "phone"); err != nil || len(waiting) != 1 || waiting[0] != (Key{ID: "+1", N: later.UnixMicro()}) {
		t.Errorf("waiting keys are %v, %v", waiting, err)
	}
}

// An instant that has passed when it is written leaves nothing that lives for ever.
func TestWaitsThatAreOver(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	r := newRecorder(rdb)
	r.Of("phone").Deferred("+1", time.Now().Add(-time.Second))
	r.Write(t.Context())
	if waiting, err := WaitingKeys(t.Context(), rdb, "hw", "phone"); err != nil || len(waiting) != 0 {
		t.Errorf("waiting keys are %v, %v", waiting, err)
	}
}

// However many keys there are, what stands in Redis is bounded, and the busiest key and the
// one that waits longest are found.
func TestSizeDoesNotGrowWithKeys(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	r := newRecorder(rdb)
	keys := 100_000
	if testing.Short() {
		keys = 20_000
	}
	now := time.Now()
	for n := range keys {
		id := fmt.Sprint("k", n)
		r.Of("phone").Granted(id, 1)
		r.Of("phone").Deferred(id, now.Add(time.Hour+time.Duration(n)*time.Millisecond))
		if n%20 == 0 {
			r.Of("phone").Granted("busy", 1)
		}
		if n%1000 == 0 {
			r.Write(t.Context())
		}
	}
	r.Write(t.Context())
	size := int64(0)
	names, err := rdb.Keys(t.Context(), "hw:history:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		n, err := rdb.MemoryUsage(t.Context(), name).Result()
		if err != nil {
			t.Fatal(err)
		}
		if ttl := rdb.PTTL(t.Context(), name).Val(); ttl <= 0 {
			t.Errorf("%s lives for ever", name)
		}
		size += n
	}
	if len(names) > 20 || size > 300<<10 {
		t.Errorf("%d keys of %d bytes, want a few of at most 300 kB", len(names), size)
	}
	busy, err := BusyKeys(t.Context(), rdb, "hw", "phone", now)
	if err != nil || len(busy) == 0 || slices.MaxFunc(busy, func(a, b Key) int { return int(a.N - b.N) }).ID != "busy" {
		t.Errorf("busy keys are %v, %v", busy, err)
	}
	if waiting, err := WaitingKeys(t.Context(), rdb, "hw", "phone"); err != nil || waiting[0].ID != fmt.Sprint("k", keys-1) {
		t.Errorf("waiting keys are %v, %v", waiting, err)
	}
}

// A rule that is made up at each call is not collected for ever.
func TestRulesAreBounded(t *testing.T) {
	t.Parallel()
	r := New(nil, "hw", nil)
	for n := range 2 * rulesMax {
		r.Of(fmt.Sprint(n)).Granted("a", 1)
	}
	if len(r.rules) != rulesMax {
		t.Errorf("%d rules, want %d", len(r.rules), rulesMax)
	}
	var none *Recorder
	none.Of("phone").Granted("a", 1)
}

// What a later version writes is passed over.
func TestReadsWhatItKnows(t *testing.T) {
	t.Parallel()
	c, limit := Read("granted:3 new:4 w999:1 w3:2 x:y :1 w:1 l-1:1 peak:3;fixed 1/1s")
	want := Counts{Granted: 3, Peak: 3}
	want.Waited[3] = 2
	if c != want || limit != "fixed 1/1s" {
		t.Errorf("Read = %+v, %q", c, limit)
	}
	if _, limit := Read(""); limit != "" {
		t.Errorf("the limit of nothing is %q", limit)
	}
}

// BenchmarkGranted is what a task costs by one rule, with keys that come again and with keys
// that do not.
func BenchmarkGranted(b *testing.B) {
	for _, keys := range []int{100, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			r := New(nil, "hw", nil)
			ids := make([]string, keys)
			for n := range ids {
				ids[n] = fmt.Sprint("+15550", n)
			}
			for n := 0; b.Loop(); n++ {
				r.Of("phone").Granted(ids[n%keys], 1)
			}
		})
	}
}
