package dashboard

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/headwayq/headway/inspect"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/queue/batch"
)

// batchesPage are the batches of all queues.
type batchesPage struct {
	Batches []batchRow
	Pager   pager
	Now     time.Time
}

type batchRow struct {
	batch.Progress
	Share string // of what it has in common with others
}

// batchQueues is how many queues a page asks for their batches.
const batchQueues = 100

// loadBatches lists the batches of all queues. A page begins at a batch of a queue: its cursor is
// the queue's place among the names, a dot, and how many of its batches come before.
func loadBatches(ctx context.Context, d *board, q url.Values) (any, error) {
	s, err := d.source(ctx)
	if err != nil {
		return nil, err
	}
	names, err := s.QueueNames(ctx)
	if err != nil {
		return nil, err
	}
	p := batchesPage{Now: time.Now()}
	first, skip := 0, 0
	if from := q.Get("from"); from != "" {
		if _, err := fmt.Sscanf(from, "%d.%d", &first, &skip); err != nil || first < 0 || skip < 0 || skip > skipMax {
			return nil, fmt.Errorf("%w: from is %q, want a link of this page", errRequest, clip(from, 20))
		}
		p.Pager.First = d.with("/batches", q, "from", "")
	}
	var all []batch.Progress
	for n := first; n < len(names); n, skip = n+1, 0 {
		if len(all) == lineMost || n-first == batchQueues {
			p.Pager.Next = d.with("/batches", q, "from", fmt.Sprintf("%d.%d", n, skip))
			break
		}
		some, more, err := s.BatchesPage(ctx, names[n], skip, lineMost-len(all))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
		if more {
			p.Pager.Next = d.with("/batches", q, "from", fmt.Sprintf("%d.%d", n, skip+len(some)))
			break
		}
	}
	common := constants(d.cfg.Policies, s.processes)
	for _, of := range all {
		row := batchRow{Progress: of}
		if row.Now.After(p.Now) {
			p.Now = row.Now
		}
		if p.Pager == (pager{}) { // else others may run that are not on this page
			row.Share = share(all, of, common)
		}
		p.Batches = append(p.Batches, row)
	}
	return p, nil
}

// constants are the rules by which all tasks of a type have one key, such as a provider's.
func constants(policies []queue.Policy, running []inspect.Process) map[string][]string {
	byType := make(map[string][]string)
	add := func(taskType, rule string, constant bool) {
		if constant && !slices.Contains(byType[taskType], rule) {
			byType[taskType] = append(byType[taskType], rule)
		}
	}
	for _, p := range policies {
		for _, r := range p.Rules {
			add(p.Type, r.Name, r.Constant != "")
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
// each other: of a rule with one key that they all need, such as the provider's. With several
// such rules it is the one that most of them need.
func share(all []batch.Progress, p batch.Progress, common map[string][]string) (said string) {
	if p.State != batch.Running {
		return ""
	}
	most := 1
	for _, rule := range common[p.Type] {
		sum, n := 0, 0
		for _, of := range all {
			if of.State == batch.Running && slices.Contains(common[of.Type], rule) {
				sum += of.Window * of.Weight
				n++
			}
		}
		if n > most {
			most, said = n, fmt.Sprintf("%d %% of %s, which %d batches share", 100*p.Window*p.Weight/sum, rule, n)
		}
	}
	return said
}
