package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/headwayq/headway/internal/redistest"
)

// Each connection checks the certificate for its own host, unless --sni names one. The first host is
// not that of the other nodes of a cluster, nor that of the master behind sentinels.
func TestTLSNamesNoHostForAll(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags redisFlags
		want  string
	}{
		"one host":             {redisFlags{addrs: []string{"a:1"}, tls: true}, ""},
		"an IPv6 address":      {redisFlags{addrs: []string{"[::1]:6379"}, tls: true}, ""},
		"nodes of a cluster":   {redisFlags{addrs: []string{"a:1", "b:1"}, tls: true}, ""},
		"a cluster by its URL": {redisFlags{url: "rediss://a:1", cluster: true}, ""},
		"sentinels":            {redisFlags{addrs: []string{"a:1", "b:1"}, sentinelMaster: "m", tls: true}, ""},
		"a sentinel by URL":    {redisFlags{url: "rediss://a:1", sentinelMaster: "m"}, ""},
		"a name":               {redisFlags{addrs: []string{"a:1", "b:1"}, sni: "redis.example"}, "redis.example"},
		"a name beside a URL":  {redisFlags{url: "rediss://a:1", sni: "redis.example"}, "redis.example"},
	} {
		o, err := tt.flags.options()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if o.TLSConfig == nil || o.TLSConfig.ServerName != tt.want || o.TLSConfig.InsecureSkipVerify {
			t.Errorf("%s: %+v, want the name %q, and certificates that are checked", name, o.TLSConfig, tt.want)
		}
	}
}

// An option of a URL reaches the client, or is refused by its name. No error shows what a password
// may be.
func TestOptionsOfAURL(t *testing.T) {
	t.Parallel()
	o, err := (&redisFlags{url: "rediss://h:1?db=4&protocol=2&skip_verify=true"}).options()
	if err != nil || o.DB != 4 || o.Protocol != 2 || !o.TLSConfig.InsecureSkipVerify {
		t.Errorf("%+v, %v, want database 4, protocol 2 and certificates that are not checked", o, err)
	}
	for url, want := range map[string]string{
		"redis://:secret@h:1?pool_size=3&db=1&dial_timeout=2s": "--url: headway does not use these options, take them away: dial_timeout, pool_size",
		"redis://user:?secret@h":                               "--url: want a URL like redis://user:password@host:6379/0",
	} {
		if _, err := (&redisFlags{url: url}).options(); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// A URL may name a Unix socket.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "hw") //nolint:usetesting // the path of a socket has 107 bytes at most, and t.TempDir's may be longer
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis.sock")
	srv := redistest.Start(t, redistest.Arg("unixsocket", socket))
	if err := srv.Client(t).Set(t.Context(), "there", "yes", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	rdb, err := (&redisFlags{url: "unix://" + socket + "?db=0", timeout: 10 * time.Second}).open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	if got, err := rdb.Get(t.Context(), "there").Result(); err != nil || got != "yes" {
		t.Errorf("over the socket: %q, %v", got, err)
	}
	if network := rdb.(*redis.Client).Options().Network; network != "unix" {
		t.Errorf("the network is %s", network)
	}
	for _, flags := range []redisFlags{{url: "unix://" + socket, cluster: true}, {url: "unix://" + socket, sentinelMaster: "m"}} {
		if _, err := flags.open(); err == nil || !strings.Contains(err.Error(), "a Unix socket leads neither to a cluster nor to sentinels") {
			t.Errorf("cluster %t, sentinel %q: %v", flags.cluster, flags.sentinelMaster, err)
		}
	}
}

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
