package main

import (
	"slices"
	"strings"
	"testing"
)

// What the standard library has is told apart from what modules have, and what is not imported does not count.
func TestRead(t *testing.T) {
	t.Parallel()
	told := `
{"config": {"scanner_name": "govulncheck"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "version": "v1.26.8", "package": "net/http"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "example.com/m", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-3", "trace": [{"module": "example.com/m", "version": "v1.0.0", "package": "example.com/m/p"}]}}
{"finding": {"osv": "GO-3", "trace": [{"module": "example.com/m", "version": "v1.0.0", "package": "example.com/m/p"}]}}
{"osv": {"id": "GO-3"}}
`
	ofModules, ofGo, err := read(strings.NewReader(told))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"GO-3 in example.com/m/p of v1.0.0"}; !slices.Equal(ofModules, want) {
		t.Errorf("faults of modules %q, want %q", ofModules, want)
	}
	if want := []string{"GO-1"}; !slices.Equal(ofGo, want) {
		t.Errorf("faults of Go %q, want %q", ofGo, want)
	}
	if _, _, err := read(strings.NewReader(`{"finding": `)); err == nil {
		t.Error("half of a message is read without an error")
	}
}
