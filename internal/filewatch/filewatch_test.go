package filewatch

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A change is told once, and not before the file stayed as it is for one look.
func TestRunTellsAChangeThatStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		write := func(path, text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, begin, begin); err != nil {
				t.Fatal(err)
			}
		}
		write(a, "1")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var told atomic.Int64
		go Run(ctx, time.Second, Of(a, b), func() { told.Add(1) }, a, b)
		want := func(looks time.Duration, n int) {
			t.Helper()
			time.Sleep(looks * time.Second)
			synctest.Wait()
			if told.Load() != int64(n) {
				t.Errorf("told %d times, want %d", told.Load(), n)
			}
		}
		time.Sleep(time.Second / 2)
		want(3, 0)
		write(a, "12") // half written
		want(1, 0)
		write(a, "123")
		want(1, 0)
		want(1, 1)
		want(5, 1)
		write(b, "new")
		want(2, 2)
		if err := os.Remove(a); err != nil {
			t.Fatal(err)
		}
		want(2, 3)
		want(5, 3)
	})
}

// A file that could not be opened when it was changed is told once it can be, although its time and size
// are as they were then.
func TestRunTellsAFileThatCanBeReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, file, socket := filepath.Join(dir, "link"), filepath.Join(dir, "file"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket) // a file that nobody can open, not even root
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	point := func(to string) {
		t.Helper()
		_ = os.Remove(link)
		if err := errors.Join(os.Chtimes(to, time.Unix(1, 0), time.Unix(1, 0)), os.Symlink(to, link)); err != nil {
			t.Fatal(err)
		}
	}
	point(file)
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var told atomic.Int64
		go Run(ctx, time.Second, Of(link), func() { told.Add(1) }, link)
		time.Sleep(time.Second / 2)
		for n, to := range []string{socket, file, socket} {
			point(to)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := told.Load(); got != int64(n+1) {
				t.Errorf("told %d times, want %d", got, n+1)
			}
		}
	})
}
