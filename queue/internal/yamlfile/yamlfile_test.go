package yamlfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/goccy/go-yaml/ast"
)

// read reads a text as a file, and tells its faults as "line:column reason".
func read(src string) (*File, ast.Node, []string) {
	f := &File{Name: "p.yaml", Want: "rules"}
	n := f.Read(strings.NewReader(src))
	return f, n, faults(f)
}

func faults(f *File) (texts []string) {
	for _, x := range f.Sorted() {
		texts = append(texts, fmt.Sprintf("%d:%d %s", x.Line, x.Column, x.Reason))
	}
	return texts
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestReadRefuses(t *testing.T) {
	const spaces = "                                                                "
	for _, tt := range []struct {
		name, src, want string
	}{
		{"nothing", "", "0:0 empty, want rules"},
		{"only a comment", "# rules follow\n", "0:0 empty, want rules"},
		{"only a byte order mark", "\ufeff", "0:0 empty, want rules"},
		{"an empty document", "---\n", "1:1 an empty document, want one document in a file"},
		{"two documents", "a: 1\n---\nb: 2\n", "3:1 a second document, want one in a file"},
		{"broken UTF-8", "a: 1\nb: é\xff\n", "2:5 not valid UTF-8"},
		{"broken UTF-8 in the first byte", "\xc3", "1:1 not valid UTF-8"},
		{"too many flow lists inside each other", "a: " + strings.Repeat("[", 17), "1:20 more than 16 lists or mappings inside each other"},
		{"too many lists on a line", strings.Repeat("- ", 17) + "x", "1:33 more than 16 lists or mappings inside each other"},
		{"too long", strings.Repeat(spaces, 1<<14) + "#", "0:0 over 1 MiB long"},
	} {
		_, n, got := read(tt.src)
		same(t, tt.name, got, tt.want)
		if n != nil && tt.name != "two documents" {
			t.Errorf("%s: there is a body", tt.name)
		}
	}
}

func TestReadRefusesWhatIsNotYAML(t *testing.T) {
	for _, src := range []string{"a: [1, 2", "a: 'x", "a: b: c", "\ta: 1", "a: {x", "a: 1\n b: 2\n"} {
		_, n, got := read(src)
		if n != nil || len(got) != 1 || !strings.Contains(got[0], " not valid YAML") {
			t.Errorf("%q: body %v, faults %q, want the one that it is not valid YAML", src, n, got)
		}
	}
}

func TestReadRefusesDirectives(t *testing.T) {
	if _, _, got := read("%YAML 1.2\n---\na: 1\n"); !slices.Contains(got, "1:1 a directive (%), want none") {
		t.Errorf("faults of a file with a directive: %q", got)
	}
}

func TestReadUpToItsLimits(t *testing.T) {
	for name, src := range map[string]string{
		"16 lists inside each other": "a: " + strings.Repeat("[", 16) + strings.Repeat("]", 16),
		"1 MiB":                      "a: 1\n#" + strings.Repeat("x", 1<<20-6),
		"a byte order mark":          "\ufeffa: 1\n",
		"the start of a document":    "---\na: 1\n",
		"lists one after the other":  "a:\n" + strings.Repeat("- [1]\n", 1000),
	} {
		if _, n, got := read(src); n == nil || len(got) > 0 {
			t.Errorf("%s: body %v, faults %q", name, n, got)
		}
	}
}

func TestReadRefusesTooManyWords(t *testing.T) {
	_, n, got := read("a:\n" + strings.Repeat("- 1\n", 30_000))
	if n != nil || len(got) != 1 || !strings.HasSuffix(got[0], " more than 50000 words and signs") {
		t.Errorf("body %v, faults %q", n, got)
	}
}

func TestReadTellsWhatTheSystemSays(t *testing.T) {
	broken := errors.New("the disk is gone")
	f := &File{Name: "p.yaml"}
	if n := f.Read(iotest.ErrReader(broken)); n != nil {
		t.Error("there is a body")
	}
	same(t, "a reader that fails", faults(f), "0:0 can't be read: the disk is gone")
	if !errors.Is(f.Faults[0].Err, broken) {
		t.Errorf("the fault holds %v", f.Faults[0].Err)
	}
	f = &File{Name: filepath.Join(t.TempDir(), "none.yaml")}
	if n := f.Open(); n != nil {
		t.Error("there is a body of a file that is not there")
	}
	if !errors.Is(f.Faults[0].Err, fs.ErrNotExist) || strings.Contains(f.Faults[0].Reason, "none.yaml") {
		t.Errorf("a file that is not there: %+v, want its error, and no path", f.Faults)
	}
}

func TestEntries(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		names     []string
		faults    []string
	}{
		{"one entry", "a: 1\n", []string{"a"}, nil},
		{"entries", "a: 1\nb: 2\n", []string{"a", "b"}, nil},
		{"a flow mapping", "{a: 1, b: 2}\n", []string{"a", "b"}, nil},
		{"a name twice", "a: 1\nb: 2\na: 3\n", []string{"a", "b"}, []string{`3:1 "a" is there already, on line 1`}},
		{"a name in quotes is the same name", "a: 1\n'a': 2\n", []string{"a"}, []string{`2:1 "a" is there already, on line 1`}},
		{"a number as a name", "1: x\nb: 2\n", []string{"b"}, []string{"1:1 a number (text needs quotes then), want a name"}},
		{"true as a name", "true: x\n", nil, []string{"1:1 true or false (text needs quotes then), want a name"}},
		{"a list", "- a\n", nil, []string{"1:1 a list, want a mapping of rules"}},
		{"text", "hello\n", nil, []string{"1:1 text, want a mapping of rules"}},
		{"a number", "7\n", nil, []string{"1:1 a number (text needs quotes then), want a mapping of rules"}},
		{"a block of text", "|\n  a: 1\n", nil, []string{"1:1 a block of text, want a mapping of rules"}},
	} {
		f, n, _ := read(tt.src)
		if n == nil {
			t.Errorf("%s: %q", tt.name, faults(f))
			continue
		}
		var names []string
		for _, e := range f.Entries(n, "a mapping of rules") {
			names = append(names, e.Name)
		}
		same(t, tt.name+", names", names, tt.names...)
		same(t, tt.name+", faults", faults(f), tt.faults...)
	}
}

