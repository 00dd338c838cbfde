package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func ids(msgs []Message) []string {
	all := make([]string, len(msgs))
	for i, m := range msgs {
		all[i] = m.ID
	}
	return all
}

func TestMessageRoundTrip(t *testing.T) {
	t.Parallel()
	want := Message{ID: "a", To: "+12025550117", Text: "line 1\r\nline 2 <&> \"…\" 短信 \u2028"}
	b, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeMessage(b)
	if err != nil {
		t.Fatalf("DecodeMessage(%s): %v", b, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
	const wire = `{"id":"a","to":"+12025550117","text":"hi"}`
	if b, _ := (Message{ID: "a", To: "+12025550117", Text: "hi"}).Encode(); string(b) != wire {
		t.Errorf("Encode = %s, want %s", b, wire)
	}
}

func TestDecodeMessageRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ payload, want string }{
		{``, `message: payload is not JSON {"id","to","text"} with three strings`},
		{`{"id":"a","to":12025550117,"text":"secret"}`, `message: payload is not JSON {"id","to","text"} with three strings`},
		{`{"id":"a","to":"+12025550117","text":"secret"} x`, `message: payload is not JSON {"id","to","text"} with three strings`},
		{"{\"id\":\"a\",\"to\":\"+12025550117\",\"text\":\"secret\xff\"}", "message: payload is not UTF-8"},
		{`{"to":"12025550117","text":" "}`, "message: id is empty\nmessage: to 120…0117 does not start with +\nmessage: text is empty"},
		{`{"id":"a","text":"secret"}`, "message: to is empty"},
		{`null`, "message: id is empty\nmessage: to is empty\nmessage: text is empty"},
	} {
		_, err := DecodeMessage([]byte(tt.payload))
		if err == nil || err.Error() != tt.want {
			t.Errorf("DecodeMessage(%s) = %v, want %s", tt.payload, err, tt.want)
		}
	}
}

func TestMessagePrintsMasked(t *testing.T) {
	t.Parallel()
	m := Message{ID: "a", To: "+12025550117", Text: "secret"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		for _, v := range []any{m, &m, []Message{m}} {
			if got := fmt.Sprintf(format, v); strings.Contains(got, "2025550117") || strings.Contains(got, "secret") {
				t.Errorf("Sprintf(%q) = %s", format, got)
			}
		}
	}
}

func TestOnceIDs(t *testing.T) {
	t.Parallel()
	a, b := Message{To: "+12025550117", Text: "a"}, Message{To: "+12025550117", Text: "b"}
	msgs := []Message{a, b, a, a}
	SetOnceIDs(msgs)
	// Golden: an id that changes with a release would send a file a second time.
	if want := "e26ccb868913a0daf6c22847736dd030"; msgs[0].ID != want {
		t.Errorf("id = %s, want %s", msgs[0].ID, want)
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(ids(msgs)))); len(unique) != 4 {
		t.Errorf("ids = %v, want 4 different ones", ids(msgs))
	}
	other := []Message{b, a, a, a}
	SetOnceIDs(other)
	if diff := cmp.Diff(slices.Sorted(slices.Values(ids(msgs))), slices.Sorted(slices.Values(ids(other)))); diff != "" {
		t.Errorf("ids in another order (-want +got):\n%s", diff)
	}
	if contentHash("+1", "23") == contentHash("+12", "3") {
		t.Error("contentHash mixes number and text")
	}
}

func TestRandomIDs(t *testing.T) {
	t.Parallel()
	msgs := make([]Message, 1000)
	SetRandomIDs(msgs)
	if unique := slices.Compact(slices.Sorted(slices.Values(ids(msgs)))); len(unique) != 1000 || len(unique[0]) != 32 {
		t.Errorf("%d different ids, the first %q, want 1000 of 32 hex digits", len(unique), unique[0])
	}
}

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
		if got := Mask(tt.phone); got != tt.want {
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
		if got := PhoneFault(tt.phone); got != tt.want {
			t.Errorf("phoneFault(%q) = %q, want %q", tt.phone, got, tt.want)
		}
	}
}

func TestPhoneKey(t *testing.T) {
	t.Parallel()
	a := PhoneKey([]byte("one"), "+12025550117")
	if len(a) != 32 {
		t.Errorf("PhoneKey = %q, want 32 hex digits", a)
	}
	if b := PhoneKey([]byte("one"), "+12025550117"); a != b {
		t.Errorf("PhoneKey twice = %q and %q, want the same", a, b)
	}
	if b := PhoneKey([]byte("two"), "+12025550117"); a == b {
		t.Errorf("PhoneKey with another secret = %q, want another", b)
	}
	if b := PhoneKey([]byte("one"), "+12025550118"); a == b {
		t.Errorf("PhoneKey of another phone = %q, want another", b)
	}
}
