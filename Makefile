# What a person types here. Each target checks its tools first, says what it does and how long that takes,
# and writes nothing outside the target directory ($CARGO_TARGET_DIR, or target/).

CARGO ?= cargo
CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR
RUST = 1.95
WASM = wasm32-unknown-unknown wasm32-wasip2
PROGRAMS = ostraca-process-tests/programs

.PHONY: help setup demo test lint doc bench soak fuzz mutants

help:
	@echo 'make demo    three real nodes, 36,000 commands, transfers, timers, a drain and three kill -9, nothing lost    KEEP=1 leaves them running'
	@echo 'make test    every test, none skipped'
	@echo 'make lint    formatting, clippy, documentation, licences and sources of the dependencies'
	@echo 'make doc     the documentation of the crates; OPEN=1 opens it'
	@echo 'make bench   how fast it is, beside bare QUIC and bare fdatasync    ONLY=P6,P7 measures these, ONLY=CORE the core alone'
	@echo 'make soak    long simulations, many kills, many rounds of each attack  SEEDS=20000 ROUNDS=50'
	@echo 'make fuzz    each fuzz target for a while; goes on from the inputs found before  SECONDS=60 ONLY=ledger'
	@echo 'make mutants breaks one line after the other of the files that implement a rule: tests must see it  SHARD=0/40 ONLY=core'
	@echo 'make setup   checks the tools, and says what to type for what is missing'

# A rustup that cannot install a target (no network) leaves Debian's packages: see the text that is printed.
setup:
	@missing() { echo "setup: $$1 is missing. Type: $$2" >&2; exit 1; }; \
	command -v git >/dev/null || missing git 'sudo apt-get install git'; \
	command -v cc >/dev/null || missing 'a C compiler (cc)' 'sudo apt-get install gcc libc6-dev'; \
	command -v $(CARGO) >/dev/null || missing cargo "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"; \
	version=$$(rustc --version | cut -d' ' -f2); \
	newest=$$(printf '%s\n' $(RUST).0 "$$version" | sort -V | tail -1); \
	[ "$$newest" = "$$version" ] || missing "rustc $(RUST) or newer (this is $$version)" 'rustup update stable'; \
	for target in $(WASM); do \
	  [ -d "$$(rustc --print sysroot)/lib/rustlib/$$target" ] && continue; \
	  echo "setup: installing the target $$target (a few seconds)"; \
	  command -v rustup >/dev/null && rustup target add $$target || { \
	    echo "setup: the target $$target is missing, and rustup cannot install it. Type: rustup target add $$target" >&2; \
	    echo "setup: without rustup, Debian's rustc-web, cargo-web, rust-web-src and lld-19 build guests: RUSTC=/usr/bin/rustc" >&2; \
	    echo "       RUSTC_BOOTSTRAP=1 /usr/bin/cargo build -Zbuild-std=std,panic_abort --target wasm32-unknown-unknown, linked by wasm-ld-19" >&2; \
	    exit 1; }; \
	done

demo: setup
	@echo 'demo: building the nodes and the demo (the first time 6 to 8 minutes on two processors, then seconds)'
	@$(CARGO) build --package ostraca --package ostraca-process-tests --features $(PROGRAMS) --bins
	@OSTRACA_BUILT=1 "$(CARGO_TARGET_DIR)/debug/demo"

test: setup
	@echo 'test: building everything (the first time about 20 minutes on two processors)'
	@$(CARGO) test --workspace --no-run --quiet
	@echo 'test: running every test (20 to 30 minutes on two processors)'
	@OSTRACA_BUILT=1 "$(CARGO_TARGET_DIR)/debug/suites"

lint: setup
	@echo 'lint: formatting'
	@$(CARGO) fmt --all --check
	@echo 'lint: clippy (the first time about 5 minutes on two processors)'
	@$(CARGO) clippy --workspace --all-targets --features $(PROGRAMS) -- -D warnings
	@echo 'lint: the client as an application builds it, without the server half of the protocol'
	@$(CARGO) clippy --package ostraca-client -- -D warnings
	@echo 'lint: documentation'
	@RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --quiet
	@echo 'lint: bans, licences and sources of the dependencies (deny.toml)'
	@$(CARGO) test --quiet --workspace --test supply_chain
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo 'lint: advisories are not checked, for want of cargo-deny (cargo install cargo-deny --locked)'; fi

