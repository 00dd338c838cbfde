package luascripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ReleaseReply is the answer of release.lua.
type ReleaseReply struct {
	Status   Status // Granted when it could be read
	Released bool   // the lease was still there
	Now      time.Time
	Promoted []Promotion
	Version  int64 // of the ledger, when Outdated
}

// Release runs release.lua: a lease ends before its time.
func Release(ctx context.Context, c redis.Scripter, p RuleCall, token uint64) (ReleaseReply, error) {
	r := run(ctx, c, releaseScript, 5, p.all(), p.Permits, micros(p.Window), p.Version, tokenText(token), instant(p.Closed))
	reply := ReleaseReply{Status: Status(r.int()), Released: r.int() == 1, Now: r.time(), Version: r.int()}
	reply.Promoted = r.promotions(r.int())
	return reply, r.err
}

// RenewArgs name a lease.
type RenewArgs struct {
	RuleCall
	Token uint64
}

// RenewReply is the answer of renew.lua.
type RenewReply struct {
	Held bool // the lease goes on; else it is lost for good
	Now  time.Time
	Err  error
}

// Renew runs renew.lua for many leases in one pipeline, in order. Each fails alone.
func Renew(ctx context.Context, c redis.UniversalClient, leases []RenewArgs) []RenewReply {
	out := make([]RenewReply, len(leases))
	calls := make([]command, len(leases))
	for i := range leases {
		l := &leases[i]
		calls[i] = renewScript.call([]string{l.ledger, l.tokens}, micros(l.Window), tokenText(l.Token))
	}
	for i, cmd := range sendAll(ctx, c, calls) {
		v, err := cmd.Result()
		r := readReply(renewScript, 2, v, err)
		out[i] = RenewReply{Held: r.int() == 1, Now: r.time()}
		out[i].Err = r.err
	}
	return out
}

// CloseArgs are the arguments of close.lua.
type CloseArgs struct {
	Rules  []RuleCall
	Rule   int // which rule is closed, from 1: those before are narrower or share its key, those behind share it
	Policy string
	Job    string        // who goes first when it is open again; "" for nobody
	For    time.Duration // from now on; 0 opens
}

// CloseReply is the answer of close.lua.
type CloseReply struct {
	Status   Status // Granted when it was done
	Rule     int    // that could not be read, counted from 1
	Now      time.Time
	Until    time.Time
	Promoted []Promotion
	Version  int64 // of the rule's ledger, when Outdated
}

// Close runs close.lua.
func Close(ctx context.Context, c redis.Scripter, a CloseArgs) (CloseReply, error) {
	r := run(ctx, c, closeScript, 6, keysOfRules(a.Rules, a.Policy),
		rulesText(a.Rules), a.Job, micros(a.For), a.Rule)
	reply := CloseReply{Status: Status(r.int()), Rule: int(r.int()), Now: r.time(), Until: r.time(), Version: r.int()}
	reply.Promoted = r.promotions(r.int())
	return reply, r.err
}

// AdjustArgs are the arguments of adjust.lua. The cost of a rule is what it pays
// more, or less when it is below 0.
type AdjustArgs struct {
	Rules  []RuleCall
	Policy string
	Token  uint64
	Charge uint64 // names this adjustment: it is done once
}

// Adjust runs adjust.lua.
func Adjust(ctx context.Context, c redis.Scripter, a AdjustArgs) (CancelReply, error) {
	r := run(ctx, c, adjustScript, 5, keysOfRules(a.Rules, a.Policy),
		grantArgs([]any{tokenText(a.Token), tokenText(a.Charge)}, a.Rules)...)
	reply := CancelReply{Status: Status(r.int()), Rule: int(r.int()), Now: r.time(), Version: r.int()}
	if reply.Status == Granted {
		for range a.Rules {
			reply.Spent = append(reply.Spent, int(r.int()))
		}
	}
	reply.Promoted = r.promotions(r.int())
	return reply, r.err
}
