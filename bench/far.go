package main

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// far is a Redis at a distance: a proxy that forwards each byte a fixed time
// after it came, in both directions. Unlike a sleep between a read and a write
// it lets any number of requests be under way, and unlike Go's own timers, which
// an idle process rounds up to milliseconds, it is exact to some ten µs.
type far struct {
	target   string
	oneWay   time.Duration
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// queuedMax bounds the chunks under way in one direction of a connection.
const queuedMax = 1024

// chunk is what came at an instant.
type chunk struct {
	came time.Time
	data []byte
}

// listenFar puts target at a distance. The caller closes it.
func listenFar(target string, roundTrip time.Duration) (*far, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &far{target: target, oneWay: roundTrip / 2, listener: ln, conns: make(map[net.Conn]struct{})}
	f.wg.Go(f.accept)
	return f, nil
}

// addr is what clients dial.
func (f *far) addr() string { return f.listener.Addr().String() }

// close ends all connections and waits for the goroutines.
func (f *far) close() error {
	err := f.listener.Close()
	f.mu.Lock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
	return err
}

func (f *far) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil { // closed
			return
		}
		server, err := net.Dial("tcp", f.target)
		if err != nil || !f.keep(client, server) {
			_ = client.Close()
			continue
		}
		f.carry(client, server)
		f.carry(server, client)
	}
}

// keep remembers connections to close.
func (f *far) keep(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		if f.closed {
			_ = c.Close()
			continue
		}
		f.conns[c] = struct{}{}
	}
	return !f.closed
}

// drop closes both ends of a direction; the other one ends by that.
func (f *far) drop(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(f.conns, c)
	}
}

// carry forwards one direction.
func (f *far) carry(from, to net.Conn) {
	way := make(chan chunk, queuedMax)
	f.wg.Go(func() {
		defer close(way)
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			way <- chunk{time.Now(), append([]byte(nil), buf[:n]...)}
		}
	})
	f.wg.Go(func() {
		defer f.drop(from, to)
		if err := f.deliver(way, to); err != nil {
			f.drop(from, to)
			for range way { // its reader must not hang
			}
		}
	})
}

// deliver writes each chunk when its time has come.
func (f *far) deliver(way <-chan chunk, to net.Conn) error {
	alarm, err := newAlarm()
	if err != nil {
		return err
	}
	defer alarm.close()
	for c := range way {
		if err := alarm.wait(time.Until(c.came.Add(f.oneWay))); err != nil && !errors.Is(err, os.ErrClosed) {
			return err
		}
		if _, err := to.Write(c.data); err != nil {
			return err
		}
	}
	return nil
}
