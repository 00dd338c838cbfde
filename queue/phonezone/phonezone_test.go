package phonezone

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/internal/zones"
)

// taskTo has the number as its payload.
func taskTo(number string) *asynq.Task { return asynq.NewTask("t", []byte(number)) }

func wholePayload(task *asynq.Task) (string, error) { return string(task.Payload()), nil }

func TestOf(t *testing.T) {
	t.Parallel()
	zone := Of(wholePayload, nil)
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
				t.Errorf("Of %s = %v, %v, want %s", number, got, err, name)
			}
		}
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		number string
		want   *zones.PhoneError
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
	strict, chosen := Of(wholePayload, nil), Of(wholePayload, time.UTC)
	for _, tt := range tests {
		for range 2 {
			got, err := strict(taskTo(tt.number))
			if got != nil || !errors.Is(err, tt.want) || !errors.Is(err, queue.ErrNoZone) {
				t.Errorf("Of %q = %v, %v, want %v", tt.number, got, err, tt.want)
			}
		}
		got, err := chosen(taskTo(tt.number))
		if open := tt.want == errNoPlace || tt.want == errManyZones; open != (err == nil) || open != (got == time.UTC) {
			t.Errorf("Of with a zone, %q = %v, %v, want the chosen zone: %v", tt.number, got, err, open)
		}
	}
	if got, err := chosen(taskTo("+4915112345678")); err != nil || got.String() != "Europe/Berlin" {
		t.Errorf("Of with a zone, a number with a zone = %v, %v", got, err)
	}
}

func TestPassesTheKeysError(t *testing.T) {
	t.Parallel()
	cause := errors.New("gone")
	_, err := Of(func(*asynq.Task) (string, error) { return "+4915112345678", cause }, nil)(taskTo(""))
	if !errors.Is(err, cause) {
		t.Errorf("error %v, want that of the key function", err)
	}
	defer func() {
		if v := recover(); v != "phonezone: no function that finds the number" {
			t.Errorf("Of without a function panics with %v", v)
		}
	}()
	Of(nil, nil)
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
		err   *zones.PhoneError
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

func TestForManyAtOnce(t *testing.T) {
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
func FuzzOf(f *testing.F) {
	for _, seed := range []string{"+4915112345678", "+18005551234", "+883510001234567", "+15550100", "13612345678", "+", ""} {
		f.Add(seed)
	}
	zone := Of(wholePayload, nil)
	f.Fuzz(func(t *testing.T, number string) {
		got, err := zone(taskTo(number))
		if (got == nil) != (err != nil) {
			t.Fatalf("Of %q = %v, %v, want a zone or an error", number, got, err)
		}
		if err != nil && !slices.Contains([]error{errNotE164, errNoPhone, errNoPlace, errManyZones}, err) {
			t.Errorf("Of %q: %v", number, err)
		}
	})
}

// in puts rules, one per line, into a file whose policy t lists those of these
// names.
func in(rules, names string) string {
	return "rules:\n" + rules + "policies:\n  t: {rules: [" + names + "]}\n"
}

func read(text string) ([]queue.Policy, error) {
	return queue.Funcs{PhoneZone: Of}.ReadPolicies("p.yaml", strings.NewReader(text))
}

// The word "or" may be in a name of the path too.
func TestInAFile(t *testing.T) {
	t.Parallel()
	const berlin, tollFree = "+4915112345678", "+18005551234"
	tests := []struct {
		zone, payload, want string // the zone's name; "" for a task without one
	}{
		{"phone $.to", `{"to":"` + berlin + `"}`, "Europe/Berlin"},
		{"phone $.to", `{"to":"` + tollFree + `"}`, ""},
		{"phone  $.to  or  America/Chicago", `{"to":"` + tollFree + `"}`, "America/Chicago"},
		{"phone $['this or that']", `{"this or that":"` + berlin + `"}`, "Europe/Berlin"},
		{"phone $['this or that'] or UTC", `{"this or that":"` + tollFree + `"}`, "UTC"},
		{"phone $['a or b'][0]", `{"a or b":["` + berlin + `"]}`, "Europe/Berlin"},
		{"$['phone or so']", `{"phone or so":"Asia/Tokyo"}`, "Asia/Tokyo"},
	}
	for _, tt := range tests {
		policies, err := read(in("  a:\n    gate: 08:00-21:00 recipient\n    zone: "+tt.zone+"\n  b: {limit: 1/60s, key: =all}\n", "a, b"))
		if err != nil {
			t.Errorf("%s: %v", tt.zone, err)
			continue
		}
		d, err := policies[0].Demand(asynq.NewTask("t", []byte(tt.payload)))
		switch {
		case tt.want == "" && !errors.Is(err, queue.ErrNoZone):
			t.Errorf("%s of %s = %v, %v, want ErrNoZone", tt.zone, tt.payload, d, err)
		case tt.want != "" && (err != nil || d.Gates[0].In.String() != tt.want):
			t.Errorf("%s of %s = %v, %v, want %s", tt.zone, tt.payload, d, err, tt.want)
		}
	}
	for zone, want := range map[string]string{
		"phone":                         `text "phone", want a path...`,
		"phone or UTC":                  `JSON path "or UTC", byte 0: want $ at the start`,
		"phone $.to or":                 `JSON path "$.to or", byte 4: want . or [`,
		"phone $.to or Local":           `time zone "Local": want a name of the time zone database...`,
		"phone $.to or UTC or Asia/Oz":  `time zone "Asia/Oz": want a name of the time zone database...`,
		"phone $.to or UTC or Etc/UTC":  `JSON path "$.to or UTC", byte 4: want . or [`,
		"phone $['a or b or Asia/Tokyo": `JSON path "$['a or b", byte 2: quote is not closed`,
	} {
		_, err := read(in("  a:\n    gate: 08:00-21:00 recipient\n    zone: "+zone+"\n", "a"))
		if text := "line 4, column 11: " + strings.TrimSuffix(want, "..."); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("zone %q: %v, want %s", zone, err, text)
		}
	}
}
