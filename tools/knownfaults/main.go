// Command knownfaults looks for packages that we import and of which the Go vulnerability database
// knows a fault, in the module and in that of the benchmarks. It fails when one of them is in a module that go.mod asks for. Faults of the
// standard library are only told: the Go that is installed has them, and not this repository. It is
// started at the root of the repository:
//
//	go run ./tools/knownfaults [version]
//
// The database comes through the Go module proxy, as golang.org/x/vulndb, so no other network is
// needed. The version is pinned: what passes today passes tomorrow. The argument latest asks for
// the newest one. Where the database can't be fetched nothing is looked up, and the command says so.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pinned is the version of the database.
const pinned = "v0.0.0-20261105234957-e22db6528018"

// entriesLeast is how many faults the database knows at least: govulncheck finds nothing in an empty one, and does not say so.
const entriesLeast = 1000

var errTooFew = errors.New("that is not the vulnerability database")

func main() {
	log.SetFlags(0)
	version := pinned
	if len(os.Args) > 1 {
		version = os.Args[1]
	}
	database, err := download(version)
	if errors.Is(err, errTooFew) {
		log.Fatalf("known faults: %v", err)
	}
	if err != nil {
		log.Printf("known faults: NOT looked up, the database can't be fetched: %v", err)
		return
	}
	var told bytes.Buffer
	for _, dir := range []string{".", "bench"} {
		if err := scan(dir, database, &told); err != nil {
			log.Fatalf("known faults: %v", err)
		}
	}
	ofModules, ofGo, err := read(&told)
	if err != nil {
		log.Fatalf("known faults: %v", err)
	}
	if len(ofGo) > 0 {
		fmt.Printf("known faults: the Go that is installed has %d in packages that we import, and a newer Go has fewer: %s\n", len(ofGo), strings.Join(ofGo, ", "))
	}
	for _, fault := range ofModules {
		fmt.Printf("known faults: a module has %s\n", fault)
	}
	if len(ofModules) > 0 {
		os.Exit(1)
	}
}

// download fetches the database, and returns where it is.
func download(version string) (dir string, err error) {
	var told, complaint bytes.Buffer
	cmd := exec.Command("go", "mod", "download", "-json", "golang.org/x/vulndb@"+version) // #nosec G204: the version is ours
	cmd.Stdout, cmd.Stderr = &told, &complaint
	err = cmd.Run()
	var module struct{ Dir, Error string }
	if json.Unmarshal(told.Bytes(), &module) == nil && module.Error != "" {
		return "", errors.New(module.Error)
	}
	if err != nil || module.Dir == "" {
		return "", fmt.Errorf("%w: %s", err, &complaint)
	}
	dir = module.Dir + "/data/osv"
	if entries, err := os.ReadDir(dir); err != nil || len(entries) < entriesLeast {
		return "", fmt.Errorf("%s has %d entries: %w", dir, len(entries), errors.Join(errTooFew, err))
	}
	return dir, nil
}

// scan writes what govulncheck says about the packages that the module in a directory imports, as JSON.
func scan(dir, database string, told io.Writer) error {
	var complaint bytes.Buffer
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "tool", "-modfile="+filepath.Join(root, "tools/govulncheck/go.mod"), // #nosec G204: go itself says where the database is
		"govulncheck", "-C", dir, "-db", "file://"+database, "-scan", "package", "-format", "json", "./...")
	cmd.Stdout, cmd.Stderr = told, &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("govulncheck in %s: %w: %s", dir, err, &complaint)
	}
	return nil
}

// message is one of those that govulncheck prints; it prints others, too.
type message struct {
	Finding *struct {
		OSV   string `json:"osv"`
		Fixed string `json:"fixed_version"`
		Trace []struct {
			Module  string `json:"module"`
			Version string `json:"version"`
			Package string `json:"package"` // "" when no package of the module that has the fault is imported
		} `json:"trace"`
	} `json:"finding"`
}

// read finds the faults of packages that we import: those of modules, and those of the standard library.
func read(told io.Reader) (ofModules, ofGo []string, err error) {
	modules, library := map[string]bool{}, map[string]bool{}
	for d := json.NewDecoder(told); ; {
		var m message
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return slices.Sorted(maps.Keys(modules)), slices.Sorted(maps.Keys(library)), nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("what govulncheck says: %w", err)
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 || m.Finding.Trace[0].Package == "" {
			continue
		}
		at := m.Finding.Trace[0]
		if at.Module == "stdlib" {
			library[m.Finding.OSV] = true
			continue
		}
		fault := fmt.Sprintf("%s in %s of %s", m.Finding.OSV, at.Package, at.Version)
		if m.Finding.Fixed != "" {
			fault += ", mended in " + m.Finding.Fixed
		}
		modules[fault] = true
	}
}
