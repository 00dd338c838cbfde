package main

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// echo answers what it is told.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return ln.Addr().String()
}

func dialFar(t *testing.T, roundTrip time.Duration) net.Conn {
	t.Helper()
	f, err := listenFar(echo(t), roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	c, err := net.Dial("tcp", f.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFarTakesItsTime(t *testing.T) {
	t.Parallel()
	const roundTrip = 2500 * time.Microsecond
	c := dialFar(t, roundTrip)
	var took []time.Duration
	buf := make([]byte, 4)
	for range 100 {
		began := time.Now()
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
			t.Fatalf("echo = %q, %v", buf, err)
		}
		took = append(took, time.Since(began))
	}
	// The median: a busy machine holds some of them up.
	slices.Sort(took)
	t.Logf("round trips: median %v, most %v", took[50], took[99])
	if took[0] < roundTrip {
		t.Errorf("a round trip took %v, want at least %v", took[0], roundTrip)
	}
	if took[50] > 3*roundTrip {
		t.Errorf("the median round trip took %v, want about %v", took[50], roundTrip)
	}
}

// What is under way does not hold up what comes behind it.
func TestFarIsAPipe(t *testing.T) {
	t.Parallel()
	const roundTrip = 200 * time.Millisecond
	c := dialFar(t, roundTrip)
	began := time.Now()
	tick := time.NewTicker(time.Millisecond) // so that each is a chunk of its own
	defer tick.Stop()
	go func() {
		for range 100 {
			<-tick.C
			_, _ = c.Write([]byte("ping"))
		}
	}()
	if _, err := io.ReadFull(c, make([]byte, 400)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < roundTrip || took > 10*roundTrip {
		t.Errorf("100 requests behind each other took %v, want little more than %v", took, roundTrip)
	}
}
