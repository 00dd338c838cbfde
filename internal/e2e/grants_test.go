package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

func TestBreaches(t *testing.T) {
	t.Parallel()
	at := func(key string, instants ...time.Duration) []Grant {
		var all []Grant
		for _, d := range instants {
			all = append(all, Grant{Key: key, GrantedUs: d.Microseconds()})
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		grants []Grant
		n      int
		want   int
	}{
		{"none", nil, 1, 0},
		{"one", at("a", 0), 1, 0},
		{"windows are half open", at("a", 0, 60*sec, 120*sec), 1, 0},
		{"a microsecond too early", at("a", 0, 60*sec-1000), 1, 1},
		{"in any order", at("a", 120*sec, 0, 59*sec), 1, 1},
		{"at once", at("a", 0, 0, 0), 1, 2},
		{"two keys", append(at("a", 0, 60*sec), at("b", 1*sec, 61*sec)...), 1, 0},
		{"two a minute", at("a", 0, 0, 60*sec, 60*sec, 120*sec), 2, 0},
		{"three a minute", at("a", 0, 30*sec, 59*sec, 89*sec), 2, 2},
		{"fewer than n", at("a", 0, 0), 5, 0},
	} {
		if got := Breaches(tt.grants, queue.Rule{Name: RuleName, Limit: throttle.Sliding(tt.n, time.Minute)}); got != tt.want {
			t.Errorf("%s: Breaches = %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestGrantsOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	shared, own := filepath.Join(t.TempDir(), "shared"), filepath.Join(t.TempDir(), "own")
	var wg sync.WaitGroup
	for process := range 3 {
		path := shared
		if process == 2 {
			path = own
		}
		w, err := OpenGrants(path)
		if err != nil {
			t.Fatal(err)
		}
		var writers sync.WaitGroup
		for i := range 4 {
			writers.Go(func() {
				for j := range 100 {
					g := Grant{ID: fmt.Sprint(process, i, j), Phone: "+12…0117", Key: "k", Attempt: "t", GrantedUs: int64(1 + 1000*process + 100*i + j)}
					if err := w.Write(g); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			writers.Wait()
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	grants, err := ReadGrants(shared, own, shared) // named twice counts once
	if err != nil {
		t.Fatal(err)
	}
	if len(grants) != 1200 {
		t.Errorf("%d grants, want 1200", len(grants))
	}
	for i := 1; i < len(grants); i++ {
		if grants[i].GrantedUs < grants[i-1].GrantedUs {
			t.Fatalf("grant %d is before the one before it", i)
		}
	}
	if info, err := os.Stat(own); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
}

func TestGrantLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "grants")
	w, err := OpenGrants(path)
	if err != nil {
		t.Fatal(err)
	}
	g := Grant{ID: "1", Phone: "+12…0117", Key: "k", Attempt: "t", PromisedUs: 2, GrantedUs: 3}
	if err := w.Write(g); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	want := `{"id":"1","phone":"+12…0117","key":"k","attempt":"t","promised_us":2,"granted_us":3}` + "\n"
	if err != nil || string(got) != want {
		t.Errorf("file = %s, %v, want %s", got, err, want)
	}
	back, err := ReadGrants(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Grant{g}, back); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if err := w.Write(g); err == nil {
		t.Error("Write after Close = nil, want an error")
	}
}

func TestReadGrantsRefuses(t *testing.T) {
	t.Parallel()
	const good = `{"id":"1","key":"k","granted_us":3}` + "\n"
	for _, bad := range []string{"x", `{"id":"1","granted_us":3}`, `{"key":"k"}`, `{"id":"1","key":"k","granted_us":3`, "{}{}"} {
		path := filepath.Join(t.TempDir(), "grants")
		if err := os.WriteFile(path, []byte(good+bad+"\n"+good), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadGrants(path); err == nil || !strings.HasSuffix(err.Error(), ": line 2 is not one of ours") {
			t.Errorf("ReadGrants of %s = %v, want a fault on line 2", bad, err)
		}
	}
	if _, err := ReadGrants(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("ReadGrants of no file = nil, want an error")
	}
}

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
		got, err := ReadLines(strings.NewReader(tt.in), positive)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("ReadLines(%.20q) = %v, %v, want %v, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
	if _, err := ReadLines(iotest.ErrReader(iotest.ErrTimeout), positive); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("error = %v, want that of the reader", err)
	}
}
