package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/throttle"
)

// strikeDeploy deploys another release, lowers the limit of a phone for a moment, or does both at once.
// No limit is ever above the one by which the run is judged.
func strikeDeploy(ctx context.Context, r *run) (string, error) {
	kind := r.random.IntN(3)
	if kind == 0 && r.deployed > 0 { // the first strike deploys, also in a short run
		return "a limit changed twice", lowerLimit(ctx, r, func() error { return nil })
	}
	if kind == 1 {
		return deploy(ctx, r)
	}
	var what string
	err := lowerLimit(ctx, r, func() (err error) {
		what, err = deploy(ctx, r)
		return err
	})
	return what + " under a changed limit", err
}

// lowerLimit stores a lower limit for the phones while something is done, and a random time longer.
func lowerLimit(ctx context.Context, r *run, meanwhile func() error) error {
	rdb := r.system.address.client()
	defer rdb.Close()
	phone := r.judged[0].Rules[0]
	l, err := throttle.New(rdb, phone.Name, phone.Limit, throttle.Config{})
	if err != nil {
		return err
	}
	if _, err := l.SetLimit(ctx, throttle.Sliding(1, 3*phone.Limit.Window()/2), throttle.SetLimitOptions{}); err != nil {
		return err
	}
	if err := meanwhile(); err != nil {
		return err
	}
	time.Sleep(r.upTo(4 * time.Second))
	return l.UnsetLimit(ctx)
}

// deploy replaces all worker processes one by one by processes of the other release. Every second time they
// have the other policy, too, so each release comes with each policy. Once the other release is gone,
// its library is deleted now and then, as operators do: the next deploy loads it anew.
func deploy(ctx context.Context, r *run) (string, error) {
	r.deployed++
	r.crew.spec.AnotherRelease = r.deployed%2 == 1
	r.crew.spec.Policies = [2]string{r.policies, r.otherPolicies}[(r.deployed+1)/2%2]
	running := r.crew.running()
	for i, p := range running {
		if i != len(running)/2 {
			if err := errors.Join(p.stop(), r.crew.start()); err != nil {
				return "", err
			}
			continue
		}
		// The new process starts before the old one stops, so that also of one process both releases run.
		if err := errors.Join(r.crew.start(), lookAtReleases(ctx, r), p.stop()); err != nil {
			return "", err
		}
	}
	if r.deployed%2 == 1 {
		return "a release and a policy deployed", nil
	}
	if r.random.IntN(2) == 0 {
		return "a release deployed, the library of the other one deleted", deleteLibrary(ctx, r)
	}
	return "a release deployed", nil
}

// sightings are what servers showed of two releases that worked at the same time.
type sightings struct {
	looks int
	calls map[string]int  // of acquire, by library
	both  map[string]bool // keys that two libraries decided on during one look
}

// lookAtReleases lets both releases work for up to a second, and waits until two libraries stand side by side on
// each master and both have decided on the same key. The masters themselves tell it: by FUNCTION LIST, and by
// their slow log, which logs all calls meanwhile.
func lookAtReleases(ctx context.Context, r *run) error {
	rdb := r.system.address.client()
	defer rdb.Close()
	err := eachMaster(ctx, rdb, func(ctx context.Context, c *redis.Client) error {
		return errors.Join(
			c.ConfigSet(ctx, "slowlog-max-len", "4096").Err(), c.SlowLogReset(ctx).Err(), c.ConfigSet(ctx, "slowlog-log-slower-than", "0").Err())
	})
	if err != nil {
		return err
	}
	var failed error
	found := sightings{looks: 1, calls: map[string]int{}, both: map[string]bool{}}
	by, end := map[string]string{}, time.Now().Add(r.upTo(time.Second))
	err = r.until(ctx, "the libraries of two releases decide on one key", func() bool {
		var mu sync.Mutex
		sideBySide := true
		failed = eachMaster(ctx, rdb, func(ctx context.Context, c *redis.Client) error {
			p := c.TxPipeline()
			libraries, log := p.FunctionList(ctx, redis.FunctionListQuery{}), p.SlowLogGet(ctx, -1)
			p.SlowLogReset(ctx)
			_, err := p.Exec(ctx)
			mu.Lock()
			defer mu.Unlock()
			sideBySide = sideBySide && len(libraries.Val()) >= 2
			for _, call := range log.Val() {
				found.add(by, call.Args)
			}
			return err
		})
		return failed == nil && sideBySide && len(found.both) > 0 && time.Now().After(end)
	})
	err = errors.Join(err, failed, eachMaster(ctx, rdb, func(ctx context.Context, c *redis.Client) error {
		return c.ConfigSet(ctx, "slowlog-log-slower-than", "10000").Err()
	}))
	if err != nil {
		return err
	}
	r.seen.merge(found)
	return nil
}

// acquireSuffix is what the name of the function that decides ends in, behind the name of its library.
const acquireSuffix = "_acquire"

// add adds a call, if it is one of acquire. by has which library has decided on a key.
func (s *sightings) add(by map[string]string, args []string) {
	const firstKey = 3
	if len(args) < firstKey || !strings.EqualFold(args[0], "fcall") || !strings.HasSuffix(args[1], acquireSuffix) {
		return
	}
	library := strings.TrimSuffix(args[1], acquireSuffix)
	s.calls[library]++
	n, _ := strconv.Atoi(args[2])
	for _, key := range args[firstKey:min(firstKey+n, len(args)-1)] { // the log cuts long calls off, and says so in the last argument
		if before, there := by[key]; there && before != library {
			s.both[key] = true
		}
		by[key] = library
	}
}

func (s *sightings) merge(found sightings) {
	if s.calls == nil {
		s.calls, s.both = map[string]int{}, map[string]bool{}
	}
	s.looks += found.looks
	for library, n := range found.calls {
		s.calls[library] += n
	}
	for key := range found.both {
		s.both[key] = true
	}
}

// deleteLibrary deletes the library of the other release where it is.
func deleteLibrary(ctx context.Context, r *run) error {
	rdb := r.system.address.client()
	defer rdb.Close()
	own, _ := luascripts.Library()
	return eachMaster(ctx, rdb, func(ctx context.Context, c *redis.Client) error {
		all, err := c.FunctionList(ctx, redis.FunctionListQuery{}).Result()
		for _, library := range all {
			if library.Name != own {
				err = errors.Join(err, c.FunctionDelete(ctx, library.Name).Err())
			}
		}
		return err
	})
}

// eachMaster does something with each master.
func eachMaster(ctx context.Context, rdb redis.UniversalClient, do func(context.Context, *redis.Client) error) error {
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, do)
	case *redis.Client:
		return do(ctx, c)
	}
	return fmt.Errorf("a client of type %T", rdb)
}

// Release is one of the releases whose processes took turns.
type Release struct {
	Name      string `json:"name"`
	Library   string `json:"library"`
	Processes int    `json:"processes"` // that ran
	Calls     int    `json:"calls"`     // of acquire, which were seen while the other release worked, too
}

// releasesOf are those that were seen, this one first.
func releasesOf(r *run) []Release {
	own, _ := luascripts.Library()
	var all []Release
	for library, calls := range r.seen.calls {
		release := Release{Name: "this release", Library: library, Calls: calls}
		if library != own {
			release.Name = "another release"
		}
		for _, p := range r.crew.processes {
			if p.anotherRelease == (library != own) {
				release.Processes++
			}
		}
		all = append(all, release)
	}
	slices.SortFunc(all, func(a, b Release) int { return strings.Compare(b.Name, a.Name) })
	return all
}
