# `make` alone prints what there is to do.

# How long `make fuzz` spends on each target, or with an x how many inputs: only
# a count always ends well. At the end of a time Go before 1.27 may call a target
# failed that found nothing, with "context deadline exceeded".
FUZZTIME ?= 10m

# The linter is pinned in a module of its own, so that its dependencies stay
# out of go.mod. It must be able to read the Go version that go.mod asks for.
LINT := go tool -modfile=tools/golangci/go.mod golangci-lint

# `make check` vets all of it once.
GOTEST := -vet=off -shuffle=on -count=1 -timeout 20m

.DEFAULT_GOAL := help
.PHONY: help run check test test-worker test-race test-programs test-plain soak faults mutants accept docs measures fuzz bench bench-short

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## run the SMS example, with an embedded Redis
	go run ./examples/sms-sender

check: ## look at the code without running it: gofmt, go vet, golangci-lint, known faults of dependencies
	@echo "gofmt -l ."
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then \
		echo "not formatted, gofmt -w them:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go vet -tags accept ./e2e
	$(LINT) run --allow-serial-runners # one after another: two checkouts may be checked at once
	cd bench && go vet ./... && $(subst tools/,../tools/,$(LINT)) run --allow-serial-runners
	go run ./tools/knownfaults

# The race detector makes Lua and the embedded Redis several times slower. So these run
# without it: PROGRAMS, whose tests run whole programs and servers, and mostly wait; PLAIN, the scripts
# and their twin in Go, which make one call after another, and packages that start no goroutine; and
# tests named TestVirtual, which make days pass in virtual time, or thousands of calls at one instant.
# `make soak` runs all of them with it. The embedded Redis makes a new Lua for each script, so garbage is
# collected less often there: a fifth less time.
PROGRAMS := ./internal/faults ./e2e ./cmd/... ./examples/... ./internal/redisserver
PLAIN := ./internal/limitscripts ./internal/queuescripts ./internal/batchscripts ./internal/schedulescripts \
	./internal/memory ./event/eventlog ./internal/civil ./internal/cronspec ./internal/judge ./internal/rediserr ./internal/simulate \
	./internal/stderrlog ./queue/internal/check ./queue/internal/yamlfile ./tools/...

test: ## install redis-server, and prometheus and chromium if it can, where they are missing, check, run all tests in their short form, and each benchmark once
	tools/install-redis
	-tools/install-prometheus
	-tools/install-chromium
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory --output-sync=target -j 3 test-worker test-race test-programs test-plain

# Three parts of the tests run side by side: on two cores a third part takes the time that the two others wait. The fourth begins when the
# first has ended, and ends with the others.
# A program with the race detector sleeps for a second at its end, unless it is told otherwise.
RACE := GORACE=atexit_sleep_ms=50 go test -race -short -p 1 -parallel 4 -skip '^TestVirtual' $(GOTEST)

test-worker:
	$(RACE) ./worker

test-race:
	$(RACE) $$(go list ./throttle ./... | grep -vxF "$$(go list ./worker $(PROGRAMS) $(PLAIN))")

# The faults mostly wait for servers to notice each other: eight at a time.
test-programs:
	go test -short -parallel 8 $(GOTEST) ./internal/faults
	go test -short -p 1 -parallel 4 $(GOTEST) $(filter-out ./internal/faults,$(PROGRAMS))

test-plain:
	GOGC=400 go test -short -p 1 -run '^TestVirtual' $(GOTEST) ./worker ./throttle ./queue/schedule
	go test -short -p 1 -parallel 4 $(GOTEST) $(PLAIN)
	cd bench && go test -count=1 -timeout 10m ./...
	@$(MAKE) --no-print-directory bench-short

soak: ## run all tests at their full length with -race, the random ones ten times as long, fuzz, and lead a mixed load through faults for an hour (two hours and more)
	go test -race $(GOTEST) -timeout 90m ./...
	go list -test -f '{{if .ForTest}}{{range .Imports}}{{if eq . "pgregory.net/rapid"}}{{$$.ForTest}}{{end}}{{end}}{{end}}' ./... | sort -u | \
		xargs -I '{}' go test $(GOTEST) -timeout 90m '{}' -rapid.checks=1000
	HEADWAY_TEST_WITHOUT_FUNCTIONS=1 go test $(GOTEST) ./throttle/... ./queue/... ./worker
	HEADWAY_TEST_CLUSTER=1 go test $(GOTEST) -skip '^TestVirtual' ./throttle ./queue/... ./inspect
	@$(MAKE) --no-print-directory fuzz FUZZTIME=20000x
	go run ./cmd/headway prove soak -long

faults: ## lead worker processes through each fault until it has happened often enough, three at a time, and write the table of docs/reliability.md (two and a half hours on two cores)
	go run ./cmd/headway prove $$(go run ./cmd/headway prove faults | cut -d ' ' -f 1) -long -together 3 -table docs/reliability.md

mutants: ## break each formula of the scripts, one at a time, and list what the comparison with the twin in Go does not find (hours)
	go test -short -count=1 -timeout 12h -run TestMutantsAreFound ./internal/memory -mutants 1

accept: ## run the acceptance tests: the whole thing in real time (a quarter of an hour)
	go test -count=1 -tags accept -run Accept -v -p 1 -timeout 60m ./e2e

docs: ## draw docs/algorithms and docs/dashboard.png from real runs, and print what keys cost (a minute)
	go run ./tools/drawlimits
	tools/install-chromium
	HEADWAY_PICTURE=$(CURDIR)/docs/dashboard.png go test -count=1 -run TestPictureForDocs ./dashboard

measures: ## print how easy the repository is to read, in numbers: files, names, Lua
	go run ./tools/measures

fuzz: ## run every fuzz target for FUZZTIME (10m)
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | while read -r package; do \
		targets=$$(go test -list '^Fuzz' "$$package") || { echo "$$targets"; exit 1; }; \
		for target in $$(echo "$$targets" | grep '^Fuzz'); do \
			echo "go test -run ^$$ -fuzz ^$$target$$ -fuzztime $(FUZZTIME) $$package"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
		done; \
	done

bench: ## measure Headway beside its rivals, and write docs/benchmarks.md (half an hour on an idle machine)
	cd bench && go run .

bench-short: ## run each benchmark once, so that none rots; the figures mean nothing
	cd bench && go run . -short
