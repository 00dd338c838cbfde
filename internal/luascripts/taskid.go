package luascripts

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
)

// The first byte of an id that is not written as it is.
const (
	idEscaped = "\x01" // its text follows
	idUUID    = "\x02" // its 16 bytes follow
	idEntry   = "\x03" // what begins so is no id, see taskid.lua
)

// ShortID is a task's id as our keys hold it, see taskid.lua: asynq draws UUIDs,
// and in raw bytes one takes half the memory.
func ShortID(id string) string {
	if raw, ok := uuidBytes(id); ok {
		return idUUID + raw
	}
	if strings.HasPrefix(id, idEscaped) || strings.HasPrefix(id, idUUID) || strings.HasPrefix(id, idEntry) {
		return idEscaped + id
	}
	return id
}

// LongID reads an id of [ShortID] back; what nobody wrote so stays as it is.
func LongID(short string) string {
	if raw, ok := strings.CutPrefix(short, idUUID); ok && len(raw) == 16 {
		return uuidText(raw)
	}
	return strings.TrimPrefix(short, idEscaped)
}

// uuidBytes are the 16 bytes of a UUID in its one canonical form, lower case with
// hyphens; any other text is none.
func uuidBytes(id string) (raw string, ok bool) {
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

// uuidText is the text of 16 bytes.
func uuidText(raw string) string {
	t := hex.EncodeToString([]byte(raw))
	return t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:]
}

// The jobs in a line that are asynq tasks begin with one of these: no id that people
// choose does. Behind it come the queue, nothing for asynq's default, a colon and the
// id: as text, or of a UUID its 16 bytes, for each waiting job takes memory.
const (
	jobText = "\x01"
	jobUUID = "\x02"
)

// queueDefault is asynq's queue for those who name none.
const queueDefault = "default"

// JobID names a task in a line. It can be read back, but for ids that are too
// long for a line: those are hashed, and never hear that their turn came early.
func JobID(queue, id string) string {
	name := ""
	if queue != queueDefault {
		name = url.QueryEscape(queue)
	}
	if raw, ok := uuidBytes(id); ok {
		return jobUUID + name + ":" + raw
	}
	job := jobText + name + ":" + id
	if len(job) <= JobMax {
		return job
	}
	sum := sha256.Sum256([]byte(job))
	return "hashed:" + hex.EncodeToString(sum[:])
}

// TaskOf reads a job id back.
func TaskOf(job string) (queue, id string, ok bool) {
	name, id, ok := strings.Cut(job, ":")
	if !ok {
		return "", "", false
	}
	escaped, uuid := strings.CutPrefix(name, jobUUID)
	switch {
	case uuid && len(id) == 16:
		id = uuidText(id)
	case uuid || !strings.HasPrefix(name, jobText):
		return "", "", false
	default:
		escaped = name[len(jobText):]
	}
	if escaped == "" {
		return queueDefault, id, true
	}
	queue, err := url.QueryUnescape(escaped)
	return queue, id, err == nil
}
