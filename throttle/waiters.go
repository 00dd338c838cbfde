package throttle

import "sync"

// waiters rings callers of this process that block in Acquire, when a script
// says that their turn came earlier. The zero value is ready.
type waiters struct {
	mu    sync.Mutex
	bells map[string]chan struct{}
}

func (w *waiters) add(job string, bell chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bells == nil {
		w.bells = make(map[string]chan struct{})
	}
	w.bells[job] = bell
}

func (w *waiters) remove(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bells, job)
}

func (w *waiters) ring(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bell, ok := w.bells[job]; ok {
		pull(bell)
	}
}

// ringAll rings everybody: the limit has changed.
func (w *waiters) ringAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, bell := range w.bells {
		pull(bell)
	}
}

func pull(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it is ringing already
	}
}
