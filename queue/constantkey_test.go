package queue

import (
	"strings"
	"testing"

	"github.com/hibiken/asynq"
)

func TestConstants(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", strings.Repeat("k", 1024)} {
		if got, err := ConstantKey(key)(asynq.NewTask("t", nil)); got != key || err != nil {
			t.Errorf("ConstantKey(%.9q) gives %.9q, %v", key, got, err)
		}
	}
	for _, cost := range []int{1, 1_000_000} {
		if got, err := constantCost(cost)(asynq.NewTask("t", nil)); got != cost || err != nil {
			t.Errorf("constantCost(%d) gives %d, %v", cost, got, err)
		}
	}
}

func TestConstantsThatNoTaskCanHave(t *testing.T) {
	t.Parallel()
	want(t, panicOf(func() { ConstantKey("") }), any("queue: a constant key of 0 bytes, want 1 to 1024"))
	want(t, panicOf(func() { ConstantKey(strings.Repeat("k", 1025)) }), any("queue: a constant key of 1025 bytes, want 1 to 1024"))
	want(t, panicOf(func() { ConstantKey("$.to") }), any("queue: a constant key that begins with $, as a path does: want a path, such as $.to, or a constant, such as acme"))
	want(t, panicOf(func() { ConstantKey("=acme") }), any("queue: a constant key that begins with =, which marks constants in policy files: want the constant itself, such as acme"))
	want(t, panicOf(func() { constantCost(0) }), any("queue: a constant cost of 0, want 1 to 1099511627776"))
	want(t, panicOf(func() { constantCost(1<<40 + 1) }), any("queue: a constant cost of 1099511627777, want 1 to 1099511627776"))
}
