// Package httplimit puts the limits of package throttle before an [http.Handler]:
// per address, per user, per route, or per whatever a function finds in a request.
//
//	ip, err := throttle.New(rdb, "ip", throttle.Sliding(100, time.Minute), throttle.Config{})
//	...
//	limit, err := httplimit.New([]httplimit.Rule{{Limiter: ip, Key: httplimit.ByIP()}}, httplimit.Config{})
//	...
//	http.Handle("/", limit.Handler(mux))
//
// The rules of one [Middleware] are decided together: a request is charged to all of
// them or to none. Limiters are those of package throttle, with the same state: a
// worker that sends SMS and a server that takes orders for them can share one.
//
// # Answers
//
//	the request may go                    the handler's, with RateLimit-Policy and RateLimit
//	a rule refuses                        429, with Retry-After too
//	it costs more than the limit holds    413: it can never succeed, so no Retry-After
//	a key or a cost can't be found        400; 403 for [ErrNoKey]
//	Redis does not answer                 503; see below
//
// [Config.OnRefuse] and [Config.OnError] answer in another way. Bodies are problem
// details (RFC 9457). No answer and no log line tells a key.
//
// RateLimit-Policy and RateLimit follow draft-ietf-httpapi-ratelimit-headers-11
// (May 2026), which is no RFC yet. Each rule is a policy under its name:
//
//	RateLimit-Policy: "ip";q=100;w=60, "route";q=1000;w=1
//	RateLimit: "ip";r=0;t=41, "route";r=812
//
// q permits in w seconds (w is left out when the window is no whole number of
// seconds), headway-burst where a limit gives another number at once, and
// qu="concurrent-requests" where it bounds how many run. r is what is left, and t
// the seconds until there is more, rounded up. t stands where it is known: for the
// rule that refuses, where it is Retry-After, and for a rule of which nothing is
// left, at the price of one more look at Redis. What a [throttle.FailOpen] limiter
// lets through while Redis is away has no RateLimit, as nobody counted.
//
// # Redis is away
//
// [throttle.Config].OnUnavailable of the limiters decides: with FailOpen requests go on,
// with FailLocal this process counts for itself. With FailClosed, the default, they
// get 503. A request waits for a Redis that hangs as long as the client's time-outs
// say: go-redis waits for seconds and tries again, so give it shorter ones.
//
// # What it does not do
//
// It does not keep a flood away: each request that is refused still costs one call
// to Redis. It does not limit bytes. Middleware that stands twice before a handler
// charges twice.
package httplimit
