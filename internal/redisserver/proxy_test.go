package redisserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
)

func proxyOf(t *testing.T, target string) *Proxy {
	t.Helper()
	p, err := ListenProxy(target, t.Fatalf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// behind returns a client that goes through a proxy and retries nothing, the
// proxy, and a client that goes straight to the server.
func behind(t *testing.T) (*redis.Client, *Proxy, *redis.Client) {
	t.Helper()
	s := launch(t)
	p := proxyOf(t, s.Addr())
	through, direct := impatient(p.Addr()), impatient(s.Addr())
	t.Cleanup(func() { _ = through.Close() })
	t.Cleanup(func() { _ = direct.Close() })
	return through, p, direct
}

func containing(words ...string) func([]byte) bool {
	return func(request []byte) bool {
		for _, w := range words {
			if !bytes.Contains(request, []byte(w)) {
				return false
			}
		}
		return true
	}
}

func TestCutNextRunsAndLosesOneReply(t *testing.T) {
	t.Parallel()
	client, p, direct := behind(t)
	p.CutNext(containing("incr", "hits"))
	if err := client.Incr(t.Context(), "other").Err(); err != nil {
		t.Errorf("INCR of another key: %v", err)
	}
	if err := client.Incr(t.Context(), "hits").Err(); err == nil {
		t.Error("INCR whose reply is cut = nil, want an error")
	}
	if got := direct.Get(t.Context(), "hits").Val(); got != "1" {
		t.Errorf("hits after the cut = %q, want 1: it must have run", got)
	}
	if n, err := client.Incr(t.Context(), "hits").Result(); n != 2 || err != nil {
		t.Errorf("next INCR = %d, %v, want 2", n, err)
	}
	if got := p.Cuts(); got != 1 {
		t.Errorf("Cuts = %d, want 1", got)
	}
}

// The very thing it is for: a client that retries spends twice.
func TestCutReplyMakesARetrySpendTwice(t *testing.T) {
	t.Parallel()
	p := proxyOf(t, launch(t).Addr())
	rdb := client(p.Addr())
	defer rdb.Close()
	p.CutNext(containing("eval"))
	n, err := rdb.Eval(t.Context(), "return redis.call('INCR', KEYS[1])", []string{"k"}).Int()
	if n != 2 || err != nil {
		t.Errorf("EVAL through a client that retries = %d, %v, want 2", n, err)
	}
}

func TestCutRepliesCutsUntilNil(t *testing.T) {
	t.Parallel()
	client, p, direct := behind(t)
	p.CutReplies(containing("incr"))
	for range 3 {
		if err := client.Incr(t.Context(), "k").Err(); err == nil {
			t.Error("INCR = nil, want an error")
		}
	}
	p.CutReplies(nil)
	if n, err := client.Incr(t.Context(), "k").Result(); n != 4 || err != nil {
		t.Errorf("INCR after CutReplies(nil) = %d, %v, want 4", n, err)
	}
	if got, want := p.Cuts(), 3; got != want {
		t.Errorf("Cuts = %d, want %d", got, want)
	}
	if got := direct.Get(t.Context(), "k").Val(); got != "4" {
		t.Errorf("k = %q, want 4", got)
	}
}

func TestCutPipelineRunsWhole(t *testing.T) {
	t.Parallel()
	client, p, direct := behind(t)
	p.CutNext(containing("k:7\r"))
	_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range 200 {
			pipe.Set(t.Context(), fmt.Sprint("k:", i), strings.Repeat("v", 100), 0)
		}
		return nil
	})
	if err == nil {
		t.Error("pipeline = nil, want an error")
	}
	if n := direct.DBSize(t.Context()).Val(); n != 200 {
		t.Errorf("DBSIZE after the cut pipeline = %d, want 200", n)
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	client, p, _ := behind(t)
	ping := func() error { return client.Ping(t.Context()).Err() }
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.Refuse(true)
		p.Refuse(true)
		for range 2 {
			if ping() == nil {
				t.Error("PING while the proxy refuses = nil, want an error")
			}
		}
		p.Refuse(false)
		p.Refuse(false)
		if err := ping(); err != nil {
			t.Errorf("PING afterwards: %v", err)
		}
	}
}

// A dead connection stays open and answers nothing; a new one works.
func TestDeadenLeavesConnectionsOpenAndSilent(t *testing.T) {
	t.Parallel()
	client, p, direct := behind(t)
	conn := client.Conn()
	defer conn.Close()
	if err := conn.Incr(t.Context(), "hits").Err(); err != nil {
		t.Fatal(err)
	}
	p.Deaden()
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := conn.Incr(ctx, "hits").Err(); err == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("INCR on a dead connection = %v, want that its time is over", err)
	}
	if got := direct.Get(t.Context(), "hits").Val(); got != "1" {
		t.Errorf("hits = %q, want 1: what is sent on a dead connection must not arrive", got)
	}
	fresh := impatient(p.Addr())
	defer fresh.Close()
	if n, err := fresh.Incr(t.Context(), "hits").Result(); n != 2 || err != nil {
		t.Errorf("INCR on a new connection = %d, %v, want 2", n, err)
	}
}

