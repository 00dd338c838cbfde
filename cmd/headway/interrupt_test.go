package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/internal/redistest"
)

// Ctrl-C in the middle of a read does not mean that Redis is away. What is repeated until Ctrl-C ends
// well by it.
func TestInterruptOfARead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules:\n  phone: {limit: 1/20m, key: $.to}\npolicies:\n  sms: {rules: [phone]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{
		"status": exitInterrupted, "drain": exitInterrupted, "drain --for 1h": exitInterrupted, "doctor": exitInterrupted, "rules": exitInterrupted,
		"limit get phone": exitInterrupted, "explain t": exitInterrupted, "pause --write --reason x": exitInterrupted,
		"status --watch": exitOK, "rules --watch": exitOK, "tail": exitOK,
	} {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections, and answers nothing
		if err != nil {
			t.Fatal(err)
		}
		ctx, interrupt := context.WithCancel(t.Context())
		var stdout, stderr bytes.Buffer
		code := make(chan int, 1)
		go func() {
			flags := []string{"-p", file, "--redis", silent.Addr().String(), "--timeout", "200ms"}
			code <- command(ctx, append(strings.Fields(args), flags...), env{stdout: &stdout, stderr: &stderr})
		}()
		first, err := silent.Accept()
		if err != nil {
			t.Fatal(err)
		}
		interrupt()
		if got := <-code; got != want || strings.Contains(stderr.String(), "unavailable") {
			t.Errorf("%s: exit code %d, want %d: %s", args, got, want, &stderr)
		}
		_ = first.Close()
		_ = silent.Close()
	}
}

// Ctrl-C while drain waits is told neither as an empty queue nor as a Redis that is away.
func TestInterruptOfDrain(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own())
	rdb := srv.Client(t)
	if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("report", nil)); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var stdout, stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- command(ctx, []string{"drain", "--redis", srv.Addr()}, env{stdout: &stdout, stderr: &stderr})
	}()
	soon(t, "it looks", func() bool {
		list, err := rdb.Do(t.Context(), "client", "list").Text()
		return err == nil && strings.Contains(list, " name=headway ")
	})
	interrupt()
	if got := <-code; got != exitInterrupted || stdout.Len() > 0 || stderr.String() != "headway: interrupted\n" {
		t.Errorf("exit code %d, want %d; %q, %q", got, exitInterrupted, &stdout, &stderr)
	}
}
