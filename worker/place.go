package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/headwayq/headway/throttle"
)

// jobPrefix marks the jobs in a line that are asynq tasks.
const jobPrefix = "task:"

// jobID names a task in a line. It can be read back, but for ids that are too
// long for a line: those are hashed, and never hear that their turn came early.
func jobID(queue, id string) string {
	job := jobPrefix + url.PathEscape(queue) + ":" + id
	if len(job) <= throttle.JobMax {
		return job
	}
	sum := sha256.Sum256([]byte(job))
	return "hashed:" + hex.EncodeToString(sum[:])
}

// taskOf reads a job id back.
func taskOf(job string) (queue, id string, ok bool) {
	rest, ok := strings.CutPrefix(job, jobPrefix)
	if !ok {
		return "", "", false
	}
	escaped, id, ok := strings.Cut(rest, ":")
	if !ok {
		return "", "", false
	}
	queue, err := url.PathUnescape(escaped)
	return queue, id, err == nil
}

// place is what a deferred task waits for, as it is stored beside it: enough
// for any pool to check, to re-time and to give up its booking. The key is in
// the form that Redis sees.
type place struct {
	pool     string // who deferred it, and comes first to wake it
	rule     string // empty when there is no booking
	cost     int
	deadline time.Time // of the task, zero for none
	id       string    // see [throttle.Limiter.ID]
}

const placeSchema = "1"

func (p place) text() string {
	var deadline int64
	if !p.deadline.IsZero() {
		deadline = p.deadline.UnixMicro()
	}
	rule := p.rule
	if rule == "" {
		rule = "*" // no rule is called so, and an empty column could not be read back
	}
	return strings.Join([]string{placeSchema, p.pool, rule, strconv.Itoa(p.cost), strconv.FormatInt(deadline, 10), p.id}, " ")
}

// readPlace reads a place back; what another schema wrote is nobody's.
func readPlace(text string) (place, bool) {
	f := strings.SplitN(text, " ", 6)
	if len(f) != 6 || f[0] != placeSchema {
		return place{}, false
	}
	cost, err := strconv.Atoi(f[3])
	if err != nil {
		return place{}, false
	}
	us, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil {
		return place{}, false
	}
	p := place{pool: f[1], rule: f[2], cost: cost, id: f[5]}
	if p.rule == "*" {
		p.rule = ""
	}
	if us > 0 {
		p.deadline = time.UnixMicro(us)
	}
	return p, true
}
