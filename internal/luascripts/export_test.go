package luascripts

import (
	"errors"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"
)

// These names are for package luascripts_test. Its tests call scripts by packages that import this one.

// FirstKey is where the keys of a command begin.
const FirstKey = firstKey

// ModuleNames are the names of all files.
func ModuleNames() []string { return slices.Sorted(maps.Keys(modules())) }

// ModuleText is a file.
func ModuleText(name string) string { return modules()[name].raw }

// IsScript says that a file is one that Go calls.
func IsScript(name string) bool { return modules()[name].isScript() }

// WithNeeds are files and all that they need.
func WithNeeds(names ...string) []string { return withNeeds(names...) }

// File is the name of the script in errors.
func (s *Script) File() string { return s.file() }

// Function is the name of the script in the library.
func (s *Script) Function() string { return s.function().(string) }

// Text is the script with all that it needs, as EVAL takes it.
func (s *Script) Text() string { return s.alone().text }

// Hash is by what EVALSHA takes the script.
func (s *Script) Hash() string { return s.eval().Hash() }

// GoesByScript says that the calls of a client go as scripts now.
func GoesByScript(c redis.Scripter) bool { return serverOf(c).wayNow() == byScript }

// GoByScript lets the calls of a client go as scripts for some seconds, as when the server says that it has no functions.
func GoByScript(c redis.Scripter) {
	serverOf(c).heed(errors.New("ERR unknown command 'fcall'"), &sending{})
}

// PassSeconds is as if those seconds had passed.
func PassSeconds(c redis.Scripter) { serverOf(c).scriptsUntil.Add(-functionsAgain.Nanoseconds()) }
