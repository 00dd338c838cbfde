package luascripts

import (
	"regexp"
	"strings"
	"testing"
)

// A constant stands in its place, and what only looks like one stays.
func TestConstantsStandInTheirPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"local at = TOLD + now\n", "local at = 2251799813685248 + now\n"},
		{"return -PARK / 2, (PARK)\n", "return -4503599627370496 / 2, (4503599627370496)\n"},
		{`x = NOBODY .. "PARK \" PARK"..NOBODY -- PARK`, `x = "\0\0\0\0\0\0\0\0" .. "PARK \" PARK".."\0\0\0\0\0\0\0\0" -- PARK`},
		{"L.PARK, PARKING, _PARK, KEYS[1]", "L.PARK, PARKING, _PARK, KEYS[1]"},
		{"  local ROOM = 4096 -- tickets a permit\nlocal ROOM_OF = {}\n", "\nlocal ROOM_OF = {}\n"},
		{`local TOLD, WAITING = 2251799813685248, "(2251799813685248" -- above`, "\n"},
	} {
		if got := inPlace(c.text, sourceTexts().constants); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.text, got, c.want)
		}
	}
}

// No file has a constant left that Lua would make a variable of, or gives its name to
// anything else, and its lines stay where they are. Texts stand between double quotes.
func TestScriptsHoldNoConstants(t *testing.T) {
	t.Parallel()
	if len(sourceTexts().constants) < 40 {
		t.Errorf("%d constants were found: %v", len(sourceTexts().constants), sourceTexts().constants)
	}
	local := regexp.MustCompile(`^\s*local (?:function )?([\w, ]+)`)
	for _, name := range fileNames(t) {
		for line := range strings.Lines(source(t, name)) {
			if m := local.FindStringSubmatch(line); m != nil {
				names, _ := constantsOf(line)
				for word := range strings.SplitSeq(m[1], ", ") {
					if _, is := sourceTexts().constants[strings.TrimSpace(word)]; is && names == nil {
						t.Errorf("%s: %q gives the name of a constant to something else", name, line)
					}
				}
			}
			code, _, _ := strings.Cut(line, "--")
			if code = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`).ReplaceAllString(code, ""); strings.ContainsAny(code, "'\"") || strings.Contains(code, "[[") {
				t.Errorf("%s: %q has a text that is not between double quotes", name, line)
			}
		}
		if want, got := strings.Count(source(t, name), "\n"), strings.Count(sourceTexts().replaced[name], "\n"); got != want {
			t.Errorf("%s has %d lines, with the constants in their places %d", name, want, got)
		}
		for line := range strings.Lines(sourceTexts().replaced[name]) {
			code, _, _ := strings.Cut(line, "--")
			for _, word := range regexp.MustCompile(`"[^"]*"|\.?\w+`).FindAllString(code, -1) {
				if _, is := sourceTexts().constants[word]; is {
					t.Errorf("%s: %s is left in %q", name, word, line)
				}
			}
		}
	}
}
