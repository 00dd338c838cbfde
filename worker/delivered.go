package worker

import (
	"sync"
	"time"

	"github.com/headwayq/headway/internal/asynqwire"
)

// deliveredTTL is how long a delivery is remembered that never reached its
// handler: asynq had cancelled it before.
const deliveredTTL = 10 * time.Minute

// delivered holds what asynq's messages say of tasks on their way from the
// fetch to the handler. Safe for concurrent use.
type inFlight struct {
	mu sync.Mutex
	m  map[string]delivery // by task key
}

type delivery struct {
	asynqwire.Message
	at time.Time
}

func newInFlight() *inFlight { return &inFlight{m: make(map[string]delivery)} }

func (s *inFlight) put(taskKey string, m asynqwire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[taskKey] = delivery{m, time.Now()}
}

func (s *inFlight) take(taskKey string) asynqwire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.m[taskKey]
	delete(s.m, taskKey)
	return d.Message
}

func (s *inFlight) purge(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, d := range s.m {
		if now.Sub(d.at) > deliveredTTL {
			delete(s.m, key)
		}
	}
}
