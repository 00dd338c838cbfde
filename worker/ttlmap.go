package worker

import (
	"sync"
	"time"
)

// ttlMap is a map whose entries expire: an entry counts until ttl after it was put, and
// not at that instant. It is safe for concurrent use.
//
// It purges itself whenever it has grown to twice what it held after the last purge, so
// it holds at most about twice the entries of one ttl.
type ttlMap[K comparable, V any] struct {
	ttl time.Duration

	mu      sync.Mutex
	entries map[K]ttlEntry[V]
	purgeAt int // the size at which it purges itself
}

type ttlEntry[V any] struct {
	value V
	at    time.Time // when it was put
}

// ttlMapLeast is the size below which a ttlMap does not purge itself.
const ttlMapLeast = 1024

func newTTLMap[K comparable, V any](ttl time.Duration) *ttlMap[K, V] {
	return &ttlMap[K, V]{ttl: ttl, entries: make(map[K]ttlEntry[V]), purgeAt: ttlMapLeast}
}

// put sets the value of a key, which lives from now on.
func (m *ttlMap[K, V]) put(key K, value V, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) >= m.purgeAt {
		m.purgeLocked(now)
		m.purgeAt = max(ttlMapLeast, 2*len(m.entries))
	}
	m.entries[key] = ttlEntry[V]{value, now}
}

// has says whether a key has a value.
func (m *ttlMap[K, V]) has(key K, now time.Time) bool {
	_, ok := m.get(key, now)
	return ok
}

// get returns the value of a key. ok is false when there is none.
func (m *ttlMap[K, V]) get(key K, now time.Time) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	if !ok || m.expired(e, now) {
		return value, false
	}
	return e.value, true
}

// take returns the value of a key and forgets it. ok is false when there was none.
func (m *ttlMap[K, V]) take(key K, now time.Time) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[key]
	delete(m.entries, key)
	if !ok || m.expired(e, now) {
		return value, false
	}
	return e.value, true
}

// len is how many keys have a value; of some it may have expired.
func (m *ttlMap[K, V]) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// purge forgets what has expired.
func (m *ttlMap[K, V]) purge(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.purgeLocked(now)
}

func (m *ttlMap[K, V]) purgeLocked(now time.Time) {
	for key, e := range m.entries {
		if m.expired(e, now) {
			delete(m.entries, key)
		}
	}
}

func (m *ttlMap[K, V]) expired(e ttlEntry[V], now time.Time) bool { return now.Sub(e.at) >= m.ttl }
