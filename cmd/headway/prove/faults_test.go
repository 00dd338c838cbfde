//go:build unix

package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headwayq/headway/internal/faults"
)

// What is wrong with the arguments of a run through faults is said all at once, and nothing is started.
func TestFaultArguments(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"floods -for 1ms -workers 0":   "headway prove: \"floods\" is no fault: \"headway prove faults\" lists them\n-for is 1ms, want 1s to 24h\n-workers is 0, want 1 to 100\n-h lists the flags\n",
		"workers -rate 5000 -drain 2h": "headway prove: -drain is 2h0m0s, want 1s to 1h\n-rate is 5000, want 1 to 1000\n-h lists the flags\n",
		"workers -seed 1 network":      "headway prove: 1 argument behind the flags: faults stand before them\n-h lists the flags\n",
		"workers -limit 1/2s":          "headway prove: flag provided but not defined: -limit\n-h lists the flags\n",
		"faults workers":               "headway prove: \"faults\" is no fault: \"headway prove faults\" lists them\n-h lists the flags\n",
	} {
		var stdout, stderr bytes.Buffer
		if code := Run(t.Context(), strings.Fields(args), strings.NewReader(""), &stdout, &stderr); code != exitUsage || stderr.String() != want {
			t.Errorf("prove %s: code %d, stderr\n%swant code %d and\n%s", args, code, &stderr, exitUsage, want)
		}
	}
}

func TestFaultsAreListed(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if code := Run(t.Context(), []string{"faults"}, strings.NewReader(""), &stdout, &stderr); code != exitOK {
		t.Errorf("code %d, stderr %s", code, &stderr)
	}
	for _, f := range faults.All() {
		if !strings.Contains(stdout.String(), f.Name+" ") || !strings.Contains(stdout.String(), f.About) {
			t.Errorf("%s is not listed:\n%s", f.Name, &stdout)
		}
	}
}

// With -long each fault has a length of its own.
func TestLongRuns(t *testing.T) {
	t.Parallel()
	for _, f := range faults.All() {
		short, long := faultFlags{length: time.Second}, faultFlags{length: time.Second, long: true}
		if short.lengthOf(f) != time.Second || long.lengthOf(f) != f.Long || f.Long < time.Minute {
			t.Errorf("%s takes %v, and with -long %v, want 1s and a minute at least", f.Name, short.lengthOf(f), long.lengthOf(f))
		}
	}
}

// Runs at the same time print their reports, and write them as JSON and as lines of the table.
func TestFaultRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, table := filepath.Join(dir, "report"), filepath.Join(dir, "table")
	var stdout, stderr bytes.Buffer
	args := []string{"restart-always", "none", "-together", "2", "-for", "4s", "-rate", "20", "-workers", "2", "-seed", "1", "-report", report, "-table", table, "-keep", filepath.Join(dir, "kept")}
	if code := Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != exitOK {
		t.Fatalf("code %d, stdout\n%sstderr\n%s", code, &stdout, &stderr)
	}
	var all []faults.Report
	text, err := os.ReadFile(report)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all) != 2 || all[0].Sent != all[0].Accepted || all[0].Sent == 0 || all[0].Seed != 1 || all[1].Fault != "none" || all[1].Sent != all[1].Accepted {
		t.Errorf("the report is %+v, %v", all, err)
	}
	if !strings.Contains(stderr.String(), "none: none, seed 1: ") {
		t.Errorf("stderr does not say whose its lines are:\n%s", &stderr)
	}
	line, err := os.ReadFile(table)
	if err != nil || !strings.Contains(string(line), "\n| `restart-always` | 4s | ") || !strings.Contains(string(line), "\n| `none` | 4s | 0 | ") ||
		!strings.Contains(string(line), ", 2 faults at a time.") {
		t.Errorf("the table is %q, %v", line, err)
	}
	for _, want := range []string{"fault ", "restart-always: Redis is killed", "lost ", "over a limit ", "stall at a strike "} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("stdout has no %q:\n%s", want, &stdout)
		}
	}
	for _, name := range []string{"grants.jsonl", "arrivals.jsonl", "history.json", "worker-1.log"} {
		kept, err := os.ReadFile(filepath.Join(dir, "kept", "restart-always", name))
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(kept), "+49151") || strings.Contains(string(kept), "hello") {
			t.Errorf("%s shows a phone number or a text", name)
		}
	}
}

