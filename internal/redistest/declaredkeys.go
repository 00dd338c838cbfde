package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// DeclaredKeys checks until the test ends that the scripts of a server touch no keys but those that their calls name. Services that insist on
// that run no other scripts.
func DeclaredKeys(tb testing.TB, rdb *redis.Client) {
	tb.Helper()
	conn, err := net.Dial("tcp", rdb.Options().Addr)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		tb.Fatal(err)
	}
	lines := bufio.NewReaderSize(conn, 1<<20)
	if ok, err := lines.ReadString('\n'); err != nil || ok != "+OK\r\n" {
		tb.Fatalf("MONITOR = %q, %v", ok, err)
	}
	const last = "the last line that is read"
	m := monitor{}
	done := make(chan error)
	go func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil || strings.Contains(line, last) {
				done <- err
				return
			}
			m.read(line)
		}
	}()
	tb.Cleanup(func() {
		defer conn.Close()
		if err := rdb.Echo(context.Background(), last).Err(); err != nil {
			tb.Error(err)
			return
		}
		if err := <-done; err != nil {
			tb.Error(err)
		}
		for _, text := range m.undeclared {
			tb.Error(text)
		}
		if m.touched == 0 {
			tb.Error("no script touched a key")
		}
	})
}

// monitor reads what MONITOR says. A line about a script comes before those about its commands.
type monitor struct {
	script     string
	declared   []string // by the call of the script
	touched    int      // keys, by scripts
	undeclared []string // the first ones, as messages
}

func (m *monitor) read(line string) {
	who, text, _ := strings.Cut(line, "] ")
	words := quotedWords(text)
	if len(words) == 0 {
		return
	}
	name := strings.ToLower(words[0])
	if !strings.HasSuffix(who, " lua") {
		m.script, m.declared = "", nil
		if n := 0; strings.HasPrefix(name, "fcall") || strings.HasPrefix(name, "eval") {
			n, _ = strconv.Atoi(words[2])
			m.script, m.declared = words[1], words[3:3+n]
		}
		return
	}
	for _, key := range keysOfCommand(name, words[1:]) {
		m.touched++
		if !slices.Contains(m.declared, key) && len(m.undeclared) < 5 {
			m.undeclared = append(m.undeclared, fmt.Sprintf("script %s: %s touches %q, which its call does not name: %q", m.script, name, key, m.declared))
		}
	}
}

// keysOfCommand are the keys of a command, of those that scripts call.
func keysOfCommand(name string, args []string) []string {
	switch name {
	case "exists", "unlink", "del", "mget":
		return args
	case "info", "time", "publish":
		return nil
	}
	return args[:1]
}

// quotedWords are the words of a line, each in quotes.
func quotedWords(text string) (words []string) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			return nil
		}
		word, _ := strconv.Unquote(quoted)
		words, text = append(words, word), text[len(quoted):]
	}
	return words
}
