package memory_test

import (
	"flag"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/redistest"
)

// everyMutant is set by `make mutants`, which takes hours; otherwise a few mutants are tried.
var everyMutant = flag.Int("mutants", 0, "try each n-th mutant of the scripts; 0 for a few")

// mutant is a change of one place of the library that makes one formula wrong: by one permit, by
// one microsecond, by one rank, or at the edge of a comparison.
type mutant struct {
	module string // as require has it
	line   int    // in the file
	was    string // the line
	is     string // the line as the mutant has it
}

func (m mutant) String() string { return fmt.Sprintf("%s:%d: %s -> %s", m.module, m.line, m.was, m.is) }

// mutations are what is changed in a line, and into what.
var mutations = []struct {
	find *regexp.Regexp // the first group is replaced
	by   string
}{
	{regexp.MustCompile(`(?:^|[^\w.%"])(\d+)(?:$|[^\w.])`), "(1 + $)"},
	{regexp.MustCompile(`(?:^|[^\w.])((?:floor|ceil|max|min)\()`), "1 + $"},
	{regexp.MustCompile(`[^<>=~]( <= )`), " < "},
	{regexp.MustCompile(`[^<>=~]( >= )`), " > "},
	{regexp.MustCompile(`[^<>=~]( < )`), " <= "},
	{regexp.MustCompile(`[^<>=~]( > )`), " >= "},
	{regexp.MustCompile(`[\w)\]]( \+ )`), " - "},
	{regexp.MustCompile(`[\w)\]]( - )`), " + "},
}

// decided are the modules that the comparison covers.
var decided = regexp.MustCompile(`^modules\["(limit/(?:acquire|adjust|cancel|counter|decide|gate|leases|ledger|line|peek|places|refresh|rulecall|shortcut|sliding|tat|tokens))"\] = function\(\)$`)

// mutantsOf are all mutants of the library's text.
func mutantsOf(text string) []mutant {
	var out []mutant
	module, begin := "", 0
	for i, line := range strings.Split(text, "\n") {
		if m := decided.FindStringSubmatch(line); m != nil {
			module, begin = m[1], i
		} else if strings.HasPrefix(line, "modules[") {
			module = ""
		}
		if module == "" || i == begin || strings.Contains(line, "require(") {
			continue
		}
		for _, change := range mutations {
			for _, at := range change.find.FindAllStringSubmatchIndex(line, -1) {
				from, to := at[2], at[3]
				if strings.Count(line[:from], `"`)%2 == 1 {
					continue // in a text
				}
				is := line[:from] + strings.ReplaceAll(change.by, "$", line[from:to]) + line[to:]
				out = append(out, mutant{module, i - begin, line, is})
			}
		}
	}
	return out
}

// in is the library's text with the mutant.
func (m mutant) in(text string) string {
	lines := strings.Split(text, "\n")
	begin := slices.Index(lines, fmt.Sprintf("modules[%q] = function()", m.module))
	lines[begin+m.line] = m.is
	return strings.Join(lines, "\n")
}

// The comparison of the scripts with the store in memory bites: it finds a script in which one
// formula is wrong by the least there is.
func TestMutantsAreFound(t *testing.T) { // not parallel: it sets flags of rapid
	redistest.NeedFunctions(t)
	for name, value := range map[string]string{"rapid.checks": "1000", "rapid.shrinktime": "0s", "rapid.nofailfile": "true", "rapid.seed": "1"} {
		was := flag.Lookup(name).Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set(name, was) })
	}
	_, text := luascripts.Library()
	all := mutantsOf(text)
	few := everyNth(all, *everyMutant)
	if *everyMutant == 0 {
		few = named(t, all, some)
	}
	rig := newMutantRig(t)
	if found, _ := rig.find(text); found {
		t.Fatal("the comparison finds the scripts to be wrong as they are")
	}
	var left []string
	for i, m := range few {
		if rig == nil {
			rig = newMutantRig(t)
		}
		began := time.Now()
		found, broken := rig.find(m.in(text))
		if *everyMutant > 0 {
			fmt.Printf("%d of %d %.1f s %v %v\n", i+1, len(few), time.Since(began).Seconds(), found, m)
		}
		if broken { // it loops
			rig.server.Kill()
			rig = nil
		}
		if !found {
			left = append(left, m.String())
		}
	}
	if len(left) > 0 {
		t.Errorf("%d of %d mutants are not found:\n%s", len(left), len(few), strings.Join(left, "\n"))
	}
}

