package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// checkReleases checks that a deploy has shown the libraries of two releases at work on the same keys.
func checkReleases(t *testing.T, r Report) {
	t.Helper()
	own, _ := luascripts.Library()
	if len(r.Releases) != 2 || r.Looks == 0 || r.BothKeys == 0 || r.Releases[0].Library != own {
		t.Fatalf("releases %+v in %d looks, %d keys of both, want two with %s first", r.Releases, r.Looks, r.BothKeys, own)
	}
	for _, release := range r.Releases {
		if release.Processes < 2 || release.Calls == 0 {
			t.Errorf("%+v, want its processes and calls", release)
		}
	}
}

// Only calls of acquire are counted, by library, and the keys that two libraries decided on.
func TestCallsOfTwoReleasesAreSeen(t *testing.T) {
	t.Parallel()
	now, by := sightings{looks: 1, calls: map[string]int{}, both: map[string]bool{}}, map[string]string{}
	for _, call := range []string{
		"fcall headway_a_acquire 2 one two arg",
		"FCALL headway_b_acquire 1 two three",
		"fcall headway_b_acquire 9 four three ... (200 more arguments)",
		"fcall headway_a_acquire 1 four arg",
		"fcall headway_a_fetch 1 three",
		"evalsha headway_a_acquire 1 three",
		"get three", "fcall headway_a_acquire", "",
	} {
		args := strings.SplitN(call, " ", 6)
		now.add(by, args)
	}
	var seen sightings
	seen.merge(now)
	seen.merge(now)
	if want := map[string]int{"headway_a": 4, "headway_b": 4}; !maps.Equal(seen.calls, want) || seen.looks != 2 {
		t.Errorf("calls %v in %d looks, want %v in 2", seen.calls, seen.looks, want)
	}
	if both := slices.Sorted(maps.Keys(seen.both)); !slices.Equal(both, []string{"four", "two"}) {
		t.Errorf("both decided on %v, want four and two", both)
	}
}

// Also of a single process both releases run for a moment, and its library is found by the next deploy
// after it was deleted.
func TestDeployOfOneProcess(t *testing.T) {
	t.Parallel()
	spec := short(t, "deploy")
	spec.Workers, spec.For = 1, 2*time.Second
	spec.Fault.every = time.Second
	spec.Fault.strike = func(ctx context.Context, r *run) (string, error) {
		for range 2 {
			if _, err := deploy(ctx, r); err != nil {
				return "", err
			}
		}
		if err := errors.Join(deleteLibrary(ctx, r), deleteLibrary(ctx, r)); err != nil { // the deploy itself may have deleted it
			return "", err
		}
		rdb := r.system.address.client()
		defer rdb.Close()
		if left, err := rdb.FunctionList(ctx, redis.FunctionListQuery{}).Result(); err != nil || len(left) != 1 {
			return "", fmt.Errorf("%d libraries are left: %w", len(left), err)
		}
		_, err := deploy(ctx, r)
		return "three deploys", err
	}
	r, err := Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	checkReleases(t, r)
	if err := r.Failed(); err != nil || r.Looks < 3 {
		t.Errorf("%v, in %d looks, want 3", err, r.Looks)
	}
}
