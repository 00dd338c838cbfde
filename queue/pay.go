package queue

import (
	"fmt"
	"slices"
)

// ChargePolicy says which attempts of a task pay for their permits.
type ChargePolicy uint8

const (
	// ChargeEveryAttempt charges each attempt, also the retry of one that failed:
	// a handler that failed may have sent its message all the same.
	ChargeEveryAttempt ChargePolicy = iota
	// ChargeSuccess gives the permits of an attempt back whose handler returned an
	// error, or panicked. It is right where a failure proves that the provider
	// counted nothing.
	ChargeSuccess
)

// pays are the texts of policy files.
var chargePolicies = [...]string{ChargeEveryAttempt: "every attempt", ChargeSuccess: "success"}

// String returns the text that a policy file has: "every attempt", "success".
func (p ChargePolicy) String() string {
	if !p.known() {
		return fmt.Sprintf("Pay(%d)", uint8(p))
	}
	return chargePolicies[p]
}

func (p ChargePolicy) known() bool { return int(p) < len(chargePolicies) }

// payTexts is what a policy file may say, for errors.
const chargePolicyTexts = `"every attempt" or "success"`

// payOf reads the text of a policy file.
func chargePolicyOf(text string) (ChargePolicy, bool) {
	i := slices.Index(chargePolicies[:], text)
	return ChargePolicy(max(i, 0)), i >= 0
}