// some are the mutants that `go test` tries, by a part of the changed line: one or two for each kind
// and each step of a decision. All of them were found at once.
var some = []string{
	"return ledger.start + limit.W + limit.W * 1 + floor((most - limit.n - 1) / limit.n)", // fixed
	"return window_start(limit, i + (1 + 1) + floor((most - limit.n - 1) / limit.n))",     // calendar
	"return 1 + max(a, anchor + ceil((k - have) / limit.n) * limit.W)",                    // step
	"return 1 + max(a, up(plus(limit, t, r, before + cost - limit.burst)))",               // gcra
	"return 1 + max(a, up(plus(limit, t, r, before)))",                                    // smooth
	"return 1 + max(a, t + ceil(f + wait(limit, stored, before)))",                        // warmup
	"local oldest = nth(ledger, n + (k - 1 - rounds * n))",                                // sliding
	"if index <= 0 then return now + rounds * limit.W end",                                // leases
	"rule.by_ledger = 1 + min(rule.kind.earliest(rule.limit, of, b, left, rule.want), NEVER)",
	"while i < #rules and not binding do",
	"local set_keys, call, sub, NONE, TRY = rulecall.set_keys, redis.call, string.sub, {}, (1 + 0)",
	"if at < gate[i + (1 + 1)] then return i end",
	"if #old >= 0 then call(\"ZREM\", tokens, unpack(old)) end",
	"local waiting = line_ends(rule) + rule.first",
}

// named finds mutants by parts of their lines.
func named(t *testing.T, all []mutant, parts []string) []mutant {
	t.Helper()
	var out []mutant
	for _, part := range parts {
		i := slices.IndexFunc(all, func(m mutant) bool { return strings.Contains(m.is, part) })
		if i < 0 {
			t.Fatalf("there is no mutant %q any more", part)
		}
		out = append(out, all[i])
	}
	return out
}

func everyNth(all []mutant, n int) []mutant {
	var out []mutant
	for i := 0; n > 0 && i < len(all); i += n {
		out = append(out, all[i])
	}
	return out
}

// mutantRig is a server for mutants.
type mutantRig struct {
	t         *testing.T
	server    *redistest.Server
	raw       *redis.Client
	functions *redis.Client
	clock     *redistest.Clock
}

func newMutantRig(t *testing.T) *mutantRig {
	t.Helper()
	server := redistest.Start(t, redistest.Own())
	r, o := &mutantRig{t: t, server: server, raw: server.Client(t)}, server.ClientOptions()
	o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 // a mutant may loop without end
	r.functions = redis.NewClient(o)
	t.Cleanup(func() { _ = r.functions.Close() })
	r.clock = redistest.TimedLibrary(r.functions, start)
	return r
}

// find says whether the comparison finds a library to be wrong, and whether the server is broken by it.
func (r *mutantRig) find(library string) (found, broken bool) {
	if err := r.functions.Do(r.t.Context(), "function", "load", "replace", library).Err(); err != nil {
		return true, false // it is no Lua any more
	}
	suspect := &suspect{name: r.t.Name()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		rapid.Check(suspect, func(rt *rapid.T) {
			world := rapid.SampledFrom(worlds(true)).Draw(rt, "world")
			runTwin(rt, world, r.functions, r.raw, true, r.clock.SetTime)
		})
	}()
	<-done
	return suspect.failed, suspect.failed && r.functions.Ping(r.t.Context()).Err() != nil
}

// suspect is what rapid reports to.
type suspect struct {
	name   string
	failed bool
}

func (s *suspect) Helper()               {}
func (s *suspect) Name() string          { return s.name }
func (s *suspect) Logf(string, ...any)   {}
func (s *suspect) Log(...any)            {}
func (s *suspect) Skipf(string, ...any)  { s.SkipNow() }
func (s *suspect) Skip(...any)           { s.SkipNow() }
func (s *suspect) SkipNow()              { runtime.Goexit() }
func (s *suspect) Errorf(string, ...any) { s.Fail() }
func (s *suspect) Error(...any)          { s.Fail() }
func (s *suspect) Fatalf(string, ...any) { s.FailNow() }
func (s *suspect) Fatal(...any)          { s.FailNow() }
func (s *suspect) FailNow()              { s.Fail(); runtime.Goexit() }
func (s *suspect) Fail()                 { s.failed = true }
func (s *suspect) Failed() bool          { return s.failed }
