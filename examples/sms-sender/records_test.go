package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecordsGoOnAfterBrokenQuoting(t *testing.T) {
	t.Parallel()
	type record struct {
		Line   int
		Fields string // joined by |; "!" if broken
	}
	for _, tt := range []struct {
		in   string
		want []record
	}{
		{"a,b\nc,d", []record{{1, "a|b"}, {2, "c|d"}}},
		{"\n\r\na\n\n\"b\nc\"\nd\n", []record{{3, "a"}, {5, "b\nc"}, {7, "d"}}},
		{"a\"b\nc\n", []record{{1, "!"}, {2, "c"}}},
		{"\"a\nb\nc\n", []record{{1, "!"}, {2, "b"}, {3, "c"}}},
		{"\n\"a\n\nb\n\"c\nd\n", []record{{2, "!"}, {4, "b"}, {5, "!"}, {6, "d"}}},
		{"\"a\r\nb\r\n\"c\"\r\nd", []record{{1, "!"}, {2, "b"}, {3, "c"}, {4, "d"}}},
		{"\"", []record{{1, "!"}}},
		{"\"\n", []record{{1, "!"}}},
		{"a\n\r", []record{{1, "a"}}},
	} {
		var got []record
		for r := newRecords([]byte(tt.in)); ; {
			fields, line, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if _, ok := errors.AsType[*quotingError](err); ok {
				fields = []string{"!"}
			} else if err != nil {
				t.Fatalf("next: %v", err)
			}
			got = append(got, record{line, strings.Join(fields, "|")})
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("records of %q (-want +got):\n%s", tt.in, diff)
		}
	}
}
