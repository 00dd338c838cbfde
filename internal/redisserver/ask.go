package redisserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const askWithin = time.Second

// refusal is an error that the server itself replied with.
type refusal string

func (r refusal) Error() string { return string(r) }

// ask sends one command on a connection of its own and returns a reply of one
// line or one bulk string. go-redis will not do for polling: after a few
// refused dials its pool looks again only once a second.
func ask(addr, command string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, askWithin)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askWithin)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	switch line[0] {
	case '-':
		return "", refusal(strings.TrimSpace(line[1:]))
	case '$':
		size, err := lengthOf([]byte(line))
		if err != nil {
			return "", err
		}
		body := make([]byte, size)
		_, err = io.ReadFull(r, body)
		return string(body), err
	default:
		return strings.TrimSpace(line[1:]), nil
	}
}

// InfoField returns one field of a reply to INFO.
func InfoField(info, field string) (string, error) {
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
			return value, nil
		}
	}
	return "", fmt.Errorf("redisserver: INFO has no %s", field)
}
