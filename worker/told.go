package worker

import (
	"context"
	"time"

	"github.com/headwayq/headway/internal/luascripts"
)

// hearBookings listens to clients that book tasks for our queues: one that is due
// before all others must not wait for the next look. What is told while the
// connection is broken is found by that look.
func (a *Adapter) hearBookings(ctx context.Context) {
	wakers := make(map[string]*waker, len(a.wakers))
	var channels []string
	for name, w := range a.wakers {
		channel := a.keys(name).Channel()
		wakers[channel] = w
		channels = append(channels, channel)
	}
	sub := a.rdb.Subscribe(ctx, channels...)
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // a read in progress would outlive ctx
	defer func() {
		stop()
		_ = sub.Close()
	}()
	for {
		m, err := sub.ReceiveMessage(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // the next read connects anew; it must not spin
			select {
			case <-ctx.Done():
			case <-time.After(lookMost):
			}
			continue
		}
		if d, err := luascripts.Told(m.Payload); err == nil && wakers[m.Channel] != nil {
			wakers[m.Channel].expect(d)
		}
	}
}
