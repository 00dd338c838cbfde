package precheck

import (
	"slices"
	"strings"
)

// Role is who needs the rights.
type Role int

// The roles. All but the last have the rights of those before them.
const (
	Limiter  Role = iota // a program that only asks for permits
	Enqueuer             // one that enqueues and books tasks, too
	Feeder               // one that feeds or cancels batches, or ticks a schedule, too
	Worker               // a pool
	Operator             // somebody who changes something, with the command headway or the dashboard
	Viewer               // somebody who looks, with the command or the dashboard, and changes nothing; no program, so not for [Needs]
)

// right is a command that a role sends itself or through a script, as it is tried: with
// arguments that Redis accepts as far as it needs to, to say whether the user may call it.
// KEY stands for a trial key of Headway, TASK for one of asynq. The first command makes the
// trial keys strings, so that those of other types are refused and change nothing.
type right struct {
	from  Role
	trial string
}

var rights = []right{
	{Limiter, "set KEY 1 px 10000"},
	{Limiter, "get KEY"},
	{Limiter, "exists KEY"},
	{Limiter, "strlen KEY"},
	{Limiter, "getrange KEY 0 0"},
	{Limiter, "setrange KEY 0 1"},
	{Limiter, "pexpire KEY 10000"},
	{Limiter, "pttl KEY"},
	{Limiter, "zadd KEY 1 a"},
	{Limiter, "zrem KEY a"},
	{Limiter, "zscore KEY a"},
	{Limiter, "zmscore KEY a"},
	{Limiter, "zincrby KEY 1 a"},
	{Limiter, "zcard KEY"},
	{Limiter, "zcount KEY 0 1"},
	{Limiter, "zrange KEY 0 0"},
	{Limiter, "zrangebyscore KEY 0 1"},
	{Limiter, "zremrangebyscore KEY 0 1"},
	{Limiter, "zremrangebyrank KEY 0 0"},
	{Limiter, "hset KEY a 1"},
	{Limiter, "hget KEY a"},
	{Limiter, "hmget KEY a"},
	{Limiter, "hgetall KEY"},
	{Limiter, "hdel KEY a"},
	{Limiter, "hincrby KEY a 1"},
	{Limiter, "publish CHANNEL 1"},
	{Limiter, "time"},
	{Enqueuer, "set TASK 1 px 10000"},
	{Enqueuer, "get TASK"},
	{Enqueuer, "exists TASK"},
	{Enqueuer, "hset TASK a 1"},
	{Enqueuer, "hget TASK a"},
	{Enqueuer, "hmget TASK a"},
	{Enqueuer, "hexists TASK a"},
	{Enqueuer, "lpush TASK a"},
	{Enqueuer, "rpush TASK a"},
	{Enqueuer, "zadd TASK 1 a"},
	{Enqueuer, "sadd TASK a"},
	{Feeder, "lpush KEY a"},
	{Feeder, "lrange KEY 0 0"},
	{Feeder, "lset KEY 0 a"},
	{Feeder, "ltrim KEY 0 0"},
	{Feeder, "lrem TASK 0 a"},
	{Feeder, "llen TASK"},
	{Feeder, "lpos TASK a"},
	{Feeder, "zrem TASK a"},
	{Feeder, "sismember TASK a"},
	{Worker, "lrange TASK 0 0"},
	{Worker, "lset TASK -1 a"},
	{Worker, "rpop TASK"},
	{Worker, "rpoplpush TASK TASK"},
	{Worker, "srem TASK a"},
	{Worker, "smembers TASK"},
	{Worker, "zscore TASK a"},
	{Worker, "zcard TASK"},
	{Worker, "zrange TASK 0 0"},
	{Worker, "zrangebyscore TASK 0 1"},
	{Worker, "zrevrange TASK 0 0"},
	{Worker, "zremrangebyscore TASK 0 1"},
	{Worker, "zremrangebyrank TASK 0 0"},
	{Worker, "incr TASK"},
	{Worker, "incrby TASK 1"},
	{Worker, "expire TASK 10"},
	{Worker, "expireat TASK 9999999999"},
	{Worker, "setex TASK 10 1"},
	{Worker, "ping"},
	{Limiter, "unlink KEY"}, // the last ones take the trial keys away
	{Enqueuer, "del TASK"},
}

// reads are the commands of a viewer.
var reads = strings.Fields("get exists strlen getrange pttl zscore zmscore zcard zcount zrange zrevrange zrangebyscore hget hmget hgetall hvals " +
	"llen lrange smembers sismember time publish scan")

// acts are the commands of an operator besides those of a viewer and a worker.
var acts = strings.Fields("multi exec")

// Commands are the commands that a role needs on keys, in the order in which they are
// tried, without those that run scripts.
func Commands(role Role) []string {
	if role == Viewer {
		return reads
	}
	var out []string
	add := func(names ...string) {
		for _, name := range names {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	for _, r := range rights {
		if name, _, _ := strings.Cut(r.trial, " "); r.from <= role {
			add(name)
		}
	}
	if role == Operator {
		add(reads...)
		add(acts...)
	}
	return out
}

// ACL are the rules of a user of a role with the least rights, for ACL SETUSER, on the
// keys of a prefix.
func ACL(role Role, prefix string) []string {
	out := []string{"~" + prefix + ":*", "&" + prefix + ":*"}
	switch role {
	case Limiter:
	case Viewer: // asynq's tasks can be cancelled by its channels
		out = append(out, "~asynq:*")
	default:
		out = append(out, "~asynq:*", "&asynq:*")
	}
	for _, name := range Commands(role) {
		out = append(out, "+"+name)
	}
	// go-redis greets with HELLO. INFO is read at start, and by a pool every 3 s.
	out = append(out, "+subscribe", "+unsubscribe", "+hello", "+info")
	if role != Viewer { // who loads a library can replace one that others call
		out = append(out, "+fcall", "+function|load")
	}
	return append(out, "+evalsha", "+eval", "+script|load")
}

// args are the arguments of the trial.
func (r right) args(key, task, channel string) []any {
	var out []any
	for word := range strings.FieldsSeq(r.trial) {
		switch word {
		case "KEY":
			word = key
		case "TASK":
			word = task
		case "CHANNEL":
			word = channel
		}
		out = append(out, word)
	}
	return out
}

// kind is the word of the trial that stands for what the command is on, or "".
func (r right) kind() string {
	for _, word := range []string{"TASK", "KEY", "CHANNEL", "ASYNQS"} {
		if strings.Contains(r.trial, " "+word) {
			return word
		}
	}
	return ""
}

// String is the command as it is granted, on whose keys.
func (r right) String() string {
	name, _, _ := strings.Cut(r.trial, " ")
	switch r.kind() {
	case "TASK":
		return "+" + name + " on asynq's keys"
	case "KEY":
		return "+" + name + " on Headway's keys"
	case "CHANNEL":
		return "+" + name + " on Headway's channels"
	case "ASYNQS":
		return "+" + name + " on asynq's channels"
	}
	return "+" + name
}
