package luascripts

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
)

// acquireDigest is by which name Redis knows acquire.lua.
var acquireDigest = sync.OnceValue(func() any { return acquireScript().Hash() })

// acquireCommand is the call of acquire.lua. What it points to is its own: a call may
// be used again while a hook still has the command.
func acquireCommand(calls []*Call) command {
	keys, size := 0, 0
	for _, c := range calls {
		keys += c.keys()
		size += 1 + tokenLen + len(c.Job)
	}
	texts := make([]arg, 0, keys+len(calls))
	for _, c := range calls {
		texts = c.appendKeys(texts)
	}
	var text strings.Builder // of all calls
	text.Grow(size)
	forms := make([]*callTemplate, 0, 4)
	for _, c := range calls {
		of := c.Templates.of(&c.AcquireArgs)
		n := slices.IndexFunc(forms, func(f *callTemplate) bool { return f == of || f.text == of.text })
		if n < 0 {
			n = len(forms)
			forms = append(forms, of)
		}
		from := text.Len()
		c.write(&text, byte(n+1))
		texts = append(texts, arg(text.String()[from:]))
	}

	args := make([]any, firstKey, firstKey+len(texts)+1+len(forms))
	args[0], args[1], args[2] = "evalsha", acquireDigest(), keys
	for i := range texts {
		if i == keys {
			args = append(args, len(calls))
		}
		args = append(args, &texts[i])
	}
	args[firstKey] = string(texts[0]) // hooks look there for the key of any command
	for _, f := range forms {
		args = append(args, &f.text)
	}
	return command{acquireScript(), args, keys}
}

// keys is how many keys a call has.
func (a *AcquireArgs) keys() int {
	n := 3 * len(a.Rules)
	if a.Policy != "" {
		n += len(a.Rules)
	}
	if !a.Gate.isZero() {
		n++
	}
	return n
}

func (a *AcquireArgs) appendKeys(keys []arg) []arg {
	for i := range a.Rules {
		p := &a.Rules[i]
		keys = append(keys, arg(p.ledger), arg(p.tokens), arg(p.line))
	}
	if a.Policy != "" {
		for i := range a.Rules {
			keys = append(keys, arg(a.Rules[i].turns(a.Policy)))
		}
	}
	if !a.Gate.isZero() {
		keys = append(keys, arg(widest(a.Rules).opening()))
	}
	return keys
}

// tokenLen is how many bytes a token has.
const tokenLen = 8

// write writes what one call differs in from others of its form.
func (a *AcquireArgs) write(to *strings.Builder, form byte) {
	var token [tokenLen]byte
	binary.BigEndian.PutUint64(token[:], a.Token)
	to.WriteByte(form)
	to.Write(token[:])
	to.WriteString(a.Job)
}
