package dashboard

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	liveMax  = 500              // viewers that follow at once
	liveFor  = 10 * time.Minute // then the browser connects again, and is asked again who it is
	liveBeat = 15 * time.Second // a comment is sent so often, so that proxies keep the connection
)

type liveCount struct{ n atomic.Int64 }

// follow sends a page anew each time that it has changed, as server-sent events. All viewers
// of a page share its snapshots.
func (d *board) follow(w http.ResponseWriter, r *http.Request) {
	p, q, err := d.viewOf(r.URL.Query().Get("view"))
	if err != nil {
		d.fail(w, r, err)
		return
	}
	look := Action{Verb: View, Page: p.name, Rule: q.Get("rule"), Queue: q.Get("queue"), Task: q.Get("id")}
	if !d.allowed(r, look) {
		d.refuse(w, r)
		return
	}
	if r.Method == http.MethodHead { // it has no events to wait for
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	if d.live.n.Add(1) > liveMax {
		d.live.n.Add(-1)
		w.Header().Set("Retry-After", "30")
		d.fault(w, r, http.StatusServiceUnavailable, "Too many follow already.", "Reload the page to see it anew.")
		return
	}
	defer d.live.n.Add(-1)
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold it back
	send := func(event, text string, at time.Time) bool {
		_ = out.SetWriteDeadline(time.Now().Add(liveBeat)) // a server without deadlines has none to set
		if _, err := w.Write([]byte(eventOf(event, text, at))); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	if !send("", "", time.Time{}) {
		return
	}
	var seen time.Time
	last, end := "", time.Now().Add(liveFor)
	said := time.Now()
	tick := time.NewTicker(d.cfg.Refresh)
	defer tick.Stop()
	for time.Now().Before(end) {
		got, err := d.show(r.Context(), p, q)
		switch {
		case r.Context().Err() != nil:
			return
		case (err != nil || !got.at.Equal(seen)) && !d.allowed(r, look):
			send("end", "You may not look at this any more.", time.Time{})
			return
		case err != nil:
			_, what, _ := explained(err)
			if what != last {
				if last, said = what, time.Now(); !send("fault", what, time.Time{}) {
					return
				}
			}
		case !got.at.Equal(seen):
			seen = got.at
			var b bytes.Buffer
			v := d.view(p.name, p.title)
			v.Data, v.At, v.Cost = got.value, got.at, got.cost
			if err := d.pages[p.name].ExecuteTemplate(&b, "live", v); err != nil {
				return
			}
			if text := b.String(); text != last {
				if last, said = text, time.Now(); !send("view", text, got.at) {
					return
				}
			}
		}
		if time.Since(said) > liveBeat {
			if said = time.Now(); !send("", "", time.Time{}) {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// eventOf is a server-sent event; without a name it is a comment. Its id is the instant of what it
// shows. A carriage return ends a line, too.
func eventOf(name, text string, at time.Time) string {
	if name == "" {
		return ":\n\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "event: %s\n", name)
	if !at.IsZero() {
		fmt.Fprintf(&b, "id: %s\n", at.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	for line := range strings.Lines(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)) {
		b.WriteString("data: " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String() + "\n"
}

// viewOf finds the page of an address.
func (d *board) viewOf(self string) (page, url.Values, error) {
	u, err := url.Parse(self)
	if err != nil || len(self) > 4*paramMax || u.IsAbs() || u.Host != "" {
		return page{}, nil, fmt.Errorf("%w: the view is no address of a page", errRequest)
	}
	for _, p := range pages {
		if u.Path == d.cfg.Prefix+p.path {
			q, err := p.query(u.Query())
			return p, q, err
		}
	}
	return page{}, nil, fmt.Errorf("%w: the view is no address of a page", errRequest)
}
