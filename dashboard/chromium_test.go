package dashboard

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a Chromium without a window. It is driven through a pipe, in the protocol of its
// developer tools, so that no port is opened and no driver is needed.
type browser struct {
	*testing.T
	in      *os.File
	session string

	mu      sync.Mutex
	next    int
	answers map[int]chan reply
	ended   error
	faults  []string // what the pages complained about: blocked loads, errors of the script
	fetched map[string]bool
}

type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// browserPatience is how long a page may take on a machine that does other things.
const browserPatience = 60 * time.Second

// newBrowser starts a Chromium. It skips the test on a machine that has none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no chromium is installed: tools/install-chromium installs it")
	}
	toRead, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--force-color-profile=srgb", "--remote-debugging-pipe", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"), "about:blank")
	cmd.ExtraFiles = []*os.File{toRead, toWrite}
	cmd.Env = append(os.Environ(), "TZ=Europe/Berlin", "LANG=en_GB.UTF-8")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toRead.Close(), toWrite.Close()
	b := &browser{T: t, in: in, answers: make(map[int]chan reply), fetched: make(map[string]bool)}
	var reading sync.WaitGroup
	reading.Go(func() { b.read(out) })
	t.Cleanup(func() {
		_, _ = in.WriteString(`{"id":1000000,"method":"Browser.close"}` + "\x00")
		gone := make(chan struct{})
		go func() { _ = cmd.Wait(); close(gone) }()
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-gone
		}
		_ = in.Close()
		reading.Wait()
		_ = out.Close()
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// read passes each answer to the call that waits for it, and keeps the errors that pages report.
func (b *browser) read(out *os.File) {
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		text, err := lines.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			b.ended = err
			for _, wait := range b.answers {
				close(wait)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}
		var r reply
		if json.Unmarshal(text[:len(text)-1], &r) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case r.ID > 0:
			if wait := b.answers[r.ID]; wait != nil {
				delete(b.answers, r.ID)
				wait <- r
			}
		case r.Method == "Runtime.exceptionThrown", r.Method == "Log.entryAdded":
			if !strings.Contains(string(r.Params), `"level":"info"`) {
				b.faults = append(b.faults, string(r.Params))
			}
		case r.Method == "Network.requestWillBeSent":
			var p struct {
				Request struct {
					URL string `json:"url"`
				} `json:"request"`
			}
			if json.Unmarshal(r.Params, &p) == nil {
				b.fetched[p.Request.URL] = true
			}
		}
		b.mu.Unlock()
	}
}

func (b *browser) try(method string, params, result any) error {
	b.mu.Lock()
	if b.ended != nil {
		defer b.mu.Unlock()
		return fmt.Errorf("chromium has ended: %w", b.ended)
	}
	b.next++
	id, wait := b.next, make(chan reply, 1)
	b.answers[id] = wait
	b.mu.Unlock()
	if params == nil {
		params = struct{}{}
	}
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": b.session})
	if b.session == "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err != nil {
		return err
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case r, ok := <-wait:
		switch {
		case !ok:
			return errors.New("chromium has ended")
		case r.Error != nil:
			return fmt.Errorf("%s: %s", method, r.Error.Message)
		case result != nil:
			return json.Unmarshal(r.Result, result)
		}
		return nil
	case <-time.After(browserPatience):
		return fmt.Errorf("%s: %w", method, context.DeadlineExceeded)
	}
}

func (b *browser) call(method string, params, result any) {
	b.Helper()
	if err := b.try(method, params, result); err != nil {
		b.Fatal(err)
	}
}

// eval is the value of an expression on the page.
func (b *browser) eval(expression string, value any) error {
	var r struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if err := b.try("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r); err != nil {
		return err
	}
	if r.Exception != nil {
		return errors.New(r.Exception.Text + " " + r.Exception.Exception.Description)
	}
	if value == nil || len(r.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(r.Result.Value, value)
}

// until waits until an expression is true.
func (b *browser) until(what, expression string) {
	b.Helper()
	var last error
	for end := time.Now().Add(browserPatience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var is bool
		if last = b.eval("!!("+expression+")", &is); last == nil && is {
			return
		}
	}
	var page string
	_ = b.eval("location.href + '\\n' + document.body.innerText", &page)
	b.Fatalf("%s: it did not come about (%v). The page is %s", what, last, page)
}

// open goes to an address, and waits for the page.
func (b *browser) open(address string) {
	b.Helper()
	_ = b.eval("window.left = true", nil)
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.until("open "+address, "!window.left && document.readyState === 'complete'")
}

// leave does something that leads to another page, and waits for that.
func (b *browser) leave(what, script string) {
	b.Helper()
	if err := b.eval("window.left = true; "+script, nil); err != nil {
		b.Fatalf("%s: %v", what, err)
	}
	b.until(what, "!window.left && document.readyState === 'complete'")
}

// submit fills the form in which a verb stands, and sends it.
func (b *browser) submit(verb string, fields map[string]string) {
	b.Helper()
	text, err := json.Marshal(fields)
	if err != nil {
		b.Fatal(err)
	}
	b.leave(verb, fmt.Sprintf(`(function () {
		var form = document.querySelector('input[name=verb][value="%s"]').form, fields = %s;
		for (var name in fields) form.elements[name].value = fields[name];
		for (var d = form.closest("details"); d; d = null) d.open = true;
		form.querySelector("button").click();
	})()`, verb, text))
}

// look sets the width of the page, and light or dark.
func (b *browser) look(width int, scheme string) {
	b.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// scripts lets the pages that are opened from now on run scripts, or not.
func (b *browser) scripts(run bool) {
	b.Helper()
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !run}, nil)
}

// shoot writes a picture of the page from its top, so high at most.
func (b *browser) shoot(file string, most float64) {
	b.Helper()
	var size struct{ W, H float64 }
	if err := b.eval("({W: innerWidth, H: document.documentElement.scrollHeight})", &size); err != nil {
		b.Fatal(err)
	}
	var picture struct {
		Data string `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": size.W, "height": min(size.H, most), "scale": 1}}, &picture)
	raw, err := base64.StdEncoding.DecodeString(picture.Data)
	if err == nil {
		err = os.WriteFile(file, raw, 0o644)
	}
	if err != nil {
		b.Fatal(err)
	}
}
