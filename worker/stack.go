package worker

// stackRoom is more of a stack than a goroutine begins with, and what an attempt takes
// until Redis is asked.
const stackRoom = 6 << 10

// deepen makes the stack of a new goroutine large at once: asynq makes one for each
// task, and Go copies a stack each time it doubles, with all calls that are on it.
//
//go:noinline
func deepen() {
	var room [stackRoom]byte
	touch(&room)
}

//go:noinline
func touch(*[stackRoom]byte) {}
