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

// confirmation is what a WAIT behind a call asks, and what it was answered.
type confirmation struct {
	Durability
	got int64
	err error
}

// strictest is a confirmation that will do for two calls, of which the second asks for replicas.
func (c *confirmation) strictest(d Durability) *confirmation {
	if c == nil {
		c = &confirmation{}
	}
	c.Replicas, c.Within = max(c.Replicas, d.Replicas), max(c.Within, d.Within)
	return c
}

// sendConfirmed sends a command and behind it a WAIT, on one connection: WAIT is about what that
// connection wrote. A pipeline of a Cluster's client would send the command again to the
// node that a slot has moved to, and not the WAIT. So the node of the key is asked itself.
func (c *command) sendConfirmed(ctx context.Context, to redis.Scripter, by way) *redis.Cmd {
	pipe, err := c.pipelineOf(ctx, to)
	if err != nil {
		cmd := redis.NewCmd(ctx, c.args...)
		cmd.SetErr(err)
		return cmd
	}
	unconfirmed := *c
	unconfirmed.confirm = nil
	cmd := unconfirmed.send(ctx, pipe, by)
	wait := redis.NewIntCmd(ctx, "wait", c.confirm.Replicas, c.confirm.Within.Milliseconds())
	_ = pipe.Process(ctx, wait)
	_, _ = rediserr.Exec(ctx, pipe) // each command carries its own error
	c.confirm.got, c.confirm.err = wait.Result()
	cluster, sharded := to.(*redis.ClusterClient)
	if err := cmd.Err(); sharded && err != nil && (!rediserr.Of(err).Answered() || strings.HasPrefix(err.Error(), "MOVED ")) {
		cluster.ReloadState(ctx) // whoever waits for the slot sends it again
	}
	return cmd
}

// pipelineOf is a pipeline to the server that has the keys of a command.
func (c *command) pipelineOf(ctx context.Context, to redis.Scripter) (redis.Pipeliner, error) {
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

// heed fails a grant that too few replicas have. The call asked for some.
func (c *Call) heed(said *confirmation) {
	if c.Err != nil || c.Status != Granted || said.err == nil && said.got >= int64(c.Durable.Replicas) {
		return
	}
	e := &NotReplicatedError{Want: c.Durable.Replicas, Got: int(said.got)}
	if said.err != nil {
		e.Reason = said.err.Error()
	}
	c.Err = e
}
