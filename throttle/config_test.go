package throttle_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/throttle"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef")
	for name, tt := range map[string]struct {
		cfg throttle.Config
		ok  bool
	}{
		"zero":          {throttle.Config{}, true},
		"all set":       {throttle.Config{Prefix: "my-app", Secret: secret, InlineWait: time.Second}, true},
		"no inline":     {throttle.Config{InlineWait: throttle.InlineWaitNone}, true},
		"brace":         {throttle.Config{Prefix: "a{b"}, false},
		"colon":         {throttle.Config{Prefix: "a:b"}, false},
		"space":         {throttle.Config{Prefix: "a b"}, false},
		"long prefix":   {throttle.Config{Prefix: strings.Repeat("a", 33)}, false},
		"asynq's":       {throttle.Config{Prefix: "asynq"}, false},
		"short secret":  {throttle.Config{Secret: secret[:throttle.SecretMin-1]}, false},
		"long inline":   {throttle.Config{InlineWait: time.Second + 1}, false},
		"negative wait": {throttle.Config{InlineWait: -2}, false},
	} {
		err := throttle.ForWorkers.ValidateConfig(tt.cfg)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("%s: Validate() = %v, want ok = %v", name, err, tt.ok)
		}
	}
}

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	cfg := throttle.Config{Prefix: "{", Secret: []byte("short"), InlineWait: time.Hour}
	_, err := throttle.New(rdb, "a rule", throttle.Sliding(0, time.Hour*1e6), cfg)
	if !errors.Is(err, throttle.ErrInvalidConfig) || !errors.Is(err, throttle.ErrInvalidLimit) {
		t.Errorf("New = %v, want both %v and %v", err, throttle.ErrInvalidConfig, throttle.ErrInvalidLimit)
	}
	for _, want := range []string{`"a rule"`, "0 permits", "window", "Prefix", "Secret", "InlineWait"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want %q in it", err, want)
		}
	}
	if strings.Contains(err.Error(), "short") {
		t.Errorf("New = %v, which shows the secret", err)
	}
}

func TestValidateRule(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sms", "A-z_0.9", strings.Repeat("a", throttle.RuleMax)} {
		if err := throttle.ForWorkers.ValidateRule(name); err != nil {
			t.Errorf("ValidateRule(%q) = %v, want nil", name, err)
		}
	}
	// Keys of a queue are "due" to "batches".
	for _, name := range []string{"", "a b", "a:b", "a{", "ä", "a\n", "due", "places", "replan", "planned", "tick", "batch", "batches", strings.Repeat("a", throttle.RuleMax+1)} {
		if err := throttle.ForWorkers.ValidateRule(name); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("ValidateRule(%q) = %v, want %v", name, err, throttle.ErrInvalidConfig)
		}
	}
}

// A rule with the name of a queue's own key would share that key with it, on a user's key that
// is called like the queue.
func TestNamesOfAQueuesKeysAreReserved(t *testing.T) {
	t.Parallel()
	keys := reflect.ValueOf(queuescripts.NewQueueKeys("hw", "q"))
	found := 0
	for _, key := range keys.Fields() {
		own, ok := strings.CutPrefix(key.String(), "hw:{q}:")
		if !ok {
			continue
		}
		found++
		name, _, _ := strings.Cut(own, ":")
		if err := throttle.ForWorkers.ValidateRule(name); err == nil {
			t.Errorf("a rule may be called %q, and a queue has the key hw:{q}:%s", name, own)
		}
	}
	if found < 8 {
		t.Errorf("only %d keys of a queue were found", found)
	}
}

func TestNewWithoutAClientPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if got, _ := recover().(string); !strings.HasPrefix(got, "throttle: ") {
			t.Errorf("New(nil) panics with %q, want the package's prefix", got)
		}
	}()
	_, _ = throttle.New(nil, "sms", throttle.Sliding(1, time.Minute), throttle.Config{})
}

// A secret that changes after New changes nothing.
func TestNewCopiesTheSecret(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	secret := []byte("0123456789abcdef")
	l := newLimiter(t, rdb, "sms", throttle.Sliding(1, time.Minute), throttle.Config{Secret: secret})
	before := l.ID(key)
	clear(secret)
	if after := l.ID(key); after != before {
		t.Errorf("ID = %q after the caller's secret was cleared, want %q", after, before)
	}
}

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
	keys := redistest.Keys(t, s.raw, "hw:*")
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
		if err := throttle.ForWorkers.ValidateConfig(cfg); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("Validate of %+v = %v, want %v", cfg, err, throttle.ErrInvalidConfig)
		}
	}
	for _, cfg := range []throttle.Config{{PerClient: true}, {PerClient: true, Client: "pod-1.eu_2"}} {
		if err := throttle.ForWorkers.ValidateConfig(cfg); err != nil {
			t.Errorf("Validate of %+v = %v, want nil", cfg, err)
		}
	}
}
