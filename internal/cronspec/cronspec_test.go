package cronspec

import (
	"testing"

	"github.com/robfig/cron/v3"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text   string
		fields cron.ParseOption
		ok     bool
	}{
		{"0 9 * * 1-5", Standard, true},
		{"*/5 9,21 ? JAN mon-FRI", Standard, true},
		{"@daily", Standard, true},
		{"30 0 9 * * *", Standard | cron.SecondOptional, true},
		{"0 9 * * *", Standard | cron.SecondOptional, true},
		{"30 0 9 * * *", Standard, false},
		{"", Standard, false},
		{"@every 1h", Standard, false},
		{"@sometimes", Standard, false},
		{"TZ=UTC 0 9 * * *", Standard, false},
		{"CRON_TZ=UTC", Standard, false},
		{"0 9 * * 1,,2", Standard, false},
		{"0 , * * *", Standard, false},
		{"0 9 * * *-5", Standard, false},
		{"+1 9 * * *", Standard, false},
		{"1 9 **/2 * *", Standard, false},
		{"60 9 * * *", Standard, false},
	} {
		spec, err := Parse(tt.text, tt.fields)
		if (err == nil) != tt.ok || (spec != nil) != tt.ok {
			t.Errorf("Parse(%q) = %v, %v, want it read: %v", tt.text, spec, err, tt.ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0 9 * * 1-5")
	f.Add("@every 1s")
	f.Add("TZ= 0")
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := Parse(text, Standard|cron.SecondOptional)
		if err == nil && (spec.Hour == 0 || spec.Minute == 0 || spec.Second == 0 || spec.Month == 0 || spec.Dom == 0 || spec.Dow == 0) {
			t.Errorf("Parse(%q) reads a field that never comes: %+v", text, spec)
		}
	})
}
