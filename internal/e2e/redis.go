package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// RedisOptions reads host:port or a redis:// URL. The error does not quote it: it may
// hold a password.
func RedisOptions(addr string) (*redis.Options, error) {
	if strings.Contains(addr, "://") {
		opts, err := redis.ParseURL(addr)
		if err != nil {
			return nil, errors.New("want a URL like redis://user:password@host:6379/0")
		}
		return opts, nil
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return nil, errors.New("want host:port, or a URL like redis://host:6379/0")
	}
	return &redis.Options{Addr: addr}, nil
}

// OpenRedis returns a client for the Redis that the options lead to, or without options
// one for an embedded Redis, and what closes both.
func OpenRedis(opts *redis.Options) (*redis.Client, func(), error) {
	stop := func() {}
	if opts == nil {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // else nothing in it ever expires
		if err := m.Start(); err != nil {
			return nil, nil, fmt.Errorf("redis: %w", err)
		}
		opts, stop = &redis.Options{Addr: m.Addr()}, m.Close
	}
	rdb := redis.NewClient(opts)
	return rdb, func() {
		_ = rdb.Close()
		stop()
	}, nil
}

const (
	secretLen = 32
	secretTTL = 30 * 24 * time.Hour // renewed by each process that starts
)

// LoadSecret returns the secret that is in Redis under a key, and puts one there first if
// there is none. With another secret the keys get other names, and all counting begins anew.
// So the secret lives until 30 days and the longest window after the last process started.
func LoadSecret(ctx context.Context, rdb redis.UniversalClient, key string, window time.Duration) ([]byte, error) {
	fresh := make([]byte, secretLen)
	rand.Read(fresh) // never fails since Go 1.24
	ttl := secretTTL + window
	pipe := rdb.TxPipeline()
	pipe.SetNX(ctx, key, fresh, ttl)
	pipe.PExpire(ctx, key, ttl)
	got := pipe.Get(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	secret, err := got.Bytes()
	if err != nil || len(secret) != secretLen {
		return nil, fmt.Errorf("redis: %s is not ours: %d bytes, want %d", key, len(secret), secretLen)
	}
	return secret, nil
}

// Silence is a logger for go-redis that drops what it writes to stderr by itself, which
// would break a live line. Errors that matter come back from the calls as well.
type Silence struct{}

// Printf drops its arguments.
func (Silence) Printf(context.Context, string, ...any) {}

// DeleteQueue deletes a queue of asynq with its tasks, and what asynq has counted for it.
// A queue that does not exist is fine.
func DeleteQueue(rdb *redis.Client, queue string) error {
	err := asynq.NewInspectorFromRedisClient(rdb).DeleteQueue(queue, true)
	if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	keys := rdb.Scan(ctx, 0, "asynq:{"+queue+"}:*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := rdb.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// backlogEvery is how often the queue is looked at.
const backlogEvery = 250 * time.Millisecond

// Backlog knows how many messages are left in the queue, whoever enqueued them. It is safe
// for concurrent use.
type Backlog struct {
	inspector *asynq.Inspector
	queue     string
	await     bool        // a queue that does not exist is one that is still to come
	complete  atomic.Bool // this process enqueues nothing more
	left      atomic.Int64
}

// NewBacklog looks at a queue. With await one that does not exist is still to come.
func NewBacklog(rdb redis.UniversalClient, queue string, await bool) *Backlog {
	return &Backlog{inspector: asynq.NewInspectorFromRedisClient(rdb), queue: queue, await: await}
}

// QueueState is one look at the queue.
type QueueState struct {
	Exists   bool
	Left     int // pending, active, scheduled or to be retried; deferred ones are among them
	Finished int // sends since the queue exists, failed ones included
}

// Look reads the state of the queue at one instant.
func (b *Backlog) Look() (QueueState, error) {
	// asynq has no error to be told by when a queue does not exist.
	queues, err := b.inspector.Queues()
	if err != nil || !slices.Contains(queues, b.queue) {
		return QueueState{}, err
	}
	q, err := b.inspector.GetQueueInfo(b.queue)
	if err != nil {
		return QueueState{}, err
	}
	s := QueueState{Exists: true, Left: q.Pending + q.Active + q.Scheduled + q.Retry, Finished: q.ProcessedTotal}
	b.left.Store(int64(s.Left))
	return s, nil
}

// Left is how many were left at the last look.
func (b *Backlog) Left() int { return int(b.left.Load()) }

// Complete says that this process enqueues nothing more.
func (b *Backlog) Complete() { b.complete.Store(true) }

// Wait looks at the queue until ctx ends, or until drain is true and nothing is
// left: it saw so twice in a row, and nothing was finished in between. One look
// is not enough: where workers keep up with a process that still enqueues, the queue is
// empty now and then.
func (b *Backlog) Wait(ctx context.Context, drain bool) {
	ticker := time.NewTicker(backlogEvery)
	defer ticker.Stop()
	empty, finished := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		complete := b.complete.Load() // before the look: what is enqueued in between counts
		s, err := b.Look()
		if err != nil || !complete || s.Left > 0 || (b.await && !s.Exists) {
			empty = false // Redis may be away: that is no end
			continue
		}
		if drain && empty && s.Finished == finished {
			return
		}
		empty, finished = true, s.Finished
	}
}
