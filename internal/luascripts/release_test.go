package luascripts

import (
	"maps"
	"slices"
	"testing"
)

// Another release has the same scripts, and each of their texts differs.
func TestAnotherReleaseHasOtherTexts(t *testing.T) {
	t.Parallel()
	own, other := readModules(false), readModules(true)
	if !slices.Equal(slices.Sorted(maps.Keys(own)), slices.Sorted(maps.Keys(other))) {
		t.Fatalf("another release has %d modules, this one %d", len(other), len(own))
	}
	for name, m := range own {
		if o := other[name]; o.text == m.text || bare(o.text) != m.text || !slices.Equal(o.needs, m.needs) {
			t.Errorf("%s of another release needs %v and has %d bytes, want %v and the comments more than %d bytes", name, o.needs, len(o.text), m.needs, len(m.text))
		}
	}
}

// A process that has called a script can't become one of another release: it would call two libraries.
func TestReleaseIsChosenFirst(t *testing.T) {
	t.Parallel()
	before, _ := Library()
	defer func() {
		if recover() == nil {
			t.Error("ActAsAnotherRelease did not panic")
		}
		if after, _ := Library(); after != before || anotherRelease.Load() {
			t.Errorf("the library is now %s, want %s", after, before)
		}
	}()
	ActAsAnotherRelease()
}
