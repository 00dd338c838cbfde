// Command measures prints how easy the repository is to read, in numbers: how
// many files a package has, over how many files a type is spread, how many
// names a user sees, how much Lua there is, and how many files one Acquire
// passes through. The last table has these numbers beside their goals, and as
// they were when this program was written. It is started at the root of the repository:
//
//	go run ./tools/measures
//
// It needs redis-server, to see the way of an Acquire and an error of one: tools/install-redis.
package main

import (
	"cmp"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/headwayq/headway/internal/luascripts"
)

// What a stranger can still find their way in.
const (
	filesGoal       = 25 // source files in a package, Lua included
	filesOfTypeGoal = 3  // files over which the methods of a type are spread

	acquireFilesGoal   = 18 // files that one Acquire passes through
	acquireReturnsGoal = 12 // returns to a file already left on that way
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("measures: ")
	if err := run("."); err != nil {
		log.Fatal(err)
	}
}

func run(root string) error {
	packages, err := readTree(root)
	if err != nil {
		return err
	}
	printPackages(packages)
	printSpread(packages)
	if err := printLua(root); err != nil {
		return err
	}
	w, err := printAcquire(root)
	if err != nil {
		return err
	}
	return printGoals(root, packages, w)
}

// printGoals prints the measures that have a goal.
func printGoals(root string, packages map[string]*sourcePackage, w way) error {
	most, spread := 0, 0
	for _, p := range packages {
		most = max(most, p.files)
		for _, files := range p.methodFiles {
			spread = max(spread, len(files))
		}
	}
	_, library := luascripts.Library()
	acquireBytes, ways := acquireLua(library)
	layers, err := retryLayers(root)
	if err != nil {
		return err
	}
	pins, err := asynqPins(root)
	if err != nil {
		return err
	}
	leads, err := errorLeadsToFile(root)
	if err != nil {
		return err
	}
	fmt.Println()
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "measure\tbefore\tgoal\tnow")
	for _, m := range []struct {
		name              string
		before, goal, now int
	}{
		{"most source files in a package", 98, filesGoal, most},
		{"most files with methods of one type", 17, filesOfTypeGoal, spread},
		{"files that one Limiter.Acquire passes through", 34, acquireFilesGoal, len(w.files)},
		{"returns to a file already left on that way", 34, acquireReturnsGoal, w.returns},
		{"bytes of Lua behind one acquire", 109595, 65000, acquireBytes},
		{"bytes of the Lua library, for all scripts", 875000, 120000, len(library)},
		{"modules of Lua that decide about a limit", 6, 1, ways},
		{"exported names of throttle", 223, 150, packages["throttle"].exported},
		{"exported names of queue", 188, 90, packages["queue"].exported},
		{"exported names of the largest package of scripts", 208, 100, max(
			packages["internal/luascripts"].exported, packages["internal/limitscripts"].exported, packages["internal/queuescripts"].exported,
			packages["internal/batchscripts"].exported, packages["internal/schedulescripts"].exported, packages["internal/history"].exported)},
		{"retry layers around one acquire, as listed in docs/architecture.md", 7, 4, layers},
		{"packages that pin asynq's scripts", 2, 1, pins},
	} {
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\n", m.name, m.before, m.goal, m.now)
	}
	out.Flush()
	fmt.Printf("a line number in a Redis error leads to a file: %v\n", leads)
	return nil
}

// printPackages prints a line for each package, largest first.
func printPackages(packages map[string]*sourcePackage) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "package\tfiles\tlines\ttest files\ttest lines\texported names\t")
	dirs := slices.SortedFunc(maps.Keys(packages), func(a, b string) int {
		return cmp.Or(packages[b].files-packages[a].files, cmp.Compare(a, b))
	})
	over := 0
	for _, dir := range dirs {
		p := packages[dir]
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%d\t%d\t\n", dir, p.files, p.lines, p.testFiles, p.testLines, p.exported)
		if p.files > filesGoal {
			over++
		}
	}
	out.Flush()
	fmt.Printf("\npackages with more than %d source files: %d\n", filesGoal, over)
}

// printSpread names the types whose methods lie in too many files.
func printSpread(packages map[string]*sourcePackage) {
	var spread []string
	for dir, p := range packages {
		for name, files := range p.methodFiles {
			if len(files) > filesOfTypeGoal {
				spread = append(spread, fmt.Sprintf("  %s.%s: %d files", dir, name, len(files)))
			}
		}
	}
	slices.Sort(spread)
	fmt.Printf("types whose methods lie in more than %d files: %d\n", filesOfTypeGoal, len(spread))
	for _, line := range spread {
		fmt.Println(line)
	}
}

func printLua(root string) error {
	files, lines, bytes, err := readLua(root)
	if err != nil {
		return err
	}
	fmt.Printf("Lua: %d files, %d lines, %d bytes\n", files, lines, bytes)
	return nil
}

func printAcquire(root string) (way, error) {
	entered, err := enteredByOneAcquire(root)
	if err != nil {
		return way{}, err
	}
	w := wayOf(entered)
	fmt.Printf("one Limiter.Acquire calls %d functions in %d files; of %d stays in a file %d are returns to a file already left\n",
		len(entered), len(w.files), w.stays, w.returns)
	for _, name := range w.files {
		fmt.Println("  " + name)
	}
	return w, nil
}
