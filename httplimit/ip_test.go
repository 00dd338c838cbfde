package httplimit_test

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/throttle"
)

var proxies = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("::ffff:172.16.0.0/108"),
}

func request(remote, header string, lines ...string) *http.Request {
	return &http.Request{RemoteAddr: remote, Header: http.Header{http.CanonicalHeaderKey(header): lines}}
}

// noKey is what the tables say for a request that is refused.
const noKey = "no key"

func keyOf(t *testing.T, key httplimit.KeyFunc, r *http.Request) string {
	t.Helper()
	got, err := key(r)
	if err != nil {
		if !errors.Is(err, httplimit.ErrNoKey) {
			t.Errorf("key: %v, want %v", err, httplimit.ErrNoKey)
		}
		return noKey
	}
	return got
}

func TestByIPOfTheConnection(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ remote, want string }{
		{"192.0.2.1:1234", "192.0.2.1"},
		{"192.0.2.1", "192.0.2.1"}, // other middleware has rewritten it
		{"[2001:db8::1]:1234", "2001:db8::/64"},
		{"[2001:db8::2]:1234", "2001:db8::/64"},
		{"[2001:db8:0:1::1]:1234", "2001:db8:0:1::/64"},
		{"2001:db8::1", "2001:db8::/64"},
		{"[fe80::1%eth0]:1234", "fe80::/64"},
		{"[::ffff:192.0.2.1]:1234", "192.0.2.1"},
		{"[::ffff:192.0.2.1%eth0]:1234", "192.0.2.1"},
		{"[64:ff9b::c000:201]:1234", "192.0.2.1"},
		{"@", noKey}, {"", noKey}, {"/run/http.sock", noKey}, {"0.0.0.0:1", noKey}, {"[::]:1", noKey},
		{"host:80", noKey}, {"[192.0.2.1]:80", noKey}, {"[2001:db8::1", noKey}, {"192.0.2.01:80", noKey},
	} {
		for _, header := range []string{"X-Forwarded-For", "Forwarded"} { // nobody is trusted
			r := request(tc.remote, header, "for=198.51.100.7", "198.51.100.7")
			if got := keyOf(t, httplimit.ByIP(), r); got != tc.want {
				t.Errorf("key of %q = %q, want %q", tc.remote, got, tc.want)
			}
		}
	}
}

func TestByIPBehindProxies(t *testing.T) {
	t.Parallel()
	const proxy, client = "10.0.0.1:443", "192.0.2.1"
	for _, tc := range []struct {
		name, remote string
		lines        []string
		want         string
	}{
		{"no header", proxy, nil, "10.0.0.1"},
		{"one hop", proxy, []string{client}, client},
		{"spoofed", proxy, []string{"203.0.113.9, " + client}, client},
		{"spoofed in a line of its own", proxy, []string{"203.0.113.9", client}, client},
		{"spoofed as a proxy", proxy, []string{"203.0.113.9, 10.0.0.9, " + client}, client},
		{"two hops", proxy, []string{client + ", 10.0.0.2"}, client},
		{"two hops in two lines", proxy, []string{client, "10.0.0.2"}, client},
		{"spoofed through two hops", proxy, []string{"203.0.113.9," + client + ",10.0.0.2"}, client},
		{"not from a proxy", "198.51.100.1:80", []string{client}, "198.51.100.1"},
		{"mapped proxy", "[::ffff:10.0.0.1]:443", []string{client}, client},
		{"proxy of a mapped prefix", "172.16.0.1:443", []string{client}, client},
		{"proxy with a zone", "[fd00::1%eth0]:443", []string{client}, client},
		{"all of them proxies", proxy, []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"port", proxy, []string{client + ":51234"}, client},
		{"IPv6", proxy, []string{"2001:db8::1"}, "2001:db8::/64"},
		{"IPv6 in brackets", proxy, []string{"[2001:db8::1]"}, "2001:db8::/64"},
		{"IPv6 with port", proxy, []string{"[2001:db8::1]:51234"}, "2001:db8::/64"},
		{"mapped client", proxy, []string{"::ffff:" + client}, client},
		{"white space", proxy, []string{" \t" + client + "\t "}, client},
		{"unknown", proxy, []string{client + ", unknown"}, "10.0.0.1"},
		{"nonsense before the last hop", proxy, []string{"a, " + client + "x, 10.0.0.2"}, "10.0.0.2"},
		{"nothing at the end", proxy, []string{client + ","}, "10.0.0.1"},
		{"an empty line", proxy, []string{client, ""}, "10.0.0.1"},
		{"a name", proxy, []string{"localhost"}, "10.0.0.1"},
		{"no address", proxy, []string{"0.0.0.0"}, "10.0.0.1"},
		{"a number", proxy, []string{"3221225985"}, "10.0.0.1"},
		{"octal", proxy, []string{"0300.0.2.1"}, "10.0.0.1"},
		{"a prefix", proxy, []string{"192.0.2.0/24"}, "10.0.0.1"},
		{"semicolon", proxy, []string{client + ";203.0.113.9"}, "10.0.0.1"},
		{"wide comma", proxy, []string{client + "，203.0.113.9"}, "10.0.0.1"},
		{"NUL", proxy, []string{client + "\x00"}, "10.0.0.1"},
		{"very long", proxy, []string{strings.Repeat("1,", 1<<16) + client}, client},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := request(tc.remote, "X-Forwarded-For", tc.lines...)
			r.Header.Set("Forwarded", "for=203.0.113.200") // passed on as the client sent it
			r.Header.Set("X-Real-Ip", "203.0.113.200")
			if got := keyOf(t, httplimit.ByIP(proxies...), r); got != tc.want {
				t.Errorf("key of %q from %s = %q, want %q", tc.lines, tc.remote, got, tc.want)
			}
		})
	}
}

