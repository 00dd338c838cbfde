package recipes

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/throttle"
)

// Limited is a site with limits for an address and for all.
func Limited(rdb redis.UniversalClient, site http.Handler) (http.Handler, error) {
	ip, err := throttle.New(rdb, "ip", throttle.Sliding(100, time.Minute), throttle.Config{})
	if err != nil {
		return nil, err
	}
	all, err := throttle.New(rdb, "all", throttle.Bucket(1000, time.Second, 2000), throttle.Config{})
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.New([]httplimit.Rule{ // narrowest first
		{Limiter: ip, Key: httplimit.ByIP()},
		{Limiter: all, Key: httplimit.Same("all")},
	}, httplimit.Config{})
	if err != nil {
		return nil, err
	}
	return limit.Handler(site), nil
}

// Keys are the four kinds of keys that annotations have.
func Keys(mux *http.ServeMux, user func(*http.Request) (id string, ok bool)) map[string]httplimit.KeyFunc {
	return map[string]httplimit.KeyFunc{
		"IP":     httplimit.ByIP(netip.MustParsePrefix("10.0.0.0/8")), // your proxies
		"USER":   httplimit.ByUser(user, httplimit.ByIP()),            // who has none, by address
		"METHOD": httplimit.ByRoute(mux),                              // "GET /users/{id}"
		"CUSTOM": func(r *http.Request) (string, error) {
			id, _ := user(r)
			tenant, _, ok := strings.Cut(id, "/")
			if !ok {
				return "", httplimit.ErrNoKey // 403
			}
			return tenant, nil
		},
	}
}

// Routes limits one route more than the others.
func Routes(mux *http.ServeMux, login http.HandlerFunc, ip, logins *throttle.Limiter) error {
	limit, err := httplimit.New([]httplimit.Rule{
		{Limiter: logins, Key: httplimit.ByIP()}, // 5/1m
		{Limiter: ip, Key: httplimit.ByIP()},     // 100/1m, which other routes have too
	}, httplimit.Config{})
	if err != nil {
		return err
	}
	mux.Handle("POST /login", limit.Handler(login))
	return nil
}

// Proxied finds the address of a client behind a proxy that writes Forwarded.
func Proxied() (httplimit.KeyFunc, error) {
	return httplimit.ByIPWith(httplimit.IPConfig{
		Trusted:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Header:   "Forwarded",
		IPv6Bits: 56,
	})
}
