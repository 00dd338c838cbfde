package redisserver

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const loopback = "127.0.0.1"

// Ports come from below the ranges that systems give to outgoing connections (Linux starts at 32768, macOS at
// 49152): while a server is down, no passing connection can take its port. A node of a cluster listens on a
// second port, which is 10,000 higher.
const (
	portMin   = 12768
	portMax   = 22767
	blockSize = 100

	portAttempts = 10 // some other program may listen on a port of ours
)

var errNoPort = errors.New("redisserver: all ports are in use")

// portOwner hands out ports of the loopback that no other process of this package hands out. So a server that is
// down for a while gets its port back. A process owns blocks of ports, and listens on the first port of each
// as long as it lives: who else wants the block finds that port in use. It is safe for concurrent use.
type portOwner struct {
	mu     sync.Mutex
	blocks []net.Listener
	free   []string
}

var ports portOwner

// take returns a port. The caller gives it back when nobody will listen there again.
func (o *portOwner) take() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.free) == 0 {
		if err := o.ownBlockLocked(); err != nil {
			return "", err
		}
	}
	port := o.free[0]
	o.free = o.free[1:]
	return port, nil
}

func (o *portOwner) giveBack(port string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.free = append(o.free, port)
}

func (o *portOwner) ownBlockLocked() error {
	for _, i := range rand.Perm((portMax - portMin + 1) / blockSize) {
		first := portMin + i*blockSize
		ln, err := listen(strconv.Itoa(first))
		if err != nil {
			continue // somebody else's
		}
		o.blocks = append(o.blocks, ln)
		for port := first + 1; port < first+blockSize; port++ {
			o.free = append(o.free, strconv.Itoa(port))
		}
		return nil
	}
	return errNoPort
}

// listenAnywhere listens on a port that is the caller's until it gives it back.
func listenAnywhere() (net.Listener, string, error) {
	var err error
	for range portAttempts {
		var port string
		if port, err = ports.take(); err != nil {
			break
		}
		var ln net.Listener
		if ln, err = listen(port); err == nil {
			return ln, port, nil
		}
	}
	return nil, "", err
}

func listen(port string) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(loopback, port))
}
