package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// serve answers until Ctrl-C, which also ends what follows a page.
func TestServe(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	in, out := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- command(ctx, []string{"serve", "--redis", srv.Addr(), "--listen", "127.0.0.1:0", "--path", "/headway"}, env{stdout: out, stderr: &stderr})
		_ = out.Close()
	}()
	address, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		t.Fatalf("%v, exit code %d: %s", err, <-code, &stderr)
	}
	address = strings.TrimSpace(address)
	if !strings.HasPrefix(address, "http://127.0.0.1:") || !strings.HasSuffix(address, "/headway/") {
		t.Fatalf("it says that it is at %q", address)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(at string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	answer := get(address)
	page, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(page), "Nothing waits") || !strings.Contains(string(page), "only shows") {
		t.Errorf("%d, %v: %s", answer.StatusCode, err, page)
	}
	live := get(address + "live?view=/headway/")
	defer live.Body.Close()
	interrupt()
	if _, err := io.ReadAll(live.Body); err != nil {
		t.Errorf("what followed a page ended with %v", err)
	}
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d, want %d: %s", got, exitOK, &stderr)
	}
}

// serve answers this machine alone.
func TestServeFlags(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"--listen 0.0.0.0:80", "--listen :80", "--listen localhost", "--path headway", "--budget 1", "--watch", "-o json", "--asynqmon x"} {
		var stdout, stderr bytes.Buffer
		if code := command(t.Context(), append([]string{"serve"}, strings.Fields(flags)...), env{stdout: &stdout, stderr: &stderr}); code != exitUsage || stderr.Len() == 0 {
			t.Errorf("serve %s: exit code %d, want %d; %s", flags, code, exitUsage, &stderr)
		}
	}
}
