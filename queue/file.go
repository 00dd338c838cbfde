package queue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Bounds of a policy file. The parser behind it recurses, and takes longer than
// a file is long.
const (
	fileMax      = 1 << 20 // bytes
	fileWordsMax = 50_000  // words and signs of YAML
	fileDepthMax = 16      // lists and mappings inside each other
)

// Funcs are Go functions that policy files name, where a path into a JSON
// payload and a constant do not do: "key: func tenant" is Keys["tenant"]. The
// zero Funcs has none. It is safe for concurrent use as long as nobody writes to
// its maps.
type Funcs struct {
	Keys  map[string]KeyFunc
	Costs map[string]CostFunc
	Zones map[string]ZoneFunc
}

// ReadPolicies reads policies from YAML: rules by name, and what each task type
// needs of them.
//
//	rules:
//	  phone-minute: {limit: 1/60s, key: $.to}
//	  provider:     {limit: gcra 100/1s burst 100, key: acme}
//	  tokens:       {limit: 90000/1m, key: acme, cost: $.tokens}
//	  daytime:      {gate: 08:00-21:00 recipient, zone: phone $.to}
//	policies:
//	  sms:send:
//	    rules: [daytime, phone-minute, provider]
//	    pay: every attempt
//	    put_off_max: 100
//
// A limit is a text of throttle.ParseLimit, a gate one of throttle.ParseGate. A
// key is a path as in [JSONKey], or a constant if it does not begin with $. A
// cost is a path as in [JSONCost], or a number. A zone is a path as in
// [JSONZone], or "phone" and a path, as in [PhoneZone], or "phone $.to or
// Europe/Lisbon", as in [PhoneZoneOr]. Paths with brackets need quotes inside
// {}. The word "func" and a name is one of [Funcs]. pay is "every attempt" or
// "success". All types that list a rule have its one definition; types whose
// payloads differ can share a rule from two files.
//
// The error has everything that is wrong, joined, in the order of lines, each
// fault a [*FileError]. Among it are fields that are unknown, rules that no
// policy uses, and a file without policies. Of YAML it reads one document, of at
// most 1 MiB, without anchors, aliases, merge keys and tags. name is for errors.
func ReadPolicies(name string, r io.Reader) ([]Policy, error) { return Funcs{}.ReadPolicies(name, r) }

// ReadPolicyFiles is [ReadPolicies] for files. Each has the rules that its
// policies list; the files are held against each other as by [ValidatePolicies].
func ReadPolicyFiles(paths ...string) ([]Policy, error) { return Funcs{}.ReadPolicyFiles(paths...) }

// ReadPolicies is the function [ReadPolicies] for files that name functions.
func (fn Funcs) ReadPolicies(name string, r io.Reader) ([]Policy, error) {
	f := &policyFile{name: name, funcs: fn}
	f.read(r)
	return joinFiles([]*policyFile{f})
}

// ReadPolicyFiles is the function [ReadPolicyFiles] for files that name
// functions.
func (fn Funcs) ReadPolicyFiles(paths ...string) ([]Policy, error) {
	if len(paths) == 0 {
		return nil, &FileError{Reason: "no file is named"}
	}
	var files []*policyFile
	for _, path := range paths {
		f := &policyFile{name: path, funcs: fn}
		f.open()
		files = append(files, f)
	}
	return joinFiles(files)
}

// FileError is one fault of a policy file. It unwraps to [ErrInvalidPolicy], and
// to the error of the part that is wrong, if there is one.
type FileError struct {
	File   string // as it was named
	Line   int    // from 1; 0 for the file as a whole
	Column int    // in characters, from 1
	Reason string
	Err    error // or nil
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("queue: policy file %q: %s", clip(e.File), e.Reason)
	}
	return fmt.Sprintf("queue: policy file %q, line %d, column %d: %s", clip(e.File), e.Line, e.Column, e.Reason)
}

func (e *FileError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrInvalidPolicy}
	}
	return []error{ErrInvalidPolicy, e.Err}
}

// open reads the file of the name.
func (f *policyFile) open() {
	file, err := os.Open(f.name)
	if err != nil {
		f.unreadable(err)
		return
	}
	defer file.Close()
	f.read(file)
}

// read collects the rules and policies of a file, and its faults.
func (f *policyFile) read(r io.Reader) {
	src, err := io.ReadAll(io.LimitReader(r, fileMax+1))
	switch {
	case err != nil:
		f.unreadable(err)
		return
	case len(src) > fileMax:
		f.fault(pos{}, "over 1 MiB long")
		return
	}
	if body := f.parse(src); body != nil {
		f.document(body)
	}
}

// unreadable adds the fault of a file that the system does not give us.
func (f *policyFile) unreadable(err error) {
	reason := err.Error()
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pe.Err.Error() // the path is in our text already
	}
	f.faults = append(f.faults, &FileError{File: f.name, Reason: "can't be read: " + reason, Err: err})
}
