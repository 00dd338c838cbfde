package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
)

// openRedis is [e2e.OpenRedis] behind the interface that tests take the place of.
func openRedis(opts *redis.Options) (redis.UniversalClient, func(), error) {
	return e2e.OpenRedis(opts)
}

const (
	secretKey = "headway-prove:secret"
	secretLen = 32
	secretTTL = 30 * 24 * time.Hour // renewed by each process that starts
)

// secret is common to all processes on one Redis: what they write about a phone
// can be put together, and read by nobody else.
type secret []byte

// loadSecret returns the secret that is in Redis, and puts one there first if
// there is none. Another secret means another ledger, so it must live longer
// than a grant counts: 30 days and a window after the last process started.
func loadSecret(ctx context.Context, rdb redis.UniversalClient, window time.Duration) (secret, error) {
	fresh := make([]byte, secretLen)
	rand.Read(fresh) // never fails since Go 1.24
	ttl := secretTTL + window
	pipe := rdb.TxPipeline()
	pipe.SetNX(ctx, secretKey, fresh, ttl)
	pipe.PExpire(ctx, secretKey, ttl)
	got := pipe.Get(ctx, secretKey)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	b, err := got.Bytes()
	if err != nil || len(b) != secretLen {
		return nil, fmt.Errorf("redis: %s is not ours: %d bytes, want %d", secretKey, len(b), secretLen)
	}
	return b, nil
}

// forKeys is the secret of Headway's keys.
func (s secret) forKeys() []byte { return s.derive("keys") }

// forFiles is the secret of PhoneKey, in grants and at the gateway: who has a
// file learns nothing about the keys in Redis.
func (s secret) forFiles() []byte { return s.derive("files") }

func (s secret) derive(use string) []byte {
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte(use))
	return mac.Sum(nil)
}
