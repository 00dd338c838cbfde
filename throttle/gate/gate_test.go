package gate

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

func mustParse(t testing.TB, text string) Gate {
	t.Helper()
	g, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGateTexts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want, zone string }{
		{"09:00-21:00 Mon-Fri Europe/Berlin", "", "Europe/Berlin"},
		{"09:00-21:00 UTC", "", "UTC"},
		{"09:00-21:00 Mon-Sun UTC", "09:00-21:00 UTC", "UTC"},
		{"00:00-24:00 recipient", "", ""},
		{"  09:00-21:00\tMon\n UTC ", "09:00-21:00 Mon UTC", "UTC"},
		{"13:00-18:00,09:00-12:00 Mon,Tue,Wed,Fri Asia/Shanghai", "09:00-12:00,13:00-18:00 Mon-Wed,Fri Asia/Shanghai", "Asia/Shanghai"},
		{"09:00-18:00 Mon-Fri;10:00-14:00 Sat Europe/Berlin", "09:00-18:00 Mon-Fri; 10:00-14:00 Sat Europe/Berlin", "Europe/Berlin"},
		{"09:00-18:00 ; 10:00-14:00 Sat UTC", "09:00-18:00; 10:00-14:00 Sat UTC", "UTC"},
		{"22:00-06:00 Sat-Mon UTC", "", "UTC"},
		{"22:00-06:00 Sun,Mon,Wed,Sat UTC", "22:00-06:00 Wed,Sat-Mon UTC", "UTC"},
		{"22:00-06:00 Sun-Mon UTC", "22:00-06:00 Sun,Mon UTC", "UTC"},
		{"22:00-00:00 Fri-Wed UTC", "22:00-24:00 Fri-Wed UTC", "UTC"},
		{"09:00-18:00 Mon-Fri except 2026-12-26,01-01,02-29,2026-12-25 UTC", "09:00-18:00 Mon-Fri except 01-01,02-29,2026-12-25,2026-12-26 UTC", "UTC"},
		{"09:00-18:00 except 01-01 recipient", "", ""},
		{`cron "0 9 * * 1-5" to "0 21 * * 1-5" Europe/Berlin`, "", "Europe/Berlin"},
		{`cron "0  9 * 1 *"to"@midnight"  except 01-06 UTC`, `cron "0 9 * 1 *" to "@midnight" except 01-06 UTC`, "UTC"},
		{`cron " 0 9 ?  JAN MON-fri" to "@daily" recipient`, `cron "0 9 ? jan mon-fri" to "@daily" recipient`, ""},
	} {
		g, err := Parse(tt.text)
		if err != nil {
			t.Errorf("Parse(%q) = %v", tt.text, err)
			continue
		}
		want := tt.want
		if want == "" {
			want = tt.text
		}
		if got := g.String(); got != want || g.Zone() != tt.zone {
			t.Errorf("Parse(%q) = %q in zone %q, want %q in %q", tt.text, got, g.Zone(), want, tt.zone)
		}
		if again := mustParse(t, g.String()); again != g || g.IsZero() || g.Validate() != nil {
			t.Errorf("Parse(%q) = %v, want the gate that printed it", g, again)
		}
	}
}

