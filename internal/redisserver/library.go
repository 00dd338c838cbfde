package redisserver

import (
	"fmt"
	"strings"
	"time"
)

// realTime is how Headway's scripts read the clock of their server.
const realTime = `redis.call("TIME")`

// ClockKey is a hash with the time that scripts of [ByClockKey] read: "s", and "us" beside it.
const ClockKey = "redistest:clock"

// ByClockKey is the text of Headway's scripts with a clock that a test sets.
func ByClockKey(text string) string {
	return strings.ReplaceAll(text, realTime, `redis.call("HMGET", "`+ClockKey+`", "s", "us")`)
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
