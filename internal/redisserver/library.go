package redisserver

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// realTime is how Headway's scripts read the clock of their server.
const realTime = `redis.call("TIME")`

// ClockArgument says to a call of a text by [ByArgument] what time it is.
func ClockArgument(now time.Time) string {
	return fmt.Sprintf("clock %d %d", now.Unix(), now.Nanosecond()/1000)
}

// modulesBegin is where the texts of scripts and of the library begin, and handOver where they call a file.
const modulesBegin = "local modules, loaded = {}, {}"

var handOver = regexp.MustCompile(`return require\(["\w/]+\)\((?i:keys), (args|ARGV)\)`)

// ByArgument is the text of a script of Headway, or of its library, that reads a clock from the last argument of
// each call: see [ClockArgument]. A call without it fails. A text that reads no clock stays as it is, and takes no such argument.
func ByArgument(text string) (changed string, takes bool) {
	if !strings.Contains(text, realTime) {
		return text, false
	}
	if strings.Count(text, modulesBegin) != 1 || len(handOver.FindAllString(text, -1)) != 1 {
		panic("redisserver: the scripts are put together in another way: change this too")
	}
	return handOver.ReplaceAllString(strings.NewReplacer(
		modulesBegin, "local modules, loaded, time_of_call = {}, {}",
		realTime, "time_of_call",
	).Replace(text), `time_of_call = { assert(table.remove($1):match("^clock (%d+) (%d+)$$")) } $0`), true
}

// Longer is the text of Headway's scripts with keys that live an hour longer than they ask for: they expire by
// the real clock of the server, and a clock that a test moves goes other ways.
func Longer(text string) string {
	const life = "math.ceil(us / 1000) + 50"
	if strings.Count(text, life) < 2 { // in life and in live
		panic("redisserver: the scripts compute a key's life in another way: change this too")
	}
	return strings.ReplaceAll(text, life, life+" + 3600000")
}

// Ahead is the text of Headway's library for a server whose clock is to be ahead of its real one. Clients find
// the library there, and load no other.
func Ahead(library string, d time.Duration) string {
	ahead := fmt.Sprintf(`(function()
    local t = redis.call("TIME")
    local us = t[1] * 1000000 + t[2] + %d
    return { string.format("%%d", math.floor(us / 1000000)), string.format("%%d", us %% 1000000) }
  end)()`, d.Microseconds())
	return strings.ReplaceAll(Longer(library), realTime, ahead)
}
