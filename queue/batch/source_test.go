package batch

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

var errNoElement = errors.New("no element")

// lines is the source of a text, whose lines that begin with "!" are no elements.
func lines(text string) Source {
	return Lines(
		func(args string) (io.ReadSeekCloser, error) {
			if args != "a.txt" {
				return nil, errors.New("another file")
			}
			return memoryFile{bytes.NewReader([]byte(text))}, nil
		},
		func(line []byte) (Element, error) {
			if bytes.HasPrefix(line, []byte("!")) {
				return Element{}, errNoElement
			}
			return Element{Payload: bytes.Clone(line)}, nil
		})
}

// A file is read line by line, and from any mark on as from the beginning.
func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", lineMax+1)
	for name, text := range map[string]string{
		"unix": "a\nbb\n\n!\nccc\n", "windows": "a\r\nbb\r\n\r\n!\r\nccc\r\n", "no end": "a\nbb\n!\nccc", "long": "a\nbb\n" + long + "\nccc\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []Element
			for e, err := range lines(text)(t.Context(), Spec{Args: "a.txt"}, Position{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, e)
			}
			if len(all) != 4 || string(all[0].Payload) != "a" || string(all[1].Payload) != "bb" || all[2].fault == nil || string(all[3].Payload) != "ccc" {
				t.Fatalf("the lines are %v", all)
			}
			for i := range all {
				var rest []string
				for e, err := range lines(text)(t.Context(), Spec{Args: "a.txt"}, Position{Read: int64(i + 1), Mark: all[i].Mark}) {
					if err != nil {
						t.Fatal(err)
					}
					rest = append(rest, e.Mark)
				}
				var want []string
				for _, e := range all[i+1:] {
					want = append(want, e.Mark)
				}
				if !slices.Equal(rest, want) {
					t.Errorf("behind line %d come %q, want %q", i, rest, want)
				}
			}
		})
	}
	for _, from := range []Position{{Read: 1, Mark: "x"}, {Read: 1}, {Read: 1, Mark: "-4"}} {
		for _, err := range lines("a\n")(t.Context(), Spec{Args: "a.txt"}, from) {
			if err == nil {
				t.Errorf("from %v it reads, want an error", from)
			}
		}
	}
	for _, err := range lines("a\n")(t.Context(), Spec{Args: "b.txt"}, Position{}) {
		if err == nil {
			t.Error("a file that is not there is read, want an error")
		}
	}
}
