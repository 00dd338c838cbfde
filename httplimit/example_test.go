package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/throttle"
)

// redisAtEight starts an embedded Redis whose clock stands still.
func redisAtEight() (rdb *redis.Client, end func()) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		panic(err)
	}
	m.SetTime(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }
}

// show sends a request and prints what its client learns of the limits.
func show(h http.Handler, r *http.Request) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	line := fmt.Sprint(w.Code)
	if left := w.Header().Get("RateLimit"); left != "" {
		line += " " + left
	}
	if after := w.Header().Get("Retry-After"); after != "" {
		line += ", retry after " + after + " s"
	}
	fmt.Println(line)
}

func Example() {
	rdb, end := redisAtEight()
	defer end()

	ip, err := throttle.New(rdb, "ip", throttle.Sliding(2, time.Minute), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	site, err := throttle.New(rdb, "site", throttle.Sliding(1000, time.Second), throttle.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := httplimit.New([]httplimit.Rule{ // narrowest first
		{Limiter: ip, Key: httplimit.ByIP()},
		{Limiter: site, Key: httplimit.Same("all")},
	}, httplimit.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	h := limit.Handler(mux)

	r := httptest.NewRequest(http.MethodGet, "/hello", nil)
	for range 3 {
		show(h, r)
	}
	// Output:
	// 200 "ip";r=1, "site";r=999
	// 200 "ip";r=0;t=60, "site";r=998
	// 429 "ip";r=0;t=60, "site";r=998, retry after 60 s
}

// Behind a load balancer the address of the connection is the balancer's. Say which
// addresses are yours, and which header they write.
func ExampleByIPWith() {
	client, err := httplimit.ByIPWith(httplimit.IPConfig{
		Trusted:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Header:   "Forwarded",
		IPv6Bits: 56,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", `for=203.0.113.9, for="[2001:db8:0:12ff::1]:50000"`) // the first is what the client claims
	fmt.Println(client(r))
	r.RemoteAddr = "198.51.100.1:443" // a client that did not come through the balancer
	fmt.Println(client(r))
	// Output:
	// 2001:db8:0:1200::/56 <nil>
	// 198.51.100.1 <nil>
}

// Per user and route, and per address for those who have not logged in.
func ExampleJoin() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(http.ResponseWriter, *http.Request) {})
	session := func(r *http.Request) (string, bool) {
		user := r.Header.Get("X-User") // set by the authentication in front
		return user, user != ""
	}
	key := httplimit.Join(httplimit.ByUser(session, httplimit.ByIP()), httplimit.ByRoute(mux))

	r := httptest.NewRequest(http.MethodPost, "/orders/17", nil)
	fmt.Println(key(r))
	r.Header.Set("X-User", "u1")
	fmt.Println(key(r))
	// Output:
	// no user%7C192.0.2.1|POST /orders/{id} <nil>
	// u1|POST /orders/{id} <nil>
}

// A request whose answer is the server's fault costs nothing, one for ten rows costs
// ten permits, and what is refused gets a page of its own.
func ExampleConfig() {
	rdb, end := redisAtEight()
	defer end()
	ip, err := throttle.New(rdb, "rows", throttle.Bucket(10, time.Second, 20), throttle.Config{OnUnavailable: throttle.FailOpen})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := httplimit.New([]httplimit.Rule{{
		Limiter: ip,
		Key:     httplimit.ByIP(),
		Cost: func(r *http.Request) (n int, err error) {
			_, err = fmt.Sscan(r.URL.Query().Get("rows"), &n)
			return n, err
		},
	}}, httplimit.Config{
		Refund: func(status int) bool { return status >= 500 },
		OnRefuse: func(w http.ResponseWriter, _ *http.Request, _ throttle.Decision) {
			http.Error(w, "Slow down, please.", http.StatusTooManyRequests)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := limit.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	for _, url := range []string{"/broken?rows=20", "/?rows=10", "/?rows=15", "/?rows=21", "/?rows=many"} {
		show(h, httptest.NewRequest(http.MethodGet, url, nil))
	}
	// Output:
	// 500 "rows";r=0;t=1
	// 200 "rows";r=10
	// 429 "rows";r=10;t=1, retry after 1 s
	// 413
	// 400
}