func TestDelayGoesBothWays(t *testing.T) {
	t.Parallel()
	client, p, _ := behind(t)
	if err := client.Ping(t.Context()).Err(); err != nil { // not the handshake
		t.Fatal(err)
	}
	const delay = 20 * time.Millisecond
	p.Delay(delay)
	begin := time.Now()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 2*delay {
		t.Errorf("PING took %v, want at least %v", took, 2*delay)
	}
}

func TestLostPacketsComeLate(t *testing.T) {
	t.Parallel()
	client, p, _ := behind(t)
	if err := client.Ping(t.Context()).Err(); err != nil { // not the handshake
		t.Fatal(err)
	}
	p.LosePackets(1)
	replied := make(chan error, 1)
	go func() { replied <- client.Ping(context.Background()).Err() }()
	select {
	case err := <-replied:
		t.Fatalf("PING = %v at once, want no answer before its packets were sent again", err)
	case <-time.After(firstAgain):
	}
	p.LosePackets(0)
	if err := <-replied; err != nil {
		t.Errorf("PING = %v, want an answer, late", err)
	}
}

func TestProxyCarriesLargeValues(t *testing.T) {
	t.Parallel()
	client, _, _ := behind(t)
	want := strings.Repeat("0123456789\r\n", 1<<18) // 3 MB, many chunks
	if err := client.Set(t.Context(), "k", want, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := client.Get(t.Context(), "k").Val(); got != want {
		t.Errorf("GET returned %d bytes that differ from the %d sent", len(got), len(want))
	}
}

func TestProxyCarriesPubSub(t *testing.T) {
	t.Parallel()
	client, _, direct := behind(t)
	channel := fmt.Sprintf("redisserver:%p", t) // channels are shared on a named server
	sub := client.Subscribe(t.Context(), channel)
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	direct.Publish(t.Context(), channel, "hello")
	if msg, err := sub.ReceiveMessage(t.Context()); err != nil || msg.Payload != "hello" {
		t.Errorf("ReceiveMessage = %v, %v, want hello", msg, err)
	}
}

func TestProxyToNothing(t *testing.T) {
	t.Parallel()
	port, err := ports.take()
	if err != nil {
		t.Fatal(err)
	}
	defer ports.giveBack(port)
	p := proxyOf(t, loopback+":"+port)
	client := impatient(p.Addr())
	defer client.Close()
	if client.Ping(t.Context()).Err() == nil {
		t.Error("PING through a proxy to nothing = nil, want an error")
	}
	p.Close()
	p.Refuse(false)
	p.Close()
}

// Everything at once, for the race detector; nothing may be counted wrongly.
func TestProxyUnderLoad(t *testing.T) {
	t.Parallel()
	p := proxyOf(t, launch(t).Addr())
	client := impatient(p.Addr())
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				client.Incr(ctx, "k")
			}
		})
	}
	for i := 0; ctx.Err() == nil; i++ {
		switch i % 4 {
		case 0:
			p.CutNext(containing("incr"))
		case 1:
			p.Delay(time.Millisecond)
		case 2:
			p.Refuse(true)
		case 3:
			p.Delay(0)
			p.Refuse(false)
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
	wg.Wait()
	p.Refuse(false)
	p.CutNext(nil)
	// A new client: the pool of the old one may have seen too many refusals.
	after := impatient(p.Addr())
	defer after.Close()
	if err := after.Ping(t.Context()).Err(); err != nil {
		t.Errorf("PING after the storm: %v", err)
	}
}

func TestReadCommand(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, in string
		want     []string
		bad      bool
	}{
		{"one", "*1\r\n$4\r\nPING\r\n", []string{"*1\r\n$4\r\nPING\r\n"}, false},
		{"two", "*1\r\n$1\r\na\r\n*2\r\n$1\r\nb\r\n$0\r\n\r\n", []string{"*1\r\n$1\r\na\r\n", "*2\r\n$1\r\nb\r\n$0\r\n\r\n"}, false},
		{"line ends inside", "*1\r\n$6\r\na\r\n*1\r\r\n", []string{"*1\r\n$6\r\na\r\n*1\r\r\n"}, false},
		{"inline", "PING\r\nINFO\r\n", []string{"PING\r\n", "INFO\r\n"}, false},
		{"short", "*1\r\n$4\r\nPI", nil, true},
		{"no length", "*x\r\n", nil, true},
		{"negative", "*1\r\n$-1\r\n", nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			commands, err := readPipeline(bufio.NewReader(strings.NewReader(tc.in)))
			if (err != nil) != tc.bad {
				t.Fatalf("readPipeline(%q) = %v, want an error: %v", tc.in, err, tc.bad)
			}
			var got []string
			for _, c := range commands {
				got = append(got, string(c))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("readPipeline(%q) (-want +got):\n%s", tc.in, diff)
			}
		})
	}
}
