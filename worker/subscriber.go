package worker

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/rediserr"
	"github.com/headwayq/headway/internal/tail"
)

// silenceMax is how long a subscription may be silent before it is asked whether it
// still lives, and how long that answer may take: a connection that broke without a
// word, as when a host dies, would be waited for until somebody restarts the pool.
const silenceMax = 15 * time.Second

// subscriber listens to clients that book tasks for our queues: one that is due
// before its waker looks again must not wait for that look. What is published while the
// connection is broken is found by that look. It also hears of those who look at what the
// pool decides.
type subscriber struct {
	*core
	wakers map[string]*waker
	teller *tail.Teller
}

func (s *subscriber) run(ctx context.Context) {
	wakers := make(map[string]*waker, len(s.wakers))
	channels := []string{s.teller.Channel()}
	for name, w := range s.wakers {
		channel := s.keys(name).Channel()
		wakers[channel] = w
		channels = append(channels, channel)
	}
	for ctx.Err() == nil {
		sub := s.rdb.Subscribe(ctx, channels...)
		stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // a read in progress would outlive ctx
		s.receiveUntilSilent(ctx, sub, wakers)
		stop()
		_ = sub.Close()
	}
}

// receiveUntilSilent passes notices on until ctx ends or the connection is dead.
func (s *subscriber) receiveUntilSilent(ctx context.Context, sub *redis.PubSub, wakers map[string]*waker) {
	asked := false
	for {
		m, err := sub.ReceiveTimeout(ctx, silenceMax)
		if ctx.Err() != nil {
			return
		}
		silent := rediserr.Of(err) == rediserr.TimedOut
		switch {
		case silent && asked:
			return
		case silent:
			asked = true
			err = sub.Ping(ctx)
		default:
			asked = false
		}
		if err != nil { // the next read connects anew; it must not spin
			select {
			case <-ctx.Done():
			case <-time.After(lookMost):
			}
			continue
		}
		notice, ok := m.(*redis.Message)
		if !ok {
			continue
		}
		if notice.Channel == s.teller.Channel() {
			s.teller.Hear(notice.Payload)
			continue
		}
		if d, err := queuescripts.ParseNotice(notice.Payload); err == nil && wakers[notice.Channel] != nil {
			wakers[notice.Channel].expect(d)
		}
	}
}
