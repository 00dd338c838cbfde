package luascripts

import (
	"crypto/sha1" // #nosec G505: it only names a text
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

//go:embed lua
var sources embed.FS

// module is one file of the folder lua. It says by require which others it needs, and
// returns what it gives them; a script returns the function(keys, args) that Go calls.
type module struct {
	name  string   // as require has it: "limit/acquire"
	raw   string   // the file
	text  string   // what Redis gets: the same lines without comments and indentation
	needs []string // the modules that it names, in order
}

var (
	// moduleName is a module's name wherever it stands in a text between quotes.
	moduleName = regexp.MustCompile(`"((?:lib|limit|queue|batch|history)/[a-z_]+)"`)
	// scriptHead is how the function of a script begins.
	scriptHead = regexp.MustCompile(`(?m)^return function\(keys, args\)$`)
)

// modules reads the embedded files when the first script is needed: a program that
// imports this package and calls no script pays nothing at its start.
var modules = sync.OnceValue(func() map[string]*module {
	modulesRead.Store(true)
	return readModules(anotherRelease.Load())
})

// anotherRelease says that this process acts as one of another release, modulesRead that it is too late to say so.
var anotherRelease, modulesRead atomic.Bool

// ActAsAnotherRelease makes this process act as one of another release: its scripts are sent with their
// comments and indentation. They decide the same, but the text is another one. So the library has
// another name and a memory of its own, and stands beside the library of this release. It is for the
// processes of `headway prove deploy`, which call it before all else: it panics once a script is known.
func ActAsAnotherRelease() {
	if modulesRead.Load() {
		panic("luascripts: a script is known already")
	}
	anotherRelease.Store(true)
}

// readModules reads the embedded files. Another release keeps their comments.
func readModules(another bool) map[string]*module {
	all := make(map[string]*module)
	err := fs.WalkDir(sources, "lua", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := sources.ReadFile(file)
		name := strings.TrimSuffix(strings.TrimPrefix(file, "lua/"), ".lua")
		m := &module{name: name, raw: string(raw), text: bare(string(raw))}
		for _, found := range moduleName.FindAllStringSubmatch(m.text, -1) {
			if !slices.Contains(m.needs, found[1]) {
				m.needs = append(m.needs, found[1])
			}
		}
		if another {
			m.text = m.raw
		}
		all[name] = m
		return err
	})
	if err != nil {
		panic("luascripts: " + err.Error()) // the files are embedded
	}
	return all
}

// isScript says that Go calls this module.
func (m *module) isScript() bool { return scriptHead.MatchString(m.raw) }

// bare is a file without comments and indentation. Every line stays where it is, so that
// the number of a line in an error of Redis leads to the file.
func bare(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		rest := strings.TrimLeft(strings.TrimSuffix(line, "\n"), " ")
		code := 0 // where the last character stands that is not a space
		for i := 0; i < len(rest) && !strings.HasPrefix(rest[i:], "--"); i++ {
			if rest[i] == '"' { // texts stand between double quotes alone
				for i++; i < len(rest) && rest[i] != '"'; i++ {
					if rest[i] == '\\' {
						i++
					}
				}
			}
			if rest[min(i, len(rest)-1)] != ' ' {
				code = min(i+1, len(rest))
			}
		}
		b.WriteString(rest[:code])
		b.WriteByte('\n')
	}
	return b.String()
}

// requireText is our require: a module is made when it is asked for first. In a library
// that is once for all calls, in a script that EVALSHA runs once for each call.
const requireText = `local modules, loaded = {}, {}
local function require(name)
if not loaded[name] then loaded[name] = modules[name]() end
return loaded[name]
end
`

// program is a text for Redis, put together from modules.
type program struct {
	text   string
	begins []int    // the line before the first of each module
	files  []string // of each module
}

// assemble puts modules into one text, behind a first line if there is one.
func assemble(first string, names []string) program {
	var p program
	var b strings.Builder
	b.WriteString(first + requireText)
	line := strings.Count(first+requireText, "\n")
	for _, name := range names {
		text := modules()[name].text
		p.begins, p.files = append(p.begins, line+1), append(p.files, name+".lua")
		fmt.Fprintf(&b, "modules[%q] = function()\n%send\n", name, text)
		line += strings.Count(text, "\n") + 2
	}
	p.text = b.String()
	return p
}

// place is the file and the line in it of a line of the program.
func (p *program) place(line int) string {
	i := sort.SearchInts(p.begins, line) - 1
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", p.files[i], line-p.begins[i])
}

// errorLine is where in a program an error of Redis says that it happened.
var errorLine = regexp.MustCompile(`user_(script|function): ?(\d+)`)

// whereOf is the file and the line that an error of a script names, "" when it names none.
func (s *Script) whereOf(err error) string {
	m := errorLine.FindStringSubmatch(err.Error())
	if m == nil {
		return ""
	}
	line, _ := strconv.Atoi(m[2])
	if m[1] == "function" {
		return theLibrary().program.place(line)
	}
	p := s.alone()
	return p.place(line)
}

// withNeeds are all modules that some modules need, and these, those that are needed first.
func withNeeds(names ...string) []string {
	var out []string
	seen := make(map[string]bool)
	var add func(name string)
	add = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		m, ok := modules()[name]
		if !ok {
			panic("luascripts: there is no " + name + ".lua")
		}
		for _, need := range m.needs {
			add(need)
		}
		out = append(out, name)
	}
	for _, name := range names {
		add(name)
	}
	return out
}

// library is all scripts as FUNCTION LOAD takes them. Its name and the names of its functions
// carry a digest of the text, so that processes of several releases use one server.
type library struct {
	name    string
	program program
}

var theLibrary = sync.OnceValue(func() *library {
	var names []string
	for name := range modules() {
		names = append(names, name)
	}
	slices.Sort(names)
	names = withNeeds(names...)
	sum := sha1.Sum([]byte(assemble("", names).text)) // #nosec G401
	l := &library{name: "headway_" + hex.EncodeToString(sum[:6])}
	l.program = assemble("#!lua name="+l.name+"\n", names)
	// Redis 7.0 shows a library neither string nor math while it loads. So nothing is made
	// but what registers the functions; a call makes the modules that it meets first.
	var b strings.Builder
	b.WriteString(l.program.text)
	b.WriteString("local function register(name, script)\nredis.register_function(name, function(keys, args) return require(script)(keys, args) end)\nend\n")
	for _, name := range names {
		if modules()[name].isScript() {
			fmt.Fprintf(&b, "register(%q, %q)\n", l.function(name), name)
		}
	}
	l.program.text = b.String()
	return l
})

// function is by which name a server knows a script.
func (l *library) function(script string) string { return l.name + "_" + path.Base(script) }

// Library is the name and the text of what is loaded into Redis.
func Library() (name, text string) { return theLibrary().name, theLibrary().program.text }
