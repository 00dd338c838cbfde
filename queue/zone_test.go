package queue

import (
	"errors"
	"fmt"
	"testing"
	_ "time/tzdata" // the zones of the tests do not depend on the machine

	"github.com/hibiken/asynq"
)

func TestJSONZone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Europe/Berlin", "America/Argentina/Buenos_Aires", "UTC", "Asia/Kathmandu"} {
		got, err := MustJSONZone("$.tz")(asynq.NewTask("t", fmt.Appendf(nil, `{"tz":%q}`, name)))
		if err != nil || got.String() != name {
			t.Errorf("JSONZone of %s = %v, %v", name, got, err)
		}
	}
}

func TestJSONZoneRefuses(t *testing.T) {
	t.Parallel()
	const unknown = "$.tz is no time zone that is known here"
	tests := []struct{ payload, want string }{
		{`{"tz":""}`, unknown},
		{`{"tz":"Local"}`, unknown},
		{`{"tz":"localtime"}`, unknown},
		{`{"tz":"posixrules"}`, unknown},
		{`{"tz":"posix/Europe/Berlin"}`, unknown},
		{`{"tz":"right/Europe/Berlin"}`, unknown},
		{`{"tz":"+4915112345678"}`, unknown},
		{`{"tz":"../../../etc/passwd"}`, unknown},
		{`{"tz":"/etc/localtime"}`, unknown},
		{`{"tz":"Europe/Berlin\u0000"}`, unknown},
		{`{"tz":"+02:00"}`, unknown},
		{`{"tz":2}`, "$.tz is a number, want a string"},
		{`{"tz":null}`, "$.tz is null, want a string"},
		{`{}`, "$.tz is missing"},
		{`tz`, "$ is not one JSON value (byte 2)"},
	}
	for _, tt := range tests {
		got, err := MustJSONZone("$.tz")(asynq.NewTask("t", []byte(tt.payload)))
		if got != nil || !errors.Is(err, ErrInvalidPayload) || err.Error() != "queue: payload: "+tt.want {
			t.Errorf("JSONZone of %s = %v, %v, want %s", tt.payload, got, err, tt.want)
		}
	}
	if zone, err := JSONZone("tz"); zone != nil || !errors.Is(err, ErrInvalidPath) {
		t.Errorf("JSONZone(tz) error = %v, want ErrInvalidPath", err)
	}
	want(t, panicOf(func() { MustJSONZone("tz") }), any(`queue: JSON path "tz", byte 0: want $ at the start`))
}
