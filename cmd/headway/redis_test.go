package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

func TestSecretIsShared(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	first, err := loadSecret(t.Context(), rdb, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Expire(t.Context(), secretKey, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	second, err := loadSecret(t.Context(), rdb, 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != secretLen || !bytes.Equal(first, second) {
		t.Errorf("two processes have the secrets %x and %x, want the same %d bytes", first, second, secretLen)
	}
	if bytes.Equal(first.forKeys(), first.forFiles()) || bytes.Equal(first.forKeys(), first) {
		t.Error("what files are made with is what keys are made with")
	}
	// It outlives every grant that was made under it.
	if ttl := rdb.TTL(t.Context(), secretKey).Val(); ttl <= secretTTL+47*time.Hour {
		t.Errorf("TTL %v, want 30 days and a window", ttl)
	}
}

func TestSecretThatIsNotOurs(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	if err := rdb.Set(t.Context(), secretKey, "short", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if s, err := loadSecret(t.Context(), rdb, time.Minute); err == nil {
		t.Errorf("loadSecret = %x, want an error", s)
	}
}
