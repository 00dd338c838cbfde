package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/headwayq/headway/internal/redisserver"
)

const module = "github.com/headwayq/headway"

// enteredByOneAcquire builds ./oneacquire with a call in each function of this module that
// notes its file, lets it take one permit from a redis-server of its own, and returns the
// file of each function that was called, in order.
func enteredByOneAcquire(root string) ([]string, error) {
	temp, err := os.MkdirTemp("", "measures")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	server, err := redisserver.Launch(temp)
	if err != nil {
		return nil, err
	}
	defer server.Close()

	overlay, err := traced(root, temp)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(temp, "oneacquire")
	var out []byte
	for _, args := range [][]string{
		{"go", "build", "-overlay", overlay, "-o", program, "./tools/measures/oneacquire"},
		{program, server.Addr()},
	} {
		step := exec.Command(args[0], args[1:]...)
		step.Dir = root
		if out, err = step.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", args, err, out)
		}
	}
	return strings.Fields(string(out)), nil
}

// traced writes copies of all source files that oneacquire is built from into dir, with a
// call of trace.Enter in each function, and a file that tells the compiler to take them.
func traced(root, dir string) (overlay string, err error) {
	list := exec.Command("go", "list", "-deps", "-f",
		`{{if .Module}}{{if eq .Module.Path "`+module+`"}}{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, "./tools/measures/oneacquire")
	list.Dir = root
	paths, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for i, path := range strings.Fields(string(paths)) {
		name, err := filepath.Rel(top, path)
		if err != nil {
			return "", err
		}
		if strings.HasPrefix(name, "tools") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		source, err = traceFunctions(filepath.ToSlash(name), source)
		if err != nil {
			return "", err
		}
		replace[path] = filepath.Join(dir, strconv.Itoa(i)+".go")
		if err := os.WriteFile(replace[path], source, 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// traceFunctions puts a call of trace.Enter with the file's name at the beginning of each
// function of a file, but for those of one statement: there the name says it all, and a
// reader does not look.
func traceFunctions(name string, source []byte) ([]byte, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, 0)
	if err != nil {
		return nil, err
	}
	type insertion struct {
		at   int
		text string
	}
	insertions := []insertion{{set.Position(file.Name.End()).Offset, `; import headwaytrace "` + module + `/tools/measures/trace"`}}
	called := false
	ast.Inspect(file, func(n ast.Node) bool {
		var body *ast.BlockStmt
		switch f := n.(type) {
		case *ast.FuncDecl:
			body = f.Body
		case *ast.FuncLit:
			body = f.Body
		}
		if body != nil && len(body.List) > 1 {
			called = true
			insertions = append(insertions, insertion{set.Position(body.Lbrace).Offset + 1, fmt.Sprintf("headwaytrace.Enter(%q);", name)})
		}
		return true
	})
	if !called {
		return source, nil
	}
	var out []byte
	from := 0
	for _, i := range insertions {
		out = append(append(out, source[from:i.at]...), i.text...)
		from = i.at
	}
	return append(out, source[from:]...), nil
}

// way is what a reader does who follows the functions of one call.
type way struct {
	files   []string // that were read, sorted
	stays   int      // in one file without leaving it
	returns int      // stays in a file that was left before
}

func wayOf(entered []string) way {
	var w way
	last := ""
	for _, file := range entered {
		if file == last {
			continue
		}
		last = file
		w.stays++
		if slices.Contains(w.files, file) {
			w.returns++
		} else {
			w.files = append(w.files, file)
		}
	}
	slices.Sort(w.files)
	return w
}
