package queue

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/queue/internal/yamlfile"
)

// in puts rules, one per line, into a file whose policy t lists those of these
// names.
func in(rules, names string) string {
	return "rules:\n" + rules + "policies:\n  t: {rules: [" + names + "]}\n"
}

const ruleA = "  a: {limit: 1/60s, key: $}\n"

func TestPolicyFileFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		file string
		want []string
	}{
		// the file
		{"empty", "", []string{"0:0: empty, want rules and policies"}},
		{"comments", "# nothing\n\n# more\n", []string{"0:0: empty, want rules and policies"}},
		{"a header and nothing", "---\n", []string{"1:1: an empty document, want one document in a file"}},
		{"null", "null\n", []string{"1:1: nothing, want rules and policies"}},
		{"text", "hello\n", []string{"1:1: text, want rules and policies"}},
		{"a list", "- a\n", []string{"1:1: a list, want rules and policies"}},
		{"an empty mapping", "{}\n", []string{"0:0: no rules", "0:0: no policies"}},
		{"no policies", "rules:\n" + ruleA, []string{"0:0: no policies", `2:3: rule "a": no policy lists it`}},
		{"empty lists", "rules: {}\npolicies: {}\n", []string{"1:1: no rules", "2:1: no policies"}},
		{"nothing", "rules:\npolicies:\n", []string{"1:7: nothing, want rules by their names", "2:11: nothing, want policies by their names"}},
		{"unknown", in(ruleA, "a") + "limits: {}\n", []string{`5:1: unknown field "limits", want rules, policies`}},
		{"two documents", in(ruleA, "a") + "---\nrules: {}\n", []string{"6:1: a second document, want one in a file"}},
		{"an empty second document", in(ruleA, "a") + "---\n", []string{"5:1: an empty document, want one document in a file"}},
		{"a directive", "%YAML 1.2\n---\n" + in(ruleA, "a"), []string{"1:1: a directive (%), want none"}},
		{"not UTF-8", in(ruleA, "a") + "# é\xff\n", []string{"5:4: not valid UTF-8"}},
		{"over 1 MiB", in(ruleA, "a") + "#" + strings.Repeat("x", 1<<20), []string{"0:0: over 1 MiB long"}},

		// YAML
		{"not closed", "rules: {a: [\n", []string{"1:12: not valid YAML: ..."}},
		{"a wrong indentation", "rules:\n  a: {limit: 1/60s, key: $}\n b: c\n", []string{"3:2: not valid YAML: ..."}},
		{"a tab", "rules:\n\ta: b\n", []string{"2:1: not valid YAML: ..."}},
		{"a reserved character", "rules: @a\n", []string{"1:8: not valid YAML: ..."}},
		{"a path with brackets in braces", in("  a: {limit: 1/60s, key: $.to[0]}\n", "a"), []string{"2:30: not valid YAML: ..."}},
		{"an anchor", in("  a: &a {limit: 1/60s, key: $}\n", "a"), []string{"2:6: an anchor, an alias, a merge key or a tag (which are not read here), want a rule: limit, limits, gate, key, cost, zone"}},
		{"an alias", in(ruleA, "*a"), []string{`2:3: rule "a": no policy lists it`, "4:15: an anchor, an alias..."}},
		{"a merge key", in("  a: {<<: {limit: 1/60s}, key: $}\n", "a"), []string{`2:3: rule "a": neither a limit nor a gate`, "2:7: an anchor, an alias..."}},
		{"a tag", in("  a: {limit: !!str 1/60s, key: $}\n", "a"), []string{"2:14: an anchor, an alias..."}},
		{"a block", in("  a:\n    limit: |\n      1/60s\n    key: $\n", "a"), []string{"3:12: a block of text, want a limit, such as 1/60s"}},
		{"two lines by mistake", in("  a:\n    limit: 1/60s\n      burst 3\n    key: $\n", "a"), []string{"3:12: text on several lines, want a limit, such as 1/60s on one"}},
		{"a complex name", "? rules\n: {}\n", []string{"1:1: something else, want a name"}},

		// names
		{"a rule twice", in(ruleA+ruleA, "a"), []string{`3:3: "a" is there already, on line 2`}},
		{"a field twice", in("  a: {limit: 1/60s, key: $, limit: 1/60s}\n", "a"), []string{`2:29: "limit" is there already, on line 2`}},
		{"a part twice", in(ruleA, "a") + "rules: {}\n", []string{`5:1: "rules" is there already, on line 1`}},
		{"a type twice", in(ruleA, "a") + "  t: {rules: [a]}\n", []string{`5:3: "t" is there already, on line 4`}},
		{"a number as a name", in(ruleA+"  1: {limit: 1/60s, key: $}\n", "a"), []string{"3:3: a number (text needs quotes then), want a name"}},
		{"a pattern as a type", in(ruleA, "a") + "  'sms:*': {rules: [a]}\n  'sms:': {rules: [a]}\n", []string{`5:3: the type "sms:*" is a pattern, want a task type...`, `6:3: the type "sms:" is a prefix, as asynq's ServeMux has them, want a task type...`}},
		{"a blank type", in(ruleA, "a") + "  ' ': {rules: [a]}\n", []string{"5:3: a policy without a task type"}},

		// a rule
		{"no rule", in("  a: 1/60s\n", "a"), []string{"2:6: text, want a rule: limit, limits, gate, key, cost, zone"}},
		{"an empty rule", in("  a: {}\n", "a"), []string{`2:3: rule "a": neither a limit nor a gate`}},
		{"an unknown field", in("  a: {limit: 1/60s, key: $, burst: 3}\n", "a"), []string{`2:29: unknown field "burst", want limit, limits, gate, key, cost, zone`}},
		{"a bad name", in("  a b: {limit: 1/60s, key: $}\n", "a b"), []string{`2:3: rule "a b": throttle: invalid configuration: rule name "a b"...`}},
		{"a reserved name", in("  due: {limit: 1/60s, key: $}\n", "due"), []string{`2:3: rule "due": throttle: invalid configuration...`}},
		{"a bad limit", in("  a: {limit: 1/60x, key: $}\n", "a"), []string{`2:14: throttle: invalid limit: "1/60x"...`}},
		{"a number for a limit", in("  a: {limit: 60, key: $}\n", "a"), []string{"2:14: a number (text needs quotes then), want a limit, such as 1/60s"}},
		{"a bad limit and more", in("  a: {limit: 1/60x, cost: 0, zone: 3}\n", "a"), []string{
			`2:3: rule "a": no key`, `2:14: throttle: invalid limit...`, "2:27: want a whole number, 1 to 1099511627776",
			"2:36: a number (text needs quotes then), want a path...", `2:36: rule "a": a zone, but a limit has none`,
		}},
		{"limit and gate", in("  a: {limit: 1/60s, gate: 08:00-21:00 recipient, key: $}\n", "a"), []string{`2:3: rule "a": both a limit and a gate, want one of them`}},
		{"a gate with a key", in("  a: {gate: 08:00-21:00 recipient, zone: $.z, key: $, cost: 2}\n", "a"), []string{`2:52: rule "a": a key, but a gate has none`, `2:61: rule "a": a cost, but a gate has none`}},
		{"a gate without a zone", in("  a: {gate: 08:00-21:00 recipient}\n", "a"), []string{`2:3: rule "a": no zone, but the gate opens by the recipient's`}},
		{"a limit with a zone", in("  a: {limit: 1/60s, key: $, zone: $.z}\n", "a"), []string{`2:35: rule "a": a zone, but a limit has none`}},
		{"limits and no limit", in("  a: {limits: {x: 1/60s}, key: $}\n", "a"), []string{`2:3: rule "a": neither a limit nor a gate`}},
		{"limits of a gate", in("  a: {gate: 08:00-21:00 recipient, zone: $.z, limits: {x: 1/60s}}\n", "a"), []string{`2:55: rule "a": limits of keys, but a gate has none`}},
		{"a bad limit of a key", in("  a: {limit: 1/60s, key: $, limits: {x: 1/60x, y: 7}}\n", "a"), []string{`2:41: throttle: invalid limit: "1/60x"...`, "2:51: a number..."}},
		{"slots for a key", in("  a: {limit: 1/60s, key: $, limits: {x: concurrent 1 lease 30s}}\n", "a"), []string{`2:37: rule "a": one of its limits is concurrent 1 lease 30s, and the limit of other keys sliding 1/1m...`}},
		{"limits as a list", in("  a: {limit: 1/60s, key: $, limits: [x]}\n", "a"), []string{"2:37: a list, want limits by their keys, such as {acme: 1000/1h}"}},
		{"a list for a gate", in("  a: {gate: [], zone: $.z}\n", "a"), []string{"2:13: a list, want a gate, such as 08:00-21:00 recipient"}},

		// keys, costs, zones
		{"a bad path", in("  a: {limit: 1/60s, key: $to}\n", "a"), []string{`2:26: JSON path "$to", byte 1: want . or [`}},
		{"an empty key", in("  a: {limit: 1/60s, key: ''}\n", "a"), []string{"2:26: an empty text, want a path..."}},
		{"an empty constant", in("  a: {limit: 1/60s, key: =}\n", "a"), []string{"2:26: a constant key of 0 bytes, want 1 to 1024"}},
		{"a blank before a constant", in("  a: {limit: 1/60s, key: = k}\n", "a"), []string{"2:26: a blank after =, want = and the constant without one, such as =acme"}},
		{"a path as a constant", in("  a: {limit: 1/60s, key: =$.to}\n", "a"), []string{`2:26: a constant key that begins with $, as a path does...`}},
		{"a long key", in("  a: {limit: 1/60s, key: ="+strings.Repeat("k", 1025)+"}\n", "a"), []string{"2:26: a constant key of 1025 bytes, want 1 to 1024"}},
		{"a number for a key", in("  a: {limit: 1/60s, key: 7}\n", "a"), []string{"2:26: a number (text needs quotes then), want a path, such as $.to, or = and a constant, such as =acme"}},
		{"true for a key", in("  a: {limit: 1/60s, key: true}\n", "a"), []string{"2:26: true or false (text needs quotes then), want a path..."}},
		{"a cost of 0", in("  a: {limit: 1/60s, key: $, cost: 0}\n", "a"), []string{"2:35: want a whole number, 1 to 1099511627776"}},
		{"a cost below 0", in("  a: {limit: 1/60s, key: $, cost: -1}\n", "a"), []string{"2:35: want a whole number..."}},
		{"a cost above what sliding takes at once", in("  a: {limit: 50000/60s, key: $, cost: 10001}\n", "a"), []string{`2:39: throttle: rule "a": cost 10001, want at most 10000 at once under sliding 50000/1m, which keeps a record of each permit: other kinds take any cost`}},
		{"a cost above the limit", in("  a: {limit: 1/60s, key: $, cost: 3}\n", "a"), []string{`2:35: throttle: rule "a": cost 3 exceeds the limit sliding 1/1m`}},
		{"a cost above the burst", in("  a: {limit: gcra 100/1s burst 5, key: $, cost: 6}\n", "a"), []string{`2:49: throttle: rule "a": cost 6 exceeds the limit gcra 100/1s burst 5`}},
		{"a cost above the limit of a key", in("  a: {limit: 9/60s, key: $, limits: {x: 9/60s, y: 2/60s}, cost: 3}\n", "a"), []string{`2:37: one of its limits: throttle: rule "a": cost 3 exceeds the limit sliding 2/1m`}},
		{"a cost and a bad limit", in("  a: {limit: 1/60x, key: $, cost: 3}\n", "a"), []string{`2:14: throttle: invalid limit: "1/60x"...`}},
		{"a cost and slots", in("  a: {limit: concurrent 5 lease 30s, key: $, cost: 3}\n", "a"), []string{`2:52: rule "a": a cost, but under a concurrent limit each task holds one slot`}},
		{"a cost above all", in("  a: {limit: 1/60s, key: $, cost: 1099511627777}\n", "a"), []string{"2:35: want a whole number..."}},
		{"a cost in octal", in("  a: {limit: 1/60s, key: $, cost: 010}\n", "a"), []string{"2:35: want a whole number..."}},
		{"a cost in hex", in("  a: {limit: 1/60s, key: $, cost: 0x10}\n", "a"), []string{"2:35: want a whole number..."}},
		{"a fraction", in("  a: {limit: 1/60s, key: $, cost: 1.5}\n", "a"), []string{"2:35: a number with a fraction or an exponent, want a whole number..."}},
		{"a cost as text", in("  a: {limit: 1/60s, key: $, cost: '3'}\n", "a"), []string{`2:35: text "3", want a whole number of permits, or a path, such as $.tokens`}},
		{"a bad path of a cost", in("  a: {limit: 1/60s, key: $, cost: $.}\n", "a"), []string{`2:35: JSON path "$.", byte 2: want a name...`}},
		{"a zone's name", in("  a: {gate: 08:00-21:00 recipient, zone: Europe/Berlin}\n", "a"), []string{`2:42: text "Europe/Berlin", want a path, such as $.zone, or phone and a path`}},
		{"a bad path of a zone", in("  a: {gate: 08:00-21:00 recipient, zone: $}\n  b: {gate: 08:00-21:00 recipient, zone: $z}\n", "a, b"), []string{`3:42: JSON path "$z", byte 1: want . or [`}},
		{"a bad path of a phone", in("  a: {gate: 08:00-21:00 recipient, zone: phone to}\n", "a"), []string{`2:42: JSON path "to", byte 0: want $ at the start`}},
		{"a bad zone to fall back on", in("  a: {gate: 08:00-21:00 recipient, zone: phone $.to or Europe/Berlln}\n", "a"), []string{`2:42: time zone "Europe/Berlln": want a name of the time zone database such as Europe/Berlin`}},
		{"a zone of the machine to fall back on", in("  a: {gate: 08:00-21:00 recipient, zone: phone $.to or localtime}\n", "a"), []string{`2:42: time zone "localtime": want a name of the time zone database such as Europe/Berlin: this one differs per machine`}},

		// a policy
		{"no policy", in(ruleA, "a") + "  u: [a]\n", []string{"5:6: a list, want a policy: rules, charge, max_postpones"}},
		{"an empty policy", in(ruleA, "a") + "  u: {}\n", []string{`5:3: policy "u" lists no rules`}},
		{"an empty list", in(ruleA, "a") + "  u: {rules: []}\n", []string{"5:14: no rules, want at least one"}},
		{"one name and no list", in(ruleA, "a") + "  u: {rules: a}\n", []string{"5:14: text, want a list of rules"}},
		{"a rule in place", in(ruleA, "a, {limit: 1/60s}"), []string{"4:18: a mapping, want the name of a rule"}},
		{"a gate alone", in("  a: {gate: 08:00-21:00 recipient, zone: $.z}\n", "a"), []string{`4:3: policy "t": no limit, want at least one besides gates`}},
		{"no such rule", in(ruleA, "a, b"), []string{`4:18: no rule "b" in this file`}},
		{"a rule that nobody uses", in(ruleA+"  b: {limit: 1/60s, key: $}\n", "a"), []string{`3:3: rule "b": no policy lists it`}},
		{"a rule listed twice", in(ruleA, "a, a"), []string{`4:18: rule "a": the policy names it twice`}},
		{"17 rules", in(ruleA, "a"+strings.Repeat(", a", 16)), append([]string{"4:14: 17 rules, want at most 16"}, twice(15)...)},
		{"pay out of place", in(ruleA, "a") + "    charge: never\n", []string{"5:5: not valid YAML: value is not allowed in this context"}},
		{"pay misspelt", in(ruleA, "a") + "  u:\n    rules: [a]\n    charge: Success\n", []string{`7:13: charge is "Success", want "every attempt" or "success"`}},
		{"pay a boolean", in(ruleA, "a") + "  u:\n    rules: [a]\n    charge: true\n", []string{`7:13: true or false (text needs quotes then), want "every attempt" or "success"`}},
		{"put off never", in(ruleA, "a") + "  u: {rules: [a], max_postpones: 0}\n", []string{"5:34: want a whole number, 1 to 2147483647"}},
		{"put off as text", in(ruleA, "a") + "  u: {rules: [a], max_postpones: many}\n", []string{"5:34: want a whole number, 1 to 2147483647"}},
		{"other order", in(ruleA+"  b: {limit: 1/60s, key: $}\n", "a, b") + "  u: {rules: [b, a]}\n", []string{`6:18: rule "a": comes after "b" here, but before "b" in policy "t" (p.yaml:5)`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			policies, err := read(tt.file)
			if policies != nil {
				t.Errorf("%d policies, want none", len(policies))
			}
			wantFileFaults(t, err, tt.want)
		})
	}
}

