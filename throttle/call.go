package throttle

import (
	"sync"

	"github.com/headwayq/headway/internal/luascripts"
)

// calls are those that came to their end: one that failed may be under way still.
var calls = sync.Pool{New: func() any { return &luascripts.Call{} }}

// freeCall lets a call be used for another, and its parts. It keeps nobody's keys.
func freeCall(c *luascripts.Call) {
	parts := c.Rules
	clear(parts)
	*c = luascripts.Call{}
	c.Rules = parts[:0]
	calls.Put(c)
}
