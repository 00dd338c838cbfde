package limitscripts

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

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

// opening is the key that counts the jobs that wait for a gate to open.
func (k LimitKeys) opening() string { return k.ledger + ":opening" }

func (k LimitKeys) all() []string { return []string{k.ledger, k.tokens, k.line} }

// StoredLimitKey holds the limit of a rule that goes before the one in code, and
// is the channel on which its changes are told.
func StoredLimitKey(prefix, rule string) string { return prefix + ":limit:" + rule }

// closingKey holds until when a rule is closed on all keys. It carries the tag of
// the stored limit's key: both are in one script.
func closingKey(prefix, rule string) string {
	return prefix + ":closed:{" + StoredLimitKey(prefix, rule) + "}"
}
