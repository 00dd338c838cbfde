package luascripts

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/rediserr"
)

// Durability says how many replicas must have a grant before it is one.
type Durability struct {
	Replicas int           // 0: it need be on the master only
	Within   time.Duration // how long the master waits for them
}

// NotReplicatedError says that a grant was made, and that too few replicas have said in time
// that they have it. The call is like one whose answer was lost.
type NotReplicatedError struct {
	Want, Got int
	Reason    string // why the replicas could not be asked; empty when they were
}

func (e *NotReplicatedError) Error() string {
	if e.Reason != "" {
		return "whether replicas have the grant is not known: WAIT: " + e.Reason
	}
	return fmt.Sprintf("%d of %d replicas have the grant in time", e.Got, e.Want)
}

// Confirmation is what a WAIT behind a call asks, and what it was answered.
type Confirmation struct {
	Durability
	got int64
	err error
}

// Strictest is a confirmation that will do for two calls, of which the second asks for replicas.
func (c *Confirmation) Strictest(d Durability) *Confirmation {
	if c == nil {
		c = &Confirmation{}
	}
	c.Replicas, c.Within = max(c.Replicas, d.Replicas), max(c.Within, d.Within)
	return c
}

// Err is nil when so many replicas have what the call wrote, and else a [NotReplicatedError].
func (c *Confirmation) Err(want int) error {
	if c.err == nil && c.got >= int64(want) {
		return nil
	}
	e := &NotReplicatedError{Want: want, Got: int(c.got)}
	if c.err != nil {
		e.Reason = c.err.Error()
	}
	return e
}

// sendConfirmed sends a command and behind it a WAIT, on one connection: WAIT is about what that
// connection wrote. A pipeline of a Cluster's client would send the command again to the
// node that a slot has moved to, and not the WAIT. So the node of the key is asked itself.
func (c *Command) sendConfirmed(ctx context.Context, to redis.Scripter, by way) *redis.Cmd {
	pipe, err := c.pipelineOf(ctx, to)
	if err != nil {
		cmd := redis.NewCmd(ctx, c.args...)
		cmd.SetErr(err)
		return cmd
	}
	unconfirmed := *c
	unconfirmed.Confirm = nil
	cmd := unconfirmed.send(ctx, pipe, by)
	wait := redis.NewIntCmd(ctx, "wait", c.Confirm.Replicas, c.Confirm.Within.Milliseconds())
	_ = pipe.Process(ctx, wait)
	_, _ = rediserr.Exec(ctx, pipe) // each command carries its own error
	c.Confirm.got, c.Confirm.err = wait.Result()
	cluster, sharded := to.(*redis.ClusterClient)
	if err := cmd.Err(); sharded && err != nil && (!rediserr.Of(err).Answered() || strings.HasPrefix(err.Error(), "MOVED ")) {
		cluster.ReloadState(ctx) // whoever waits for the slot sends it again
	}
	return cmd
}

// pipelineOf is a pipeline to the server that has the keys of a command.
func (c *Command) pipelineOf(ctx context.Context, to redis.Scripter) (redis.Pipeliner, error) {
	switch to := to.(type) {
	case *redis.ClusterClient:
		node, err := to.MasterForKey(ctx, fmt.Sprint(c.args[firstKey]))
		if err != nil {
			return nil, fmt.Errorf("the node of a key: %w", err)
		}
		return node.Pipeline(), nil
	case redis.UniversalClient:
		return to.Pipeline(), nil
	}
	return nil, fmt.Errorf("luascripts: a %T can't ask for replicas", to)
}