func TestByIPForwarded(t *testing.T) {
	t.Parallel()
	key, err := httplimit.ByIPWith(httplimit.IPConfig{Trusted: proxies, Header: "forwarded"})
	if err != nil {
		t.Fatal(err)
	}
	const proxy, client = "10.0.0.1", "192.0.2.1"
	for _, tc := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"plain", []string{"for=192.0.2.1"}, client},
		{"case and order", []string{"proto=https;FOR=192.0.2.1;by=10.0.0.1"}, client},
		{"quoted", []string{`for="192.0.2.1"`}, client},
		{"port", []string{`for="192.0.2.1:47011"`}, client},
		{"obfuscated port", []string{`for="192.0.2.1:_x1"`}, client},
		{"unquoted port", []string{"for=192.0.2.1:47011"}, client},
		{"IPv6", []string{`for="[2001:db8:cafe::17]"`}, "2001:db8:cafe::/64"},
		{"IPv6 with port", []string{`For="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"spoofed", []string{"for=203.0.113.9, for=192.0.2.1"}, client},
		{"two hops", []string{"for=192.0.2.1, for=10.0.0.2;by=10.0.0.1"}, client},
		{"two lines", []string{"for=203.0.113.9", "for=192.0.2.1"}, client},
		{"separators within quotes", []string{`for=192.0.2.1;host="a,b;for=203.0.113.9"`}, client},
		{"an escape within quotes", []string{`for=192.0.2.1;host="a\",for=203.0.113.9"`}, client},
		{"a quote of the client's in a line of its own", []string{`for="`, "for=192.0.2.1"}, client},
		{"unknown", []string{"for=203.0.113.9, for=unknown"}, proxy},
		{"obfuscated", []string{"for=203.0.113.9, for=_gazonk"}, proxy},
		{"obfuscated behind a hop", []string{`for="_SEVKISEK", for=10.0.0.2`}, "10.0.0.2"},
		{"no for", []string{"for=203.0.113.9, proto=https"}, proxy},
		{"two fors", []string{"for=203.0.113.9;for=192.0.2.1"}, proxy},
		{"empty for", []string{"for="}, proxy},
		{"empty element", []string{"for=203.0.113.9,"}, proxy},
		{"a quote that swallows what the proxy wrote", []string{`for="203.0.113.9, for=192.0.2.1`}, proxy},
		{"a quote behind an address", []string{`for=203.0.113.9;x=", for=192.0.2.1`}, proxy},
		{"a quote that closes in what the proxy wrote", []string{`x=", for="[2001:db8::1]", for=203.0.113.9`}, proxy},
		{"an escape before what the proxy wrote", []string{`for=203.0.113.9;x="\, for="[2001:db8::1]"`}, proxy},
		{"garbage after a quote", []string{`for="203.0.113.9"x`}, proxy},
		{"escaped node", []string{`for="203.0.113.\9"`}, proxy},
		{"no pair", []string{"192.0.2.1"}, proxy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := request(proxy+":443", "Forwarded", tc.lines...)
			r.Header.Set("X-Forwarded-For", "203.0.113.200")
			if got := keyOf(t, key, r); got != tc.want {
				t.Errorf("key of %q = %q, want %q", tc.lines, got, tc.want)
			}
		})
	}
}

