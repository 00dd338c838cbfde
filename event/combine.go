package event

import (
	"context"
	"sync"
	"sync/atomic"
)

// All returns an observer that calls f with every event.
func All(f func(context.Context, Event)) Observer {
	return Observer{
		Granted: each[Granted](f), Refused: each[Refused](f), Deferred: each[Deferred](f), Moved: each[Moved](f),
		Promoted: each[Promoted](f), Woken: each[Woken](f), Postponed: each[Postponed](f), LeaseLost: each[LeaseLost](f),
		Adjusted: each[Adjusted](f), Unlimited: each[Unlimited](f), LimitChanged: each[LimitChanged](f), KeyClosed: each[KeyClosed](f),
		RedisAway: each[RedisAway](f), RedisBack: each[RedisBack](f), RedisReplaced: each[RedisReplaced](f), ClockJumped: each[ClockJumped](f),
	}
}

func each[E Event](f func(context.Context, Event)) func(context.Context, E) {
	return func(ctx context.Context, e E) { f(ctx, e) }
}

// Join returns an observer that calls all of these, in order.
func Join(observers ...Observer) Observer {
	var all Observer
	for _, o := range observers {
		all = Observer{
			Granted: both(all.Granted, o.Granted), Refused: both(all.Refused, o.Refused), Deferred: both(all.Deferred, o.Deferred),
			Moved: both(all.Moved, o.Moved), Promoted: both(all.Promoted, o.Promoted), Woken: both(all.Woken, o.Woken),
			Postponed: both(all.Postponed, o.Postponed), LeaseLost: both(all.LeaseLost, o.LeaseLost), Adjusted: both(all.Adjusted, o.Adjusted),
			Unlimited: both(all.Unlimited, o.Unlimited), LimitChanged: both(all.LimitChanged, o.LimitChanged), KeyClosed: both(all.KeyClosed, o.KeyClosed),
			RedisAway: both(all.RedisAway, o.RedisAway), RedisBack: both(all.RedisBack, o.RedisBack),
			RedisReplaced: both(all.RedisReplaced, o.RedisReplaced), ClockJumped: both(all.ClockJumped, o.ClockJumped),
		}
	}
	return all
}

func both[E Event](f, g func(context.Context, E)) func(context.Context, E) {
	switch {
	case f == nil:
		return g
	case g == nil:
		return f
	}
	return func(ctx context.Context, e E) {
		f(ctx, e)
		g(ctx, e)
	}
}

// Buffer calls an observer in a goroutine of its own, one event after the other, so that
// it may take its time: a worker never waits for it. What finds no room is dropped and
// counted. It is safe for concurrent use.
type Buffer struct {
	room    chan func()
	end     chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	dropped atomic.Uint64
	to      Observer
}

// NewBuffer returns a buffer in front of an observer. It holds room events, at least 1.
func NewBuffer(room int, to Observer) *Buffer {
	b := &Buffer{room: make(chan func(), max(1, room)), end: make(chan struct{}), to: to}
	b.wg.Go(b.run)
	return b
}

// Observer is what to configure in place of the observer behind the buffer. The context of
// an event keeps its values, and does not end.
func (b *Buffer) Observer() Observer {
	return Observer{
		Granted: later(b, b.to.Granted), Refused: later(b, b.to.Refused), Deferred: later(b, b.to.Deferred), Moved: later(b, b.to.Moved),
		Promoted: later(b, b.to.Promoted), Woken: later(b, b.to.Woken), Postponed: later(b, b.to.Postponed), LeaseLost: later(b, b.to.LeaseLost),
		Adjusted: later(b, b.to.Adjusted), Unlimited: later(b, b.to.Unlimited), LimitChanged: later(b, b.to.LimitChanged), KeyClosed: later(b, b.to.KeyClosed),
		RedisAway: later(b, b.to.RedisAway), RedisBack: later(b, b.to.RedisBack),
		RedisReplaced: later(b, b.to.RedisReplaced), ClockJumped: later(b, b.to.ClockJumped),
	}
}

func later[E Event](b *Buffer, f func(context.Context, E)) func(context.Context, E) {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, e E) {
		select {
		case <-b.end:
			b.dropped.Add(1)
			return
		default:
		}
		select {
		case b.room <- func() { f(context.WithoutCancel(ctx), e) }:
		default:
			b.dropped.Add(1)
		}
	}
}

func (b *Buffer) run() {
	for {
		select {
		case f := <-b.room:
			f()
		case <-b.end:
			for { // what had come before the end
				select {
				case f := <-b.room:
					f()
				default:
					return
				}
			}
		}
	}
}

// Dropped is how many events found no room.
func (b *Buffer) Dropped() uint64 { return b.dropped.Load() }

// Close passes on what is in the buffer and returns when the observer has it. Close the
// pools before. Idempotent.
func (b *Buffer) Close() {
	b.once.Do(func() { close(b.end) })
	b.wg.Wait()
}
