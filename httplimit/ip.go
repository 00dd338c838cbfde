package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/headwayq/headway/throttle"
)

// Defaults of an [IPConfig].
const (
	HeaderDefault   = "X-Forwarded-For"
	IPv6BitsDefault = 64
)

// IPConfig says how the address of a client is found.
type IPConfig struct {
	// Trusted are the addresses of your proxies. A prefix of 0 bits is refused:
	// it would trust everybody. Defaults to none, and then no header is read.
	Trusted []netip.Prefix

	// TrustUnix trusts whoever connects by a Unix socket, who has no address.
	// Defaults to false: such requests have no key.
	TrustUnix bool

	// Header is the one that your proxies set, or append to: "Forwarded" (RFC
	// 7239), or one that lists addresses. Only this one is read, because a proxy
	// that writes one of them passes the others on as the client sent them.
	// Defaults to [HeaderDefault].
	Header string

	// IPv6Bits is how much of an IPv6 address counts, 1 to 128: whoever has one
	// address has a whole network of them. Defaults to [IPv6BitsDefault].
	IPv6Bits int
}

// ByIP counts by the address of the client: that of the connection, and when this
// is one of the trusted proxies, the one that it tells in X-Forwarded-For. It is
// [ByIPWith] with the defaults; a prefix that is refused there panics here.
func ByIP(trusted ...netip.Prefix) KeyFunc {
	key, err := ByIPWith(IPConfig{Trusted: trusted})
	if err != nil {
		panic(err)
	}
	return key
}

// ByIPWith is [ByIP] with a choice. The header is read from its end, where the
// nearest proxy wrote, as far as the hops are trusted: the first that is not is the
// client, and what stands before it is what the client claims. Where a trusted
// proxy tells no address ("unknown", an obfuscated name, nothing, nonsense) the
// client is counted by that proxy, together with all others of whom it tells none.
//
// Ports, brackets and zones are dropped, an IPv4 address in IPv6 form is the IPv4
// address. All faults of cfg are reported at once, unwrapping to
// [throttle.ErrInvalidConfig].
func ByIPWith(cfg IPConfig) (KeyFunc, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := ipSource{
		unix:   cfg.TrustUnix,
		header: http.CanonicalHeaderKey(cmp.Or(cfg.Header, HeaderDefault)),
		bits:   cmp.Or(cfg.IPv6Bits, IPv6BitsDefault),
	}
	for _, p := range cfg.Trusted {
		s.trusted = append(s.trusted, unmapped(p).Masked())
	}
	return s.key, nil
}

func (c IPConfig) validate() error {
	var errs []error
	for _, p := range c.Trusted {
		if !p.IsValid() || unmapped(p).Bits() == 0 {
			errs = append(errs, fmt.Errorf("%w: httplimit: trusted prefix %v, want one of at least 1 bit", throttle.ErrInvalidConfig, p))
		}
	}
	if c.IPv6Bits < 0 || c.IPv6Bits > 128 {
		errs = append(errs, fmt.Errorf("%w: httplimit: IPv6Bits %d, want 1 to 128", throttle.ErrInvalidConfig, c.IPv6Bits))
	}
	if strings.ContainsFunc(c.Header, func(r rune) bool { return !isTokenRune(r) }) {
		errs = append(errs, fmt.Errorf("%w: httplimit: Header %q is no field name", throttle.ErrInvalidConfig, c.Header))
	}
	if c.Header != "" && len(c.Trusted) == 0 && !c.TrustUnix {
		errs = append(errs, fmt.Errorf("%w: httplimit: Header %q is never read when nobody is trusted", throttle.ErrInvalidConfig, c.Header))
	}
	return errors.Join(errs...)
}

// unmapped is the IPv4 form of a prefix that is written as ::ffff:10.0.0.0/104.
func unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// ipSource finds addresses.
type ipSource struct {
	trusted []netip.Prefix
	unix    bool
	header  string
	bits    int
}

func (s ipSource) key(r *http.Request) (string, error) {
	addr := s.client(r)
	if !addr.IsValid() {
		return "", ErrNoKey
	}
	return s.text(addr), nil
}

// client is the address that a request is counted for; not valid when there is none.
func (s ipSource) client(r *http.Request) netip.Addr {
	addr, ok := parseNode(r.RemoteAddr)
	if trusted := ok && s.trusts(addr) || !ok && s.unix && isUnix(r.RemoteAddr); !trusted {
		return addr
	}
	hops := listHops
	if s.header == "Forwarded" {
		hops = forwardedHops
	}
	for _, line := range slices.Backward(r.Header.Values(s.header)) {
		for node := range hops(line) {
			hop, ok := parseNode(node)
			if !ok {
				return addr
			}
			if addr = hop; !s.trusts(hop) {
				return addr
			}
		}
	}
	return addr
}

func (s ipSource) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(s.trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// nat64 holds the IPv4 internet in the lower bits, all of it within one /64.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func (s ipSource) text(a netip.Addr) string {
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.Is4() || s.bits == 128 {
		return a.String()
	}
	return netip.PrefixFrom(a, s.bits).Masked().String()
}

// isUnix says that net/http knows no address of a connection but that of its socket.
func isUnix(remote string) bool {
	return remote == "" || remote[0] == '@' || remote[0] == '/'
}
