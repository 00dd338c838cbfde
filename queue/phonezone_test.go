package queue

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// taskTo has the number as its payload.
func taskTo(number string) *asynq.Task { return asynq.NewTask("t", []byte(number)) }

func wholePayload(task *asynq.Task) (string, error) { return string(task.Payload()), nil }

func TestPhoneZone(t *testing.T) {
	t.Parallel()
	zone := PhoneZone(wholePayload)
	for number, name := range map[string]string{
		"+4915112345678": "Europe/Berlin",
		"+8613612345678": "Asia/Shanghai",
		"+12125550123":   "America/New_York",
		"+14155552671":   "America/Los_Angeles",
		"+5511961234567": "America/Sao_Paulo",
		"+34612345678":   "Europe/Madrid",
		"+34928123456":   "Atlantic/Canary",
		"+79241234567":   "Europe/Moscow",   // and may be in Vladivostok: the plans do not say
		"+972501234567":  "Asia/Jerusalem",  // possible, though not valid by the plans of this build
		"+447911123456":  "Europe/Guernsey", // or the Isle of Man, or London: one clock
	} {
		for range 2 { // found, then remembered
			if got, err := zone(taskTo(number)); err != nil || got.String() != name {
				t.Errorf("PhoneZone of %s = %v, %v, want %s", number, got, err, name)
			}
		}
	}
}

func TestPhoneZoneRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		number string
		want   *ZoneError
	}{
		{"", errNotE164},
		{"+", errNotE164},
		{"13612345678", errNotE164},
		{"+49 1511 2345678", errNotE164},
		{"+0151123456", errNotE164},
		{"+123456", errNotE164},
		{"+1234567890123456", errNotE164},
		{"tel:+12125550123", errNotE164},
		{"+12125550123x9", errNotE164},
		{"+1800FLOWERS", errNotE164},
		{"+٤٩١٥١١٢٣", errNotE164},
		{"+9991234567", errNoPhone},      // no such country
		{"+15550100", errNoPhone},        // too short for its country
		{"+861361234567890", errNoPhone}, // too long for its country
		{"+883510001234567", errNoPlace},
		{"+18005551234", errManyZones},
		{"+351912345678", errManyZones},
	}
	strict, chosen := PhoneZone(wholePayload), PhoneZoneOr(wholePayload, time.UTC)
	for _, tt := range tests {
		for range 2 {
			got, err := strict(taskTo(tt.number))
			if got != nil || !errors.Is(err, tt.want) || !errors.Is(err, ErrNoZone) {
				t.Errorf("PhoneZone of %q = %v, %v, want %v", tt.number, got, err, tt.want)
			}
		}
		got, err := chosen(taskTo(tt.number))
		if open := tt.want == errNoPlace || tt.want == errManyZones; open != (err == nil) || open != (got == time.UTC) {
			t.Errorf("PhoneZoneOr of %q = %v, %v, want the chosen zone: %v", tt.number, got, err, open)
		}
	}
	if got, err := chosen(taskTo("+4915112345678")); err != nil || got.String() != "Europe/Berlin" {
		t.Errorf("PhoneZoneOr of a number with a zone = %v, %v", got, err)
	}
}

func TestPhoneZonePassesTheKeysError(t *testing.T) {
	t.Parallel()
	cause := &quotingError{"gone"}
	_, err := PhoneZone(func(*asynq.Task) (string, error) { return "+4915112345678", cause })(taskTo(""))
	if !errors.Is(err, cause) {
		t.Errorf("error %v, want that of the key function", err)
	}
	want(t, panicOf(func() { PhoneZone(nil) }), any("queue: PhoneZone without a key function"))
}

func TestOneZone(t *testing.T) {
	t.Parallel()
	gone := errors.New("no such file")
	load := func(name string) (*time.Location, error) {
		if name == "Gone" {
			return nil, gone
		}
		return time.LoadLocation(name)
	}
	tests := []struct {
		names []string
		want  string
		err   *ZoneError
	}{
		{[]string{"Europe/Berlin"}, "Europe/Berlin", nil},
		{[]string{"Europe/Paris", "Europe/Berlin"}, "Europe/Berlin", nil},
		{[]string{"Europe/London", "Europe/Lisbon"}, "Europe/Lisbon", nil},
		{[]string{"Europe/London", "Africa/Abidjan"}, "", errManyZones}, // the same in winter
		{[]string{"Europe/Berlin", "Africa/Lagos"}, "", errManyZones},
		{[]string{"America/Phoenix", "America/Denver"}, "", errManyZones},
		{[]string{"Gone", "Europe/Berlin"}, "", errZoneAbsent},
	}
	for _, tt := range tests {
		got := oneZone(tt.names, load)
		if got.err != tt.err || tt.err == nil && got.zone.String() != tt.want {
			t.Errorf("oneZone(%v) = %v, %v, want %s, %v", tt.names, got.zone, got.err, tt.want, tt.err)
		}
	}
}

// Millions of numbers pass; two generations of them are remembered, and the
// number that is asked for again and again stays.
func TestPhonesAreBounded(t *testing.T) {
	t.Parallel()
	var c phoneCache
	const often = "+4915112345678"
	for i := range 3 * phonesMax {
		c.remember(fmt.Sprintf("+49151%08d", i), phoneZone{zone: time.UTC})
		if zone, err := c.zone(often); err != nil || zone.String() != "Europe/Berlin" {
			t.Fatalf("zone = %v, %v", zone, err)
		}
		if len(c.new) > phonesMax || len(c.old) > phonesMax {
			t.Fatalf("%d and %d numbers are remembered, want at most %d each", len(c.new), len(c.old), phonesMax)
		}
	}
	if _, ok := c.new["+4915100000000"]; ok {
		t.Error("the first number is still among the new")
	}
	if _, ok := c.old["+4915100000000"]; ok {
		t.Error("the first number is still remembered")
	}
}

func TestPhoneZoneForManyAtOnce(t *testing.T) {
	t.Parallel()
	var (
		c  phoneCache
		wg sync.WaitGroup
	)
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				if _, err := c.zone(fmt.Sprintf("+49151%08d", i*g)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever the key is, there is a zone, or an error whose text is known before.
func FuzzPhoneZone(f *testing.F) {
	for _, seed := range []string{"+4915112345678", "+18005551234", "+883510001234567", "+15550100", "13612345678", "+", ""} {
		f.Add(seed)
	}
	zone := PhoneZone(wholePayload)
	f.Fuzz(func(t *testing.T, number string) {
		got, err := zone(taskTo(number))
		if (got == nil) != (err != nil) {
			t.Fatalf("PhoneZone of %q = %v, %v, want a zone or an error", number, got, err)
		}
		if err != nil && !slices.Contains([]error{errNotE164, errNoPhone, errNoPlace, errManyZones}, err) {
			t.Errorf("PhoneZone of %q: %v", number, err)
		}
	})
}
