package main

import (
	"strings"
	"testing"

	"github.com/headwayq/headway/internal/redistest"
)

// CLIENT LIST shows whose connections they are, where the user may say so.
func TestConnectionsAreNamed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Own())
	r := redisFlags{addrs: []string{s.Addr()}}
	rdb, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	if list, err := rdb.Do(t.Context(), "client", "list").Text(); err != nil || !strings.Contains(list, " name=headway ") {
		t.Errorf("CLIENT LIST = %q, %v, want a connection of headway's", list, err)
	}
	admin := s.Client(t)
	if err := admin.Do(t.Context(), "acl", "setuser", "default", "-client|setname").Err(); err != nil {
		t.Fatal(err)
	}
	again, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.Close() })
	if err := again.Ping(t.Context()).Err(); err != nil {
		t.Errorf("a user that may not name its connections: %v, want that it connects", err)
	}
}
