package main

import (
	"strings"
	"testing"
)

func TestMask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ phone, want string }{
		{"+8613800005678", "+86…5678"},
		{"+12025550117", "+12…0117"},
		{"+1234567", "+12…7"}, // four digits stay hidden
		{"+12345678", "+12…78"},
		{"+123456", "…"},
		{"", "…"},
		{"13800005678", "138…5678"},
		{"+1 (202) 555-0117", "+12…0117"},
		{"Jane Doe", "…"},
		{"call +12025550117", "…"},
		{"+1202555011７", "…"}, // a full-width digit
		{"+12025550117\x1b[2J", "…"},
		{strings.Repeat("1", 65), "…"},
	} {
		if got := mask(tt.phone); got != tt.want {
			t.Errorf("mask(%q) = %q, want %q", tt.phone, got, tt.want)
		}
	}
}

func TestPhoneFault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ phone, want string }{
		{"+1234567", ""},
		{"+123456789012345", ""},
		{"+123456", "has 6 digits, want 7 to 15"},
		{"+1234567890123456", "has 16 digits, want 7 to 15"},
		{"+0234567", "starts with +0, want a country code"},
		{"8613800005678", "does not start with +"},
		{" +8613800005678", "does not start with +"},
		{"+86 13800005678", "byte 4 is not a digit"},
		{"+8613800005678 ", "byte 15 is not a digit"},
		{"+", "has 0 digits, want 7 to 15"},
		{"++1234567", "byte 2 is not a digit"},
		{"+123456７", "byte 8 is not a digit"},
	} {
		if got := phoneFault(tt.phone); got != tt.want {
			t.Errorf("phoneFault(%q) = %q, want %q", tt.phone, got, tt.want)
		}
	}
}

func TestPhoneKey(t *testing.T) {
	t.Parallel()
	a := phoneKey([]byte("one"), "+12025550117")
	if len(a) != 32 {
		t.Errorf("phoneKey = %q, want 32 hex digits", a)
	}
	if b := phoneKey([]byte("one"), "+12025550117"); a != b {
		t.Errorf("phoneKey twice = %q and %q, want the same", a, b)
	}
	if b := phoneKey([]byte("two"), "+12025550117"); a == b {
		t.Errorf("phoneKey with another secret = %q, want another", b)
	}
	if b := phoneKey([]byte("one"), "+12025550118"); a == b {
		t.Errorf("phoneKey of another phone = %q, want another", b)
	}
}
