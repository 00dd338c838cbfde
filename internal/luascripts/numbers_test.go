package luascripts

import (
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
		`redis.call("GETRANGE", L.key, turn, -1) .. redis.call("GETRANGE", L.key, HEADER, turn - 1)`,
		`"s" .. token .. seven(L.version) .. three(head)`,
		`header(L, L.token, cost - 1) .. seven(at)`,
		`header(L, L.token, L.count - 1) .. records(L)`,
	},
	"instant.lua": {`int(L.t) .. " " .. int(L.r)`},
	"step.lua":    {`int(L.x) .. " " .. int(L.z)`},
	"tally.lua":   {`L.letter .. L.token .. string.format(`, `) .. own .. string.format(`, `text .. " " .. more`},
	"places.lua":  {`"@" .. L.me`},
	"line.lua":    {`"(" .. int(ticket)`, `"@" .. L.me`, `"@" .. (m or L.me)`},
	"one.lua":     {`"s" .. token .. F.version .. "\0\0\0" .. F.now`},
	"lone.lua": {
		`"s" .. token .. version .. string.char(`, `"s" .. token .. version .. "\0\0\0" .. record`,
		`"s" .. token .. version .. "\0\0\0" .. seven(now)`, `told[1] .. us`, `) .. us`, // as Redis told them
	},
	"pairline.lua": {`"1:" .. job`, `"@" .. me`, `"@" .. (next or me)`, `"@" .. next`, `"(" .. told[3]`}, // as Redis told it
	"pair.lua": {
		`"s" .. token .. seven(P.version) .. "\0\0\0" .. record`, `"s" .. token .. seven(P.wide_version)`,
		`header .. string.char(`, `header .. "\0\0\0" .. record`, `"@" .. me`,
	},
	"ring.lua": {
		`"s" .. token .. F.version`, `header .. string.char(`, `head .. text`, `head .. string.sub(text, run * 7 + 1)`,
		`head .. string.sub(R.s, 20, 19 + from * 7) .. text .. string.sub(R.s, 20 + (from + run) * 7)`,
	},
	"feed.lua":    {`"(" .. int(cursor)`},
	"list.lua":    {`"(" .. first`},
	"tick.lua":    {`prefix .. other`},
	"tickets.lua": {`"@" .. member`},
	"wake.lua":    {`prefix .. id`},
	"walk.lua":    {`"(" .. int(from)`},
	"correct.lua": {`"(" .. int(COPY - now)`, `"(" .. int(-BILLS)`},
	"parts.lua":   {`cost .. ":" .. job`}, // both as they came
	"leases.lua":  {`"@" .. m`, `"(" .. int(now)`, `"(" .. int(L.now)`, `L.letter .. L.token .. text`},
}

// A number becomes text by string.format alone: tostring and ".." cut it to 14
// digits, and a time has 16.
func TestNumbersBecomeTextByFormat(t *testing.T) {
	t.Parallel()
	comment := regexp.MustCompile(`--.*`)
	for _, name := range fileNames(t) {
		body := comment.ReplaceAllString(source(t, name), "")
		for _, join := range textJoins[name] {
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
		if n := strings.Count(body, `"TIME"`); name == "clock.lua" && n != 1 || name != "clock.lua" && n != 0 {
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
