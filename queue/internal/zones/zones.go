// Package zones loads each time zone once.
package zones

import (
	"errors"
	"sync"
	"time"
)

// Load returns the time zone of a name, such as "Europe/Berlin". The names "" and "Local"
// are refused, for they would mean this machine's.
func Load(name string) (*time.Location, error) { return cached.load(name) }

// cached are the zones that tasks and files have named so far.
var cached cache

// most is above the number of names in the database. Where the file system
// knows a name in any spelling, it bounds what a payload can make us keep.
const most = 1024

// cache loads each zone once. Its zero value is empty.
type cache struct {
	mu     sync.RWMutex
	loaded map[string]*time.Location
}

var errZone = errors.New("no name of a time zone")

func (c *cache) load(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, errZone
	}
	c.mu.RLock()
	zone, ok := c.loaded[name]
	c.mu.RUnlock()
	if ok {
		return zone, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err // not kept: names that are none have no end
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if first, ok := c.loaded[name]; ok {
		return first, nil
	}
	if c.loaded == nil {
		c.loaded = make(map[string]*time.Location)
	}
	if len(c.loaded) < most {
		c.loaded[name] = zone
	}
	return zone, nil
}
