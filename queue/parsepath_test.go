package queue

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func field(name string, end int) step { return step{name: name, index: -1, end: end} }

func element(index, end int) step { return step{index: index, end: end} }

func TestParsePath(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path string
		want []step
	}{
		{"$", nil},
		{"$.to", []step{field("to", 4)}},
		{"$.a.b[0]", []step{field("a", 3), field("b", 5), element(0, 8)}},
		{"$['odd key'][2]", []step{field("odd key", 12), element(2, 15)}},
		{`$["a'b"]['c"d']`, []step{field("a'b", 8), field(`c"d`, 15)}},
		{`$['it\'s']["\\\""]`, []step{field("it's", 10), field(`\"`, 18)}},
		{"$['']", []step{field("", 5)}},
		{"$._a9.电话", []step{field("_a9", 5), field("电话", 12)}},
		{"$[2147483647]", []step{element(1<<31-1, 13)}},
		{"$" + strings.Repeat("[0]", 32), func() (steps []step) {
			for i := range 32 {
				steps = append(steps, element(0, 4+3*i))
			}
			return steps
		}()},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			got, err := parsePath(tt.path)
			if err != nil {
				t.Fatalf("parsePath(%q): %v", tt.path, err)
			}
			want := path{text: tt.path, steps: tt.want}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(path{}, step{})); diff != "" {
				t.Errorf("parsePath(%q) (-want +got):\n%s", tt.path, diff)
			}
		})
	}
}

func TestParsePathRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path   string
		pos    int
		reason string
	}{
		{"", 0, "want $"},
		{"to", 0, "want $"},
		{" $", 0, "want $"},
		{"$to", 1, "want . or ["},
		{"$.", 2, "want a name"},
		{"$..to", 2, "want a name"},
		{"$.*", 2, "want a name"},
		{"$.1", 2, "want a name"},
		{"$.a-b", 3, "want . or ["},
		{"$.a ", 3, "want . or ["},
		{"$[", 2, "want an index or a quoted name"},
		{"$[]", 2, "want an index or a quoted name"},
		{"$[*]", 2, "want an index or a quoted name"},
		{"$[-1]", 2, "want an index or a quoted name"},
		{"$[a]", 2, "want an index or a quoted name"},
		{"$[0", 3, "want ]"},
		{"$[0:2]", 3, "want ]"},
		{"$['a','b']", 5, "want ]"},
		{"$[01]", 2, "leading zero"},
		{"$[2147483648]", 2, "too large"},
		{"$[99999999999999999999]", 2, "too large"},
		{"$['a", 2, "not closed"},
		{"$['a\"]", 2, "not closed"},
		{`$['a\`, 5, `want \ or the quote`},
		{`$['\"']`, 4, `want \ or the quote`},
		{`$['\u0041']`, 4, `want \ or the quote`},
		{"$['a\nb']", 4, "control character"},
		{"$.a\xff", 3, "not valid UTF-8"},
		{"$['\ufffd']", 3, "not valid UTF-8"},
		{"$" + strings.Repeat("[0]", 33), 97, "more than 32 steps"},
		{"$." + strings.Repeat("a", 1023), 0, "longer than 1024 bytes"},
	}
	for _, tt := range tests {
		t.Run(strconv.Quote(tt.path), func(t *testing.T) {
			t.Parallel()
			_, err := parsePath(tt.path)
			pe, ok := errors.AsType[*PathError](err)
			if !ok || !errors.Is(err, ErrInvalidPath) {
				t.Fatalf("parsePath(%q) = %v, want a PathError", tt.path, err)
			}
			if pe.Path != tt.path || pe.Pos != tt.pos || !strings.Contains(pe.Reason, tt.reason) {
				t.Errorf("parsePath(%q) = %q at %d, want %q at %d", tt.path, pe.Reason, pe.Pos, tt.reason, tt.pos)
			}
		})
	}
}

// FuzzPath checks that a path is either refused with a place inside it, or means
// the same after its steps were written out and read again.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"", "$", "$.to", "$.a.b[0]", "$['odd key'][2]", `$["a'b"]`, `$['it\'s']`, "$['']", "$..a", "$[*]", "$[01]",
		"$[-1]", "$[0:2]", "$['a", "$.电话", "$.a\xff", "$[2147483648]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePath(text)
		if err != nil {
			pe, ok := errors.AsType[*PathError](err)
			if !ok || pe.Pos < 0 || pe.Pos > len(text) || pe.Reason == "" {
				t.Fatalf("parsePath(%q) = %v, want a PathError with a place inside the path", text, err)
			}
			return
		}
		if !utf8.ValidString(text) || p.until(len(p.steps)) != text {
			t.Fatalf("parsePath(%q) reads only %q", text, p.until(len(p.steps)))
		}
		written := writePath(p)
		if len(written) > pathMax { // brackets are longer than dots
			return
		}
		again, err := parsePath(written)
		if err != nil {
			t.Fatalf("parsePath(%q), from %q: %v", written, text, err)
		}
		for i := range p.steps {
			p.steps[i].end, again.steps[i].end = 0, 0
		}
		if !slices.Equal(p.steps, again.steps) {
			t.Errorf("%q written as %q has the steps %+v, want %+v", text, written, again.steps, p.steps)
		}
	})
}

// writePath writes a path with brackets only.
func writePath(p path) string {
	var b strings.Builder
	b.WriteByte('$')
	for _, s := range p.steps {
		if s.index >= 0 {
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
			continue
		}
		b.WriteString("['" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s.name) + "']")
	}
	return b.String()
}
