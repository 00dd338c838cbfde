package redisserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const loopback = "127.0.0.1"

// Ports are drawn from below the ranges that systems give to outgoing
// connections (Linux starts at 32768, macOS at 49152): while a server is down,
// no passing connection can take its port. A node of a cluster listens on a second port, which
// is 10,000 higher.
const (
	portMin = 12768
	portMax = 22767
)

// listenFree listens on a free port of the loopback.
func listenFree() (net.Listener, error) {
	var err error
	for range 100 {
		port := portMin + rand.IntN(portMax-portMin+1)
		var ln net.Listener
		if ln, err = net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return ln, nil
		}
	}
	return nil, fmt.Errorf("redisserver: no free port: %w", err)
}

// freePort returns a port that was free a moment ago. Somebody may take it
// before the caller does, so the caller tries again with another one.
func freePort() (string, error) {
	ln, err := listenFree()
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return "", err
	}
	return port, ln.Close()
}
