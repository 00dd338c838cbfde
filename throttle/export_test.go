package throttle

import "github.com/redis/go-redis/v9"

// Gathered is how many acquires of a client wait for others to come back.
func Gathered(rdb redis.UniversalClient) int {
	m := mergerOf(rdb, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.waiting)
}
