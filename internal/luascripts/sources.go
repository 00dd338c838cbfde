package luascripts

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"
)

// Lua makes a variable of a constant, and each function that names it takes it along,
// which costs every call that makes the function time and memory. So constants stand in
// their places before Redis gets a script: names in capitals that a line of their own
// gives a number or a text. They are the same in all files, whichever they stand in.
var (
	constantLine = regexp.MustCompile(`^\s*local ([A-Z][A-Z_]+(?:, [A-Z][A-Z_]+)*) = (` + literal + `(?:, ` + literal + `)*)\s*(--.*)?\n?$`)
	literalText  = regexp.MustCompile(literal)
)

const literal = `(?:"(?:[^"\\]|\\.)*"|[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)`

// sourceTexts reads the embedded files once, when the first script is put together.
var sourceTexts = sync.OnceValue(readSources)

// luaSources are the files of the folder lua by their base names, which are unlike.
type luaSources struct {
	folders   map[string]string // where each stands: "limit"
	raw       map[string]string
	replaced  map[string]string // with the constants in their places
	constants map[string]string
}

func readSources() *luaSources {
	s := &luaSources{folders: map[string]string{}, raw: map[string]string{}, replaced: map[string]string{}, constants: map[string]string{}}
	err := fs.WalkDir(sources, "lua", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(name)
		s.folders[path.Base(name)], s.raw[path.Base(name)] = path.Base(path.Dir(name)), string(text)
		return err
	})
	if err != nil {
		panic("luascripts: " + err.Error()) // they are embedded
	}
	for file, text := range s.raw {
		for line := range strings.Lines(text) {
			names, literals := constantsOf(line)
			for i, name := range names {
				if len(names) != len(literals) || s.constants[name] != "" && s.constants[name] != literals[i] {
					panic(fmt.Sprintf("luascripts: %s: %q: %s needs one value, everywhere", file, line, name))
				}
				s.constants[name] = literals[i]
			}
		}
	}
	for file, text := range s.raw {
		s.replaced[file] = inPlace(text, s.constants)
	}
	return s
}

// constantsOf are the names and values of a line of constants, none of any other.
func constantsOf(line string) (names, literals []string) {
	if word, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "local "); !ok || word == "" || word[0] < 'A' || word[0] > 'Z' {
		return nil, nil // as nearly all: a regular expression takes its time, and each process reads all lines
	}
	m := constantLine.FindStringSubmatch(line)
	if m == nil {
		return nil, nil
	}
	return strings.Split(m[1], ", "), literalText.FindAllString(m[2], -1)
}

// inPlace is the text of a file with the constants in their places.
func inPlace(text string, constants map[string]string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if names, _ := constantsOf(line); names != nil {
			b.WriteByte('\n') // the numbers of lines in Redis' errors stay
			continue
		}
		for line != "" {
			n := wordOrRest(line)
			word := line[:n]
			if value, ok := constants[word]; ok {
				word = value
			}
			b.WriteString(word)
			line = line[n:]
		}
	}
	return b.String()
}

// wordOrRest is the length of what a line of Lua begins with: a name, with the point of a
// field; a text between double quotes, which are the only ones here; a comment; or one
// character of another kind.
func wordOrRest(line string) int {
	isWord := func(c byte) bool {
		return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	}
	n := 1
	switch c := line[0]; {
	case c == '"':
		for n < len(line) && line[n] != '"' {
			if line[n] == '\\' {
				n++
			}
			n++
		}
		return min(n+1, len(line))
	case strings.HasPrefix(line, "--"):
		return len(line)
	case strings.HasPrefix(line, ".."):
		return 2
	case c == '.' || isWord(c):
		for n < len(line) && isWord(line[n]) {
			n++
		}
	}
	return n
}
