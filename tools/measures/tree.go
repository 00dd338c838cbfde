package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sourcePackage is what one directory holds.
type sourcePackage struct {
	files, lines         int // without tests
	testFiles, testLines int
	exported             int // package-level names and methods of exported types
	methodFiles          map[string]map[string]bool
}

// readTree looks at every directory with Go files below root, modules of their
// own included.
func readTree(root string) (map[string]*sourcePackage, error) {
	packages := make(map[string]*sourcePackage)
	err := walkSources(root, ".go", func(dir, name string, src []byte) error {
		p := packages[dir]
		if p == nil {
			p = &sourcePackage{methodFiles: make(map[string]map[string]bool)}
			packages[dir] = p
		}
		if strings.HasSuffix(name, "_test.go") {
			p.testFiles++
			p.testLines += countLines(src)
			return nil
		}
		p.files++
		p.lines += countLines(src)
		file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.read(name, file)
		return nil
	})
	if err != nil {
		return nil, err
	}
	// A folder of Lua is read like a package.
	err = walkSources(root, ".lua", func(dir, _ string, src []byte) error {
		p := packages[dir]
		if p == nil {
			p = &sourcePackage{}
			packages[dir] = p
		}
		p.files++
		p.lines += countLines(src)
		return nil
	})
	return packages, err
}

// read counts the names of one file that is not a test.
func (p *sourcePackage) read(name string, file *ast.File) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			receiver := receiverOf(d)
			if receiver != "" {
				if p.methodFiles[receiver] == nil {
					p.methodFiles[receiver] = make(map[string]bool)
				}
				p.methodFiles[receiver][name] = true
			}
			if d.Name.IsExported() && (receiver == "" || ast.IsExported(receiver)) {
				p.exported++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				p.exported += exportedIn(spec)
			}
		}
	}
}

// receiverOf is the name of a method's type, or empty for a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	at := d.Recv.List[0].Type
	for {
		switch t := at.(type) {
		case *ast.StarExpr:
			at = t.X
		case *ast.IndexExpr:
			at = t.X
		case *ast.IndexListExpr:
			at = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

func exportedIn(spec ast.Spec) int {
	n := 0
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() {
			n++
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() {
				n++
			}
		}
	}
	return n
}

func readLua(root string) (files, lines, size int, err error) {
	err = walkSources(root, ".lua", func(_, _ string, src []byte) error {
		files++
		lines += countLines(src)
		size += len(src)
		return nil
	})
	return files, lines, size, err
}

// walkSources calls f for each file with an ending; directories of test data
// and hidden ones are left out.
func walkSources(root, ending string, f func(dir, name string, src []byte) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if path != root && (base == "testdata" || base == "node_modules" || base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ending {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		return f(filepath.ToSlash(dir), d.Name(), src)
	})
}

func countLines(src []byte) int { return bytes.Count(src, []byte("\n")) }
