package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed bullmq/package.json bullmq/worker.js
var bullFiles embed.FS

const (
	bullInstallWithin = 2 * time.Minute
	bullRunWithin     = 2 * time.Minute
)

// bullJobs is what worker.js is told.
type bullJobs struct {
	Port        int `json:"port"`
	Jobs        int `json:"jobs"`
	Concurrency int `json:"concurrency"`
	Max         int `json:"max,omitempty"`
	Duration    int `json:"duration,omitempty"` // ms
}

// bullTook is what worker.js answers, in milliseconds.
type bullTook struct {
	FromStart float64 `json:"fromStart"`
	FromFirst float64 `json:"fromFirst"`
}

// bullmq measures BullMQ in node, with its limiter and without.
func bullmq(ctx context.Context, b *bench) error {
	dir, version, err := installBull(ctx, b)
	if err != nil {
		b.say("Skipped: %v.", err)
		return nil
	}
	proc, rdb, err := b.server()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(proc.Addr())
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	limited, free := 1_000, 20_000
	if b.short {
		limited, free = 200, 2_000
	}
	run := func(j bullJobs) (bullTook, error) {
		j.Port = number
		return runBull(ctx, dir, rdb, j)
	}
	node, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("BullMQ %s, node %s", version, strings.TrimSpace(string(node)))
	if err := bullLimited(ctx, b, rdb, name, limited, run); err != nil {
		return err
	}
	return bullFree(ctx, b, rdb, proc.Addr(), name, free, run)
}

// bullLimited compares the limiters, once: they take the time that they allow.
func bullLimited(ctx context.Context, b *bench, rdb *redis.Client, name string, jobs int, run func(bullJobs) (bullTook, error)) error {
	c := backlogCase{permits: 100, window: time.Second, jobs: jobs}
	ours, err := runOurs(ctx, rdb, []backlogCase{c}, oursWithin)
	if err != nil {
		return err
	}
	took, err := run(bullJobs{Jobs: jobs, Concurrency: backlogConcurrency, Max: c.permits, Duration: int(c.window.Milliseconds())})
	if err != nil {
		return err
	}
	theirs := 100 * millis(c.ideal(jobs)) / took.FromFirst
	b.say("The limited backlog: one key of ours beside one queue of BullMQ, whose limiter counts for the whole queue; concurrency %d, one "+
		"round; the share is over the time from the first handler to the last. "+
		"A share above 100 %% is a window with more than %d jobs in it.", backlogConcurrency, c.permits)
	b.row(against(c.String()+": share of the permitted rate", "%", higher, name, []float64{ours[0].share}, []float64{theirs}))
	return nil
}

// bullFree compares the pools without a limit.
func bullFree(ctx context.Context, b *bench, rdb *redis.Client, addr, name string, jobs int, run func(bullJobs) (bullTook, error)) error {
	figures, err := b.interleave(
		func() (float64, error) {
			rate, _, err := drain(ctx, rdb, addr, headwayPool("no policy"), jobs)
			return rate, err
		},
		func() (float64, error) {
			took, err := run(bullJobs{Jobs: jobs, Concurrency: poolConcurrency})
			return 1000 * float64(jobs) / took.FromStart, err
		},
	)
	if err != nil {
		return err
	}
	b.say("Without a limit: %s jobs with handlers that do nothing, in the queue before the clock starts; one process each, concurrency %d, our "+
		"pool with one asynq server, BullMQ with one worker.",
		number(float64(jobs)), poolConcurrency)
	b.row(against("no limit", "jobs/s", higher, name, figures[0], figures[1]))
	return nil
}

// installBull puts BullMQ into a directory of its own. Its error is a reason to
// do without it.
func installBull(ctx context.Context, b *bench) (dir, version string, err error) {
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", "", fmt.Errorf("there is no %s", tool)
		}
	}
	if dir, err = os.MkdirTemp("", "headway-bench-bullmq"); err != nil {
		return "", "", err
	}
	b.onEnd(func() error { return os.RemoveAll(dir) })
	for _, name := range []string{"package.json", "worker.js"} {
		text, err := bullFiles.ReadFile("bullmq/" + name)
		if err != nil {
			return "", "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", "", err
		}
		if name == "package.json" {
			if version, err = bullVersion(text); err != nil {
				return "", "", err
			}
		}
	}
	ctx, stop := context.WithTimeout(ctx, bullInstallWithin)
	defer stop()
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		_, _ = b.out.Write(out)
		return "", "", fmt.Errorf("npm could not install BullMQ %s: %w", version, err)
	}
	return dir, version, nil
}

// bullVersion is the one that package.json asks for.
func bullVersion(text []byte) (string, error) {
	var p struct{ Dependencies map[string]string }
	if err := json.Unmarshal(text, &p); err != nil {
		return "", fmt.Errorf("bullmq/package.json: %w", err)
	}
	v := p.Dependencies["bullmq"]
	if v == "" || strings.Trim(v, "0123456789.") != "" {
		return "", fmt.Errorf("bullmq/package.json asks for version %q, want an exact one", v)
	}
	return v, nil
}

// runBull runs worker.js on an empty Redis.
func runBull(ctx context.Context, dir string, rdb *redis.Client, j bullJobs) (bullTook, error) {
	var took bullTook
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return took, err
	}
	arg, err := json.Marshal(j)
	if err != nil {
		return took, err
	}
	ctx, stop := context.WithTimeout(ctx, bullRunWithin)
	defer stop()
	cmd := exec.CommandContext(ctx, "node", "worker.js", string(arg))
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return took, fmt.Errorf("worker.js: %w\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(out, &took); err != nil {
		return took, fmt.Errorf("worker.js answers %q: %w", out, err)
	}
	return took, errors.Join(unless(took.FromStart > 0 && took.FromFirst > 0, "worker.js tells no time"), rdb.FlushAll(ctx).Err())
}