func TestFields(t *testing.T) {
	f, n, _ := read("limit: 1/1s\nkey:   $.to\nkeys: $.to\n")
	var got []string
	places := f.Fields(n, "a rule", []string{"limit", "key"}, func(e Entry) { got = append(got, e.Name) })
	same(t, "fields that are read", got, "limit", "key")
	same(t, "faults", faults(f), `3:1 unknown field "keys", want limit, key`)
	if want := (Pos{2, 8}); places["key"] != want || len(places) != 2 {
		t.Errorf("places %v, want key at %v and limit", places, want)
	}
	f, n, _ = read("- limit\n")
	if places := f.Fields(n, "a rule", []string{"limit"}, func(Entry) {}); places != nil {
		t.Errorf("a list has the fields %v", places)
	}
	same(t, "a list for a mapping", faults(f), "1:1 a list, want a rule")
}

func TestLongNamesAreClipped(t *testing.T) {
	f, n, _ := read(strings.Repeat("x", 5000) + ": 1\n")
	f.Fields(n, "a rule", []string{"limit"}, func(Entry) {})
	if got := faults(f); len(got) != 1 || len(got[0]) > 200 || !strings.Contains(got[0], `x..."`) {
		t.Errorf("faults %q, want a short one", got)
	}
}

// value is what stands for the name a.
func value(t *testing.T, src string) (*File, ast.Node) {
	t.Helper()
	f, n, got := read("a: " + src + "\n")
	if n == nil {
		t.Fatalf("%q: %q", src, got)
	}
	return f, f.Entries(n, "a mapping")[0].Value
}

func TestText(t *testing.T) {
	for _, tt := range []struct{ src, text, fault string }{
		{"hello", "hello", ""},
		{"'7'", "7", ""},
		{`"tab\there"`, "tab\there", ""},
		{"10/1m", "10/1m", ""},
		{"7", "", "1:4 a number (text needs quotes then), want a limit"},
		{"1.5", "", "1:4 a number (text needs quotes then), want a limit"},
		{".inf", "", "1:4 a number (text needs quotes then), want a limit"},
		{"true", "", "1:4 true or false (text needs quotes then), want a limit"},
		{"null", "", "1:4 nothing, want a limit"},
		{"[x]", "", "1:4 a list, want a limit"},
		{"{x: y}", "", "1:4 a mapping, want a limit"},
		{"&x y", "", "1:4 an anchor, an alias, a merge key or a tag (which are not read here), want a limit"},
		{"*x", "", "1:4 an anchor, an alias, a merge key or a tag (which are not read here), want a limit"},
		{"!!str y", "", "1:4 an anchor, an alias, a merge key or a tag (which are not read here), want a limit"},
		{"one\n  two", "", "1:4 text on several lines, want a limit on one"},
	} {
		f, n := value(t, tt.src)
		text, ok := f.Text(n, "a limit")
		if text != tt.text || ok != (tt.fault == "") {
			t.Errorf("%q is %q, %v, want %q", tt.src, text, ok, tt.text)
		}
		if got := strings.Join(faults(f), "\n"); got != tt.fault {
			t.Errorf("%q: faults %q, want %q", tt.src, got, tt.fault)
		}
	}
}

