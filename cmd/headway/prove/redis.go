package prove

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/e2e"
)

// openRedis is [e2e.OpenRedis] behind the interface that tests take the place of.
func openRedis(opts *redis.Options) (redis.UniversalClient, func(), error) {
	return e2e.OpenRedis(opts)
}

// secretKey is where the secret is in Redis.
const secretKey = "headway-prove:secret"

// secret is common to all processes on one Redis: what they write about a phone
// can be put together, and read by nobody else.
type secret []byte

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
