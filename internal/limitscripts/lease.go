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
	call := releaseScript.Call(p.all(), p.Permits, luascripts.Micros(p.Window), p.Version, luascripts.TokenText(token), luascripts.Instant(p.Closed))
	call.Resumes = true // a lease that is gone stays so
	v, err := luascripts.Send(ctx, c, call).Result()
	r := releaseScript.Read(5, v, err)
	reply := ReleaseReply{Status: statusOf(&r), Released: r.Int() == 1, Now: r.Time(), Version: r.Int()}
	reply.Promoted = promotionsOf(&r, r.Int(), 1)
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
