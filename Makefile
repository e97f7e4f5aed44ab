# make            what there is
# make run        everything in one process, with a small simulated fleet
# make test       every test that needs no container
#
# Works on a fresh clone with Go and nothing else: the tools are built from the
# Go module proxy at the versions below, into .tmp/bin.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES  := proto services integration
PACKAGES := $(MODULES:%=./%/...)
COMMANDS := archiver monitor gateway console tocsin

BUF_VERSION      := v1.75.0
LINT_VERSION     := v2.15.0
GEN_GO_VERSION   := v1.36.12
VTPROTO_VERSION  := v0.6.1-0.20240319094008-0393e58bdf10

TMP := $(CURDIR)/.tmp
BIN := $(TMP)/bin
export PATH := $(BIN):$(PATH)

# Where git will not say which revision this is (no git, no history, a tree of
# somebody else's), Go would refuse to build: then the binaries do not say it.
ifneq ($(shell git -C $(CURDIR) rev-parse HEAD >/dev/null 2>&1 && git -C $(CURDIR) status --porcelain >/dev/null 2>&1 && echo ok),ok)
export GOFLAGS := $(GOFLAGS) -buildvcs=false
endif

# The race detector needs a C compiler.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

# In a bubble of testing/synctest time stands still while a goroutine waits for
# an ordinary mutex; with this tag franz-go has others.
TAGS := -tags synctests

##@ Use

.PHONY: help
help: ## This list.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Everything in one process, with a small simulated fleet and short holds.
	@go build -o $(BIN)/tocsin ./services/cmd/tocsin
	@exec $(BIN)/tocsin up --demo

.PHONY: build
build: ## The five binaries, into .tmp/bin.
	go build -o $(BIN)/ $(COMMANDS:%=./services/cmd/%)

##@ Test

.PHONY: test
test: ## Every test that needs no container, in random order, with the race detector.
	go test $(RACE) -shuffle=on $(TAGS) $(PACKAGES)

.PHONY: integration
integration: ## The integration tests with containers too (starts a Docker engine if none runs).
	integration/run

.PHONY: fuzz
fuzz: ## Each fuzz test for FUZZTIME (10s).
	@go test -list '^Fuzz' ./services/... | awk '/^Fuzz/ {f[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, f[i]; n = 0}' | \
	while read -r package name; do \
		echo "$$package $$name"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(or $(FUZZTIME),10s) "$$package"; \
	done

.PHONY: bench
bench: ## Benchmarks, with allocations.
	go test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem ./services/...

##@ Check

.PHONY: check
check: lint generate-check breaking modules test ## All that is asked of a change.

.PHONY: lint
lint: $(BIN)/.golangci-lint-$(LINT_VERSION) $(BIN)/.buf-$(BUF_VERSION) ## Linters and format, of Go and of protos.
	buf lint
	buf format --diff --exit-code
	@bad=0; for m in $(MODULES); do \
		echo "golangci-lint $$m"; (cd $$m && golangci-lint run --config $(CURDIR)/.golangci.yml ./...) || bad=1; \
	done; exit $$bad

.PHONY: modules
modules: ## Each module builds on its own, outside the workspace.
	@for m in $(MODULES); do echo "$$m"; (cd $$m && GOWORK=off go build ./... && GOWORK=off go vet ./...); done

.PHONY: breaking
breaking: $(BIN)/.buf-$(BUF_VERSION) ## Protos still read what main has written.
	@# What is compared with is taken out of git here, so that a shallow clone
	@# will do. A clone without main has nothing to compare with, and says so.
	@ref=; for r in origin/main main; do \
		if git rev-parse -q --verify "$$r^{commit}" >/dev/null 2>&1 && git cat-file -e "$$r:buf.yaml" 2>/dev/null; then ref=$$r; break; fi; \
	done; \
	if [ -z "$$ref" ]; then echo "breaking: no main with protos here, nothing to compare with"; exit 0; fi; \
	rm -rf $(TMP)/breaking; mkdir -p $(TMP)/breaking; \
	git archive "$$ref" buf.yaml proto | tar -x -C $(TMP)/breaking; \
	buf breaking --against $(TMP)/breaking && echo "breaking: nothing, compared with $$ref"

##@ Generate

.PHONY: generate
generate: generators ## The Go code of the protos, into proto/gen.
	buf format -w
	cd proto && buf generate --template buf.gen.yaml .. -o .

.PHONY: generate-check
generate-check: generators ## Whether proto/gen is what the protos say.
	@rm -rf $(TMP)/generated && mkdir -p $(TMP)/generated
	@cd proto && buf generate --template buf.gen.yaml .. -o $(TMP)/generated
	@diff -r proto/gen $(TMP)/generated/gen || { echo "proto/gen is not what the protos say: run make generate and commit it"; exit 1; }

.PHONY: generators
generators: $(BIN)/.buf-$(BUF_VERSION) $(BIN)/.protoc-gen-go-$(GEN_GO_VERSION) $(BIN)/.protoc-gen-go-vtproto-$(VTPROTO_VERSION)

##@ Tools

.PHONY: tools
tools: generators $(BIN)/.golangci-lint-$(LINT_VERSION) ## All tools, into .tmp/bin (minutes the first time).

# A tool is there when the empty file with its version is.
install = mkdir -p $(BIN) && rm -f $(BIN)/.$(1)-v[0-9]* && GOWORK=off GOFLAGS=-buildvcs=false GOBIN=$(BIN) go install $(2) && touch $@

$(BIN)/.buf-$(BUF_VERSION):
	$(call install,buf,github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION))

$(BIN)/.golangci-lint-$(LINT_VERSION):
	$(call install,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION))

$(BIN)/.protoc-gen-go-$(GEN_GO_VERSION):
	$(call install,protoc-gen-go,google.golang.org/protobuf/cmd/protoc-gen-go@$(GEN_GO_VERSION))

$(BIN)/.protoc-gen-go-vtproto-$(VTPROTO_VERSION):
	$(call install,protoc-gen-go-vtproto,github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto@$(VTPROTO_VERSION))

.PHONY: clean
clean: ## What was built; not the tools, not tocsin-data.
	rm -rf $(TMP)/breaking $(TMP)/generated $(COMMANDS:%=$(BIN)/%)
