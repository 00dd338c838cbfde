package bounded

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A call that takes too long is not waited for, and what becomes of it later does no harm.
func TestVirtualCallIsBounded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		takes, want time.Duration
		ok          bool
		panics      bool
	}{
		"in time":               {time.Second, time.Second, true, false},
		"at the bound":          {2 * time.Second, 2 * time.Second, true, false},
		"too late":              {time.Hour, 2 * time.Second, false, false},
		"panics in time":        {time.Second, time.Second, true, true},
		"panics when it's late": {time.Hour, 2 * time.Second, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(2*time.Second+time.Nanosecond))
				defer cancel()
				began := time.Now()
				var got int
				var ok bool
				panicked := func() (p any) {
					defer func() { p = recover() }()
					got, ok = Call(ctx, func() int {
						time.Sleep(tc.takes)
						if tc.panics {
							panic("a hook")
						}
						return 7
					})
					return nil
				}()
				if took := time.Since(began).Round(time.Millisecond); took != tc.want {
					t.Errorf("it took %v, want %v", took, tc.want)
				}
				if (panicked != nil) != (tc.panics && tc.ok) {
					t.Errorf("it panicked with %v", panicked)
				}
				if want := tc.ok && !tc.panics; ok != want || (got == 7) != want {
					t.Errorf("Call = %d, %v, want 7, %v", got, ok, want)
				}
				time.Sleep(2 * time.Hour) // for the call to end
			})
		})
	}
}
