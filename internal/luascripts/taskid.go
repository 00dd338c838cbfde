package luascripts

import (
	"encoding/hex"
	"strings"
)

// The first byte of an id that is not written as it is.
const (
	idEscaped = "\x01" // its text follows
	idUUID    = "\x02" // its 16 bytes follow
	idEntry   = "\x03" // what begins so is no id, see taskid.lua
)

// shortID is a task's id as our keys hold it, see taskid.lua: asynq draws UUIDs,
// and in raw bytes one takes half the memory.
func shortID(id string) string {
	if raw, ok := UUIDBytes(id); ok {
		return idUUID + raw
	}
	if strings.HasPrefix(id, idEscaped) || strings.HasPrefix(id, idUUID) || strings.HasPrefix(id, idEntry) {
		return idEscaped + id
	}
	return id
}

// longID reads it back; what nobody wrote so stays as it is.
func longID(short string) string {
	if raw, ok := strings.CutPrefix(short, idUUID); ok && len(raw) == 16 {
		return UUIDText(raw)
	}
	return strings.TrimPrefix(short, idEscaped)
}

// UUIDBytes are the 16 bytes of a UUID in its one canonical form, lower case with
// hyphens; any other text is none.
func UUIDBytes(id string) (raw string, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return "", false
	}
	var digits [32]byte
	n := 0
	for i := range len(id) {
		switch c := id[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'f':
			digits[n] = c
			n++
		default:
			return "", false
		}
	}
	var b [16]byte
	_, err := hex.Decode(b[:], digits[:n])
	return string(b[:]), err == nil
}

// UUIDText is the text of 16 bytes.
func UUIDText(raw string) string {
	t := hex.EncodeToString([]byte(raw))
	return t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:]
}