# Where to begin: those who embed a client or a node, and those who write entities.
doc: setup
	@$(CARGO) doc --workspace --no-deps --quiet
	@for crate in ostraca_client ostraca_node ostraca_sdk; do echo "doc: $(CARGO_TARGET_DIR)/doc/$$crate/index.html"; done
	@[ -z "$$OPEN" ] || $(CARGO) doc --no-deps --quiet --package ostraca-client --open

bench: setup
	@echo 'bench: a release build (the first time about 8 minutes on two processors), then about 6 minutes of measuring'
	@$(CARGO) build --release --package ostraca --package ostraca-process-tests --features $(PROGRAMS) --bins
	@OSTRACA_BUILT=1 "$(CARGO_TARGET_DIR)/release/bench"

SOAK ?= $(CARGO_TARGET_DIR)/soak
soak: setup
	@echo 'soak: simulations, every state of a model, then kills of a real node, then attacks on a real cluster; some hours by default'
	@SEEDS=$${SEEDS:-20000} $(CARGO) test --release --package ostraca-sim --test seeds -- --nocapture
	@mkdir -p $(SOAK); first=$$(cat $(SOAK)/first-cluster-seed 2>/dev/null || echo 1); seeds=$${SEEDS:-20000}; \
	  echo "soak: the clusters of $$seeds seeds, from $$first on"; \
	  FIRST=$$first SEEDS=$$seeds $(CARGO) test --release --package ostraca-sim --test cluster_seeds no_cluster -- --nocapture && \
	  echo $$((first + seeds)) >$(SOAK)/first-cluster-seed
	@STALE=$${STALE:-2000} $(CARGO) test --release --package ostraca-sim --test cluster_mutations r8_ -- --nocapture
	@MODEL=all $(CARGO) test --release --package ostraca-model --test every_state --test without_manager --test thrown_away --test tells -- --nocapture --test-threads 1
	@MODEL=all $(CARGO) test --release --package ostraca-core --lib e13_every_interleaving -- --nocapture
	@ONE_SHOTS=1000000 $(CARGO) test --release --package ostraca-core --package ostraca-node one_shot -- --nocapture
	@ROUNDS=$${ROUNDS:-200} $(CARGO) test --release --package ostraca-process-tests --test kill -- --nocapture
	@SECONDS=60 $(CARGO) test --release --package ostraca-process-tests --test saturated -- --nocapture
	@REMEMBERED=$${REMEMBERED:-20000} LIVE=$${LIVE:-7000} $(CARGO) test --release --package ostraca-process-tests --test remembered -- --nocapture
	@ROUNDS=$${ROUNDS:-50} TRANSFERS=$${TRANSFERS:-100000} $(CARGO) test --release --package ostraca-process-tests --test bank -- --nocapture
	@SOAK=$(SOAK) ROUNDS=$${PATRONI:-10} $(CARGO) run --release --package ostraca-process-tests --features $(PROGRAMS) --bin patroni
	@SOAK=$(SOAK) ROUNDS=$${ROUNDS:-50} $(CARGO) test --release --package ostraca-process-tests --no-fail-fast \
	  --test cluster_attacks -- --nocapture --test-threads 1
	@SOAK=$(SOAK) ROUNDS=$${ROUNDS:-50} $(CARGO) test --release --package ostraca-process-tests --test clusters -- --nocapture k39_ quotas::
	@ROUNDS=$${ROUNDS:-50} $(CARGO) test --release --package placer --test cluster -- --nocapture

