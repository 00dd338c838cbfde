package zones

// PhoneError says why a phone number has no time zone. Package queue quotes its Reason,
// as it quotes no other error of a user's function.
type PhoneError struct {
	Reason string // without the number
	Err    error  // queue.ErrNoZone
}

func (e *PhoneError) Error() string { return "queue: time zone of a phone number: " + e.Reason }

func (e *PhoneError) Unwrap() error { return e.Err }
