package luascripts

import (
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// textJoins are the only lines that join with "..": each joins text, and no
// number gets into it but through string.format.
var textJoins = map[string][]string{
	"deferred.lua": {
		`string.char(5 + 2 * #tokens) .. score .. pool .. tokens .. wait_bytes .. record`, `score_bytes(math.floor(now / 1000000)) .. "\0\0" .. reason`,
		`string.sub(before, 1, 4) .. string.char(math.floor(moved / 256), moved % 256) .. string.sub(reason, 1, 1) .. rule`,
		`token .. string.sub(before.tokens, 1, 56)`, `string.sub(hw, 1, 5) .. pool .. string.sub(hw, 10)`,
	},
	"due.lua":      {`prefix .. long(short)`},
	"clock.lua":    {`t[1] .. t[2]`}, // both as they came
	"taskid.lua":   {`short .. record end`, `string.format("\3%d:", #short) .. short .. record`},
	"setlimit.lua": {`int(version) .. " " .. limit .. replaced`},
	"sliding.lua": {
		`call("GETRANGE", ledger.key, oldest, -1) .. call("GETRANGE", ledger.key, HEADER, oldest - 1)`,
		`"s" .. ledger.token .. ledger.limit.stamp .. char(`, `header(ledger, ledger.newest_index) .. records`, `header(ledger, 0) .. timestamp(ledger.newest)`, `"s" .. token .. limit.stamp .. "\0\0\0" .. timestamp(now)`,
	},
	"fetch.lua":         {`(now and "1" or "0") .. wait_bytes`, `prefix .. id`},
	"fetched.lua":       {`string.format("%d:", #id) .. id`},
	"requeue.lua":       {`prefix .. id`},
	"ledger.lua":        {`limit.letter .. ledger.token .. limit.stamp .. kind.value(limit, ledger)`, `letter .. n .. "|" .. W .. "|" .. more .. "|" .. version`}, // all as they came
	"binary.lua":        {`(format, ...)`, `{ ... }`},
	"counter.lua":       {`COUNTED .. "ddd"`, `COUNTED .. "ddddd"`, `string.char(ledger.remembered) .. pack(`},
	"places.lua":        {`"@" .. rule.member`, `"#" .. rule.member`, `"#" .. m`, `"~" .. rule.member`},
	"line.lua":          {`"(" .. int(ticket)`, `"@" .. rule.member`, `"@" .. (m or rule.member)`, `"@" .. member`, `"#" .. rule.member`, `"@" .. m`, `"#" .. m`},
	"feed.lua":          {`"(" .. int(cursor)`, `"refused:" .. reason`},
	"list.lua":          {`"(" .. first`},
	"tick.lua":          {`prefix .. other`},
	"wake.lua":          {`prefix .. id`},
	"insert_task.lua":   {`"(" .. int(queue.first)`},
	"scan_deferred.lua": {`"(" .. int(from)`, `prefix .. long(short)`},
	"tokens.lua":        {`"(" .. int(RESENT_WITHIN - now)`, `"(" .. int(-ADJUSTMENT_OFFSET)`},
	"record.lua":        {`name .. ":" .. int(sums[name])`, `table.concat(all, " ") .. ";" .. limit`},
	"rulecall.lua":      {`rule.cost .. ":" .. job`}, // both as they came
	"leases.lua":        {`"@" .. m`, `"(" .. int(now)`, `"(" .. int(ledger.now)`},
}

// A number becomes text by string.format alone: tostring and ".." cut it to 14
// digits, and a time has 16.
func TestNumbersBecomeTextByFormat(t *testing.T) {
	t.Parallel()
	comment := regexp.MustCompile(`--.*`)
	for _, name := range ModuleNames() {
		body := comment.ReplaceAllString(ModuleText(name), "")
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
		for _, banned := range []string{"KEYS *", "cjson", "cmsgpack", "bit.", "#!lua", "math.random", "replicate_commands"} {
			if strings.Contains(body, banned) {
				t.Errorf("%s uses %s", name, banned)
			}
		}
		if n := strings.Count(body, "clock()"); n > 1 {
			t.Errorf("%s asks for the time %d times, want once", name, n)
		}
	}
}

// The linter, which holds Go to lines of 160 characters, reads no Lua.
func TestLinesAreShort(t *testing.T) {
	t.Parallel()
	const most = 160
	for _, name := range ModuleNames() {
		for i, line := range strings.Split(ModuleText(name), "\n") {
			if n := utf8.RuneCountInString(line); n > most {
				t.Errorf("%s:%d has %d characters, want at most %d", name, i+1, n, most)
			}
		}
	}
}
