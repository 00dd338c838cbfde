package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Digits of an E.164 number after the plus.
const (
	phoneDigitsMin = 7
	phoneDigitsMax = 15
)

// phoneFault says why s is no E.164 number ("+" and 7 to 15 digits, the first
// not 0), or returns "" if it is one. It goes by shape only and the reason
// shows no digit of s.
func phoneFault(s string) string {
	digits, ok := strings.CutPrefix(s, "+")
	if !ok {
		return "does not start with +"
	}
	// No further than a number goes: s may be half a file that an open quote swallowed.
	for i := range min(len(digits), phoneDigitsMax+1) {
		if digits[i] < '0' || digits[i] > '9' {
			return fmt.Sprintf("byte %d is not a digit", i+2)
		}
	}
	if n := len(digits); n < phoneDigitsMin || n > phoneDigitsMax {
		return fmt.Sprintf("has %d digits, want %d to %d", n, phoneDigitsMin, phoneDigitsMax)
	}
	if digits[0] == '0' {
		return "starts with +0, want a country code"
	}
	return ""
}

// mask shortens a phone number to what may be shown: "+8613800005678" is
// "+86…5678". At least four digits stay hidden, so a short number shows fewer at
// its end. What is no phone number (it may be a name, or a text in the wrong
// column) shows nothing: "…".
func mask(phone string) string {
	const head, tail, hidden = 3, 4, 4
	if len(phone) > 64 {
		return "…"
	}
	clean := strings.Map(func(r rune) rune {
		if strings.ContainsRune(" -.()/", r) {
			return -1
		}
		return r
	}, phone)
	for i, r := range clean {
		if (r < '0' || r > '9') && (i > 0 || r != '+') {
			return "…"
		}
	}
	if len(clean) < head+hidden+1 {
		return "…"
	}
	return clean[:head] + "…" + clean[len(clean)-min(tail, len(clean)-head-hidden):]
}

// phoneKey groups what belongs to one phone without showing it: masked numbers
// collide, and a plain hash of a phone number is found by trying them all. The
// secret must be the same in all processes whose files are merged.
func phoneKey(secret []byte, phone string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(phone))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
