package limitscripts

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
)

// AcquireHashSlots runs acquire.lua for 1 to [CallsMax] calls whose keys lie anywhere in a
// Cluster, those of each call in one hash slot: one script for the calls of a hash slot, in
// order, and all of them in one pipeline for each node. Each call has its own Err: that
// of its script where that failed as a whole.
func AcquireHashSlots(ctx context.Context, c *redis.ClusterClient, calls []*Call) {
	crowds := byHashSlot(calls)
	commands := make([]luascripts.Command, len(crowds))
	for i, crowd := range crowds {
		commands[i] = acquireCommand(crowd)
	}
	for i, cmd := range luascripts.SendAll(ctx, c, commands) {
		v, err := cmd.Result()
		r := acquireReply(crowds[i], v, err)
		if err := readMany(crowds[i], &r, commands[i].Confirm); err != nil {
			for _, call := range crowds[i] {
				call.Err = err
			}
		}
	}
}

// byHashSlot are the calls of each hash slot, in order.
func byHashSlot(calls []*Call) [][]*Call {
	var crowds [][]*Call
	at := make([]uint16, 0, len(calls)) // of the crowds
	for _, c := range calls {
		slot := luascripts.SlotOf(c.Rules[0].ledger)
		i := slices.Index(at, slot)
		if i < 0 {
			i, at, crowds = len(at), append(at, slot), append(crowds, nil)
		}
		crowds[i] = append(crowds[i], c)
	}
	return crowds
}
