package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// recorder sees the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int // 0 until there is one
}

// record wraps w. What comes out has Flush and Hijack where w has them, because
// handlers ask for them by type; [http.ResponseController] finds all else.
func record(w http.ResponseWriter) (http.ResponseWriter, *recorder) {
	rec := &recorder{ResponseWriter: w}
	_, flushes := w.(http.Flusher)
	hijacker, hijacks := w.(http.Hijacker)
	switch {
	case flushes && hijacks:
		return struct {
			*recorder
			flush
			hijack
		}{rec, flush{rec}, hijack{rec, hijacker}}, rec
	case flushes:
		return struct {
			*recorder
			flush
		}{rec, flush{rec}}, rec
	case hijacks:
		return struct {
			*recorder
			hijack
		}{rec, hijack{rec, hijacker}}, rec
	}
	return rec, rec
}

// Unwrap is for [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader keeps the first status that is final.
func (w *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.set(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write answers 200 when there is no status yet.
func (w *recorder) Write(p []byte) (int, error) {
	w.set(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// ReadFrom leaves it to the writer below, which may hand a file to the kernel.
func (w *recorder) ReadFrom(src io.Reader) (int64, error) {
	w.set(http.StatusOK)
	return io.Copy(w.ResponseWriter, src)
}

func (w *recorder) set(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// final is the status of an answer that is over.
func (w *recorder) final(returned bool) int {
	switch {
	case w.status != 0:
		return w.status
	case !returned:
		return http.StatusInternalServerError
	}
	return http.StatusOK
}

type flush struct{ rec *recorder }

// Flush sends what was written, and so a status.
func (f flush) Flush() { _ = f.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (f flush) FlushError() error {
	f.rec.set(http.StatusOK)
	return http.NewResponseController(f.rec.ResponseWriter).Flush()
}

type hijack struct {
	rec  *recorder
	from http.Hijacker
}

// Hijack takes the connection over; its status counts as 101.
func (h hijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := h.from.Hijack()
	if err == nil {
		h.rec.set(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}