func TestNumber(t *testing.T) {
	for _, tt := range []struct {
		src  string
		want int
		ok   bool
	}{
		{"1", 1, true}, {"100", 100, true}, {"7", 7, true},
		{"0", 0, false}, {"101", 0, false}, {"-1", 0, false}, {"+7", 0, false},
		{"0x10", 0, false}, {"010", 0, false}, {"1_0", 0, false}, {"0b1", 0, false}, {"0o7", 0, false},
		{"1.0", 0, false}, {"1e1", 0, false}, {"'7'", 0, false}, {"seven", 0, false}, {"true", 0, false},
		{"[7]", 0, false}, {"99999999999999999999", 0, false},
	} {
		f, n := value(t, tt.src)
		got, ok := f.Number(n, 1, 100)
		if got != tt.want || ok != tt.ok {
			t.Errorf("%q is %d, %v, want %d, %v", tt.src, got, ok, tt.want, tt.ok)
		}
		if !tt.ok {
			same(t, tt.src, faults(f), "1:4 want a whole number, 1 to 100")
		}
	}
}

func TestFaultsAreSortedByPlace(t *testing.T) {
	own := errors.New("queue: no key")
	f := &File{Name: strings.Repeat("d", 100)}
	f.Fault(Pos{3, 1}, "c")
	f.Fault(Pos{1, 9}, "b")
	f.FaultOf(Pos{1, 2}, "rule x: ", own)
	f.Fault(Pos{}, "whole")
	f.Fault(Pos{1, 9}, "b too")
	same(t, "sorted", faults(f), "0:0 whole", "1:2 rule x: no key", "1:9 b", "1:9 b too", "3:1 c")
	if got := f.Sorted()[1].Err; !errors.Is(got, own) {
		t.Errorf("the fault holds %v", got)
	}
	if got, want := f.Where(Pos{7, 2}), strings.Repeat("d", 80)+"...:7"; got != want {
		t.Errorf("Where is %q, want %q", got, want)
	}
}

func TestFuncName(t *testing.T) {
	for _, tt := range []struct {
		text, name string
		ok         bool
	}{
		{"func tenant", "tenant", true},
		{"func  tenant ", "tenant", true},
		{"func ", "", true},
		{"function", "function", false},
		{"func", "func", false},
		{"$.to", "$.to", false},
	} {
		if name, ok := FuncName(tt.text); ok != tt.ok || ok && name != tt.name {
			t.Errorf("FuncName(%q) = %q, %v", tt.text, name, ok)
		}
	}
}

// FuzzRead reads any text as a file: nothing panics, and there is a body or a fault whose
// place lies in the text.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		"", "a: 1\n", "rules:\n  phone: {limit: 1/1h, key: $.to}\n", "- - - x", "[[[[", "a: &x b\nc: *x\n", "---\n---\n", "%YAML 1.2\n---\na: 1",
		"a: |\n  b\n", "? a\n: b\n", "<<: *a\n", "a: !!str 1\n", "\xff", "\ufeffa: 1", "a: 1\r\nb: 2\r\n", "'", "\"\\x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		file, n, _ := read(src)
		if n == nil && len(file.Faults) == 0 {
			t.Fatal("no body, and no fault")
		}
		if n != nil {
			walk(file, n, 0)
		}
		lines := strings.Count(src, "\n") + strings.Count(src, "\r") + 1
		for _, x := range file.Sorted() {
			if x.Line < 0 || x.Line > lines+1 || x.Reason == "" || len(x.Reason) > 1000 {
				t.Errorf("a fault %+v of %d lines", x, lines)
			}
		}
	})
}

// walk reads all mappings of a node as both readers of files do.
func walk(f *File, n ast.Node, depth int) {
	if n == nil || depth > 2*depthMax {
		return
	}
	_ = KindOf(n)
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		for _, e := range f.Entries(n, "a mapping") {
			walk(f, e.Value, depth+1)
		}
	case *ast.StringNode:
		f.Text(n, "text")
	default:
		f.Number(n, 1, 10)
	}
}
