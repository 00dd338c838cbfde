package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/redisserver"
	"github.com/headwayq/headway/throttle"
)

var (
	moduleHead = regexp.MustCompile(`(?m)^modules\["([a-z_/]+)"\] = function\(\)$`)
	quoted     = regexp.MustCompile(`"([a-z_]+/[a-z_]+)"`)
	grants     = regexp.MustCompile(`\btokens\.spend(_all)?\b`)
	place      = regexp.MustCompile(` at ([a-z_/]+\.lua):(\d+): `)
)

// luaModules are the modules of the library's text, as Redis gets them, by their names.
func luaModules(library string) map[string]string {
	modules := make(map[string]string)
	heads := moduleHead.FindAllStringSubmatchIndex(library, -1)
	for i, head := range heads {
		text := library[head[1]:]
		if i+1 < len(heads) {
			text = library[head[1]:heads[i+1][0]]
		}
		modules[library[head[2]:head[3]]] = text
	}
	return modules
}

// reachable are the modules that a script needs, itself included: those that it names, and those that they name.
func reachable(modules map[string]string, script string) map[string]string {
	needed := make(map[string]string)
	var add func(name string)
	add = func(name string) {
		text, ok := modules[name]
		if _, seen := needed[name]; seen || !ok {
			return
		}
		needed[name] = text
		for _, found := range quoted.FindAllStringSubmatch(text, -1) {
			add(found[1])
		}
	}
	add(script)
	return needed
}

// acquireLua says of the Lua behind one acquire how many bytes it has, and how many of its modules grant permits by themselves.
func acquireLua(library string) (bytes, ways int) {
	for _, text := range reachable(luaModules(library), "limit/acquire") {
		bytes += len(text)
		if grants.MatchString(text) {
			ways++
		}
	}
	return bytes, ways
}

// errorLeadsToFile makes a script fail in a redis-server of its own, by a key of a wrong type, and says whether the
// error names a file of Lua and a line in it that calls Redis.
func errorLeadsToFile(root string) (bool, error) {
	temp, err := os.MkdirTemp("", "measures")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(temp)
	server, err := redisserver.Launch(temp)
	if err != nil {
		return false, err
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	limiter, err := throttle.New(rdb, "phone", throttle.Sliding(2, time.Minute), throttle.Config{})
	if err != nil {
		return false, err
	}
	ctx := context.Background()
	if err := limiter.Acquire(ctx, "+15550100", 1); err != nil {
		return false, err
	}
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		return false, err
	}
	for _, key := range keys {
		if err := rdb.Del(ctx, key).Err(); err != nil {
			return false, err
		}
		if err := rdb.SAdd(ctx, key, "not a ledger").Err(); err != nil {
			return false, err
		}
	}
	return leadsToCall(root, fmt.Sprint(limiter.Acquire(ctx, "+15550100", 1))), nil
}

// leadsToCall says whether a text names a line of a Lua file that calls Redis.
func leadsToCall(root, text string) bool {
	m := place.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	source, err := os.ReadFile(filepath.Join(root, "internal/luascripts/lua", m[1]))
	line, _ := strconv.Atoi(m[2])
	lines := strings.Split(string(source), "\n")
	return err == nil && line >= 1 && line <= len(lines) && strings.Contains(lines[line-1], "call(")
}