func TestGateFaults(t *testing.T) {
	t.Parallel()
	many := "00:00-00:01"
	for m := range 64 {
		many += "," + stretch{int64(m) + 1, int64(m) + 2}.clock()
	}
	for _, tt := range []struct {
		text string
		want string // the fields of the faults
	}{
		{"", "hours"},
		{"UTC", "hours"},
		{"Mon-Fri 09:00-21:00 UTC", "hours"},
		{`""`, "hours"},
		{`"09:00-21:00" UTC`, "hours"},
		{`09:00-21:00 "Mon" UTC`, "zone word"},
		{"09:00-21:00", "zone"},
		{"09:00-21:00 Mon-Fri", "zone"},
		{"09:00-21:00 Local", "zone"},
		{"09:00-21:00 Mon-Fri localtime", "zone"},
		{"09:00-21:00 Europe/Berlln", "zone"},
		{"09:00-21:00 ../UTC", "zone"},
		{"09:00-21:00 Mo-Fr", "zone"},
		{`09:00-21:00 "UTC"`, "zone"},
		{"09:00-21:00 Mon,Tus,Mon,Wed-Wed UTC", "weekday weekday weekday"},
		{"09:00-09:00 UTC", "hours"},
		{"00:00-00:00 UTC", "hours"},
		{"9:00-21:00,09:00-21:60,24:00-09:00,09:00-24:01,25:00-26:00,09.00-10.00,09:00,0a:00-09:00 UTC", "hours hours hours hours hours hours hours hours"},
		{"09:00-12:00, 13:00-18:00 UTC", "hours weekday"},
		{"09:00-12:00,09:00-12:00 UTC", "hours"},
		{"22:00-00:00,22:00-24:00 UTC", "hours"},
		{many + " UTC", "hours"},
		{"09:00-21:00 Mon UTC; 10:00-14:00 Sat UTC", "word"},
		{"09:00-21:00 UTC except 12-25", "weekday zone"},
		{"09:00-21:00 Europe/Berlin except 12-25", "word"},
		{"09:00-21:00 Mon UTC UTC", "word"},
		{"09:00-21:00; UTC", "hours"},
		{"09:00-21:00 ;; 10:00-11:00 UTC", "hours"},
		{"09:00-21:00 except UTC", "date zone"},
		{"09:00-21:00 except", "date"},
		{"09:00-21:00 except 2026-02-29,02-30,1-1,2026-1-1,12-25,12-25 UTC", "date date date date date"},
		{"09:00-21:00 " + strings.Repeat(" ", TextMax) + "UTC", "text"},
		{`cron "0 9 * * *" UTC`, "word"},
		{`cron "0 9 * * *" to UTC`, "closing"},
		{"cron 0 9 * * * to 0 21 * * * UTC", "opening"},
		{"cron", "opening"},
		{`cron "0 9 * * *" to "0 21 * * *`, "word"},
		{`cron "0 9 * * *" to "0 21 * * *"`, "zone"},
		{`cron "0 9 * * 7" to "61 21 * * *" Local`, "opening closing zone"},
		{`cron "@every 1h" to "TZ=UTC 0 21 * * *" UTC`, "opening closing"},
		{`cron "CRON_TZ=UTC" to "TZ=" UTC`, "opening closing"},
		{`cron "0 9 * * 1,,2" to "0 , * * *" UTC`, "opening closing"},
		{`cron "0 9 * * *-5" to "+1 9 **/2 * *" UTC`, "opening closing"},
		{`cron "" to "0 0 9 * * *" UTC`, "opening closing"},
		{`cron "0 9 30 2 *" to "0 9 31 4,6,9,11 *" UTC`, "opening closing"},
		{`cron "0 9 * * *" to "0 9 * * *" UTC`, "opening"},
		{`cron "* * * * *" to "*/1 * * * *" UTC`, "opening"},
		{`cron "0 9 25 12 *" to "0 21 * * *" except 12-25 UTC`, "opening"},
		{`cron "0 9 29 2 *" to "0 21 * * *" except 02-29 UTC`, "opening"},
	} {
		g, err := Parse(tt.text)
		if !errors.Is(err, ErrInvalid) || !g.IsZero() {
			t.Errorf("Parse(%q) = %v, %v, want %v", tt.text, g, err, ErrInvalid)
			continue
		}
		var fields []string
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			f, ok := errors.AsType[*Error](e)
			if !ok || f.Value == "" || f.Want == "" {
				t.Errorf("Parse(%q): fault %#v, want a full Error", tt.text, e)
				continue
			}
			fields = append(fields, f.Field)
		}
		if got := strings.Join(fields, " "); got != tt.want {
			t.Errorf("Parse(%q): faults of %q, want %q: %v", tt.text, got, tt.want, err)
		}
	}
}

