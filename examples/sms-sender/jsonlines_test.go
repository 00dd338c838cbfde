package main

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestReadLines(t *testing.T) {
	t.Parallel()
	positive := func(n int) bool { return n > 0 }
	for _, tt := range []struct {
		in   string
		want []int
		err  string
	}{
		{in: ""},
		{in: "1\n\n 2 \r\n3", want: []int{1, 2, 3}},
		{in: "1\n-2\n3\n", err: "line 2 is not one of ours"},
		{in: "1\n\nx", err: "line 3 is not one of ours"},
		{in: strings.Repeat(" ", 1<<20) + "1", want: []int{1}}, // no limit on a line
	} {
		got, err := readLines(strings.NewReader(tt.in), positive)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("readLines(%.20q) = %v, %v, want %v, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
	if _, err := readLines(iotest.ErrReader(iotest.ErrTimeout), positive); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("error = %v, want that of the reader", err)
	}
}
