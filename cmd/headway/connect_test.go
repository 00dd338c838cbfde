package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// A flag that is given goes before the environment, and a password in a URL before REDISCLI_AUTH. The
// help shows no password.
func TestRedisFlagsGoBeforeTheEnvironment(t *testing.T) {
	t.Parallel()
	const fromEnv = "redis://eve:envpass@env:1/3"
	for name, tt := range map[string]struct {
		args, url, auth string
		want            string // address, user, password and database
	}{
		"nothing":                          {"", "", "", "127.0.0.1:6379   0"},
		"the environment":                  {"", fromEnv, "", "env:1 eve envpass 3"},
		"both of it":                       {"", fromEnv, "auth", "env:1 eve envpass 3"},
		"a password of the environment":    {"", "redis://env:1", "auth", "env:1  auth 0"},
		"an address":                       {"--redis h:2", fromEnv, "auth", "h:2  auth 0"},
		"a URL":                            {"--url redis://h:2", fromEnv, "", "h:2   0"},
		"a URL with a password":            {"-u redis://bob:own@h:2/4", fromEnv, "auth", "h:2 bob own 4"},
		"a URL, and a password":            {"--url redis://bob:own@h:2 --pass mine", "", "auth", "h:2 bob mine 0"},
		"a password":                       {"--pass mine", fromEnv, "auth", "env:1 eve mine 3"},
		"no password":                      {"--pass=", fromEnv, "auth", "env:1 eve  3"},
		"a user":                           {"--user ann", fromEnv, "", "env:1 ann envpass 3"},
		"a database":                       {"--db 5", fromEnv, "", "env:1 eve envpass 5"},
		"the first database":               {"--db 0", fromEnv, "", "env:1 eve envpass 0"},
		"the first database, beside a URL": {"--url redis://h:2/4 -n 0", "", "", "h:2   0"},
		"no URL":                           {"--url=", fromEnv, "", "127.0.0.1:6379   0"},
		"a URL and an address":             {"--url redis://h:1 --redis h:2", "", "", "--url and --redis exclude each other"},
		"a bad URL of the environment":     {"", "env:1", "", "the URL of the environment: want a URL like redis://user:password@host:6379/0"},
		"a bad URL that is not looked at":  {"--redis h:2", "env:1", "", "h:2   0"},
	} {
		var r redisFlags
		f := pflag.NewFlagSet(name, pflag.ContinueOnError)
		r.add(f)
		r.env = redisEnv{url: tt.url, password: tt.auth, sentinelPassword: "envpass"}
		if err := f.Parse(strings.Fields(tt.args)); err != nil {
			t.Fatal(err)
		}
		o, err := r.options()
		got := strings.Join([]string{strings.Join(o.Addrs, ","), o.Username, o.Password, string(rune('0' + o.DB))}, " ")
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if strings.Contains(f.FlagUsages(), "envpass") {
			t.Errorf("%s: the help shows a password", name)
		}
	}
}
