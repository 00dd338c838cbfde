package limitscripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// CancelArgs are the arguments of cancel.lua. With a zero Token there is no grant. With an empty Job there is no booking.
type CancelArgs struct {
	Rules  []RuleCall
	Policy string
	Token  uint64
	Job    string
	Back   bool // the job gets the first place in the line for its grant

	// Or it gets the tickets that it had, because a later hash slot refuses, unless it has come again since.
	Away time.Time // with a turn, until this instant
	Park bool      // or it is parked there; without a Token a place that it has is parked

	Once bool // the client must not repeat it by itself: the error then says whether it may have run
}

// CancelReply is the answer of cancel.lua, adjust.lua and reset.lua.
type CancelReply struct {
	Status   Status // Granted when a grant was given back, or Refused
	Rule     int    // that could not be read, counted from 1
	Now      time.Time
	Promoted []Promotion
	Version  int64 // of the rule's ledger, when Outdated
	Spent    []int // of adjust.lua, by rule: what was paid more; nil when it was done before, -1 where one hash slot of several has done it before
}

var cancelScript = luascripts.NewScript("limit/cancel")

// Cancel runs cancel.lua.
func Cancel(ctx context.Context, c redis.Scripter, a CancelArgs) (CancelReply, error) {
	back := int64(luascripts.Flag(a.Back))
	switch {
	case a.Park:
		back = -1
	case !a.Away.IsZero():
		back = luascripts.Instant(a.Away)
	}
	call := cancelScript.Call(keysOfRules(a.Rules, a.Policy), grantArgs([]any{luascripts.TokenText(a.Token), a.Job, back}, a.Rules)...)
	call.Once, call.Resumes = a.Once, !a.Once // nothing comes back twice
	v, err := luascripts.Send(ctx, c, call).Result()
	r := cancelScript.Read(5, v, err)
	reply := CancelReply{Status: statusOf(&r), Rule: ruleOf(&r, len(a.Rules)), Now: r.Time(), Version: r.Int()}
	reply.Promoted = promotionsOf(&r, r.Int(), len(a.Rules))
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
	reply := CancelReply{Status: statusOf(r), Rule: ruleOf(r, len(a.Rules)), Now: r.Time(), Version: r.Int()}
	if reply.Status == Granted {
		for range a.Rules {
			reply.Spent = append(reply.Spent, int(r.Int()))
		}
	}
	reply.Promoted = promotionsOf(r, r.Int(), len(a.Rules))
	return reply, r.Err()
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
	reply := CloseReply{Status: statusOf(r), Rule: ruleOf(r, len(a.Rules)), Now: r.Time(), Until: r.Time(), Version: r.Int()}
	reply.Promoted = promotionsOf(r, r.Int(), len(a.Rules))
	return reply, r.Err()
}

var resetScript = luascripts.NewScript("limit/reset")

// Reset runs reset.lua.
func Reset(ctx context.Context, c redis.Scripter, k LimitKeys, n Numbers) (CancelReply, error) {
	r := resetScript.Ask(ctx, c, 4, k.all(), n.Kind.text(), n.Permits, luascripts.Micros(n.Window), n.more(), n.Version)
	reply := CancelReply{Status: statusOf(r), Now: r.Time(), Version: r.Int()}
	reply.Promoted = promotionsOf(r, r.Int(), 1)
	return reply, r.Err()
}