func twice(n int) []string {
	var all []string
	for range n {
		all = append(all, `4:...`)
	}
	return all
}

// Everything at once, in the order of lines, whatever part finds it.
func TestPolicyFileTellsAllFaults(t *testing.T) {
	t.Parallel()
	wantFileFaults(t, second(read(`
rules:
  phone: {limit: 1/60x, key: $.to}
  spare: {limit: 1/60s, key: $}
  all: {limit: 9/1s}
policies:
  sms: {rules: [phone, all], charge: sometimes}
  sms: {rules: [phone]}
  call: {rules: [all, phone, ghost]}
version: 2
`)), []string{
		`3:18: throttle: invalid limit: "1/60x"...`,
		`4:3: rule "spare": no policy lists it`,
		`5:3: rule "all": no key`,
		`7:38: charge is "sometimes", want "every attempt" or "success"`,
		`8:3: "sms" is there already, on line 7`,
		`9:23: rule "phone": comes after "all" here, but before "all" in policy "sms" (p.yaml:7)`,
		`9:30: no rule "ghost" in this file`,
		`10:1: unknown field "version", want rules, policies`,
	})
}

// The parser recurses, and is slower than a file is long: what would take its
// stack or minutes is refused before it.
func TestPolicyFileBombs(t *testing.T) {
	t.Parallel()
	const size = 1 << 18 // of 1 MiB the parser alone would take minutes
	for name, text := range map[string]string{
		"flow lists":     strings.Repeat("[", size),
		"flow mappings":  strings.Repeat("{a: ", size/4),
		"block lists":    strings.Repeat("- ", size/2),
		"mappings":       strings.Repeat("a: ", size/3),
		"complex names":  strings.Repeat("? ", size/2),
		"tags":           strings.Repeat("!a ", size/3),
		"anchors":        strings.Repeat("&a ", size/3),
		"aliases":        "a: [" + strings.Repeat("*a,", size/4) + "]",
		"elements":       "a: [" + strings.Repeat("a,", size/3) + "]",
		"many names":     strings.Repeat("a: b\n", size/5),
		"documents":      strings.Repeat("---\n", size/4),
		"an open string": `a: "` + strings.Repeat("x\n ", size/4),
		"stairs":         stairs(size),
		"lines of lists": strings.Repeat(strings.Repeat(" ", 15)+"-\n", size/17),
	} {
		began := time.Now()
		_, err := read(text)
		if !errors.Is(err, ErrInvalidPolicy) || len(err.Error()) > 1000 {
			t.Errorf("%s: error %.200v, want a short ErrInvalidPolicy", name, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: took %v", name, took)
		} else {
			t.Logf("%s: %v: %v", name, took, err)
		}
	}
}

// stairs are mappings, each one deeper than the one before.
func stairs(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-2000; i++ {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// FuzzReadPolicies: whatever is read is valid, and whatever is refused has
// places inside the file, in their order.
func FuzzReadPolicies(f *testing.F) {
	for _, seed := range []string{
		goodFile, in(ruleA, "a"), in(ruleA, "a, b"), "rules: {a: [", "{}", "- a", "a: &a\nb: *a", "<<: {a: 1}", "? a\n: b", "---\n---\n",
		"%YAML 1.2\n---\n", "rules: |\n  x\n", "rules:\n  a: {limit: 1/60s, key: $['x y'], cost: 0x1}\n", "\ufeffrules:\r\n", "a: !t b", "\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		policies, err := read(text)
		if err == nil {
			if err := ValidatePolicies(policies); err != nil || len(policies) == 0 {
				t.Fatalf("%q gives %d policies: %v", text, len(policies), err)
			}
			return
		}
		lines := strings.Count(text, "\n") + 2 + strings.Count(text, "\r")
		last := yamlfile.Pos{}
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			fe, ok := errors.AsType[*FileError](e)
			if !ok || !errors.Is(e, ErrInvalidPolicy) || fe.Reason == "" || fe.Line > lines || fe.Line < 0 || (fe.Line > 0) != (fe.Column > 0) {
				t.Fatalf("%q: fault %#v", text, e)
			}
			at := yamlfile.Pos{Line: fe.Line, Column: fe.Column}
			if at.Line < last.Line || at.Line == last.Line && at.Column < last.Column {
				t.Fatalf("%q: fault at %v comes after one at %v", text, at, last)
			}
			last = at
		}
	})
}
