package luascripts

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Sharded says whether a client is one of a Redis Cluster.
func Sharded(c redis.Scripter) bool {
	_, sharded := c.(interface {
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	})
	return sharded
}

// SlotOf is the slot of a key on Cluster: what is in its first braces, if there is
// anything, decides.
func SlotOf(key string) uint16 {
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
