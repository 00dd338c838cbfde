package luascripts

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// Forms remembers what calls had in common, see acquire.lua, because most calls have
// it in common with the one before. The zero value is ready and safe for concurrent
// use; nil remembers nothing.
type CallTemplates struct {
	last [BookLastRule + 1]atomic.Pointer[callTemplate] // by mode
}

// form is the text of a form, and a call that has it.
type callTemplate struct {
	text arg
	call AcquireArgs
}

// of is the form of a call.
func (f *CallTemplates) of(a *AcquireArgs) *callTemplate {
	if f == nil || a.MaxWait > 0 || !a.Gate.isZero() { // those are seldom the same twice
		return &callTemplate{text: arg(a.form())}
	}
	last := &f.last[a.Mode]
	old := last.Load()
	if old != nil && alike(&old.call, a) {
		return old
	}
	fresh := &callTemplate{text: arg(a.form())}
	if old == nil || rand.N(16) == 0 { // rarely: calls may take turns, or differ each time
		fresh.call = *a
		fresh.call.Job, fresh.call.Token, fresh.call.Rules = "", 0, slices.Clone(a.Rules)
		last.Store(fresh)
	}
	return fresh
}

// alike says that calls without a gate differ in nothing but keys, token and job:
// they have one form.
func alike(a, b *AcquireArgs) bool {
	if a.Mode != b.Mode || a.Inline != b.Inline || a.MaxWait != b.MaxWait || a.Tell != b.Tell || (a.Policy == "") != (b.Policy == "") {
		return false
	}
	return alikeParts(a.Rules, b.Rules)
}

// alikeParts says that the parts of calls differ in nothing but keys.
func alikeParts(a, b []RuleCall) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !alikePart(&a[i], &b[i]) {
			return false
		}
		for j := range i { // which of them count together
			if (a[i].ID == a[j].ID) != (b[i].ID == b[j].ID) {
				return false
			}
		}
	}
	return true
}

func alikePart(a, b *RuleCall) bool {
	x, y := &a.Numbers, &b.Numbers
	return x.Version == y.Version && x.Kind == y.Kind && x.Permits == y.Permits && x.Window == y.Window && x.Burst == y.Burst &&
		x.Warm == y.Warm && x.ColdMilli == y.ColdMilli && x.Short == y.Short && slices.Equal(x.Bounds, y.Bounds) &&
		a.Cost == b.Cost && a.Closed.Equal(b.Closed) && a.Worth == b.Worth
}
