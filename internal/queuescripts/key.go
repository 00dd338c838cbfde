package queuescripts

// QueueKeys names the keys of one asynq queue, asynq's own and our due index. They
// share asynq's hash tag.
type QueueKeys struct {
	Due                   string // the tasks that wait, by their instants
	Batches, BatchesEnded string // batches by when they started, and until when records are kept
	Batch                 string // prefix of the keys of each
	Tick, Ticks           string // prefixes of the records of a schedule's entries, and of their last ticks
	claim, planned, sweep string
	sent                  string // prefix of the answers of enqueueing calls
	fetched               string // prefix of what each pool has fetched last

	// asynq's own.
	Pending, Scheduled, Retry string
	Lease                     string // the leases on the tasks that run, by the second in which each ends
	active, archived, paused  string
	TaskPrefix                string // of the task hashes, see [QueueKeys.Task]
}

// NewQueueKeys builds the keys of a queue.
func NewQueueKeys(prefix, queue string) QueueKeys {
	own := "asynq:{" + queue + "}:"
	return QueueKeys{
		Due:     prefix + ":{" + queue + "}:due",
		sent:    prefix + ":{" + queue + "}:sent:",
		fetched: prefix + ":{" + queue + "}:fetched:",
		Tick:    prefix + ":{" + queue + "}:tick:", Ticks: prefix + ":{" + queue + "}:ticks:",
		Batches: prefix + ":{" + queue + "}:batches", BatchesEnded: prefix + ":{" + queue + "}:batches:ended",
		Batch: prefix + ":{" + queue + "}:batch:",
		claim: prefix + ":{" + queue + "}:replan", planned: prefix + ":{" + queue + "}:planned", sweep: prefix + ":{" + queue + "}:sweep",
		active: own + "active", Lease: own + "lease", Retry: own + "retry", Pending: own + "pending", Scheduled: own + "scheduled",
		archived: own + "archived", paused: own + "paused",
		TaskPrefix: own + "t:",
	}
}

// Task is asynq's hash of a task.
func (k QueueKeys) Task(id string) string { return k.TaskPrefix + id }

// rulesKey is the set in which pools say their numbers.
func rulesKey(prefix string) string { return prefix + ":rules" }

// queuesKey is asynq's set of all queues.
const queuesKey = "asynq:queues"
