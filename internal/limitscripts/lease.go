package limitscripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// ReleaseReply is the answer of release.lua.
type ReleaseReply struct {
	Status   Status // Granted when it could be read
	Released bool   // the lease was still there
	Now      time.Time
	Promoted []Promotion
	Version  int64 // of the ledger, when Outdated
}

var releaseScript = luascripts.NewScript("limit/release")

// Release runs release.lua: a lease ends before its time.
func Release(ctx context.Context, c redis.Scripter, p RuleCall, token uint64) (ReleaseReply, error) {
	r := releaseScript.Ask(ctx, c, 5, p.all(), p.Permits, luascripts.Micros(p.Window), p.Version, luascripts.TokenText(token), luascripts.Instant(p.Closed))
	reply := ReleaseReply{Status: Status(r.Int()), Released: r.Int() == 1, Now: r.Time(), Version: r.Int()}
	reply.Promoted = promotionsOf(r, r.Int())
	return reply, r.Err()
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

var renewScript = luascripts.NewScript("limit/renew")

// Renew runs renew.lua for many leases in one pipeline, in order. Each fails alone.
func Renew(ctx context.Context, c redis.UniversalClient, leases []RenewArgs) []RenewReply {
	out := make([]RenewReply, len(leases))
	calls := make([]luascripts.Command, len(leases))
	for i := range leases {
		l := &leases[i]
		calls[i] = renewScript.Call([]string{l.ledger, l.tokens}, luascripts.Micros(l.Window), luascripts.TokenText(l.Token))
	}
	for i, cmd := range luascripts.SendAll(ctx, c, calls) {
		v, err := cmd.Result()
		r := renewScript.Read(2, v, err)
		out[i] = RenewReply{Held: r.Int() == 1, Now: r.Time()}
		out[i].Err = r.Err()
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

var closeScript = luascripts.NewScript("limit/close")

// Close runs close.lua.
func Close(ctx context.Context, c redis.Scripter, a CloseArgs) (CloseReply, error) {
	r := closeScript.Ask(ctx, c, 6, keysOfRules(a.Rules, a.Policy),
		rulesText(a.Rules), a.Job, luascripts.Micros(a.For), a.Rule)
	reply := CloseReply{Status: Status(r.Int()), Rule: int(r.Int()), Now: r.Time(), Until: r.Time(), Version: r.Int()}
	reply.Promoted = promotionsOf(r, r.Int())
	return reply, r.Err()
}

// AdjustArgs are the arguments of adjust.lua. The cost of a rule is what it pays
// more, or less when it is below 0.
type AdjustArgs struct {
	Rules  []RuleCall
	Policy string
	Token  uint64
	Charge uint64 // names this adjustment: it is done once
}

var adjustScript = luascripts.NewScript("limit/adjust")

// Adjust runs adjust.lua.
func Adjust(ctx context.Context, c redis.Scripter, a AdjustArgs) (CancelReply, error) {
	r := adjustScript.Ask(ctx, c, 5, keysOfRules(a.Rules, a.Policy),
		grantArgs([]any{luascripts.TokenText(a.Token), luascripts.TokenText(a.Charge)}, a.Rules)...)
	reply := CancelReply{Status: Status(r.Int()), Rule: int(r.Int()), Now: r.Time(), Version: r.Int()}
	if reply.Status == Granted {
		for range a.Rules {
			reply.Spent = append(reply.Spent, int(r.Int()))
		}
	}
	reply.Promoted = promotionsOf(r, r.Int())
	return reply, r.Err()
}
