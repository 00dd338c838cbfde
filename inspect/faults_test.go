package inspect

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
)

// What can't be asked is refused, by an error that says what and shows no key.
func TestInspectorRefuses(t *testing.T) {
	t.Parallel()
	d := newRig(t, perMinute())
	i := d.inspector(throttle.Config{}, perMinute())
	alone := d.inspector(throttle.Config{PerClient: true}, perMinute())
	line := func(i *Inspector, rule, key string, from Cursor, most int) error {
		_, err := i.LinePage(t.Context(), rule, key, from, most)
		return err
	}
	deferred := func(from Cursor, most int) error {
		_, err := i.DeferredPage(t.Context(), "default", from, most)
		return err
	}
	const phone = "+15550100"
	for name, tt := range map[string]struct{ got, want error }{
		"no such rule":      {line(i, "phones", phone, "", 1), queue.ErrInvalidPolicy},
		"no key":            {line(i, "phone", "", "", 1), throttle.ErrInvalidKey},
		"a long key":        {line(i, "phone", strings.Repeat(phone, 200), "", 1), throttle.ErrInvalidKey},
		"a line of its own": {line(alone, "phone", phone, "", 1), throttle.ErrInvalidConfig},
		"no places":         {line(i, "phone", phone, "", 0), ErrInvalidCursor},
		"too many places":   {deferred("", pageMax+1), ErrInvalidCursor},
		"no number":         {line(i, "phone", phone, "x.1", 1), ErrInvalidCursor},
		"no skip":           {deferred("1", 1), ErrInvalidCursor},
		"a skip below one":  {deferred("1.0", 1), ErrInvalidCursor},
		"another spelling":  {deferred("+1.1", 1), ErrInvalidCursor},
		"more behind it":    {deferred("1.1.1", 1), ErrInvalidCursor},
	} {
		if !errors.Is(tt.got, tt.want) || tt.got != nil && strings.Contains(tt.got.Error(), phone) {
			t.Errorf("%s: %v, want %v", name, tt.got, tt.want)
		}
	}
	if _, err := New(d.timed, Config{Policies: []queue.Policy{{}}, Throttle: throttle.Config{Secret: []byte("short")}}); !errors.Is(err, queue.ErrInvalidPolicy) {
		t.Errorf("NewInspector with a faulty policy = %v, want %v", err, queue.ErrInvalidPolicy)
	}
}

// FuzzCursor: what is read is written back the same, and all else is refused.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"", "1.1", "-4503599627366400.1", "1772352000000000.12", "1", ".", "1.", "01.1", "9223372036854775808.1"} {
		f.Add(seed, 1)
	}
	f.Fuzz(func(t *testing.T, text string, most int) {
		number, skip, err := Cursor(text).read(most)
		switch {
		case err == nil && (most < 1 || most > pageMax):
			t.Errorf("a page of %d is read", most)
		case err == nil && text != "" && (skip < 1 || cursorOf(number, skip) != Cursor(text)):
			t.Errorf("%q is read as %d, %d", text, number, skip)
		case err != nil && (!errors.Is(err, ErrInvalidCursor) || number != 0 || skip != 0):
			t.Errorf("%q: %d, %d, %v", text, number, skip, err)
		}
	})
}

// While Redis is away that is what every answer says, and a list ends with it.
func TestInspectorWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	i, err := New(rdb, Config{Policies: []queue.Policy{perMinute()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Explain(t.Context(), "default", "a"); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("Explain = %v, want %v", err, throttle.ErrUnavailable)
	}
	for name, list := range map[string]func(func(WaitingTask, error) bool){
		"Line": i.Line(t.Context(), "phone", "+1"), "Deferred": i.Deferred(t.Context(), "default"),
	} {
		n := 0
		for _, err := range list {
			if n++; !errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("%s = %v, want %v", name, err, throttle.ErrUnavailable)
			}
		}
		if n != 1 {
			t.Errorf("%s answers %d times, want once", name, n)
		}
	}
}
