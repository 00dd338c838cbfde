package luascripts

import (
	"context"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// AcquireSlots runs acquire.lua for 1 to [CallsMax] calls whose keys lie anywhere in a
// Cluster, those of each call in one slot: one script for the calls of a slot, in
// order, and all of them in one pipeline for each node. Each call has its own Err: that
// of its script where that failed as a whole.
func AcquireSlots(ctx context.Context, c *redis.ClusterClient, calls []*Call) {
	crowds := bySlot(calls)
	commands := make([]command, len(crowds))
	for i, crowd := range crowds {
		commands[i] = acquireCommand(crowd)
	}
	for i, cmd := range sendAll(ctx, c, commands) {
		v, err := cmd.Result()
		r := acquireReply(crowds[i], v, err)
		if err := readMany(crowds[i], &r, commands[i].confirm); err != nil {
			for _, call := range crowds[i] {
				call.Err = err
			}
		}
	}
}

// bySlot are the calls of each slot, in order.
func bySlot(calls []*Call) [][]*Call {
	var crowds [][]*Call
	at := make([]uint16, 0, len(calls)) // of the crowds
	for _, c := range calls {
		slot := slotOf(c.Rules[0].ledger)
		i := slices.Index(at, slot)
		if i < 0 {
			i, at, crowds = len(at), append(at, slot), append(crowds, nil)
		}
		crowds[i] = append(crowds[i], c)
	}
	return crowds
}

// slotOf is the slot of a key on Cluster: what is in its first braces, if there is
// anything, decides.
func slotOf(key string) uint16 {
	if _, tail, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(tail, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return crc % 16384
}

// crc16 is CRC16 of each byte by the polynomial of XMODEM, as Redis Cluster has it.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			high := crc & 0x8000
			if crc <<= 1; high != 0 {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()
