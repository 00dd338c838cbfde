package prove

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"

	"github.com/headwayq/headway/internal/e2e"
)

func TestNotSent(t *testing.T) {
	t.Parallel()
	later := &e2e.RetryLaterError{Status: 429, After: 2 * time.Second}
	onSuccess := e2e.PhoneLimit(throttle.Sliding(1, time.Minute))
	onSuccess.Charge = queue.ChargeSuccess
	for _, tt := range []struct {
		name                 string
		policy               e2e.Policy
		err                  error
		final, putOff, given bool // given back
	}{
		{"refused", e2e.Policy{}, &e2e.RejectedError{Status: 400}, true, false, false},
		{"later", e2e.Policy{}, later, false, true, false},
		{"no connection", e2e.Policy{}, fmt.Errorf("gateway: %w", e2e.ErrNotConnected), false, false, true},
		{"no answer", e2e.Policy{}, errors.New("no answer"), false, false, false},
		{"refused, and success pays", onSuccess, &e2e.RejectedError{Status: 400}, true, false, true},
		{"later, and success pays", onSuccess, later, false, true, true},
	} {
		grants := &e2e.GrantLog{}
		s := &sender{policy: tt.policy, grants: grants}
		g := e2e.Grant{ID: "1", Key: "k", Attempt: "a", GrantedUs: 1}
		if err := grants.Add(g); err != nil {
			t.Fatal(err)
		}
		got := s.notSent(tt.err, g)
		after, putOff := errors.AsType[*worker.RetryAfterError](got)
		if !errors.Is(got, tt.err) || errors.Is(got, asynq.SkipRetry) != tt.final || putOff != tt.putOff {
			t.Errorf("%s: notSent = %v", tt.name, got)
		}
		if putOff && after.After != 2*time.Second {
			t.Errorf("%s: put off for %v, want 2 s", tt.name, after.After)
		}
		all, err := grants.All()
		if err != nil || len(all) != 1 || all[0].Unused != tt.given {
			t.Errorf("%s: grants = %+v, %v, want one, given back: %v", tt.name, all, err, tt.given)
		}
	}
}
