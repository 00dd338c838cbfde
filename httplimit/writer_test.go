package httplimit_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/httplimit"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

// refunding is a server whose limit looks at each status, with all that net/http's
// own writer can do.
func refunding(t *testing.T, h http.HandlerFunc) (*httptest.Server, func() int) {
	t.Helper()
	all := limiter(t, redistest.Start(t).Client(t), "all", "1/1h", throttle.Config{})
	l := newLimit(t, httplimit.Config{Refund: serverFault}, httplimit.Rule{Limiter: all, Key: httplimit.Same("all")})
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		l.Handler(h).ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv, func() int {
		<-done
		left, err := all.Available(t.Context(), "all")
		if err != nil {
			t.Error(err)
		}
		return left
	}
}

func read(t *testing.T, srv *httptest.Server) string {
	t.Helper()
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}

func TestFlush(t *testing.T) {
	t.Parallel()
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"by type":       func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil },
		"by controller": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read1 := make(chan struct{})
			srv, left := refunding(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "a")
				if err := flush(w); err != nil {
					t.Error(err)
				}
				<-read1 // the client has it while the handler runs
				_, _ = io.WriteString(w, "b")
			})
			resp, err := srv.Client().Get(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
				t.Error(err)
			}
			close(read1)
			if rest, err := io.ReadAll(resp.Body); string(rest) != "b" || err != nil {
				t.Errorf("rest = %q, %v, want b", rest, err)
			}
			if got := left(); got != 0 {
				t.Errorf("%d permits left, want 0", got)
			}
		})
	}
}

func TestHijack(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error){
		"by type": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) { return w.(http.Hijacker).Hijack() },
		"by controller": func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(w).Hijack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, left := refunding(t, func(w http.ResponseWriter, _ *http.Request) {
				conn, rw, err := take(w)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
				_ = rw.Flush()
			})
			if got := read(t, srv); got != "200 hi" {
				t.Errorf("answer = %q, want 200 hi", got)
			}
			if got := left(); got != 0 {
				t.Errorf("%d permits left, want 0: a connection that was taken over is no fault", got)
			}
		})
	}
}

func TestReadFromAndDeadlines(t *testing.T) {
	t.Parallel()
	srv, left := refunding(t, func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
		if n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("file")); n != 4 || err != nil {
			t.Errorf("ReadFrom = %d, %v, want 4", n, err)
		}
	})
	if got := read(t, srv); got != "200 file" {
		t.Errorf("answer = %q, want 200 file", got)
	}
	if got := left(); got != 0 {
		t.Errorf("%d permits left, want 0", got)
	}
}

// bare can do nothing but what every writer can.
type bare struct{ http.ResponseWriter }

// flushing and hijacking can do one thing more.
type (
	flushing  struct{ bare }
	hijacking struct{ bare }
)

func (flushing) Flush()                                        {}
func (hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// A handler asks by type what its writer can do, and must not be told of more.
func TestWriterCanWhatItsOwnCan(t *testing.T) {
	t.Parallel()
	w := bare{httptest.NewRecorder()}
	for _, tc := range []struct {
		w               http.ResponseWriter
		flushes, hijack bool
	}{{w, false, false}, {flushing{w}, true, false}, {hijacking{w}, false, true}, {struct {
		http.ResponseWriter
		http.Flusher
		http.Hijacker
	}{w, flushing{w}, hijacking{w}}, true, true}} {
		l := newLimit(t, httplimit.Config{Refund: serverFault}, httplimit.Rule{Limiter: local(t, "all", "1/1h"), Key: httplimit.Same("all")})
		ran := false
		l.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			ran = true
			_, flushes := w.(http.Flusher)
			_, hijacks := w.(http.Hijacker)
			if flushes != tc.flushes || hijacks != tc.hijack {
				t.Errorf("%T: flushes %v, hijacks %v, want %v, %v", tc.w, flushes, hijacks, tc.flushes, tc.hijack)
			}
		})).ServeHTTP(tc.w, httptest.NewRequest(http.MethodGet, "/", nil))
		if !ran {
			t.Errorf("%T: the handler did not run", tc.w)
		}
	}
}

// Without Refund a handler gets the very writer of its server.
func TestWriterIsLeftAlone(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	newLimit(t, httplimit.Config{}, httplimit.Rule{Limiter: local(t, "all", "1/1h"), Key: httplimit.Same("all")}).
		Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if w != http.ResponseWriter(rec) {
				t.Errorf("writer = %T, want the server's", w)
			}
		})).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
}
