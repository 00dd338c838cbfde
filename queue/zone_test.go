package queue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
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

func TestZonesAreLoadedOnce(t *testing.T) {
	t.Parallel()
	var (
		c     zoneCache
		wg    sync.WaitGroup
		found [20]*time.Location
	)
	for i := range found {
		wg.Go(func() { found[i], _ = c.load("Europe/Berlin") })
	}
	wg.Wait()
	for _, zone := range found {
		if zone == nil || zone != found[0] {
			t.Fatalf("zones %p and %p, want one", zone, found[0])
		}
	}
}

func TestZonesAreBounded(t *testing.T) {
	t.Parallel()
	c := zoneCache{loaded: make(map[string]*time.Location)}
	for i := range zonesMax {
		c.loaded[fmt.Sprint(i)] = time.UTC
	}
	if zone, err := c.load("Europe/Berlin"); err != nil || zone.String() != "Europe/Berlin" || len(c.loaded) != zonesMax {
		t.Errorf("load = %v, %v with %d zones kept, want it and %d", zone, err, len(c.loaded), zonesMax)
	}
	for range 10 {
		_, _ = c.load(strings.Repeat("x", 10))
	}
	if len(c.loaded) != zonesMax {
		t.Errorf("%d zones kept", len(c.loaded))
	}
}
