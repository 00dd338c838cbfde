package e2e

import (
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
)

// InMemory leads requests to a handler without a socket, for tests in virtual time.
// A handler that aborts gives no answer, as with net/http.
func InMemory(h http.Handler) http.RoundTripper {
	return RoundTripper(func(r *http.Request) (resp *http.Response, err error) {
		defer func() {
			switch aborted := recover(); aborted {
			case nil:
			case http.ErrAbortHandler:
				resp, err = nil, cmp.Or(r.Context().Err(), io.EOF)
			default:
				panic(aborted)
			}
		}()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	})
}

// RoundTripper is a function that answers requests.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
