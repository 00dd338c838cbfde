package worker

import (
	"sync"
	"time"
)

// finishedTTL is how long a task is remembered whose handler is through and
// whose end asynq could not write.
const finishedTTL = 5 * time.Minute

// finished remembers tasks whose handler returned nil until Redis has heard of
// it: delivered again in the meantime, they must not run again. Safe for
// concurrent use.
type recentlyDone struct {
	mu sync.Mutex
	at map[string]time.Time // task key -> when
}

func newRecentlyDone() *recentlyDone { return &recentlyDone{at: make(map[string]time.Time)} }

func (f *recentlyDone) add(taskKey string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at[taskKey] = now
}

func (f *recentlyDone) remove(taskKey string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.at, taskKey)
}

func (f *recentlyDone) has(taskKey string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.at[taskKey]
	return ok && now.Sub(at) < finishedTTL
}

func (f *recentlyDone) purge(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, at := range f.at {
		if now.Sub(at) >= finishedTTL {
			delete(f.at, key)
		}
	}
}
