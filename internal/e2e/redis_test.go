package e2e

import (
	"bytes"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/redistest"
)

func TestSecretIsShared(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	first, err := LoadSecret(t.Context(), rdb, "test:secret", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Expire(t.Context(), "test:secret", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	second, err := LoadSecret(t.Context(), rdb, "test:secret", 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != secretLen || !bytes.Equal(first, second) {
		t.Errorf("two processes have the secrets %x and %x, want the same %d bytes", first, second, secretLen)
	}
	// It outlives every grant that was made under it.
	if ttl := rdb.TTL(t.Context(), "test:secret").Val(); ttl <= secretTTL+47*time.Hour {
		t.Errorf("TTL %v, want 30 days and a window", ttl)
	}
}

func TestSecretThatIsNotOurs(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	if err := rdb.Set(t.Context(), "test:secret", "short", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if s, err := LoadSecret(t.Context(), rdb, "test:secret", time.Minute); err == nil {
		t.Errorf("LoadSecret = %x, want an error", s)
	}
}
