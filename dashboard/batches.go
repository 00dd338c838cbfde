package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// batchesPage lists batches of all queues.
type batchesPage struct {
	Batches []batchRow
	Pager   pager
	Now     time.Time
}

type batchRow struct {
	batch.Progress
	Share string // how much it gets beside others; empty for all of it, and where that is not known
}

// batchQueues is how many queues a page asks for their batches.
const batchQueues = 100

// loadBatches lists the batches of all queues, in the order of their names. A page begins at a
// position in a queue.
func loadBatches(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	from, err := skipOf(q, "from")
	if err != nil {
		return nil, err
	}
	names, err := s.QueueNames(ctx)
	if err != nil {
		return nil, err
	}
	p := batchesPage{Pager: pager{Of: "batches"}, Now: time.Now()}
	first := 0
	if at := q.Get("at"); at != "" {
		found := false
		if first, found = slices.BinarySearch(names, at); !found {
			from = 0 // of a queue that is gone
		}
		p.Pager.First = d.with("/batches", nil)
	}
	var all []batch.Progress
	for n := first; n < len(names); n, from = n+1, 0 {
		next := d.with("/batches", nil, "at", names[n], "from", strconv.Itoa(from))
		if n-first == batchQueues {
			p.Pager.Next = next
			break
		}
		some, more, err := s.BatchesPage(ctx, names[n], from, max(1, lineMost-len(all)))
		if err != nil {
			return nil, err
		}
		if len(all) == lineMost { // it is full, and this was a look whether others follow
			if len(some) > 0 {
				p.Pager.Next = next
				break
			}
			continue
		}
		if all = append(all, some...); more > 0 {
			p.Pager.Next = d.with("/batches", nil, "at", names[n], "from", strconv.Itoa(more))
			break
		}
	}
	keys := constants(d.cfg.Policies, s.processes)
	for _, of := range all {
		row := batchRow{Progress: of}
		if row.Now.After(p.Now) {
			p.Now = row.Now
		}
		if p.Pager.First+p.Pager.Next == "" { // else others may run that are not on this page
			row.Share = share(all, of, keys)
		}
		p.Batches = append(p.Batches, row)
	}
	return p, nil
}

// constant is a key that all tasks of a type have by a rule, such as a provider's.
type constant struct{ rule, key string }

// constants are the keys of this kind by task type: of the policies given, or of those that pools say.
func constants(policies []queue.Policy, running []inspect.Process) map[string][]constant {
	byType := make(map[string][]constant)
	add := func(taskType, rule, key string) {
		if of := (constant{rule, key}); key != "" && !slices.Contains(byType[taskType], of) {
			byType[taskType] = append(byType[taskType], of)
		}
	}
	for _, p := range policies {
		for _, r := range p.Rules {
			add(p.Type, r.Name, r.Constant)
		}
	}
	if policies != nil {
		return byType
	}
	for _, of := range running {
		for _, p := range of.Policies {
			for _, r := range p.Rules {
				add(p.Type, r.Name, r.Constant)
			}
		}
	}
	return byType
}

// share says how much a batch gets beside the others that run, as their weighted windows are to
// each other: of a rule by which all their tasks have one key, such as the provider's. With several
// such rules it is the one that most of them need.
func share(all []batch.Progress, p batch.Progress, keys map[string][]constant) (said string) {
	if p.State != batch.Running {
		return ""
	}
	most := 1
	for _, of := range keys[p.Type] {
		sum, n := 0, 0
		for _, other := range all {
			if other.State == batch.Running && slices.Contains(keys[other.Type], of) {
				sum += other.Window * other.Weight
				n++
			}
		}
		if n > most && sum > 0 {
			most, said = n, fmt.Sprintf("%d %% of %s, which %d batches share", 100*p.Window*p.Weight/sum, of.rule, n)
		}
	}
	return said
}
