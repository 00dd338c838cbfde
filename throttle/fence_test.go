package throttle_test

import (
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// The answer that tells of a lease is lost, and the client asks once more when
// others have leases by then: it gets a fence, above theirs.
func TestFenceOfACopy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := newPolicy(t, s.limiter("phone", throttle.Sliding(5, time.Minute)), s.limiter("slots", throttle.Concurrent(3, time.Minute)))
	request := func(phone string) throttle.Request {
		return throttle.Request{Key: phone, Cost: 1, More: []throttle.KeyCost{{Key: "acme", Cost: 1}}, Job: phone, Token: throttle.NewToken()}
	}
	first := request("a")
	lost := s.redeem(p, first)
	last := lost.Fence
	for i, r := range []throttle.Request{request("b"), first, first, request("c")} {
		d := s.redeem(p, r)
		if !d.Granted || d.Fence <= last {
			t.Errorf("call %d: %v with fence %d, want a grant with one above %d", i, d, d.Fence, last)
		}
		last = d.Fence
	}
	if free, err := p.Rules()[1].Available(t.Context(), "acme"); err != nil || free != 0 {
		t.Errorf("%d slots are free, %v, want none: 3 hold one each", free, err)
	}
}
