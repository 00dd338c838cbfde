// Package yamlfile reads the YAML of policy files and schedule files, and collects their
// faults with the lines.
package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"

	"github.com/headwayq/headway/queue/internal/check"
)

// Bounds of a file. The parser behind it recurses, and takes longer than a file is long.
const (
	sizeMax  = 1 << 20 // bytes
	wordsMax = 50_000  // words and signs of YAML
	depthMax = 16      // lists and mappings inside each other
)

// File is a file that is read, and its faults so far.
type File struct {
	Name   string
	Want   string // what stands in such a file, for errors
	Faults []Fault
}

// Fault is one fault of a file. Line is 0 for the file as a whole.
type Fault struct {
	Line, Column int // from 1; columns are characters
	Reason       string
	Err          error // or nil
}

// Fault adds a fault of the file's own.
func (f *File) Fault(at Pos, reason string) {
	f.Faults = append(f.Faults, Fault{Line: at.Line, Column: at.Column, Reason: reason})
}

// FaultOf adds a fault that is an error of its own.
func (f *File) FaultOf(at Pos, where string, err error) {
	f.Faults = append(f.Faults, Fault{Line: at.Line, Column: at.Column, Reason: where + check.Inner(err), Err: err})
}

// Sorted are the faults in the order of lines.
func (f *File) Sorted() []Fault {
	slices.SortStableFunc(f.Faults, func(a, b Fault) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	return f.Faults
}

// Where names a place for the text of a fault that is somewhere else.
func (f *File) Where(at Pos) string { return fmt.Sprintf("%s:%d", check.Clip(f.Name), at.Line) }

// Open reads the file of the name, as Read does.
func (f *File) Open() ast.Node {
	file, err := os.Open(f.Name)
	if err != nil {
		f.unreadable(err)
		return nil
	}
	defer file.Close()
	return f.Read(file)
}

// Read returns the body of a file, or nil after it added a fault.
func (f *File) Read(r io.Reader) ast.Node {
	src, err := io.ReadAll(io.LimitReader(r, sizeMax+1))
	switch {
	case err != nil:
		f.unreadable(err)
		return nil
	case len(src) > sizeMax:
		f.Fault(Pos{}, "over 1 MiB long")
		return nil
	}
	return f.parse(src)
}

// unreadable adds the fault of a file that the system does not give us.
func (f *File) unreadable(err error) {
	reason := err.Error()
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pe.Err.Error() // the path is in our text already
	}
	f.Faults = append(f.Faults, Fault{Reason: "can't be read: " + reason, Err: err})
}

// Pos is a place in a file; the zero Pos is the file as a whole.
type Pos struct{ Line, Column int }

func tokenPos(t *token.Token) Pos {
	if t == nil || t.Position == nil {
		return Pos{1, 1}
	}
	return Pos{t.Position.Line, t.Position.Column}
}

// PosOf is where a node begins.
func PosOf(n ast.Node) Pos {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key // the mapping's own token is its first colon
	}
	return tokenPos(n.GetToken())
}

// parse returns the body of the only document, or nil after it added a fault.
func (f *File) parse(src []byte) ast.Node {
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if at := firstDamage(src); at != (Pos{}) {
		f.Fault(at, "not valid UTF-8")
		return nil
	}
	tokens, ok := f.scan(string(src))
	if !ok {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // we tell all that are there twice
	if err != nil {
		f.malformed(err)
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil && doc.Start == nil: // nothing but comments
		case doc.Body == nil:
			f.Fault(tokenPos(doc.Start), "an empty document, want one document in a file")
		case doc.Body.Type() == ast.DirectiveType:
			f.Fault(PosOf(doc.Body), "a directive (%), want none")
		case body != nil:
			f.Fault(PosOf(doc.Body), "a second document, want one in a file")
		default:
			body = doc.Body
		}
	}
	if body == nil && len(f.Faults) == 0 {
		f.Fault(Pos{}, "empty, want "+f.Want)
	}
	return body
}

// scan splits a text into words and stops where the parser would recurse too
// deep.
func (f *File) scan(src string) (tokens token.Tokens, ok bool) {
	var (
		s     scanner.Scanner
		flow  int // brackets that are open
		lists int // dashes on the line
		line  int
	)
	s.Init(src)
	for {
		scanned, err := s.Scan()
		for _, t := range scanned {
			at := tokenPos(t)
			if at.Line != line {
				lists, line = 0, at.Line
			}
			switch t.Type {
			case token.SequenceStartType, token.MappingStartType:
				flow++
			case token.SequenceEndType, token.MappingEndType:
				flow--
			case token.SequenceEntryType:
				lists++
			}
			if flow > depthMax || lists > depthMax {
				f.Fault(at, fmt.Sprintf("more than %d lists or mappings inside each other", depthMax))
				return nil, false
			}
		}
		tokens.Add(scanned...)
		if len(tokens) > wordsMax {
			f.Fault(tokenPos(tokens[wordsMax]), fmt.Sprintf("more than %d words and signs", wordsMax))
			return nil, false
		}
		if err != nil { // the end, or a word that is none, which the parser reports
			return tokens, true
		}
	}
}

