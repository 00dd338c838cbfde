package asynqwire

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Message holds those fields of asynq's TaskMessage that the adapter needs. The
// payload and the headers are skipped: they are the user's.
type Message struct {
	Type      string
	ID        string
	Queue     string
	ErrorMsg  string // of the last attempt; the adapter finds its token in it
	UniqueKey string // empty without a unique lock

	Retry   int // attempts after the first, at most
	Retried int // failures so far

	Timeout   int64 // seconds, 0 for none
	Deadline  int64 // Unix seconds, 0 for none
	Retention int64 // seconds that a completed task is kept, 0 to delete it
}

// Numbers of the fields in asynq.proto. A number never changes its meaning in protobuf.
const (
	fieldType      protowire.Number = 1
	fieldID        protowire.Number = 3
	fieldQueue     protowire.Number = 4
	fieldRetry     protowire.Number = 5
	fieldRetried   protowire.Number = 6
	fieldErrorMsg  protowire.Number = 7
	fieldTimeout   protowire.Number = 8
	fieldDeadline  protowire.Number = 9
	fieldUniqueKey protowire.Number = 10
	fieldRetention protowire.Number = 12
)

var (
	// ErrMessage says that a message is not one of asynq's, or cut.
	ErrMessage     = errors.New("asynqwire: malformed asynq message")
	errInvalidUTF8 = errors.New("invalid UTF-8")
)

// messageError says where a message is malformed, never what it holds. It
// unwraps to ErrMessage and to the cause.
type messageError struct {
	field  protowire.Number // 0 if the tag itself can't be read
	offset int              // bytes
	cause  error
}

func (e *messageError) Error() string {
	return fmt.Sprintf("%v: field %d at byte %d: %v", ErrMessage, e.field, e.offset, e.cause)
}

func (e *messageError) Unwrap() []error { return []error{ErrMessage, e.cause} }

// DecodeMessage reads an encoded TaskMessage as protobuf does: the last of
// repeated fields wins, unknown fields and known ones of another wire type are
// skipped. It accepts all that asynq accepts; as it does not look into skipped
// fields it also accepts some that asynq refuses. Strings are copies.
func DecodeMessage(b []byte) (Message, error) {
	var m Message
	for at := 0; at < len(b); {
		num, typ, n := protowire.ConsumeTag(b[at:])
		if n < 0 {
			return Message{}, &messageError{offset: at, cause: protowire.ParseError(n)}
		}
		v := b[at+n:]
		size := protowire.ConsumeFieldValue(num, typ, v)
		if size < 0 {
			return Message{}, &messageError{field: num, offset: at, cause: protowire.ParseError(size)}
		}
		if err := m.set(num, typ, v[:size]); err != nil {
			return Message{}, &messageError{field: num, offset: at, cause: err}
		}
		at += n + size
	}
	return m, nil
}

// set stores the value of one field; v is complete and well-formed for typ.
func (m *Message) set(num protowire.Number, typ protowire.Type, v []byte) error {
	switch typ {
	case protowire.BytesType:
		dst := m.text(num)
		if dst == nil {
			return nil
		}
		s, _ := protowire.ConsumeBytes(v)
		if !utf8.Valid(s) {
			return errInvalidUTF8
		}
		*dst = string(s)
	case protowire.VarintType:
		n, _ := protowire.ConsumeVarint(v)
		switch num {
		case fieldRetry:
			m.Retry = int(int32(n))
		case fieldRetried:
			m.Retried = int(int32(n))
		case fieldTimeout:
			m.Timeout = int64(n)
		case fieldDeadline:
			m.Deadline = int64(n)
		case fieldRetention:
			m.Retention = int64(n)
		}
	}
	return nil
}

func (m *Message) text(num protowire.Number) *string {
	switch num {
	case fieldType:
		return &m.Type
	case fieldID:
		return &m.ID
	case fieldQueue:
		return &m.Queue
	case fieldErrorMsg:
		return &m.ErrorMsg
	case fieldUniqueKey:
		return &m.UniqueKey
	}
	return nil
}