// A text within the bound may print beyond it, and would then not be read back.
func TestGateTextMaxCountsAsPrinted(t *testing.T) {
	t.Parallel()
	text := "00:00-00:01 Mon" + strings.Repeat(";00:00-00:01 Mon", 62) + " UTC"
	if len(text) >= TextMax {
		t.Fatalf("the text has %d bytes, want fewer", len(text))
	}
	_, err := Parse(text)
	if f, ok := errors.AsType[*Error](err); !ok || f.Field != "text" {
		t.Errorf("Parse = %v, want a fault of the text", err)
	}
}

func TestErrorSaysWhatIsRight(t *testing.T) {
	t.Parallel()
	_, err := Parse("09:00-21:00 Mon-Fry Local")
	want := `throttle: invalid gate: "09:00-21:00 Mon-Fry Local": weekday "Mon-Fry", want Mon, Tue, Wed, Thu, Fri, Sat, Sun, ` +
		`or from one to another such as Sat-Mon; zone "Local", want a name of the time zone database such as Europe/Berlin: ` +
		`this one differs per machine; or "recipient"; right is for example "09:00-21:00 Mon-Fri Europe/Berlin"`
	if err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

func TestZeroGate(t *testing.T) {
	t.Parallel()
	var g Gate
	if !g.IsZero() || !errors.Is(g.Validate(), ErrInvalid) || g.String() != "invalid gate" || g.Zone() != "" {
		t.Errorf("the zero gate is %v, %v, zone %q", g, g.Validate(), g.Zone())
	}
	if _, err := g.MarshalText(); !errors.Is(err, ErrInvalid) {
		t.Errorf("MarshalText = %v, want %v", err, ErrInvalid)
	}
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	if got := g.Openings(now, now.Add(day), time.UTC); got != nil {
		t.Errorf("Openings = %v, want none", got)
	}
	if rule, closed := FirstClosed([]InZone{{Rule: "hours"}}, now); rule != "hours" || !closed {
		t.Errorf("FirstClosed = %q, %v, want the zero gate", rule, closed)
	}
}

func TestGateMarshals(t *testing.T) {
	t.Parallel()
	g := mustParse(t, "09:00-21:00 Mon-Fri UTC")
	text, err := g.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var back Gate
	if err := back.UnmarshalText(text); err != nil || back != g {
		t.Errorf("UnmarshalText(%s) = %v, %v, want %v", text, back, err, g)
	}
	if err := back.UnmarshalText([]byte("09:00")); !errors.Is(err, ErrInvalid) || back != g {
		t.Errorf("UnmarshalText of a wrong text = %v and %v, want an error and the gate as it was", err, back)
	}
}

// Equal texts are one gate while it is in use, and nothing afterwards.
func TestGatesAreForgotten(t *testing.T) {
	const text = "03:14-15:09 Tue UTC"
	alive := func() bool {
		plans.mu.Lock()
		defer plans.mu.Unlock()
		_, ok := plans.alive[text]
		return ok
	}
	g := mustParse(t, text)
	runtime.GC()
	if again := mustParse(t, text); again != g {
		t.Errorf("two gates of %q differ", text)
	}
	if !alive() {
		t.Errorf("%q is not known while in use", text)
	}
	runtime.KeepAlive(g)
	for deadline := time.Now().Add(10 * time.Second); alive(); runtime.Gosched() {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatalf("%q is still known", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		exampleText, "22:00-06:00,07:00-24:00 Sat-Mon; 10:00-11:00 Wed except 2026-12-25,01-01 recipient",
		`cron "0 9 * * 1-5" to "*/7 21 1,15 jan-mar ?" except 02-29 America/New_York`, `cron "@daily" to "@hourly" UTC`, `cron "TZ=" to "`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || len(err.Error()) > 64*1024 {
				t.Fatalf("Parse(%q) = %v", text, err)
			}
			return
		}
		again, err := Parse(g.String())
		if err != nil || again != g {
			t.Fatalf("Parse(%q) prints as %q, and that as %v, %v", text, g, again, err)
		}
		from := time.Date(2026, 3, 20, 0, 0, 0, 0, time.UTC)
		checkOpenings(t, g.Openings(from, from.Add(10*day), time.UTC), from, from.Add(10*day))
	})
}
