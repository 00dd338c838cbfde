package queue

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"
)

// yamlFile is a file that is read, and its faults so far.
type yamlFile struct {
	name   string
	kind   fileKind
	faults []*FileError
}

// fileKind is what a file is about.
type fileKind int

const (
	ofPolicies fileKind = iota
	ofEntries
)

func (k fileKind) String() string {
	if k == ofEntries {
		return "schedule file"
	}
	return "policy file"
}

// want is what stands in such a file.
func (k fileKind) want() string {
	if k == ofEntries {
		return "entries"
	}
	return "rules and policies"
}

// fault adds a fault of the file's own.
func (f *yamlFile) fault(at pos, reason string) {
	f.faults = append(f.faults, &FileError{File: f.name, Line: at.line, Column: at.column, Reason: reason, kind: f.kind})
}

// faultOf adds a fault that is an error of its own.
func (f *yamlFile) faultOf(at pos, where string, err error) {
	f.fault(at, where+cutPrefix(err))
	f.faults[len(f.faults)-1].Err = err
}

// cutPrefix is the text of an error of ours, to stand inside another's.
func cutPrefix(err error) string { return strings.TrimPrefix(err.Error(), "queue: ") }

// sorted are the faults in the order of lines.
func (f *yamlFile) sorted() []error {
	slices.SortStableFunc(f.faults, func(a, b *FileError) int {
		return cmp.Or(a.Line-b.Line, a.Column-b.Column)
	})
	var errs []error
	for _, fault := range f.faults {
		errs = append(errs, fault)
	}
	return errs
}

// open reads the file of the name, as read does.
func (f *yamlFile) open() ast.Node {
	file, err := os.Open(f.name)
	if err != nil {
		f.unreadable(err)
		return nil
	}
	defer file.Close()
	return f.read(file)
}

// read returns the body of a file, or nil after it added a fault.
func (f *yamlFile) read(r io.Reader) ast.Node {
	src, err := io.ReadAll(io.LimitReader(r, fileMax+1))
	switch {
	case err != nil:
		f.unreadable(err)
		return nil
	case len(src) > fileMax:
		f.fault(pos{}, "over 1 MiB long")
		return nil
	}
	return f.parse(src)
}

// unreadable adds the fault of a file that the system does not give us.
func (f *yamlFile) unreadable(err error) {
	reason := err.Error()
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pe.Err.Error() // the path is in our text already
	}
	f.fault(pos{}, "can't be read: "+reason)
	f.faults[len(f.faults)-1].Err = err
}

// pos is a place in a file; the zero pos is the file as a whole.
type pos struct{ line, column int }

func posOf(t *token.Token) pos {
	if t == nil || t.Position == nil {
		return pos{1, 1}
	}
	return pos{t.Position.Line, t.Position.Column}
}

// posOfNode is where a node begins.
func posOfNode(n ast.Node) pos {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key // the mapping's own token is its first colon
	}
	return posOf(n.GetToken())
}

// parse returns the body of the only document, or nil after it added a fault.
func (f *yamlFile) parse(src []byte) ast.Node {
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if at := firstDamage(src); at != (pos{}) {
		f.fault(at, "not valid UTF-8")
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
			f.fault(posOf(doc.Start), "an empty document, want one document in a file")
		case doc.Body.Type() == ast.DirectiveType:
			f.fault(posOfNode(doc.Body), "a directive (%), want none")
		case body != nil:
			f.fault(posOfNode(doc.Body), "a second document, want one in a file")
		default:
			body = doc.Body
		}
	}
	if body == nil && len(f.faults) == 0 {
		f.fault(pos{}, "empty, want "+f.kind.want())
	}
	return body
}

