package throttle_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
		err := tt.cfg.Validate()
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
		if err := throttle.ValidateRule(name); err != nil {
			t.Errorf("ValidateRule(%q) = %v, want nil", name, err)
		}
	}
	// Keys of a queue are "due" to "batches".
	for _, name := range []string{"", "a b", "a:b", "a{", "ä", "a\n", "due", "places", "replan", "planned", "tick", "batch", "batches", strings.Repeat("a", throttle.RuleMax+1)} {
		if err := throttle.ValidateRule(name); !errors.Is(err, throttle.ErrInvalidConfig) {
			t.Errorf("ValidateRule(%q) = %v, want %v", name, err, throttle.ErrInvalidConfig)
		}
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
