package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want Faults
		is   string // how it prints; "" is text
	}{
		{"429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7", Faults{50_000, 2 * time.Second, 10_000, 5000, 7}, ""},
		{"seed=18446744073709551615,timeout=0.0001%", Faults{Timeout: 1, Seed: 1<<64 - 1}, "timeout=0.0001%,seed=18446744073709551615"},
		{"429=100%", Faults{TooMany: shareAll, After: 30 * time.Second}, "429=100%,after=30s"},
		{"429=0%,after=1h", Faults{After: time.Hour}, "429=0%,after=3600s"},
		{"429=33.3%,5xx=33.3%,timeout=33.4%", Faults{333_000, 30 * time.Second, 333_000, 334_000, 0}, "429=33.3%,after=30s,5xx=33.3%,timeout=33.4%"},
		{"5xx=0%,seed=1", Faults{Seed: 1}, ""},
	} {
		got, err := ParseFaults(tt.text)
		if err != nil || got != tt.want {
			t.Errorf("ParseFaults(%q) = %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
		if tt.is == "" {
			tt.is = tt.text
		}
		if got := tt.want.String(); got != tt.is {
			t.Errorf("%q prints as %q, want %q", tt.text, got, tt.is)
		}
	}
	if s := (Faults{}).String(); s != "" {
		t.Errorf("no faults print as %q", s)
	}
}

func TestParseFaultsRefuses(t *testing.T) {
	t.Parallel()
	const share = "want 0% to 100%, with up to four decimals"
	for _, tt := range []struct {
		text string
		want []string // a line each, and no more
	}{
		{"", []string{`"" is none of 429, after, 5xx, timeout and seed`, "want at least one of 429, 5xx and timeout, such as 5xx=1%"}},
		{"5xx", []string{`5xx is "", ` + share}},
		{"5xx=1", []string{`5xx is "1", ` + share}},
		{"5xx=100.0001%", []string{`5xx is "100.0001%", ` + share}},
		{"5xx=0.00001%", []string{share}},
		{"5xx=-1%", []string{share}},
		{"5xx=+1%", []string{share}},
		{"5xx=1e1%", []string{share}},
		{"5xx=.5%", []string{share}},
		{"5xx=5.%", []string{share}},
		{"5xx=NaN%", []string{share}},
		{"5xx=1%,5xx=1%", []string{`"5xx" is given twice`}},
		{"5xx=1%, timeout=1%", []string{`" timeout" is none of`}},
		{"5xx=50%,timeout=50.5%", []string{"the shares add up to 100.5%, want 100% at most"}},
		{"5xx=1%,after=2s", []string{"after has no effect without 429"}},
		{"429=1%,after=0s", []string{`after is "0s", want whole seconds, 1s to 1h`}},
		{"429=1%,after=3601s", []string{`after is "3601s"`}},
		{"429=1%,after=1500ms", []string{`after is "1500ms"`}},
		{"429=1%,after=2", []string{`after is "2"`}},
		{"429=1%,seed=0", []string{`seed is "0", want 1 to 2^64-1`}},
		{"429=1%,seed=18446744073709551616", []string{"want 1 to 2^64-1"}},
		{"seed=7", []string{"want at least one of"}},
		{"429=200%,after=x,boss=1,seed=-1,5xx=60%,timeout=60%", []string{
			`429 is "200%"`, `after is "x"`, `"boss" is none of`, `seed is "-1"`, "add up to 120%",
		}},
	} {
		got, err := ParseFaults(tt.text)
		if err == nil || got != (Faults{}) {
			t.Errorf("ParseFaults(%q) = %+v, %v, want only an error", tt.text, got, err)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(tt.want) {
			t.Errorf("ParseFaults(%q): %d faults, want %d:\n%v", tt.text, len(lines), len(tt.want), err)
			continue
		}
		for i, want := range tt.want {
			if !strings.HasPrefix(lines[i], "-gateway-faults: ") || !strings.Contains(lines[i], want) {
				t.Errorf("ParseFaults(%q): fault %d is %q, want %q", tt.text, i+1, lines[i], want)
			}
		}
	}
}

func FuzzParseFaults(f *testing.F) {
	f.Add("429=5%,after=2s,5xx=1%,timeout=0.5%,seed=7")
	f.Add("5xx=0%")
	f.Add("429=0%,timeout=99.9999%,after=1h0m0s")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseFaults(text)
		if err != nil {
			if got != (Faults{}) {
				t.Errorf("ParseFaults(%q) = %+v beside an error", text, got)
			}
			return
		}
		if got.TooMany < 0 || got.Unavailable < 0 || got.Timeout < 0 || got.TooMany+got.Unavailable+got.Timeout > shareAll {
			t.Errorf("ParseFaults(%q) = %+v, want shares of one whole", text, got)
		}
		if got == (Faults{}) {
			return // prints as nothing
		}
		if again, err := ParseFaults(got.String()); err != nil || again != got {
			t.Errorf("%q prints as %q, which is %+v, %v, want %+v", text, got, again, err, got)
		}
	})
}

func TestFaultsDraw(t *testing.T) {
	t.Parallel()
	const n = 100_000
	f := Faults{TooMany: 50_000, Unavailable: 10_000, Timeout: 5000, Seed: 7}
	// As many draws of one message as of many: neither id nor attempt is a pattern.
	for name, draw := range map[string]func(i int) fault{
		"ids":      func(i int) fault { return f.draw(fmt.Sprint(i), 1) },
		"attempts": func(i int) fault { return f.draw("1", uint64(i)+1) },
	} {
		got := map[fault]int{}
		for i := range n {
			got[draw(i)]++
		}
		for kind, want := range map[fault]int{faultTooMany: 5000, faultUnavailable: 1000, faultTimeout: 500, faultNone: 93_500} {
			if diff := got[kind] - want; diff < -300 || diff > 300 { // over four standard deviations
				t.Errorf("%s: fault %d drawn %d times of %d, want about %d", name, kind, got[kind], n, want)
			}
		}
	}
	other, differ := f, 0
	other.Seed = 8
	for i := range 1000 {
		id := fmt.Sprint(i)
		first := f.draw(id, 1)
		if again := f.draw(id, 1); again != first {
			t.Errorf("message %s draws %d, and then %d", id, first, again)
		}
		if first != other.draw(id, 1) {
			differ++
		}
	}
	if differ < 50 || differ > 250 {
		t.Errorf("%d of 1000 messages draw another fault by another seed, want about 123", differ)
	}
	for i := range 1000 {
		if got := (Faults{Seed: 7}).draw(fmt.Sprint(i), 1); got != faultNone {
			t.Errorf("fault %d of no faults", got)
		}
		if got := (Faults{TooMany: shareAll, Seed: 7}).draw(fmt.Sprint(i), 1); got != faultTooMany {
			t.Errorf("fault %d, want 429 always", got)
		}
	}
}
