package luascripts

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// refreshMax bounds how many bookings one call of refresh.lua takes.
const refreshMax = 8

// RefreshArgs are the arguments of refresh.lua about one booking.
type RefreshArgs struct {
	Rules  []RuleCall
	Policy string
	Job    string
}

// RefreshReply is the answer of refresh.lua about one booking.
type RefreshReply struct {
	Status   Status // Booked, or Refused when it is not known
	Rule     int    // by which it waits, counted from 1
	At       time.Time
	Now      time.Time
	Before   int // permits ahead of it in the line
	Promoted []Promotion
	Err      error

	Version int64 // of the rule's ledger, when Outdated
}

// Refresh runs refresh.lua for many bookings in one pipeline: once for up to [refreshMax] that
// differ in nothing but keys and jobs, on Cluster of one slot. Each booking fails alone.
func Refresh(ctx context.Context, c redis.UniversalClient, bookings []RefreshArgs) []RefreshReply {
	out := make([]RefreshReply, len(bookings))
	var alone [][]int
	refreshAll(ctx, c, bookings, refreshBatches(c, bookings), out)
	for i := range out {
		if out[i].Status == askAlone {
			alone = append(alone, []int{i})
		}
	}
	refreshAll(ctx, c, bookings, alone, out)
	return out
}

// refreshAll asks about bookings by their indices, those of a crowd in one call.
func refreshAll(ctx context.Context, c redis.UniversalClient, bookings []RefreshArgs, crowds [][]int, out []RefreshReply) {
	if len(crowds) == 0 {
		return
	}
	calls := make([]command, len(crowds))
	for n, crowd := range crowds {
		first := &bookings[crowd[0]]
		var keys []string
		args := append(make([]any, 0, 2+len(crowd)), len(crowd), rulesText(first.Rules))
		for _, i := range crowd {
			keys = appendKeysOfRules(keys, bookings[i].Rules, bookings[i].Policy)
			args = append(args, bookings[i].Job)
		}
		calls[n] = refreshScript.call(keys, args...)
	}
	for n, cmd := range sendAll(ctx, c, calls) {
		v, err := cmd.Result()
		r := readReply(refreshScript, 1+len(crowds[n]), v, err)
		now := r.time()
		for _, i := range crowds[n] {
			out[i] = r.refreshReply(now)
		}
	}
}

func (r *reply) refreshReply(now time.Time) RefreshReply {
	in := r.list()
	c := RefreshReply{Now: now, Status: Status(in.int()), Rule: int(in.int()), At: in.time(), Before: int(in.int())}
	c.Promoted = in.promotions(in.int())
	if c.Err = in.err; c.Status == Outdated {
		outdated(&c.At, &c.Version)
	}
	return c
}

// refreshBatches are the indices of bookings that one call can ask about.
func refreshBatches(c redis.UniversalClient, bookings []RefreshArgs) [][]int {
	sharded := Sharded(c)
	var crowds [][]int
	for i := range bookings {
		b, joined := &bookings[i], false
		for n := len(crowds) - 1; n >= 0 && !joined; n-- {
			first := &bookings[crowds[n][0]]
			joined = len(crowds[n]) < refreshMax && alikeRules(first.Rules, b.Rules) && (first.Policy == "") == (b.Policy == "") &&
				(!sharded || slotOf(first.Rules[0].ledger) == slotOf(b.Rules[0].ledger))
			if joined {
				crowds[n] = append(crowds[n], i)
			}
		}
		if !joined {
			crowds = append(crowds, []int{i})
		}
	}
	return crowds
}

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
