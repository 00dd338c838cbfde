package queue

import (
	"fmt"
	"io"
	"time"

	"github.com/headwayq/headway/queue/internal/yamlfile"
)

// Funcs are Go functions that policy files name, where a path into a JSON
// payload and a constant do not do: "key: func tenant" is Keys["tenant"]. The
// zero Funcs has none. It is safe for concurrent use as long as nobody writes to
// its maps. A nil function that a file names is a fault of the file.
type Funcs struct {
	Keys  map[string]KeyFunc
	Costs map[string]CostFunc
	Zones map[string]ZoneFunc

	// PhoneZone is what "zone: phone $.to" calls: phonezone.Of, of package
	// queue/phonezone. The package is not imported here because its numbering plans
	// make each program 2.8 MB larger. Defaults to none, and then such a zone is a fault.
	PhoneZone func(number KeyFunc, otherwise *time.Location) ZoneFunc
}

// ReadPolicies reads policies from YAML: rules by name, and what each task type
// needs of them.
//
//	rules:
//	  phone-minute: {limit: 1/60s, key: $.to}
//	  provider:     {limit: gcra 100/1s burst 100, key: =acme}
//	  tokens:       {limit: 90000/1m, key: =acme, cost: $.tokens}
//	  daytime:      {gate: 08:00-21:00 recipient, zone: $.zone}
//	policies:
//	  sms:send:
//	    rules: [daytime, phone-minute, provider]
//	    charge: every attempt
//	    max_postpones: 100
//
// A limit is a text of throttle.ParseLimit, a gate one of gate.Parse. A
// key is a path as in [JSONKey], or "=" and a constant, the same for all tasks. A
// cost is a path as in [JSONCost], or a number, which the limit and the limits of keys
// must be able to let through. A zone is a path as in
// [JSONZone]. It may also be "phone" and a path, or "phone $.to or Europe/Lisbon" with
// a zone for numbers that do not tell one; both need [Funcs.PhoneZone], and the function
// ReadPolicies refuses them. Paths with brackets need quotes inside
// {}. The word "func" and a name is one of [Funcs]. charge is "every attempt" or
// "success". All types that list a rule have its one definition; types whose
// payloads differ can share a rule from two files.
//
// The error has everything that is wrong, joined, in the order of lines, each
// fault a [*FileError]. Among it are fields that are unknown, rules that no
// policy uses, and a file without policies. Of YAML it reads one document, of at
// most 1 MiB, without anchors, aliases, merge keys and tags. name is for errors.
func ReadPolicies(name string, r io.Reader) ([]Policy, error) { return Funcs{}.ReadPolicies(name, r) }

// ReadPolicyFiles is [ReadPolicies] for files. Each has the rules that its
// policies list; the files are compared as by [ValidatePolicies].
func ReadPolicyFiles(paths ...string) ([]Policy, error) { return Funcs{}.ReadPolicyFiles(paths...) }

// ReadPolicies is the function [ReadPolicies] for files that name functions.
func (fn Funcs) ReadPolicies(name string, r io.Reader) ([]Policy, error) {
	f := newPolicyFile(name, fn)
	f.document(f.Read(r))
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
		f := newPolicyFile(path, fn)
		f.document(f.Open())
		files = append(files, f)
	}
	return joinFiles(files)
}

func newPolicyFile(name string, fn Funcs) *policyFile {
	return &policyFile{File: yamlfile.File{Name: name, Want: "rules and policies"}, funcs: fn}
}

// FileError is one fault of a policy file. It unwraps to [ErrInvalidPolicy], and to
// the error of the part that is wrong, if there is one.
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