func TestByIPWith(t *testing.T) {
	t.Parallel()
	behindSocket, err := httplimit.ByIPWith(httplimit.IPConfig{TrustUnix: true, Header: "X-Real-IP"})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := httplimit.ByIPWith(httplimit.IPConfig{IPv6Bits: 128})
	if err != nil {
		t.Fatal(err)
	}
	site, err := httplimit.ByIPWith(httplimit.IPConfig{IPv6Bits: 56})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		key  httplimit.KeyFunc
		r    *http.Request
		want string
	}{
		{behindSocket, request("@", "X-Real-IP", "192.0.2.1"), "192.0.2.1"},
		{behindSocket, request("", "X-Real-IP", "192.0.2.1"), "192.0.2.1"},
		{behindSocket, request("@", "X-Real-IP"), noKey},
		{behindSocket, request("@", "X-Real-IP", "unknown"), noKey},
		{behindSocket, request("nonsense", "X-Real-IP", "192.0.2.1"), noKey},
		{behindSocket, request("198.51.100.1:80", "X-Real-IP", "192.0.2.1"), "198.51.100.1"},
		{whole, request("[2001:db8::1]:80", ""), "2001:db8::1"},
		{site, request("[2001:db8:0:12ff::1]:80", ""), "2001:db8:0:1200::/56"},
	} {
		if got := keyOf(t, tc.key, tc.r); got != tc.want {
			t.Errorf("key from %q = %q, want %q", tc.r.RemoteAddr, got, tc.want)
		}
	}
}

func TestByIPWithTellsAllFaults(t *testing.T) {
	t.Parallel()
	all := netip.MustParsePrefix("0.0.0.0/0")
	_, err := httplimit.ByIPWith(httplimit.IPConfig{
		Trusted: []netip.Prefix{{}, all, netip.MustParsePrefix("::ffff:0.0.0.0/96")}, Header: "a b", IPv6Bits: 129,
	})
	if !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Fatalf("ByIPWith = %v, want %v", err, throttle.ErrInvalidConfig)
	}
	for _, want := range []string{"invalid Prefix", "0.0.0.0/0", "::ffff:0.0.0.0/96", `"a b"`, "129"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("ByIPWith = %v, want it to tell of %s", err, want)
		}
	}
	if _, err := httplimit.ByIPWith(httplimit.IPConfig{Header: "Forwarded"}); !errors.Is(err, throttle.ErrInvalidConfig) {
		t.Errorf("a header that is never read: %v, want %v", err, throttle.ErrInvalidConfig)
	}
	defer func() {
		if recover() == nil {
			t.Error("ByIP with a prefix that trusts everybody did not panic")
		}
	}()
	httplimit.ByIP(all)
}

// FuzzByIP lets a client send anything through a proxy that appends its address,
// to the same line or in one of its own: the client is counted by this address, or
// by the proxy's where it made the header unreadable, and never by what it chose.
// Without a proxy it is counted by its connection.
func FuzzByIP(f *testing.F) {
	for _, seed := range []string{
		"", "203.0.113.9", "203.0.113.9, 10.0.0.9", `for=203.0.113.9`, `for="`, `for="[2001:db8::9]:1", x="\`, `a="\",`, ",,;;", `for="a"b`,
		"unknown", "10.0.0.1", `x=",`, `x=";for="`, `for=203.0.113.9;x="`, "fe80::1%25", "[::1", `for=203.0.113.9;for=10.0.0.3,`,
	} {
		f.Add(seed, []byte{192, 0, 2, 1}, true)
		f.Add(seed, []byte{0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, false)
	}
	plain := httplimit.ByIP(proxies...)
	forwarded, err := httplimit.ByIPWith(httplimit.IPConfig{Trusted: proxies, Header: "Forwarded"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sent string, from []byte, own bool) {
		client, ok := netip.AddrFromSlice(from)
		client = client.Unmap()
		if !ok || client.IsUnspecified() || proxies[0].Contains(client) || proxies[1].Contains(client) ||
			netip.MustParsePrefix("172.16.0.0/12").Contains(client) {
			return
		}
		want, err := httplimit.ByIP()(request(netip.AddrPortFrom(client, 80).String(), ""))
		if err != nil {
			t.Fatal(err)
		}
		const proxy = "10.0.0.1"
		node := client.String()
		if client.Is6() {
			node = `"[` + node + `]:443"`
		}
		for _, tc := range []struct {
			header, wrote string
			key           httplimit.KeyFunc
		}{
			{"X-Forwarded-For", client.String(), plain},
			{"Forwarded", "for=" + node, forwarded},
			{"Forwarded", "proto=http;for=" + node + `;by="_p"`, forwarded},
		} {
			lines := []string{sent + ", " + tc.wrote}
			if own {
				lines = []string{sent, tc.wrote}
			}
			got := keyOf(t, tc.key, request(proxy+":443", tc.header, lines...))
			if got != want && (own || tc.header != "Forwarded" || got != proxy) {
				t.Errorf("%s %q = %q, want %q, or the proxy's where quotes do not match", tc.header, lines, got, want)
			}
			direct := keyOf(t, tc.key, request(netip.AddrPortFrom(client, 80).String(), tc.header, sent))
			if direct != want {
				t.Errorf("%s %q sent without a proxy = %q, want %q", tc.header, sent, direct, want)
			}
			keyOf(t, tc.key, request(sent, tc.header, sent))
		}
	})
}
