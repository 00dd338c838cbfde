// Package trace notes which files a program passes through. A call of [Enter] is put into
// each function by the program that builds it, see tools/measures; nothing in the tree
// itself calls it.
package trace

import "sync"

var (
	mu      sync.Mutex
	on      bool
	entered []string
)

// Enter notes that a function of a file was called.
func Enter(file string) {
	mu.Lock()
	defer mu.Unlock()
	if on {
		entered = append(entered, file)
	}
}

// Start begins to note.
func Start() {
	mu.Lock()
	defer mu.Unlock()
	on = true
}

// Stop returns the files in the order in which functions of them were called.
func Stop() []string {
	mu.Lock()
	defer mu.Unlock()
	on = false
	return entered
}