// malformed adds the parser's fault. Its own text would repeat the file.
func (f *File) malformed(err error) {
	at, reason := Pos{}, "not valid YAML"
	if ye, ok := errors.AsType[yaml.Error](err); ok {
		at, reason = tokenPos(ye.GetToken()), "not valid YAML: "+check.Clip(ye.GetMessage())
	}
	f.Fault(at, reason)
}

// firstDamage is where a text stops being UTF-8, or the zero Pos. The parser
// would read it as U+FFFD: two broken names would be one.
func firstDamage(src []byte) Pos {
	if utf8.Valid(src) {
		return Pos{}
	}
	for n, line := range bytes.Split(src, []byte("\n")) {
		for i, r := range string(line) {
			if _, size := utf8.DecodeRune(line[i:]); r == utf8.RuneError && size == 1 {
				return Pos{n + 1, utf8.RuneCount(line[:i]) + 1}
			}
		}
	}
	return Pos{}
}

// Entry is a name in a mapping and what it stands for.
type Entry struct {
	Name  string
	At    Pos
	Value ast.Node
}

// Entries returns those of a mapping whose names are text, each once, and adds
// the faults of the others. what is what the mapping is, for errors.
func (f *File) Entries(n ast.Node, what string) []Entry {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		f.Fault(PosOf(n), fmt.Sprintf("%s, want %s", KindOf(n), what))
		return nil
	}
	var (
		found []Entry
		lines = make(map[string]int)
	)
	for _, v := range values {
		at := PosOf(v.Key)
		name, ok := f.Text(v.Key, "a name")
		switch {
		case !ok:
		case lines[name] > 0:
			f.Fault(at, fmt.Sprintf("%q is there already, on line %d", check.Clip(name), lines[name]))
		default:
			lines[name] = at.Line
			found = append(found, Entry{name, at, v.Value})
		}
	}
	return found
}

// Fields reads the entries of a mapping that has only these names, and returns
// where their values stand; nil if n is no mapping.
func (f *File) Fields(n ast.Node, what string, names []string, read func(Entry)) map[string]Pos {
	before := len(f.Faults)
	entries := f.Entries(n, what)
	if entries == nil && len(f.Faults) > before {
		return nil
	}
	places := make(map[string]Pos)
	for _, e := range entries {
		if !slices.Contains(names, e.Name) {
			f.Fault(e.At, fmt.Sprintf("unknown field %q, want %s", check.Clip(e.Name), strings.Join(names, ", ")))
			continue
		}
		places[e.Name] = PosOf(e.Value)
		read(e)
	}
	return places
}

// Text returns a scalar that YAML reads as text and that stands on one line: a
// wrong indentation makes two lines one.
func (f *File) Text(n ast.Node, want string) (string, bool) {
	s, ok := n.(*ast.StringNode)
	switch {
	case !ok:
		f.Fault(PosOf(n), fmt.Sprintf("%s, want %s", KindOf(n), want))
		return "", false
	case strings.Contains(strings.TrimSpace(s.Token.Origin), "\n"):
		f.Fault(PosOf(n), "text on several lines, want "+want+" on one")
		return "", false
	}
	return s.Value, true
}

// TextOf is a scalar as the file has it, without quotes.
func TextOf(n ast.Node) string {
	if t := n.GetToken(); t != nil {
		return t.Value
	}
	return ""
}

// KindOf names what a node is, for errors.
func KindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.StringNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number (text needs quotes then)"
	case *ast.BoolNode:
		return "true or false (text needs quotes then)"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		return "an anchor, an alias, a merge key or a tag (which are not read here)"
	}
	return "something else"
}

// Number reads a whole number in plain digits: YAML has 0x10, 1_0 and 010 too.
func (f *File) Number(n ast.Node, least, most int) (int, bool) {
	text := n.GetToken().Value
	value, err := strconv.Atoi(text)
	_, whole := n.(*ast.IntegerNode)
	if !whole || err != nil || text != strconv.Itoa(value) || value < least || value > most {
		f.Fault(PosOf(n), fmt.Sprintf("want a whole number, %d to %d", least, most))
		return 0, false
	}
	return value, true
}

// FuncName is the name behind the word func.
func FuncName(text string) (string, bool) {
	name, ok := strings.CutPrefix(text, "func ")
	return strings.TrimSpace(name), ok
}