// A run is judged again by what it kept: with the same words, and with others when what it kept is changed.
func TestRunsAreJudgedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var stdout, stderr, again bytes.Buffer
	kept := filepath.Join(dir, "none")
	table, tableAgain := filepath.Join(dir, "table"), filepath.Join(dir, "table-again")
	args := []string{"none", "-for", "3s", "-rate", "20", "-workers", "2", "-seed", "1", "-keep", dir, "-table", table}
	if code := Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != exitOK {
		t.Fatalf("code %d, stdout\n%sstderr\n%s", code, &stdout, &stderr)
	}
	if code := Run(t.Context(), []string{"judge", kept, "-table", tableAgain}, strings.NewReader(""), &again, &stderr); code != exitOK || again.String() != stdout.String() {
		t.Errorf("code %d, judged again:\n%s\nwant\n%s", code, &again, &stdout)
	}
	written, errOfRun := os.ReadFile(table)
	writtenAgain, err := os.ReadFile(tableAgain)
	if errOfRun != nil || err != nil || !bytes.Equal(written, writtenAgain) || !bytes.Contains(written, []byte("| `none` | 3s |")) {
		t.Errorf("the tables are %v\n%s\n%v\n%s", errOfRun, written, err, writtenAgain)
	}
	log := filepath.Join(kept, "arrivals.jsonl")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, []byte(`{"id":"c`)) // of the client; the first ticks do not count
	line, _, _ := bytes.Cut(text[at:], []byte("\n"))
	if err := os.WriteFile(log, bytes.Replace(text, append(line, '\n'), nil, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	if code := Run(t.Context(), []string{"judge", kept}, strings.NewReader(""), &again, &stderr); code != exitRun || !strings.Contains(stderr.String(), "none: 1 lost") {
		t.Errorf("without one arrival: code %d, %q, want that a message is lost", code, &stderr)
	}
	history := filepath.Join(kept, "history.json")
	if text, err = os.ReadFile(history); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(history, bytes.Replace(text, []byte(`{"fault"`), []byte(`{"failed":"a worker ended","fault"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	stderr.Reset()
	if code := Run(t.Context(), []string{"judge", kept, "-table", tableAgain}, strings.NewReader(""), &again, &stderr); code != exitRun ||
		!strings.Contains(stderr.String(), "can't be judged: a worker ended") || !strings.Contains(stderr.String(), "-table is not written") {
		t.Errorf("of a run that was not led to its end: code %d, %q, want that it can't be judged", code, &stderr)
	}
	for _, args := range [][]string{{"judge"}, {"judge", "-h"}, {"judge", "-table", table}, {"judge", kept, "-table", table, kept}} {
		if code := Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%v: code %d, want %d", args, code, exitUsage)
		}
	}
	stderr.Reset()
	if code := Run(t.Context(), []string{"judge", t.TempDir()}, strings.NewReader(""), io.Discard, &stderr); code != exitRun || !strings.Contains(stderr.String(), "no run left its files here") {
		t.Errorf("of an empty directory: code %d, %q", code, &stderr)
	}
}

// Runs that were not led to their end are missing in the reports, and leave an earlier table as it was.
func TestInterruptedFaultRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, table := filepath.Join(dir, "report"), filepath.Join(dir, "table")
	earlier := "<!-- headway prove writes from here -->\nearlier\n<!-- to here -->\n"
	if err := os.WriteFile(table, []byte(earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := Run(ctx, []string{"none", "-report", report, "-table", table}, strings.NewReader(""), &stdout, &stderr)
	if want := "headway prove: not all faults were run to the end: -table is not written\n"; code != exitRun || stderr.String() != want {
		t.Errorf("code %d, stderr %q, want code %d and %q", code, &stderr, exitRun, want)
	}
	for file, want := range map[string]string{report: "[]\n", table: earlier} {
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			t.Errorf("%s has %q, %v, want %q", filepath.Base(file), text, err, want)
		}
	}
}
