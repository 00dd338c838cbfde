// Command bench measures Headway beside its rivals, both sides in one run on one
// machine, and writes docs/benchmarks.md. It starts its own redis-servers.
//
//	cd bench && go run .          # everything: ours, theirs, ours, theirs ...
//	cd bench && go run . -short   # everything once with small numbers, writes nothing
//	cd bench && go run . -only 'acquire|memory'
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
)

// sections in the order of the document.
var sections = []section{
	{"acquire", "Acquires a second", acquire},
	{"server", "What a call costs Redis and the client", server},
	{"decisions", "What a decision costs Redis", decisions},
	{"pool", "Tasks a second through a pool", pool},
	{"backlog", "A backlog on one key", backlogs},
	{"bullmq", "BullMQ, in node", bullmq},
	{"memory", "Memory", memory},
	{"scripts", "The longest script", scripts},
	{"scale", "Redis' work per job as more jobs wait", scale},
	{"cluster", "What the masters of a Redis Cluster share", clusters},
	{"clusterpool", "A pool on a Redis Cluster", clusterPools},
	{"failover", "What it costs that a failover breaks no limit", failover},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	short := flag.Bool("short", false, "each measurement once, with small numbers")
	rounds := flag.Int("rounds", 5, "how often each contender is measured")
	only := flag.String("only", "", "a regular expression: only the sections with such names")
	docs := flag.String("docs", filepath.Join("..", "docs"), `where benchmarks.md goes, "" for nowhere; with -short or -only nowhere unless given`)
	flag.Parse()
	names, err := regexp.Compile(*only)
	switch {
	case err != nil:
		log.Fatalf("-only: %v", err)
	case *rounds < 1:
		log.Fatalf("-rounds is %d, want at least 1", *rounds)
	case flag.NArg() > 0:
		log.Fatalf("unknown argument %q", flag.Arg(0))
	}
	if *short {
		*rounds = 1
	}
	if (*short || *only != "") && !given("docs") { // the document is of one whole run
		*docs = ""
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := &bench{short: *short, rounds: *rounds, out: os.Stdout}
	if err := b.runAll(ctx, names, *docs); err != nil {
		stop()
		log.Fatal(err)
	}
}

// given says whether a flag is on the command line.
func given(name string) (is bool) {
	flag.Visit(func(f *flag.Flag) { is = is || f.Name == name })
	return is
}