// scan splits a text into words and stops where the parser would recurse too
// deep.
func (f *yamlFile) scan(src string) (tokens token.Tokens, ok bool) {
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
			at := posOf(t)
			if at.line != line {
				lists, line = 0, at.line
			}
			switch t.Type {
			case token.SequenceStartType, token.MappingStartType:
				flow++
			case token.SequenceEndType, token.MappingEndType:
				flow--
			case token.SequenceEntryType:
				lists++
			}
			if flow > fileDepthMax || lists > fileDepthMax {
				f.fault(at, fmt.Sprintf("more than %d lists or mappings inside each other", fileDepthMax))
				return nil, false
			}
		}
		tokens.Add(scanned...)
		if len(tokens) > fileWordsMax {
			f.fault(posOf(tokens[fileWordsMax]), fmt.Sprintf("more than %d words and signs", fileWordsMax))
			return nil, false
		}
		if err != nil { // the end, or a word that is none, which the parser reports
			return tokens, true
		}
	}
}

// malformed adds the parser's fault. Its own text would repeat the file.
func (f *yamlFile) malformed(err error) {
	at, reason := pos{}, "not valid YAML"
	if ye, ok := errors.AsType[yaml.Error](err); ok {
		at, reason = posOf(ye.GetToken()), "not valid YAML: "+clip(ye.GetMessage())
	}
	f.fault(at, reason)
}

// firstDamage is where a text stops being UTF-8, or the zero pos. The parser
// would read it as U+FFFD: two broken names would be one.
func firstDamage(src []byte) pos {
	if utf8.Valid(src) {
		return pos{}
	}
	for n, line := range bytes.Split(src, []byte("\n")) {
		for i, r := range string(line) {
			if _, size := utf8.DecodeRune(line[i:]); r == utf8.RuneError && size == 1 {
				return pos{n + 1, utf8.RuneCount(line[:i]) + 1}
			}
		}
	}
	return pos{}
}

// entry is a name in a mapping and what it stands for.
type entry struct {
	name  string
	at    pos
	value ast.Node
}

// entries returns those of a mapping whose names are text, each once, and adds
// the faults of the others. what is what the mapping is, for errors.
func (f *yamlFile) entries(n ast.Node, what string) []entry {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		f.fault(posOfNode(n), fmt.Sprintf("%s, want %s", kindOf(n), what))
		return nil
	}
	var (
		found []entry
		lines = make(map[string]int)
	)
	for _, v := range values {
		at := posOfNode(v.Key)
		name, ok := f.text(v.Key, "a name")
		switch {
		case !ok:
		case lines[name] > 0:
			f.fault(at, fmt.Sprintf("%q is there already, on line %d", clip(name), lines[name]))
		default:
			lines[name] = at.line
			found = append(found, entry{name, at, v.Value})
		}
	}
	return found
}

// fields reads the entries of a mapping that has only these names, and returns
// where their values stand; nil if n is no mapping.
func (f *yamlFile) fields(n ast.Node, what string, names []string, read func(entry)) map[string]pos {
	before := len(f.faults)
	entries := f.entries(n, what)
	if entries == nil && len(f.faults) > before {
		return nil
	}
	places := make(map[string]pos)
	for _, e := range entries {
		if !slices.Contains(names, e.name) {
			f.fault(e.at, fmt.Sprintf("unknown field %q, want %s", clip(e.name), strings.Join(names, ", ")))
			continue
		}
		places[e.name] = posOfNode(e.value)
		read(e)
	}
	return places
}

// text returns a scalar that YAML reads as text and that stands on one line: a
// wrong indentation makes two lines one.
func (f *yamlFile) text(n ast.Node, want string) (string, bool) {
	s, ok := n.(*ast.StringNode)
	switch {
	case !ok:
		f.fault(posOfNode(n), fmt.Sprintf("%s, want %s", kindOf(n), want))
		return "", false
	case strings.Contains(strings.TrimSpace(s.Token.Origin), "\n"):
		f.fault(posOfNode(n), "text on several lines, want "+want+" on one")
		return "", false
	}
	return s.Value, true
}

// kindOf names what a node is, for errors.
func kindOf(n ast.Node) string {
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
