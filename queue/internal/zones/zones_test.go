package zones

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestLoadsOnce(t *testing.T) {
	t.Parallel()
	var (
		c     cache
		wg    sync.WaitGroup
		found [20]*time.Location
	)
	for i := range found {
		wg.Go(func() { found[i], _ = c.load("Europe/Berlin") })
	}
	wg.Wait()
	for _, zone := range found {
		if zone == nil || zone != found[0] {
			t.Fatalf("zones %p and %p, want one", zone, found[0])
		}
	}
}

// The names of this machine's zone are refused also where they load, and no error has the name.
func TestRefusesNamesThatDifferPerMachine(t *testing.T) {
	t.Parallel()
	var c cache
	for _, name := range []string{"", "Local", "localtime", "posixrules", "posix/Europe/Berlin", "right/Europe/Berlin", "+4915112345678"} {
		zone, err := c.load(name)
		if zone != nil || err == nil || name != "" && strings.Contains(err.Error(), name) {
			t.Errorf("load(%q) = %v, %v, want an error without the name", name, zone, err)
		}
	}
	if len(c.loaded) != 0 {
		t.Errorf("%d zones kept, want none", len(c.loaded))
	}
}

func TestKeepsSoMany(t *testing.T) {
	t.Parallel()
	c := cache{loaded: make(map[string]*time.Location)}
	for i := range most {
		c.loaded[fmt.Sprint(i)] = time.UTC
	}
	if zone, err := c.load("Europe/Berlin"); err != nil || zone.String() != "Europe/Berlin" || len(c.loaded) != most {
		t.Errorf("load = %v, %v with %d zones kept, want it and %d", zone, err, len(c.loaded), most)
	}
	for range 10 {
		_, _ = c.load(strings.Repeat("x", 10))
	}
	if len(c.loaded) != most {
		t.Errorf("%d zones kept", len(c.loaded))
	}
}
