package queuescripts

import (
	"strings"
	"testing"
)

// All keys that one script gets share a hash tag: Redis Cluster's own rule.
func TestKeysOfAQueueShareATag(t *testing.T) {
	t.Parallel()
	const tag = "{default}"
	q, seen := NewQueueKeys("hw", "default"), map[string]bool{}
	for _, k := range []string{q.Due, q.active, q.Lease, q.Retry, q.Pending, q.Scheduled, q.sent + "1", q.Task("x")} {
		if strings.Count(k, tag) != 1 || seen[k] {
			t.Errorf("key %q, want %s in it and no other key like it", k, tag)
		}
		seen[k] = true
	}
}
