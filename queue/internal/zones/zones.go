// Package zones loads each time zone once.
package zones

import (
	"errors"
	"sync"
	"time"

	"github.com/headwayq/headway/internal/civil"
)

// Load returns the time zone of a name, such as "Europe/Berlin". Names that differ per
// machine are refused: "", "Local", "localtime", "posixrules", and those that begin with
// "posix/" or "right/". The error is without the name, and says what is wanted.
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

func (c *cache) load(name string) (*time.Location, error) {
	c.mu.RLock()
	zone, ok := c.loaded[name]
	c.mu.RUnlock()
	if ok {
		return zone, nil
	}
	if fault := civil.ZoneFault(name, time.LoadLocation); fault != "" {
		return nil, errors.New("want " + fault) // not kept: wrong names would fill the cache
	}
	zone, err := time.LoadLocation(name)
	if err != nil { // it was there a moment ago
		return nil, errors.New("can't be loaded")
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
