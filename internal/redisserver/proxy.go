package redisserver

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const dialWithin = 5 * time.Second

// Proxy stands on the loopback between a client and a Redis and makes faults:
// replies that are lost after the command ran, latency, refused connections.
// It is safe for concurrent use.
type Proxy struct {
	target string
	port   string
	failf  func(format string, args ...any)
	wg     sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener  // nil while it refuses
	accepted chan struct{} // closed when nobody accepts on listener any more
	links    map[*link]struct{}
	cut      func(request []byte) bool // nil cuts nothing
	cutOnce  bool
	cuts     int
	delay    delays
	loss     float64 // the share of packets that are lost
	closed   bool
}

// ListenProxy starts a proxy in front of target. The caller closes it. A proxy that lost its
// port while it refused says so by failf, or panics where that is nil.
func ListenProxy(target string, failf func(format string, args ...any)) (*Proxy, error) {
	ln, port, err := listenAnywhere()
	if err != nil {
		return nil, err
	}
	if failf == nil {
		failf = func(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
	}
	p := &Proxy{target: target, port: port, failf: failf, links: make(map[*link]struct{})}
	p.listenLocked(ln) // nobody else has it yet
	return p, nil
}

// Addr returns the address that clients dial.
func (p *Proxy) Addr() string { return net.JoinHostPort(loopback, p.port) }

// CutNext loses the reply to the next request that match says yes to: the
// request runs on Redis, its reply is thrown away, and the client's connection
// is closed. match sees one whole command in RESP as the client sent it, so
// bytes.Contains finds its name and its keys. It is called with a lock held and
// must not call the proxy. A pipeline is lost as a whole.
//
// CutNext and [Proxy.CutReplies] replace each other; nil cuts nothing.
func (p *Proxy) CutNext(match func(request []byte) bool) { p.setCut(match, true) }

// CutReplies is [Proxy.CutNext] for every request that matches from now on.
func (p *Proxy) CutReplies(match func(request []byte) bool) { p.setCut(match, false) }

// Cuts returns how many replies were lost so far. A reply counts once Redis is
// done with the request and before its client notices.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Delay holds every request and every reply back for d from now on: a round
// trip takes 2d longer. Zero forwards at once.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delays{d, d}
}

// DelayReplies holds only the replies back for d from now on.
func (p *Proxy) DelayReplies(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delays{reply: d}
}

// LosePackets loses a share of the packets from now on, 0 to 1. TCP sends a packet again after 200 ms, then after twice as
// long each time. So what a connection carries comes late, and in its order. Zero loses none.
func (p *Proxy) LosePackets(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loss = share
}

// Refuse drops all connections and refuses new ones, as when Redis or the
// network is gone; Refuse(false) listens again on the same port. Note that a
// go-redis pool that has met as many refusals as it has places, successes
// between them or not, looks again only once a second.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if refuse {
		p.dropLocked()
		return
	}
	if p.closed || p.listener != nil {
		return
	}
	var ln net.Listener
	var err error
	for end := time.Now().Add(listensWithin); ; time.Sleep(time.Millisecond) {
		if ln, err = listen(p.port); err == nil {
			break
		}
		if time.Now().After(end) {
			p.failf("redisserver: the proxy lost its port while it refused: %v", err)
			return
		}
	}
	p.listenLocked(ln)
}

// listensWithin is how long it may take to listen again. A program that was being started while the
// proxy listened has the listener as well, until it runs.
const listensWithin = 2 * time.Second

func (p *Proxy) listenLocked(ln net.Listener) {
	accepted := make(chan struct{})
	p.listener, p.accepted = ln, accepted
	p.wg.Go(func() {
		defer close(accepted)
		p.accept(ln)
	})
}

// Deaden makes the connections that are open dead: they stay open, and carry nothing from now on, as when a router between the two
// forgets them. New connections are not touched.
func (p *Proxy) Deaden() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.dead.Store(true)
	}
}

// Close drops all connections and waits for the goroutines. Closing twice is
// fine.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.dropLocked()
		ports.giveBack(p.port)
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) setCut(match func(request []byte) bool, once bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.cutOnce = match, once
}

func (p *Proxy) dropLocked() {
	if p.listener != nil {
		_ = p.listener.Close()
		<-p.accepted // an Accept under way keeps the port until it returns
		p.listener = nil
	}
	for l := range p.links {
		l.close()
	}
}

func (p *Proxy) accept(ln net.Listener) {
	for {
		client, err := ln.Accept()
		if err != nil { // closed by Refuse or Close
			return
		}
		p.wg.Go(func() { p.serve(ln, client) })
	}
}

// serve carries one connection of a client until either side ends.
func (p *Proxy) serve(ln net.Listener, client net.Conn) {
	server, err := net.DialTimeout("tcp", p.target, dialWithin)
	if err != nil {
		_ = client.Close()
		return
	}
	l := newLink(client, server)
	defer l.close()
	if !p.add(l, ln) {
		return
	}
	defer p.remove(l)
	var pumps sync.WaitGroup
	pumps.Go(func() { defer l.close(); p.pumpReplies(l) })
	p.pumpRequests(l)
	pumps.Wait()
}

// add takes l in, unless its listener was closed while the server was dialled.
func (p *Proxy) add(l *link, ln net.Listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != ln {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// pumpRequests forwards what the client sends, a pipeline at a time.
func (p *Proxy) pumpRequests(l *link) {
	for {
		commands, err := readPipeline(l.requests)
		if err != nil {
			l.close()
			return
		}
		if !l.sleep(p.currentDelay().request + p.sentAgain()) {
			return
		}
		if l.dead.Load() {
			continue
		}
		lose := p.shouldCut(commands)
		if lose {
			close(l.losing) // before the request leaves, so that no reply slips through
		}
		if _, err := (*net.Buffers)(&commands).WriteTo(l.server); err != nil {
			l.close()
			return
		}
		if lose {
			return // the other pump ends the connection
		}
	}
}

// pumpReplies forwards what the server answers, until a reply is to be lost.
func (p *Proxy) pumpReplies(l *link) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if n > 0 && l.isLosing() {
			p.lose(l)
			return
		}
		if !l.sleep(p.currentDelay().reply + p.sentAgain()) {
			return
		}
		if l.dead.Load() && err == nil {
			continue
		}
		if _, werr := l.client.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// lose is called at the first byte of the reply. Redis works through all that
// it has received before it sees the end of the stream and hangs up: then the
// whole pipeline has run.
func (p *Proxy) lose(l *link) {
	if err := l.server.CloseWrite(); err != nil {
		return
	}
	if _, err := io.Copy(io.Discard, l.server); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts++
}

func (p *Proxy) shouldCut(commands [][]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range commands {
		if p.cut != nil && p.cut(c) {
			if p.cutOnce {
				p.cut = nil
			}
			return true
		}
	}
	return false
}

// delays are how long requests and replies are held back.
type delays struct{ request, reply time.Duration }

func (p *Proxy) currentDelay() delays {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// How long TCP waits until it sends a packet again, and how often it does so here at most.
const (
	firstAgain = 200 * time.Millisecond
	sentAtMost = 3
)

// sentAgain is how much later a packet comes for being lost, at random.
func (p *Proxy) sentAgain() time.Duration {
	p.mu.Lock()
	loss := p.loss
	p.mu.Unlock()
	late := time.Duration(0)
	for again := range sentAtMost {
		if rand.Float64() >= loss { // #nosec G404: it only makes faults
			break
		}
		late += firstAgain << again
	}
	return late
}
