package throttle

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Hold keeps the leases of a grant until release is called: it renews them in the
// background, and cancels the context that it returns, with the cause
// [ErrLeaseLost], when one is lost: it ended before it was renewed, or Redis did
// not answer for so long that it may have. Until release returns nobody else gets
// the place, unless it was lost. release ends the leases at once and tells who
// comes next; it is idempotent, and works after ctx has ended. Of a grant without
// leases it does nothing.
func (p *Policy) Hold(ctx context.Context, d Decision) (held context.Context, release func(context.Context) ([]Promotion, error)) {
	lease := p.LeaseFor(d)
	if lease == 0 {
		return ctx, func(context.Context) ([]Promotion, error) { return nil, nil }
	}
	held, lose := context.WithCancelCause(ctx)
	// whoever gave the work up ends its context, and not the leases of a handler
	// that is still at it
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper{p: p, d: d, trust: lease - lease/10, lost: func() { lose(ErrLeaseLost) }}
	k.expiry = time.AfterFunc(time.Until(d.surely.Add(k.trust)), k.lost)
	var wg sync.WaitGroup
	wg.Go(func() { k.renew(renewing, lease/3) })
	var once sync.Once
	return held, func(ctx context.Context) (turns []Promotion, err error) {
		once.Do(func() {
			k.expiry.Stop()
			stop()
			wg.Wait()
			turns, err = p.Release(ctx, d)
			lose(context.Canceled)
		})
		return turns, err
	}
}

// keeper renews the leases of one grant. By the local clock they are trusted for
// less long than Redis keeps them: a call that hangs must not keep the holder from
// hearing that they may have ended.
type keeper struct {
	p      *Policy
	d      Decision
	trust  time.Duration
	expiry *time.Timer
	lost   func()
}

func (k *keeper) renew(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		began := time.Now()
		asked, cancel := context.WithTimeout(ctx, every)
		err := k.p.Renew(asked, []Decision{k.d})[0]
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrLeaseLost):
			k.lost()
			return
		case err == nil && !k.expiry.Reset(time.Until(began.Add(k.trust))):
			return // it has fired
		}
	}
}
