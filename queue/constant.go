package queue

import (
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/throttle"
)

// ConstantKey returns a [KeyFunc] that gives all tasks the same key, such as the
// name of a provider. It panics when the key is empty or over 1024 bytes long.
func ConstantKey(key string) KeyFunc {
	if key == "" || len(key) > throttle.KeyMax {
		panic(fmt.Sprintf("queue: a constant key of %d bytes, want 1 to %d", len(key), throttle.KeyMax))
	}
	return func(*asynq.Task) (string, error) { return key, nil }
}

// ConstantCost returns a [CostFunc] that gives all tasks the same cost. It
// panics when the cost is below 1 or above throttle.PermitsMax.
func ConstantCost(cost int) CostFunc {
	if cost < 1 || cost > throttle.PermitsMax {
		panic(fmt.Sprintf("queue: a constant cost of %d, want 1 to %d", cost, throttle.PermitsMax))
	}
	return func(*asynq.Task) (int, error) { return cost, nil }
}
