package httplimit

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// listHops are the members of one line of X-Forwarded-For, from the end on. Empty
// ones are told: who wrote nothing told nothing.
func listHops(line string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			i := strings.LastIndexByte(line, ',')
			if !yield(trim(line[i+1:])) || i < 0 {
				return
			}
			line = line[:i]
		}
	}
}

// forwardedHops are the for parameters of one line of Forwarded, from the end on;
// "" for an element without one. In a line whose quotes do not match nobody can
// tell what the client wrote from what the proxy did: it is one "".
func forwardedHops(line string) iter.Seq[string] {
	return func(yield func(string) bool) {
		elements, ok := splitQuoted(line, ',')
		if !ok {
			yield("")
			return
		}
		for _, element := range slices.Backward(elements) {
			if !yield(forwardedFor(element)) {
				return
			}
		}
	}
}

// forwardedFor is the node in one element's for parameter, "" when there is none,
// or more than one.
func forwardedFor(element string) (node string) {
	pairs, ok := splitQuoted(element, ';')
	if !ok {
		return ""
	}
	seen := false
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || !strings.EqualFold(trim(name), "for") {
			continue
		}
		if seen {
			return ""
		}
		seen, node = true, unquote(trim(value))
	}
	return node
}

// splitQuoted cuts s at sep, but not within quotes. It fails on a quote that is not
// closed.
func splitQuoted(s string, sep byte) (parts []string, ok bool) {
	from, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && c == sep:
			parts, from = append(parts, s[from:i]), i+1
		}
	}
	return append(parts, s[from:]), !quoted
}

// unquote is the value of a quoted string. A node needs no escapes, so what has
// some is none.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' {
		return s
	}
	s = s[1 : len(s)-1]
	if strings.ContainsAny(s, `"\`) {
		return ""
	}
	return s
}

// parseNode reads an address, with or without port, brackets and zone. What is not
// known, obfuscated, or no address of anybody, is not ok.
func parseNode(s string) (netip.Addr, bool) {
	host, bracketed := s, false
	if strings.HasPrefix(s, "[") {
		inner, port, ok := strings.Cut(s[1:], "]")
		if !ok || port != "" && port[0] != ':' || port != "" && !isPort(port[1:]) {
			return netip.Addr{}, false
		}
		host, bracketed = inner, true
	} else if h, port, ok := strings.Cut(s, ":"); ok && isPort(port) && strings.Contains(h, ".") {
		host = h // and "1::2" has no port
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || bracketed && !addr.Is6() || addr.WithZone("").Unmap().IsUnspecified() {
		return netip.Addr{}, false
	}
	return addr.WithZone("").Unmap(), true
}

// isPort accepts numbers and, of RFC 7239, obfuscated names.
func isPort(s string) bool {
	if s == "" {
		return false
	}
	if s[0] == '_' {
		return !strings.ContainsFunc(s, func(r rune) bool { return !isTokenRune(r) })
	}
	return len(s) <= 5 && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// isTokenRune says what may stand in a field's name (RFC 9110, tchar).
func isTokenRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// trim drops the white space of HTTP, and nothing else.
func trim(s string) string { return strings.Trim(s, " \t") }
