package queue

import (
	"fmt"
	"slices"
)

// Pay says which attempts of a task pay for their permits.
type Pay uint8

const (
	// PayEveryAttempt charges each attempt, also the retry of one that failed:
	// a handler that failed may have sent its message all the same.
	PayEveryAttempt Pay = iota
	// PaySuccess gives the permits of an attempt back whose handler returned an
	// error, or panicked. It is right where a failure proves that the provider
	// counted nothing.
	PaySuccess
)

// pays are the texts of policy files.
var pays = [...]string{PayEveryAttempt: "every attempt", PaySuccess: "success"}

// String returns the text that a policy file has: "every attempt", "success".
func (p Pay) String() string {
	if !p.known() {
		return fmt.Sprintf("Pay(%d)", uint8(p))
	}
	return pays[p]
}

func (p Pay) known() bool { return int(p) < len(pays) }

// payTexts is what a policy file may say, for errors.
const payTexts = `"every attempt" or "success"`

// payOf reads the text of a policy file.
func payOf(text string) (Pay, bool) {
	i := slices.Index(pays[:], text)
	return Pay(max(i, 0)), i >= 0
}
