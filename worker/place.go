package worker

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
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
// for any pool to check, to re-time and to give up its booking.
type place struct {
	pool     string    // who deferred it, and comes first to wake it
	deadline time.Time // of the task, zero for none
	stands   stands    // empty when there is no booking
}

// stands is in whose lines a task stands, as text: "rules costs lengths ids", by
// rule joined with "+", but for the ids: they are the keys as Redis sees them (see
// [throttle.Limiter.ID]), any bytes, one after the other.
type stands string

func standsFor(p *throttle.Policy, r throttle.Request) stands {
	var rules, costs, lengths []string
	ids := p.IDs(r)
	for i, l := range p.Rules() {
		cost := r.Cost
		if i > 0 {
			cost = r.More[i-1].Cost
		}
		rules, costs, lengths = append(rules, l.Rule()), append(costs, strconv.Itoa(cost)), append(lengths, strconv.Itoa(len(ids[i])))
	}
	return stands(strings.Join([]string{strings.Join(rules, "+"), strings.Join(costs, "+"), strings.Join(lengths, "+"), strings.Join(ids, "")}, " "))
}

// policy names the rules, as [throttle.Policy.String] does.
func (s stands) policy() string {
	rules, _, _ := strings.Cut(string(s), " ")
	return rules
}

// has says whether a rule is among them.
func (s stands) has(rule string) bool {
	return s != "" && slices.Contains(strings.Split(s.policy(), "+"), rule)
}

// read takes it apart; ok is false for what nobody here wrote.
func (s stands) read() (ids []string, costs []int, ok bool) {
	f := strings.SplitN(string(s), " ", 4)
	if len(f) != 4 {
		return nil, nil, false
	}
	rules, texts, lengths, rest := strings.Split(f[0], "+"), strings.Split(f[1], "+"), strings.Split(f[2], "+"), f[3]
	if len(texts) != len(rules) || len(lengths) != len(rules) || len(rules) > throttle.RulesMax {
		return nil, nil, false
	}
	for i := range rules {
		cost, bad := strconv.Atoi(texts[i])
		n, worse := strconv.Atoi(lengths[i])
		if bad != nil || worse != nil || cost < 1 || n < 1 || n > len(rest) {
			return nil, nil, false
		}
		if strconv.Itoa(cost) != texts[i] || strconv.Itoa(n) != lengths[i] { // written in one way only
			return nil, nil, false
		}
		ids, costs, rest = append(ids, rest[:n]), append(costs, cost), rest[n:]
	}
	return ids, costs, rest == ""
}

// placeSchema of a place by one rule, which older versions read too, and of one
// by several.
const (
	placeSchema     = "1"
	placeSchemaMany = "2"
)

func (p place) text() string {
	var deadline int64
	if !p.deadline.IsZero() {
		deadline = p.deadline.UnixMicro()
	}
	end := strconv.FormatInt(deadline, 10)
	ids, costs, ok := p.stands.read()
	switch {
	case !ok: // no rule is called so, and an empty column could not be read back
		return strings.Join([]string{placeSchema, p.pool, "*", "0", end, ""}, " ")
	case len(ids) == 1:
		return strings.Join([]string{placeSchema, p.pool, p.stands.policy(), strconv.Itoa(costs[0]), end, ids[0]}, " ")
	}
	return strings.Join([]string{placeSchemaMany, p.pool, end, string(p.stands)}, " ")
}

// readPlace reads a place back; what another schema wrote is nobody's.
func readPlace(text string) (place, bool) {
	schema, rest, _ := strings.Cut(text, " ")
	var p place
	var end string
	switch schema {
	case placeSchema:
		f := strings.SplitN(rest, " ", 5)
		if len(f) != 5 {
			return place{}, false
		}
		cost, err := strconv.Atoi(f[2])
		if err != nil {
			return place{}, false
		}
		p.pool, end = f[0], f[3]
		if f[1] != "*" {
			p.stands = stands(strings.Join([]string{f[1], strconv.Itoa(cost), strconv.Itoa(len(f[4])), f[4]}, " "))
		}
	case placeSchemaMany:
		f := strings.SplitN(rest, " ", 3)
		if len(f) != 3 {
			return place{}, false
		}
		p.pool, end, p.stands = f[0], f[1], stands(f[2])
	default:
		return place{}, false
	}
	us, err := strconv.ParseInt(end, 10, 64)
	if err != nil {
		return place{}, false
	}
	if us > 0 {
		p.deadline = time.UnixMicro(us)
	}
	if _, _, ok := p.stands.read(); p.stands != "" && !ok {
		return place{}, false
	}
	return p, true
}
