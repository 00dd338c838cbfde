package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Change is one entry of the audit list. It is written before the change is made. When
// the change fails, a second entry says so.
type Change struct {
	At     time.Time `json:"at"` // by Redis' clock
	Who    string    `json:"who"`
	Why    string    `json:"why"`
	Action Action    `json:"action"`
	Rule   string    `json:"rule,omitempty"`
	Key    string    `json:"key,omitempty"` // as it stands in Redis: hashed where a Secret is set, else in clear; see [Mask]
	Queue  string    `json:"queue,omitempty"`
	Task   string    `json:"task,omitempty"`
	Batch  string    `json:"batch,omitempty"`
	Value  string    `json:"value,omitempty"`
	Before string    `json:"before,omitempty"` // what Value replaced; of a limit, the one that was stored, empty for none
	Until  time.Time `json:"until,omitzero"`

	// BeforeFile says that Before was stored because a policy file was edited, and not by an operator.
	BeforeFile bool `json:"before_file,omitempty"`

	// BeforeUntil is until when a stored limit that was replaced would have counted, zero for one
	// without an end, and until when a key or rule was closed before it was closed or opened.
	BeforeUntil time.Time `json:"before_until,omitzero"`

	Failed string `json:"failed,omitempty"` // why the change was not made
}

// Made returns those of some changes that were made, the newest first as they are given: it leaves
// out both entries of a change that failed. Give it the list from its newest entry on, see
// [Inspector.Audit]: the entry that says that a change failed stands before the other one.
func Made(changes []Change) []Change {
	// noted is what both entries have in common.
	type noted struct {
		at                            int64
		who                           string
		action                        Action
		rule, key, queue, task, batch string
	}
	failed := make(map[noted]bool)
	made := make([]Change, 0, len(changes))
	for _, c := range changes {
		n := noted{c.At.UnixNano(), c.Who, c.Action, c.Rule, c.Key, c.Queue, c.Task, c.Batch}
		if c.Failed != "" {
			failed[n] = true
		} else if !failed[n] {
			made = append(made, c)
		}
	}
	return made
}

// auditKey is the list of what operators changed.
func auditKey(prefix string) string { return prefix + ":audit" }

// The audit list keeps so many entries, and each for so long.
const (
	auditMax = 1000
	auditTTL = 90 * 24 * time.Hour
)

// appendAudit puts an entry in front of the list of what operators changed, and drops the
// oldest when there are [auditMax].
func appendAudit(ctx context.Context, c redis.Cmdable, prefix string, entry []byte) error {
	key := auditKey(prefix)
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.LPush(ctx, key, entry)
		p.LTrim(ctx, key, 0, auditMax-1)
		p.PExpire(ctx, key, auditTTL)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the audit list: %w", err)
	}
	return nil
}

// auditEntries are entries of the list, the newest first, without the first skip.
func auditEntries(ctx context.Context, c redis.Cmdable, prefix string, skip, most int) ([]string, error) {
	entries, err := c.LRange(ctx, auditKey(prefix), int64(skip), int64(skip+most-1)).Result()
	if err != nil {
		return nil, fmt.Errorf("read the audit list: %w", err)
	}
	return entries, nil
}
