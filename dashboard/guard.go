package dashboard

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// policy is the content security policy: what is not of this server is not loaded, and no
// script or style stands in a page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard stands before everything: headers, where a request comes from, and cross-origin
// requests.
func guard(d *board, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // not "no-referrer": a browser would send a form with Origin: null
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		if why := outside(d.cfg, r); why != "" {
			d.fault(w, r, http.StatusForbidden, "This dashboard is closed to where the request comes from.", why)
			return
		}
		err := protection.Check(r)
		if host := forwardedHost(d.cfg, r); err != nil && host != "" {
			as := r.Clone(r.Context())
			as.Host = host // a browser's Origin has the name by which it knows the proxy
			err = protection.Check(as)
		}
		if err != nil {
			d.fault(w, r, http.StatusForbidden, "This request comes from another site.", "Open the dashboard itself, and try again there.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// forwardedHost is the host that a trusted proxy was asked for; empty when none says so.
func forwardedHost(c Config, r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !trusted(c, from.Addr().Unmap()) {
		return ""
	}
	return r.Header.Get("X-Forwarded-Host")
}

// outside says why a request is not to be answered, by its address and the host that it
// names. The host is looked at because a page of another site can have its own name lead to
// this machine.
func outside(c Config, r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "Its address is not known."
	}
	addr, host := from.Addr().Unmap(), cmp.Or(forwardedHost(c, r), r.Host)
	switch hops := r.Header.Values("X-Forwarded-For"); {
	case trusted(c, addr):
		if len(hops) > 0 {
			if addr, err = clientOf(c, hops); err != nil {
				return "The X-Forwarded-For of the proxy can't be read: it has to be a list of addresses."
			}
		} else if forwarded(r.Header) && len(c.Hosts) == 0 {
			return "A proxy passes it on without X-Forwarded-For, so its address is not known."
		}
	case forwarded(r.Header) && len(c.Hosts) == 0:
		return "A proxy passes it on. Config.TrustedProxies names the proxies that may, and Config.Hosts lets other machines in."
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.Trim(name, "[]"))
	local := name == "localhost"
	if ip, err := netip.ParseAddr(name); err == nil && ip.IsLoopback() {
		local = true
	}
	known := slices.ContainsFunc(c.Hosts, func(h string) bool { return strings.EqualFold(strings.Trim(h, "[]"), name) })
	switch {
	case !addr.IsLoopback() && len(c.Hosts) == 0:
		return "It answers only requests of its own machine. Config.Hosts lets other machines in."
	case !local && !known:
		return "It does not go by the name in the address. Config.Hosts lists its names."
	}
	return ""
}

func trusted(c Config, addr netip.Addr) bool {
	return slices.ContainsFunc(c.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// forwarded says that a proxy has passed a request on, whatever stands in its headers.
func forwarded(h http.Header) bool {
	for name := range h {
		switch {
		case strings.HasPrefix(name, "X-Forwarded-"), name == "Forwarded", name == "X-Real-Ip", name == "Via":
			return true
		}
	}
	return false
}

// clientOf is the last address in X-Forwarded-For that is not that of a trusted proxy; when all
// are, the first. What stands before it anybody may have written. An address may have a port.
func clientOf(c Config, headers []string) (client netip.Addr, err error) {
	for _, hop := range slices.Backward(strings.Split(strings.Join(headers, ","), ",")) {
		hop = strings.TrimSpace(hop)
		if with, err := netip.ParseAddrPort(hop); err == nil {
			client = with.Addr()
		} else if inside, ok := strings.CutPrefix(hop, "["); ok && strings.HasSuffix(inside, "]") {
			client, err = netip.ParseAddr(strings.TrimSuffix(inside, "]"))
			if err != nil {
				return client, err
			}
		} else if client, err = netip.ParseAddr(hop); err != nil {
			return client, err
		}
		if client = client.Unmap(); !trusted(c, client) {
			break
		}
	}
	return client, nil
}
