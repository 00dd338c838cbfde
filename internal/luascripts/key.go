package luascripts

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// PrefixDefault starts every key of ours unless the user chose another.
const PrefixDefault = "hw"

// idPlainMax is the longest user key that is written as it is.
const idPlainMax = 64

// KeyID is how a user's key appears in our keys: as it is, or hashed when a
// secret is given, when it is long, or when it would break the hash tag. A
// hashed id starts with '#', so no plain one may.
func KeyID(secret []byte, key string) string {
	if len(secret) == 0 && len(key) <= idPlainMax && !strings.ContainsAny(key, "{}") && !strings.HasPrefix(key, "#") {
		return key
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(key))
	return "#" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:18])
}

// LimitKeys names the keys of one rule on one user key. They share a hash tag.
type LimitKeys struct {
	ID     string // as [KeyID] gave it
	ledger string
	tokens string
	line   string
}

// NewLimitKeys builds the keys of a rule for an id.
func NewLimitKeys(prefix, rule, id string) LimitKeys {
	r := NewRuleKeys(prefix, rule)
	return r.Of(id)
}

// RuleKeys names the keys of one rule, whatever the user key.
type RuleKeys struct {
	head, afterLedger, afterTokens string // what stands around the id in all keys behind each other
	ledger, line                   int    // bytes besides the id
}

const tokensKey, lineKey = ":tokens", ":line"

// NewRuleKeys prepares the keys of a rule.
func NewRuleKeys(prefix, rule string) RuleKeys {
	head, tail := prefix+":{", "}:"+rule
	n := len(head) + len(tail)
	return RuleKeys{
		head: head, afterLedger: tail + tokensKey + head, afterTokens: tail + lineKey,
		ledger: n, line: n + len(lineKey),
	}
}

// Of builds the keys for an id, all in one piece of memory: each call needs them. The
// ledger is the beginning of another.
func (r *RuleKeys) Of(id string) LimitKeys {
	all := r.head + id + r.afterLedger + id + r.afterTokens
	ledger, line := r.ledger+len(id), len(all)-r.line-len(id)
	return LimitKeys{ID: id, ledger: all[:ledger], tokens: all[:line], line: all[line:]}
}

// Ledger is the key that alone decides.
func (k LimitKeys) Ledger() string { return k.ledger }

// turns names the turns that jobs of a policy keep on the key while another
// rule holds them up.
func (k LimitKeys) turns(policy string) string { return k.ledger + ":turns:" + policy }

// opening names the count of those who wait for a gate to open.
func (k LimitKeys) opening() string { return k.ledger + ":opening" }

func (k LimitKeys) all() []string { return []string{k.ledger, k.tokens, k.line} }

// QueueKeys names the keys of one asynq queue, asynq's own and our due index. They
// share asynq's hash tag.
type QueueKeys struct {
	due, claim, planned, sweep string
	sent                       string // prefix of the answers of enqueueing calls
	fetched                    string // prefix of what each pool has fetched last
	tick, ticks                string // prefixes of the records of a schedule's entries, and of their last ticks
	batches, ended             string // batches by when they started, and until when records are kept
	batch                      string // prefix of the keys of each

	active, lease, retry, pending, scheduled, archived, paused string

	task string // prefix of the task hashes
}

// NewQueueKeys builds the keys of a queue.
func NewQueueKeys(prefix, queue string) QueueKeys {
	own := "asynq:{" + queue + "}:"
	return QueueKeys{
		due:     prefix + ":{" + queue + "}:due",
		sent:    prefix + ":{" + queue + "}:sent:",
		fetched: prefix + ":{" + queue + "}:fetched:",
		tick:    prefix + ":{" + queue + "}:tick:", ticks: prefix + ":{" + queue + "}:ticks:",
		batches: prefix + ":{" + queue + "}:batches", ended: prefix + ":{" + queue + "}:batches:ended",
		batch: prefix + ":{" + queue + "}:batch:",
		claim: prefix + ":{" + queue + "}:replan", planned: prefix + ":{" + queue + "}:planned", sweep: prefix + ":{" + queue + "}:sweep",
		active: own + "active", lease: own + "lease", retry: own + "retry", pending: own + "pending", scheduled: own + "scheduled",
		archived: own + "archived", paused: own + "paused",
		task: own + "t:",
	}
}

// Task is asynq's hash of a task.
func (k QueueKeys) Task(id string) string { return k.task + id }

// Lease is asynq's sorted set of the leases on the tasks that run, by the second in which each ends.
func (k QueueKeys) Lease() string { return k.lease }

// batchKeys are the keys of one batch.
type batchKeys struct {
	record, unfinished, ahead string
}

func (k QueueKeys) batchKeys(id string) batchKeys {
	record := k.batch + id
	return batchKeys{record: record, unfinished: record + ":open", ahead: record + ":ahead"}
}

// rulesKey is the set in which pools say their numbers.
func rulesKey(prefix string) string { return prefix + ":rules" }

// auditKey is the list of what operators changed.
func auditKey(prefix string) string { return prefix + ":audit" }

// processesKey is the set of the processes that run, and processKey what one says of itself.
func processesKey(prefix string) string { return prefix + ":processes" }

func processKey(prefix, id string) string { return prefix + ":process:" + id }

// StoredLimitKey holds the limit of a rule that goes before the one in code, and
// is the channel on which its changes are told.
func StoredLimitKey(prefix, rule string) string { return prefix + ":limit:" + rule }

// closingKey holds until when a rule is closed on all keys. It carries the tag of
// the stored limit's key: both are in one script.
func closingKey(prefix, rule string) string {
	return prefix + ":closed:{" + StoredLimitKey(prefix, rule) + "}"
}

// queuesKey is asynq's set of all queues.
const queuesKey = "asynq:queues"
