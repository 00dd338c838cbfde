package e2e

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Message is one SMS: the payload of a task and the body of a POST to the
// gateway, as JSON {"id","to","text"}. Its String shows neither number nor text,
// so a message that ends up in a log line gives nothing away.
type Message struct {
	ID   string `json:"id"`
	To   string `json:"to"`   // E.164, "+" and 7 to 15 digits
	Text string `json:"text"` // not blank
}

// String returns the id and the masked number.
func (m Message) String() string { return fmt.Sprintf("message %s to %s", m.ID, Mask(m.To)) }

// GoString keeps %#v as quiet as %v.
func (m Message) GoString() string { return m.String() }

// Encode returns m as JSON.
func (m Message) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, errors.New("message: cannot be written as JSON")
	}
	return b, nil
}

// DecodeMessage reads what [Message.Encode] wrote and refuses what no gateway
// could send: no id, a number that is not E.164, a blank text. Fields that it
// does not know are ignored. The error never quotes the payload.
func DecodeMessage(payload []byte) (Message, error) {
	var m Message
	if !utf8.Valid(payload) {
		return Message{}, errors.New("message: payload is not UTF-8")
	}
	if json.Unmarshal(payload, &m) != nil {
		return Message{}, errors.New(`message: payload is not JSON {"id","to","text"} with three strings`)
	}
	var errs []error
	if m.ID == "" {
		errs = append(errs, errors.New("message: id is empty"))
	}
	if m.To == "" {
		errs = append(errs, errors.New("message: to is empty"))
	} else if fault := PhoneFault(m.To); fault != "" {
		errs = append(errs, fmt.Errorf("message: to %s %s", Mask(m.To), fault))
	}
	if strings.TrimSpace(m.Text) == "" {
		errs = append(errs, errors.New("message: text is empty"))
	}
	if len(errs) > 0 {
		return Message{}, errors.Join(errs...)
	}
	return m, nil
}

// SetRandomIDs gives each message an id that no other has.
func SetRandomIDs(msgs []Message) {
	for i := range msgs {
		var b [16]byte
		rand.Read(b[:]) // never fails since Go 1.24
		msgs[i].ID = hex.EncodeToString(b[:])
	}
}

// SetOnceIDs gives each message the id that follows from its number, its text and
// its ordinal among equal ones. The same file gives the same ids on each run,
// and so does the same file in another order: of two equal messages the first
// is always number 1, whatever stands between them. An id shows no phone number, but
// who has the text can find the number by trying them all.
func SetOnceIDs(msgs []Message) {
	seen := make(map[[sha256.Size]byte]uint64, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		content := contentHash(m.To, m.Text)
		seen[content]++
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(content[:], seen[content]))
		m.ID = hex.EncodeToString(sum[:16])
	}
}

// contentHash puts the length of to first: "+1" "23" is not "+12" "3".
func contentHash(to, text string) [sha256.Size]byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(to)+len(text)), uint64(len(to)))
	return sha256.Sum256(append(append(b, to...), text...))
}

// Digits of an E.164 number after the plus.
const (
	phoneDigitsMin = 7
	phoneDigitsMax = 15
)

// PhoneFault says why s is no E.164 number ("+" and 7 to 15 digits, the first
// not 0), or returns "" if it is one. It goes by shape only and the reason
// shows no digit of s.
func PhoneFault(s string) string {
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

// Mask shortens a phone number to what may be shown: "+8613800005678" is
// "+86…5678". At least four digits stay hidden, so a short number shows fewer at
// its end. What is no phone number (it may be a name, or a text in the wrong
// column) shows nothing: "…".
func Mask(phone string) string {
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

// PhoneKey groups what belongs to one phone without showing it: masked numbers
// collide, and a plain hash of a phone number is found by trying them all. The
// secret must be the same in all processes whose files are merged.
func PhoneKey(secret []byte, phone string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(phone))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