# Inputs that were found are kept beside the target directory, and the next run goes on from them. cargo-fuzz needs a
# compiler's unstable flags, which this stable one takes by RUSTC_BOOTSTRAP.
FUZZ = client_frames peer_frames records ledger
FUZZ_HEAVY = manifest components
CORPUS ?= $(CARGO_TARGET_DIR)/corpus
fuzz: setup
	@$(CARGO) fuzz --version >/dev/null 2>&1 || { echo 'fuzz: cargo-fuzz is missing. Type: cargo install cargo-fuzz --locked' >&2; exit 1; }
	@echo "fuzz: building the targets, then $${SECONDS:-60} s each; inputs are kept in $(CORPUS)"
	@cd tests/fuzz && export RUSTC_BOOTSTRAP=1 && for target in $${ONLY:-$(FUZZ) $${HEAVY:+$(FUZZ_HEAVY)}}; do \
	  mkdir -p "$(CORPUS)/$$target"; \
	  case " $(FUZZ_HEAVY) " in *" $$target "*) features='--features node';; *) features='';; esac; \
	  echo "fuzz: $$target"; \
	  $(CARGO) fuzz run --fuzz-dir . --sanitizer none $$features $$target "$(CORPUS)/$$target" -- \
	    -max_total_time=$${SECONDS:-60} -max_len=4096 -rss_limit_mb=2048 -print_final_stats=1 \
	    >"$(CORPUS)/$$target.log" 2>&1 || { tail -40 "$(CORPUS)/$$target.log"; exit 1; }; \
	  grep -h 'stat::number_of_executed_units\|stat::average_exec\|cov:' "$(CORPUS)/$$target.log" | tail -3; \
	done

# Each mutant is one changed line, built and tested alone: about a minute each, and there are some 2,300. So they run in
# shards, in any order: what was caught is kept beside the target directory and not run again. Mutants that survive are
# listed in tests/mutants/, to be given a test or an argument. cargo-mutants ends with 2 or 3 where some survived or took
# too long.
MUTANTS ?= $(CARGO_TARGET_DIR)/mutants
SHARD ?= 0/40
mutants_core = --package ostraca-core --cargo-arg=--package=ostraca-sim
tested_core = --lib --test seeds --test cluster_seeds
mutants_client = --package ostraca-client --file host/client/src/ledger.rs --file 'host/client/src/ledger/*.rs' \
  --cargo-arg=--package=ostraca-sim
tested_client = --lib --test ledger --test ledger_limits --test admission --test gateway_switch --test outcomes --test cluster_seeds
mutants_store = --package ostraca-store-sled --file host/store-sled/src/batch_builder.rs --file host/store-sled/src/committer.rs
tested_store = --lib --tests
mutants: setup
	@$(CARGO) mutants --version >/dev/null 2>&1 || { echo 'mutants: cargo-mutants is missing. Type: cargo install cargo-mutants --locked' >&2; exit 1; }
	@for set in $${ONLY:-core client store}; do $(MAKE) --no-print-directory mutants-$$set || exit 1; done

mutants-%:
	@mkdir -p "$(MUTANTS)/$*" tests/mutants
	@echo "mutants: $*, shard $(SHARD); what was found is kept in $(MUTANTS)/$*"
	@ulimit -v 16000000; SEEDS=300 $(CARGO) mutants $(mutants_$*) --shard $(SHARD) --iterate --no-shuffle --colors never --no-times \
	  --timeout 300 --output "$(MUTANTS)/$*" -- $(tested_$*) \
	  || case $$? in 2|3) ;; *) exit 1;; esac
	@cat "$(MUTANTS)/$*/mutants.out/missed.txt" "tests/mutants/$*.survived" 2>/dev/null | sort -u >"$(MUTANTS)/$*/survived"
	@sort -u "$(MUTANTS)/$*/mutants.out/caught.txt" "$(MUTANTS)/$*/mutants.out/timeout.txt" "$(MUTANTS)/$*/mutants.out/previously_caught.txt" 2>/dev/null \
	  >"$(MUTANTS)/$*/caught" || true
	@grep -vxFf "$(MUTANTS)/$*/caught" "$(MUTANTS)/$*/survived" >"tests/mutants/$*.survived" || true
	@echo "mutants: $*: $$(wc -l <"$(MUTANTS)/$*/caught") caught so far, $$(wc -l <"tests/mutants/$*.survived") survived (tests/mutants/$*.survived)"
