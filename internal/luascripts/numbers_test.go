package luascripts

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// textJoins are the only lines that join with "..": each joins text, and no
// number gets into it but through string.format.
var textJoins = map[string][]string{
	"deferred.lua": {`string.char(3 + 2 * #tokens) .. score .. pool .. tokens .. what`, `token .. string.sub(before.tokens, 1, 56)`, `string.sub(hw, 1, before) .. pool .. string.sub(hw, before + 5)`},
	"due.lua":      {`prefix .. long(short)`},
	"taskid.lua":   {`short .. what end`, `string.format("\3%d:", #short) .. short .. what`},
	"setlimit.lua": {`int(version) .. " " .. limit`},
	"sliding.lua": {
		`redis.call("GETRANGE", rule.key, turn, -1) .. redis.call("GETRANGE", rule.key, HEADER, turn - 1)`,
		`"s" .. token .. timestamp(rule.version) .. three(head)`,
		`header(rule, rule.token, cost - 1) .. timestamp(at)`,
		`header(rule, rule.token, rule.count - 1) .. records(rule)`,
	},
	"tat.lua":     {`int(rule.t) .. " " .. int(rule.r)`},
	"step.lua":    {`int(rule.x) .. " " .. int(rule.z)`},
	"counter.lua": {`rule.letter .. rule.token .. string.format(`, `) .. own .. string.format(`, `text .. " " .. more`},
	"places.lua":  {`"@" .. rule.me`},
	"line.lua":    {`"(" .. int(ticket)`, `"@" .. rule.me`, `"@" .. (m or rule.me)`},
	"one.lua":     {`"s" .. token .. form.version .. "\0\0\0" .. form.now`},
	"lone.lua": {
		`"s" .. token .. version .. string.char(`, `"s" .. token .. version .. "\0\0\0" .. record`,
		`"s" .. token .. version .. "\0\0\0" .. timestamp(now)`, `told[1] .. us`, `) .. us`, // as Redis told them
	},
	"pair.lua": {
		`"s" .. token .. timestamp(numbers.version) .. "\0\0\0" .. record`, `"s" .. token .. timestamp(numbers.wide_version)`,
		`header .. string.char(`, `header .. "\0\0\0" .. record`, `"@" .. me`,
		`"1:" .. job`, `"@" .. (next or me)`, `"@" .. next`, `"(" .. told[3]`, // as Redis told it
	},
	"ring.lua": {
		`"s" .. token .. form.version`, `header .. string.char(`, `head .. text`, `head .. string.sub(text, run * 7 + 1)`,
		`head .. string.sub(log.s, 20, 19 + from * 7) .. text .. string.sub(log.s, 20 + (from + run) * 7)`,
	},
	"fetch.lua":         {`prefix .. id`},
	"fetched.lua":       {`string.format("%d:", #id) .. id`},
	"requeue.lua":       {`prefix .. id`},
	"feed.lua":          {`"(" .. int(cursor)`},
	"list.lua":          {`"(" .. first`},
	"tick.lua":          {`prefix .. other`},
	"tickets.lua":       {`"@" .. member`},
	"wake.lua":          {`prefix .. id`},
	"scan_deferred.lua": {`"(" .. int(from)`, `prefix .. long(short)`},
	"correct.lua":       {`"(" .. int(COPY - now)`, `"(" .. int(-BILLS)`},
	"rulecall.lua":      {`cost .. ":" .. job`}, // both as they came
	"leases.lua":        {`"@" .. m`, `"(" .. int(now)`, `"(" .. int(rule.now)`, `rule.letter .. rule.token .. text`},
}

// A number becomes text by string.format alone: tostring and ".." cut it to 14
// digits, and a time has 16.
func TestNumbersBecomeTextByFormat(t *testing.T) {
	t.Parallel()
	comment := regexp.MustCompile(`--.*`)
	for _, name := range moduleNames() {
		body := comment.ReplaceAllString(modules()[name].raw, "")
		for _, join := range textJoins[path.Base(name)+".lua"] {
			if !strings.Contains(body, join) {
				t.Errorf("%s: %q is gone: take it off the list", name, join)
			}
			body = strings.ReplaceAll(body, join, "")
		}
		for i, line := range strings.Split(body, "\n") {
			if strings.Contains(line, "..") || strings.Contains(line, "tostring") {
				t.Errorf("%s:%d: %q: join text only, and list it here", name, i+1, strings.TrimSpace(line))
			}
		}
		if n := strings.Count(body, `"TIME"`); name == "lib/clock" && n != 1 || name != "lib/clock" && n != 0 {
			t.Errorf("%s reads TIME %d times: the one reading is clock.lua's", name, n)
		}
		for _, banned := range []string{"KEYS *", "cjson", "cmsgpack", "struct.", "bit.", "#!lua", "math.random", "replicate_commands"} {
			if strings.Contains(body, banned) {
				t.Errorf("%s uses %s", name, banned)
			}
		}
		if n := strings.Count(body, "clock()"); n > 1 {
			t.Errorf("%s asks for the time %d times, want once", name, n)
		}
	}
}
