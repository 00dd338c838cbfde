package luascripts

import (
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// known are the globals that a module may read: what Redis gives, and our require.
var known = []string{
	"redis", "require", "math", "string", "struct", "table",
	"error", "ipairs", "next", "pairs", "pcall", "select", "tonumber", "tostring", "type", "unpack",
}

// A name that is declared nowhere is a global. Redis refuses it only when that line runs.
func TestEveryNameIsDeclared(t *testing.T) {
	t.Parallel()
	for name, m := range modules() {
		chunk, err := parse.Parse(strings.NewReader(m.raw), name)
		if err != nil {
			t.Errorf("%s.lua: %v", name, err)
			continue
		}
		proto, err := lua.Compile(chunk, name)
		if err != nil {
			t.Errorf("%s.lua: %v", name, err)
			continue
		}
		for _, use := range globals(proto) {
			if use.written || !slices.Contains(known, use.name) {
				t.Errorf("%s.lua:%d: %q is a global", name, use.line, use.name)
			}
		}
	}
}

func TestGlobalsAreFound(t *testing.T) {
	t.Parallel()
	chunk, err := parse.Parse(strings.NewReader("local a = 1\nreturn function() b = a\nreturn c end"), "test")
	if err != nil {
		t.Fatal(err)
	}
	proto, err := lua.Compile(chunk, "test")
	if err != nil {
		t.Fatal(err)
	}
	want := []global{{"b", 2, true}, {"c", 3, false}}
	if got := globals(proto); !slices.Equal(got, want) {
		t.Errorf("globals = %v, want %v", got, want)
	}
}

// global is one use of a global name.
type global struct {
	name    string
	line    int
	written bool
}

// globals lists the uses in a function and in those within it.
func globals(f *lua.FunctionProto) (uses []global) {
	for i, code := range f.Code {
		op := int(code >> 26)
		if op == lua.OP_GETGLOBAL || op == lua.OP_SETGLOBAL {
			uses = append(uses, global{f.Constants[code&0x3ffff].String(), f.DbgSourcePositions[i], op == lua.OP_SETGLOBAL})
		}
	}
	for _, inner := range f.FunctionPrototypes {
		uses = append(uses, globals(inner)...)
	}
	return uses
}
