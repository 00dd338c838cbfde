package throttle_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/throttle"
)

// Two processes have a limit each, two of one name share it.
func TestPerClient(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limit := throttle.Sliding(1, time.Minute)
	of := func(client string) *throttle.Limiter {
		return newLimiter(t, s.rdb, "sms", limit, throttle.Config{PerClient: true, Client: client})
	}
	all, a, b, again := s.limiter("sms", limit), of("a"), of("b"), of("a")
	s.want(s.try(a, 1), true, 0)
	s.want(s.try(b, 1), true, 0)
	s.want(s.try(again, 1), false, time.Minute)
	s.want(s.job(again, "j", 1), false, time.Minute)
	s.want(s.try(all, 1), true, 0)
	if a.Rule() != "sms" || a.Ledger(key) == b.Ledger(key) || a.Ledger(key) != again.Ledger(key) {
		t.Errorf("ledgers %q, %q, %q of rule %q, want one per client", a.Ledger(key), b.Ledger(key), again.Ledger(key), a.Rule())
	}
	keys := allKeys(t, s.raw)
	if !slices.Contains(keys, "hw:{"+key+"}:sms@a") {
		t.Errorf("keys = %q, want the client's name in them", keys)
	}
	for _, k := range keys {
		s.life(k) // of a process that never comes back nothing stays
	}
}

// Without a name a process has one of its own, the same for all its limiters.
func TestPerClientDrawsAName(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	limit, cfg := throttle.Sliding(1, time.Minute), throttle.Config{PerClient: true}
	a, b := newLimiter(t, s.rdb, "sms", limit, cfg), newLimiter(t, s.rdb, "sms", limit, cfg)
	_, name, ok := strings.Cut(a.Ledger(key), "@")
	if !ok || len(name) < 16 || a.Ledger(key) != b.Ledger(key) {
		t.Errorf("ledgers %q and %q, want one with a name drawn at random", a.Ledger(key), b.Ledger(key))
	}
}

func TestClientNameIsValidated(t *testing.T) {
	t.Parallel()
	for _, cfg := range []throttle.Config{
		{PerClient: true, Client: "a b"}, {PerClient: true, Client: "a@b"}, {PerClient: true, Client: "a{b"},
		{PerClient: true, Client: strings.Repeat("a", throttle.RuleMax+1)}, {Client: "a"},
		{OnUnavailable: -1}, {OnUnavailable: throttle.FailLocal + 1},
	} {
		if err := cfg.Validate(); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("Validate of %+v = %v, want %v", cfg, err, throttle.ErrInvalidConfig)
		}
	}
	for _, cfg := range []throttle.Config{{PerClient: true}, {PerClient: true, Client: "pod-1.eu_2"}} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("Validate of %+v = %v, want nil", cfg, err)
		}
	}
}
