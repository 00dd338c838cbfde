package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/headwayq/headway/internal/e2e"
)

// The files of a run by which it is judged.
const (
	historyFile  = "history.json"
	grantsFile   = "grants.jsonl"   // what Redis granted, by the handlers
	arrivalsFile = "arrivals.jsonl" // what came to the gateway, by its clock
)

// history is all by which a run is judged, besides the grants and the log of the gateway. A run writes it to a file, and
// is judged by what it wrote. So it can be judged again.
type history struct {
	Fault   string        `json:"fault"`
	For     time.Duration `json:"for"`
	Seed    uint64        `json:"seed"`
	Workers int           `json:"workers"`
	Others  int           `json:"others"`
	Rate    int           `json:"rate"`

	System  string `json:"system"` // what was started
	Server  string `json:"server"` // its version
	Cluster bool   `json:"cluster,omitempty"`

	Policies  string      `json:"policies"` // by which it is judged, in YAML
	Began     time.Time   `json:"began"`
	Strikes   []Strike    `json:"strikes"`
	Processes []treatment `json:"processes"` // in the order of their numbers
	Leaks     *Leaks      `json:"leaks,omitempty"`
	Releases  []Release   `json:"releases,omitempty"`
	Looks     int         `json:"looks,omitempty"`
	BothKeys  int         `json:"both_keys,omitempty"`

	Accepted  map[string]time.Time `json:"accepted"` // by id
	Refused   int                  `json:"refused"`
	Unfed     int                  `json:"unfed"`
	Left      leftover             `json:"left"`
	Postponed int                  `json:"postponed"` // by the gateway
	Failures  int                  `json:"failures"`

	LeaveOrphans bool `json:"leave_orphans,omitempty"` // see Spec

	Failed string `json:"failed,omitempty"` // why the run was not led to its end
}

// treatment is what was done to a worker process.
type treatment struct {
	Killed time.Time      `json:"killed,omitzero"`
	Stood  [][2]time.Time `json:"stood,omitempty"` // from when to when it stood still
}

// historyOf collects what is known of a run that is over, while its servers still run.
func historyOf(ctx context.Context, r *run) (history, error) {
	s := r.spec
	h := history{
		Fault: s.Fault.Name, For: s.For, Seed: s.Seed, Workers: s.Workers, Others: s.Others, Rate: s.Rate,
		System: r.system.about, Server: r.system.version(ctx), Cluster: r.system.cluster != nil,
		Policies: r.load.policies(phoneLimit, s.Rate), Began: r.began, Strikes: r.strikes,
		Leaks: r.leaks, Releases: releasesOf(r), Looks: r.seen.looks, BothKeys: len(r.seen.both),
		Accepted: r.accepted, Refused: r.refused, Unfed: r.unfed, LeaveOrphans: s.leaveOrphans,
	}
	for _, p := range r.crew.processes {
		h.Processes = append(h.Processes, p.treatment)
	}
	if refused := r.gateway.Stats().Faults; refused != nil {
		h.Postponed, h.Failures = refused.TooMany, refused.Unavailable
	}
	var err error
	h.Left, err = r.left()
	return h, err
}

// keep writes what the run is judged by. A run that failed was not led to its end: its queue may be unknown, and it is not judged.
func keep(ctx context.Context, r *run, failed error) error {
	if r.gateway == nil {
		return nil
	}
	arrivals, err := os.Create(filepath.Join(r.spec.Dir, arrivalsFile))
	if err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	err = errors.Join(e2e.WriteArrivals(arrivals, r.gateway.Arrivals()), arrivals.Close())
	h, unknown := historyOf(context.WithoutCancel(ctx), r)
	if failed != nil {
		h.Failed = failed.Error()
	}
	text, jsonErr := json.Marshal(h)
	return errors.Join(err, unknown, jsonErr, os.WriteFile(filepath.Join(r.spec.Dir, historyFile), text, 0o600))
}

// Judge judges the run that left its files in a directory.
func Judge(dir string) (Report, error) {
	text, err := os.ReadFile(filepath.Join(dir, historyFile))
	if err != nil {
		return Report{}, fmt.Errorf("no run left its files here: %w", err)
	}
	var h history
	if err := json.Unmarshal(text, &h); err != nil {
		return Report{}, fmt.Errorf("%s: %w", filepath.Join(dir, historyFile), err)
	}
	if h.Failed != "" {
		return Report{}, fmt.Errorf("%s: the run was not led to its end, and can't be judged: %s", filepath.Join(dir, historyFile), h.Failed)
	}
	r, err := h.run()
	if err != nil {
		return Report{}, fmt.Errorf("%s: %w", filepath.Join(dir, historyFile), err)
	}
	grants, err := e2e.ReadGrants(filepath.Join(dir, grantsFile))
	if err != nil {
		return Report{}, err
	}
	log, err := os.Open(filepath.Join(dir, arrivalsFile))
	if err != nil {
		return Report{}, fmt.Errorf("faults: %w", err)
	}
	defer log.Close()
	arrivals, err := e2e.ReadArrivals(log)
	if err != nil {
		return Report{}, err
	}
	return r.judge(h, grants, arrivals), nil
}

// run is the run of a history, as far as it is judged.
func (h history) run() (*run, error) {
	fault, ok := Find(h.Fault)
	if !ok {
		return nil, fmt.Errorf("%q is no fault", h.Fault)
	}
	r := &run{
		spec:  Spec{Fault: fault, For: h.For, Seed: h.Seed, Workers: h.Workers, Others: h.Others, Rate: h.Rate, leaveOrphans: h.LeaveOrphans},
		began: h.Began, strikes: h.Strikes, accepted: h.Accepted, refused: h.Refused, unfed: h.Unfed, leaks: h.Leaks, crew: &crew{},
	}
	if r.accepted == nil {
		r.accepted = map[string]time.Time{}
	}
	for _, done := range h.Processes {
		r.crew.processes = append(r.crew.processes, &process{treatment: done})
	}
	var err error
	r.judged, err = readJudged(h.Policies, h.Cluster)
	return r, err
}
