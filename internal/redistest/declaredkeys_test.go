package redistest

import (
	"slices"
	"testing"
)

func TestMonitorFindsUndeclaredKeys(t *testing.T) {
	t.Parallel()
	var m monitor
	for _, line := range []string{
		`+1.2 [0 127.0.0.1:1] "FCALL" "headway_acquire" "2" "a" "b\x00\"" "x"` + "\r\n",
		`+1.2 [0 lua] "ZADD" "a" "1" "c"` + "\r\n",
		`+1.2 [0 lua] "EXISTS" "a" "b\x00\""` + "\r\n",
		`+1.2 [0 lua] "INFO" "server"` + "\r\n",
		`+1.2 [0 lua] "GET" "c"` + "\r\n",
		`+1.2 [0 127.0.0.1:1] "EVALSHA" "1f" "1" "c"` + "\r\n",
		`+1.2 [0 lua] "GET" "c"` + "\r\n",
		`+1.2 [0 lua] "UNLINK" "c" "a"` + "\r\n",
	} {
		m.read(line)
	}
	want := []string{
		`script headway_acquire: get touches "c", which its call does not name: ["a" "b\x00\""]`,
		`script 1f: unlink touches "a", which its call does not name: ["c"]`,
	}
	if !slices.Equal(m.undeclared, want) || m.touched != 7 {
		t.Errorf("%d keys touched, undeclared %q, want 7 and %q", m.touched, m.undeclared, want)
	}
}
