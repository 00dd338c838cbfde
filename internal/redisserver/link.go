package redisserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection of a client through a proxy.
type link struct {
	client   net.Conn
	server   *net.TCPConn
	requests *bufio.Reader
	losing   chan struct{} // closed once the next reply is to be lost
	dead     atomic.Bool   // what comes from either side goes nowhere
	done     chan struct{} // closed with the link

	closeOnce sync.Once
}

func newLink(client, server net.Conn) *link {
	return &link{
		client:   client,
		server:   server.(*net.TCPConn), // dialled with "tcp"
		requests: bufio.NewReaderSize(client, 64<<10),
		losing:   make(chan struct{}),
		done:     make(chan struct{}),
	}
}

func (l *link) close() {
	l.closeOnce.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

func (l *link) isLosing() bool {
	select {
	case <-l.losing:
		return true
	default:
		return false
	}
}

// sleep waits for d, and reports false when the link ends first.
func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

// readPipeline blocks for one command and returns it with all others that have
// arrived behind it.
func readPipeline(r *bufio.Reader) ([][]byte, error) {
	var commands [][]byte
	for {
		c, err := readCommand(r)
		if err != nil {
			return nil, err
		}
		commands = append(commands, c)
		if r.Buffered() == 0 {
			return commands, nil
		}
	}
}

// readCommand returns the bytes of one command: an array of bulk strings, as
// "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", or a line of text.
func readCommand(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil || line[0] != '*' {
		return line, err
	}
	count, err := lengthOf(line)
	if err != nil {
		return nil, err
	}
	command := bytes.NewBuffer(line)
	for range count {
		head, err := r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		command.Write(head)
		size, err := lengthOf(head)
		if err != nil {
			return nil, err
		}
		if _, err := io.CopyN(command, r, int64(size)+2); err != nil { // 2 for the line end
			return nil, err
		}
	}
	return command.Bytes(), nil
}

// lengthOf reads the number in "*3\r\n" or "$3\r\n".
func lengthOf(head []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimRight(head[1:], "\r\n")))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("redisserver: the proxy cannot read %q as a length", head)
	}
	return n, nil
}
