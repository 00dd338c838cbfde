// Package slotmap keeps a client's map of a Redis Cluster fresh: which server has which
// slots.
//
// go-redis reads the map again when a server answers that a slot has moved, and otherwise
// once a minute. A master that was killed answers nothing. A client would go on to call it
// for up to a minute, although the Cluster has elected another master within seconds.
//
// A master that stands still, or whose packets are lost, does not even refuse calls. Each call to it lasts until all
// time-outs of the client are over. So the map is also read while a call lasts, and from other servers.
package slotmap

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/bounded"
	"github.com/headwayq/headway/internal/rediserr"
)

// longCall is how long a call lasts until the map is read beside it, and then after each such time.
const longCall = time.Second

// Follow makes the client read the map again whenever a server can't be reached or does not
// answer, and each second while a call lasts. go-redis reads it at most five times a second, in the background, whatever the
// number of calls that fail. It holds for all commands of the client, also for those of
// asynq. Call it once for each client, before its first call: a server that it has met before may hold up the
// reading of the map for as long as the client's time-outs.
func Follow(c *redis.ClusterClient) {
	c.AddHook(hook{c})
	var within patience
	c.OnNewNode(func(node *redis.Client) { node.AddHook(slotsHook{&within}) })
}

type hook struct{ cluster *redis.ClusterClient }

// DialHook implements [redis.Hook]. The client of a Cluster dials nobody itself.
func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer h.watch(ctx)()
		err := next(ctx, cmd)
		h.heed(ctx, err)
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook]. A pipeline goes to several servers, and its
// error is that of the first command that failed.
func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer h.watch(ctx)()
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			h.heed(ctx, cmd.Err())
		}
		return err
	}
}

// watch reads the map again while a call lasts, until end is called.
func (h hook) watch(ctx context.Context) (end func()) {
	var ended atomic.Bool
	var tick func()
	tick = func() {
		if ended.Load() {
			return
		}
		h.cluster.ReloadState(ctx)
		time.AfterFunc(longCall, tick) // it ends with the call, a second later at most
	}
	timer := time.AfterFunc(longCall, tick)
	return func() {
		ended.Store(true)
		timer.Stop()
	}
}

// heed reads the map again when an error says that a server is gone.
func (h hook) heed(ctx context.Context, err error) {
	if err != nil && isGone(err) {
		h.cluster.ReloadState(ctx)
	}
}

// isGone says that a server could not be reached, or broke off. A caller that gave up says
// nothing about the server.
func isGone(err error) bool {
	return !rediserr.Of(err).Answered() && !errors.Is(err, context.Canceled)
}

// slotsHook has a server asked for the map for no longer than servers take to tell it. go-redis asks one server after the other,
// and would wait for its time-outs at one that stands still.
type slotsHook struct{ within *patience }

// DialHook implements [redis.Hook].
func (slotsHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (slotsHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook]. A server that is given up may answer its own copy of the command still.
func (s slotsHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		asked, ok := cmd.(*redis.ClusterSlotsCmd)
		within := s.within.get()
		if !ok || within == 0 {
			began := time.Now()
			err := next(ctx, cmd)
			if ok && err == nil {
				s.within.answered(time.Since(began))
			}
			return err
		}
		own := redis.NewClusterSlotsCmd(ctx, asked.Args()...)
		began := time.Now()
		waiting, end := context.WithTimeout(context.WithoutCancel(ctx), within)
		defer end()
		err, inTime := bounded.Call(waiting, func() error { return next(ctx, own) })
		if !inTime {
			s.within.missed(within)
			asked.SetErr(errSilent)
			return errSilent
		}
		if err == nil {
			s.within.answered(time.Since(began))
		}
		asked.SetVal(own.Val())
		asked.SetErr(err)
		return err
	}
}

// errSilent is the error of a server that has not told the map in time.
var errSilent = errors.New("slotmap: a server does not tell the map of slots")

// patience is how long a server has to tell the map, in nanoseconds. It is zero until one has told it: no bound. A far server takes
// several round trips when it has to be dialled first, so the bound is several times what the last answer took. When
// it was too short all the same it doubles, until a server answers.
type patience struct{ nanoseconds atomic.Int64 }

const (
	patienceMin   = time.Second
	patienceMax   = time.Minute
	patienceTimes = 8
)

func (p *patience) get() time.Duration { return time.Duration(p.nanoseconds.Load()) }

func (p *patience) answered(took time.Duration) {
	p.nanoseconds.Store(int64(max(patienceMin, patienceTimes*took)))
}

func (p *patience) missed(within time.Duration) {
	p.nanoseconds.Store(int64(min(2*within, patienceMax)))
}
