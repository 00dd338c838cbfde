package throttle_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// On a cluster whose servers' clocks differ, jobs of a phone keep their distance by a clock
// outside, and all of them go. With clocks an hour apart a job that waits for the wide limit would
// keep its order in the line of its phone for an hour, if the instant were not carried over.
func TestClusterOfDifferentClocks(t *testing.T) {
	redistest.NeedFunctions(t)
	t.Parallel()
	for name, ahead := range map[string][]time.Duration{
		"by a tenth of a second": {0, 100 * time.Millisecond, -150 * time.Millisecond},
		"by an hour":             {0, time.Hour, -time.Hour},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: each has three servers
			rdb, nodes := redistest.StartNodes(t, 3)
			_, library := luascripts.Library()
			for i, ahead := range ahead {
				if err := redistest.Skew(t.Context(), nodes[i].Client(t), library, ahead); err != nil {
					t.Fatal(err)
				}
			}
			allGoAtTheirDistance(t, rdb)
		})
	}
}

func allGoAtTheirDistance(t *testing.T, rdb *redis.ClusterClient) {
	t.Helper()
	const phones, messages, narrow = 12, 4, 300 * time.Millisecond
	p := clusterPolicy(t, rdb, throttle.Sliding(1, narrow), throttle.Sliding(10, 200*time.Millisecond)) // a grant lives a tenth of that
	for i := range 20 {                                                                                 // what is known of the clocks before
		if _, err := p.Acquire(t.Context(), clusterRequest(100+i)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	var mu sync.Mutex
	grants := make(map[int][]time.Time)
	var wg sync.WaitGroup
	for i := range phones * messages {
		wg.Go(func() {
			r := clusterRequest(i % phones)
			r.MaxWait = time.Minute // a caller that is told an instant an hour off is refused
			if _, err := p.Acquire(t.Context(), r); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			grants[i%phones] = append(grants[i%phones], time.Now())
		})
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%d jobs took %v", phones*messages, took)
	if most := 5 * time.Second; took > most {
		t.Errorf("they took %v, want at most %v; the limits allow them in 1 s", took, most)
	}
	for phone, at := range grants {
		slices.SortFunc(at, time.Time.Compare)
		for i := range at[1:] {
			if gap := at[i+1].Sub(at[i]); gap < narrow-50*time.Millisecond {
				t.Errorf("phone %d: two jobs are %v apart, want %v less 50 ms", phone, gap, narrow)
			}
		}
	}
}

// Where servers' clocks are an hour apart, a decision is by the clock of the server that has the phone:
// so is the instant of a job that the provider's server refuses, and until when it keeps its order at its phone.
func TestClusterTellsInstantsByOneClock(t *testing.T) {
	redistest.NeedFunctions(t)
	t.Parallel()
	rdb, nodes := redistest.StartNodes(t, 3)
	_, library := luascripts.Library()
	aheadOf := make(map[string]time.Duration)
	for i, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		if err := redistest.Skew(t.Context(), nodes[i].Client(t), library, ahead); err != nil {
			t.Fatal(err)
		}
		aheadOf[nodes[i].Addr()] = ahead
	}
	nodeOf := func(key string) string {
		c, err := rdb.MasterForKey(t.Context(), "{"+key+"}")
		if err != nil {
			t.Fatal(err)
		}
		return c.Options().Addr
	}
	const phones, few = 8, 2 * time.Minute // of the hour that the clocks differ by
	p := clusterPolicy(t, rdb, throttle.Sliding(1, time.Second), throttle.Sliding(1, 5*time.Second))
	if _, err := p.Acquire(t.Context(), clusterRequest(0)); err != nil {
		t.Fatal(err)
	}
	elsewhere := 0
	for i := range phones {
		for n := range 2 { // the first waits for the provider, the second for the first
			r := clusterRequest(1 + i)
			r.Job = fmt.Sprintf("job %d of phone %d", n, 1+i)
			d, err := p.Redeem(t.Context(), r)
			if err != nil || d.Granted {
				t.Fatalf("%s: %v, %v, want it to wait", r.Job, d, err)
			}
			node := nodeOf(r.Key)
			if node != nodeOf("acme") {
				elsewhere++
			}
			if wait := d.At.Sub(time.Now().Add(aheadOf[node])); wait < -time.Second || wait > few {
				t.Errorf("%s is told an instant %v from now by the clock of its phone's server, want less than %v", r.Job, wait, few)
			}
		}
	}
	if elsewhere == 0 {
		t.Fatal("all phones are on the provider's server")
	}
}
