# The front door. CMake does the work; this says what to type.
JOBS ?= $(shell nproc)
# Options for the first configuration, e.g. make CMAKE_FLAGS=-DKDA_WITH_TBB=OFF
CMAKE_FLAGS ?=
export JOBS
# RapidCheck draws the same cases every time; unset or other seeds: RC_PARAMS= make test
RC_PARAMS ?= seed=20251
export RC_PARAMS

.PHONY: build run test dist docs check check-all format clean help

build: ## install what is missing and build all of it; the program is build/kda
	@tools/install.sh build
	@$(MAKE) --no-print-directory compile

.PHONY: compile
KDA_TARGET ?= all
compile: build/build.ninja
	@cmake --build build --target $(KDA_TARGET) -j $(JOBS)

build/build.ninja:
	@cmake --preset release $(CMAKE_FLAGS)

run: ## build the program alone, then show what the library promises on this machine: kda demo
	@tools/install.sh build
	@$(MAKE) --no-print-directory compile KDA_TARGET=kda_cli
	build/kda demo --report build/report.html

test: ## install, build, run all tests (8 minutes on 2 cores, 10 to 17 where there is nvcc)
	@tools/install.sh test
	@$(MAKE) --no-print-directory compile
	@tools/venv.sh build/venv
	@tools/torch.sh build
	@tools/run_tests.sh build

dist: build ## an archive that runs without Highway and oneTBB: build/dist/kda-*.tar.gz
	@tools/dist.sh build

docs: ## pages of docs/ and of the headers: build/docs/html/index.html
	@tools/install.sh docs
	@tools/docs.sh build

check: ## a sample of what takes longer: format, sanitizers, fuzzing (15 to 25 minutes)
	@tools/install.sh check
	@tools/check.sh sample

check-all: ## all of it: every test under every sanitizer, long fuzzing, clang-tidy
	@tools/install.sh all
	@tools/check.sh all

format: ## clang-format everything
	@tools/install.sh check
	git ls-files '*.c' '*.cc' '*.cpp' '*.h' '*.hpp' '*.cu' '*.cuh' | xargs -r clang-format-19 -i

clean: ## remove every build folder
	rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1:/p' Makefile | awk -F: '{ printf "%-15s %s", $$1, $$2; for (i = 3; i <= NF; i++) printf ":%s", $$i; print "" }'
