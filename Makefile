# bags.h needs no Makefile: cc program.c. This one serves the rest: the formats,
# the command, the examples and the tests. GNU make; `make help` lists targets.
#
# Every flavour (release, asan, ...) is built into build/FLAVOUR by
# `make all FLAVOUR=asan`. A format whose library is missing is left out.

MAKEFLAGS += --no-print-directory --no-builtin-rules
FLAVOUR ?= release
CC_release = $(CC)
CC_asan = gcc
CC_tsan = gcc
CC_cxx = g++ -x c++
CC_fuzz = clang
CC_coverage = gcc
UNDEFINED = -fsanitize=undefined -fno-sanitize-recover=all
CHECKS = $(UNDEFINED) -fsanitize=address -fno-omit-frame-pointer
FLAGS_release = -O2 -g -ffile-prefix-map='$(CURDIR)'=.
FLAGS_asan = -O1 -g $(CHECKS)
FLAGS_tsan = -O1 -g -fsanitize=thread
# C++ warns of {0}, which bags.h recommends.
FLAGS_cxx = -O1 -g -std=c++11 -Wno-missing-field-initializers
# -fkeep: else functions that are never called would not count. Of those that are
# inlined into programs, the lines would count as the programs'.
FLAGS_coverage = -O0 -g --coverage -Dalways_inline=unused -fprofile-update=atomic -fkeep-inline-functions -fkeep-static-functions
FLAGS_fuzz = -O1 -g -fsanitize=fuzzer-no-link $(CHECKS)

# Other CPUs and systems: tests/portability.sh builds the libraries they have.
CROSS := $(filter m32 s390x aarch64 armhf windows musl,$(FLAVOUR))
CC_m32 = gcc
# Packages with a version in their names leave gcc-multilib alone.
cross = $(notdir $(firstword $(wildcard $(foreach v,gcc gcc-12 gcc-13 gcc-14 gcc-11,/usr/bin/$1-$v)) $1-gcc))
CC_s390x = $(call cross,s390x-linux-gnu)
CC_aarch64 = $(call cross,aarch64-linux-gnu)
CC_armhf = $(call cross,arm-linux-gnueabihf)
CC_windows = x86_64-w64-mingw32-gcc
CC_musl = musl-gcc
FLAGS_m32 = -O1 -g -m32 -I/usr/include/$(shell uname -m)-linux-gnu $(UNDEFINED)
FLAGS_s390x = -O1 -g $(UNDEFINED)
FLAGS_aarch64 = $(FLAGS_s390x)
FLAGS_armhf = $(FLAGS_s390x)
# MinGW has isfinite and isnan convert to float.
FLAGS_windows = -O2 -g -static -Wno-float-conversion $(UNDEFINED) -fsanitize-undefined-trap-on-error
FLAGS_musl = -O2 -g -static $(UNDEFINED) -fsanitize-undefined-trap-on-error
LINK_windows = -Wl,-o,$@ # else .exe would be put behind the name
# Which makes a program's arguments and file names UTF-8.
MANIFEST = $(if $(filter windows,$(FLAVOUR)),$B/examples/bags/windows.o)

# The first make of `make deps test` must not look for libraries that are only
# being installed: it runs a second one for every other goal.
OTHERS := $(filter-out deps,$(MAKECMDGOALS))
ifneq ($(and $(filter deps,$(MAKECMDGOALS)),$(OTHERS)),)
.NOTPARALLEL:
.PHONY: deps $(OTHERS)
deps:
	@tests/deps.sh
$(OTHERS): deps
	@$(MAKE) $@
else

# Debugging information must not depend on where this directory is.
export PWD := $(CURDIR)
B := build/$(FLAVOUR)
COMPILE = $(CC_$(FLAVOUR)) $(FLAGS_$(FLAVOUR)) $(CFLAGS)
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror
WARN_C := -Wstrict-prototypes -Wc++-compat
# What users copy is C99 in every flavour; the command and the tests are C11.
ifneq ($(FLAVOUR),cxx)
C99 := -std=c99 $(WARN_C)
C11 := -std=gnu11 $(WARN_C)
endif
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
# For recipes that build: in parallel, unless make was told how.
BUILD = +@$(MAKE) $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))

# --- libraries. PKG_x are the pkg-config names that formats/x.c needs.
PKG_CONFIG := $(if $(CROSS),PKG_CONFIG_LIBDIR='$(CURDIR)/build/$(FLAVOUR)/libraries' )pkg-config
first = $(or $(firstword $(foreach p,$1,$(shell $(PKG_CONFIG) --exists $p 2>/dev/null && echo $p))),$(firstword $1))
PKG_jpeg := libjpeg
PKG_png := libpng
PKG_npz := libzip
PKG_mp4 := libavformat libavcodec libswscale libavutil
PKG_msgpack := $(call first,msgpack-c msgpack)
have = $(if $1,$(shell $(PKG_CONFIG) --exists $1 2>/dev/null && echo yes),yes)
pkg = $(if $2,$(shell $(PKG_CONFIG) $1 $2))

ALL_FORMATS := $(patsubst formats/%.c,%,$(wildcard formats/*.c))
FORMATS := $(foreach f,$(ALL_FORMATS),$(if $(call have,$(PKG_$f)),$f))
WITH := $(foreach f,$(FORMATS),-DBAGS_WITH_$(shell echo $f | tr a-z A-Z)=1)
FORMAT_PKGS := $(foreach f,$(FORMATS),$(PKG_$f))
FORMAT_CFLAGS := $(call pkg,--cflags,$(FORMAT_PKGS))
FORMAT_LIBS := $(call pkg,--libs,$(FORMAT_PKGS)) -lm
FORMAT_OBJECTS := $(FORMATS:%=$B/formats/%.o)
HAVE_JSON := $(call have,json-c)
HAVE_CMOCKA := $(call have,cmocka)
HAVE_MPI := $(if $(filter release,$(FLAVOUR)),$(shell command -v mpicc))
LACKING := $(filter-out $(FORMATS),$(ALL_FORMATS))
SKIPPED := $(foreach f,$(LACKING),'skipped: formats/$f.c, for want of $(PKG_$f)') \
    $(if $(HAVE_JSON),,'skipped: the bags command, for want of json-c') \
    $(if $(HAVE_CMOCKA),,'skipped: tests/test_*.c, for want of cmocka') \
    $(if $(HAVE_MPI)$(filter-out release,$(FLAVOUR)),,'skipped: examples/07_mpi.c, for want of mpicc')

# --- programs
C_OBJECTS = $(patsubst %.c,$B/%.o,$(wildcard $1))
HAVE_IMAGES := $(and $(filter jpeg,$(FORMATS)),$(filter png,$(FORMATS)))
EXAMPLES := $(patsubst %.c,$B/%,$(filter-out %_mpi.c $(if $(filter windows,$(FLAVOUR)),%_workers.c) $(if $(HAVE_IMAGES),,%_images.c),$(wildcard examples/*.c)))
DEMO := $(if $(filter-out cxx $(CROSS),$(FLAVOUR)),$B/balls)
COMMAND := $(if $(and $(HAVE_JSON),$(filter-out cxx,$(FLAVOUR)),$(wildcard examples/bags/*.c)),$B/bags)
# Without a format there are no tests of it.
SOURCES = $(filter-out $(LACKING:%=$1%.c),$(wildcard $1*.c))
# The shim knows the calls of Linux.
ELSEWHERE := $(if $(filter Linux,$(shell uname)),,%/test_system)
TESTS := $(if $(HAVE_CMOCKA),$(filter-out $(ELSEWHERE),$(patsubst %.c,$B/%,$(call SOURCES,tests/test_))))
REPLAYS := $(patsubst %.c,$B/%,$(filter-out tests/fuzz_main.c,$(call SOURCES,tests/fuzz_)))
BENCHES := $(patsubst %.c,$B/%,$(call SOURCES,tests/bench/bench_))
# tests/bench/speed, of everything else there: with the peers that are installed.
PEERS := $(foreach p,lmdb sqlite3 hdf5 liburing,$(if $(call have,$p),$p))
WITH += $(foreach p,$(PEERS),-DBENCH_WITH_$(shell echo $p | tr a-z A-Z)=1)
SPEED := $B/tests/bench/speed
INSTRUCTIONS := $B/tests/bench/instructions
SPEED_OBJECTS := $(patsubst %.c,$B/%.o,$(filter-out tests/bench/bench_% tests/bench/instructions.c,$(wildcard tests/bench/*.c)))
# The implementation and what several tests share.
TEST_PARTS := $(patsubst %.c,$B/%.o,$(filter-out tests/test_% tests/fuzz_%,$(wildcard tests/*.c))) $(FORMAT_OBJECTS) $(MANIFEST)

# --- what is installed: the implementation and the formats in one library, static
# and shared; the headers, the command. Before 1.0, each minor version may break.
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^.define BAGS_VERSION "\(.*\)"/\1/p' bags.h)
SONAME := libbags.so.$(basename $(VERSION))
SHARED := libbags.so.$(VERSION)
LIB_OBJECTS := $(addprefix $B/lib/,bags.o $(FORMATS:%=%.o))
TO = $(DESTDIR)$(PREFIX)
INSTALLED := include/bags.h include/bags/formats.h lib/libbags.a lib/libbags.so lib/$(SONAME) \
    lib/$(SHARED) lib/pkgconfig/bags.pc bin/bags share/man/man1/bags.1

.PHONY: help all skipped tests replays threads print-compile print-formats FORCE deps demo test portability soak asan tsan m32 cxx fuzz bench instructions benchformats format clean
.PHONY: library install uninstall lint footprint coverage
.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:

help: ## say what can be made
	@sed -n 's/^\([a-z0-9]*\):.*## */  make \1\t/p' Makefile | expand -t 18

all: skipped $(EXAMPLES) $(DEMO) $(COMMAND) $(if $(HAVE_MPI),$(patsubst %.c,$B/%,$(wildcard examples/07_mpi.c))) $(if $(filter build/release/bags,$(COMMAND)),build/bags) ## build the formats, the command and the examples

skipped:
	@$(if $(strip $(SKIPPED)),printf '%s\n' $(SKIPPED),:)

tests: all $(TESTS) $(if $(filter release,$(FLAVOUR)),$(SPEED) $(INSTRUCTIONS))
replays: $(REPLAYS)
	@:
threads: $(filter %/test_threads,$(TESTS))
	@:

# For tests/portability.sh and tests/readme.py.
print-compile:
	@echo '$(COMPILE)'
print-formats:
	@echo $(WITH) $(FORMAT_CFLAGS); echo $(FORMAT_OBJECTS) $(FORMAT_LIBS)

deps: ## install the libraries and tools that are missing (apt-get)
	@tests/deps.sh

demo: ## run the demo; OUT=DIR and PHOTOS=DIR say where and with which photographs
	$(BUILD) all
	@examples/demo/demo.sh "$(or $(PHOTOS),tests/data/photos)" "$(or $(OUT),build/demo)"

test: ## build and run every test
	$(BUILD) tests FLAVOUR=release
	$(BUILD) tests replays FLAVOUR=asan
	$(BUILD) threads FLAVOUR=tsan
	@tests/run.sh

library: $B/lib/libbags.a $B/lib/$(SHARED) $B/lib/bags.pc

install: ## install it; PREFIX=/usr/local and DESTDIR= say where
	$(BUILD) library $(COMMAND)
	install -d '$(TO)/include/bags' '$(TO)/lib/pkgconfig' $(if $(COMMAND),'$(TO)/bin' '$(TO)/share/man/man1')
	install -m 644 bags.h '$(TO)/include'
	install -m 644 formats/formats.h '$(TO)/include/bags'
	install -m 644 $B/lib/libbags.a '$(TO)/lib'
	install -m 755 $B/lib/$(SHARED) '$(TO)/lib'
	ln -sf $(SHARED) '$(TO)/lib/$(SONAME)'
	ln -sf $(SONAME) '$(TO)/lib/libbags.so'
	install -m 644 $B/lib/bags.pc '$(TO)/lib/pkgconfig'
	$(if $(COMMAND),install -m 755 $(COMMAND) '$(TO)/bin')
	$(if $(COMMAND),install -m 644 examples/bags/bags.1 '$(TO)/share/man/man1')

uninstall: ## remove what install put there, with the same PREFIX and DESTDIR
	rm -f $(INSTALLED:%='$(TO)/%')
	-rmdir '$(TO)/include/bags' 2>/dev/null || :

asan: ## run the tests under AddressSanitizer and UBSan
	$(BUILD) tests replays FLAVOUR=asan
	@tests/run.sh asan

soak: ## run the long tests: every fault, 500 kills, the fuzzers for ten minutes each
	$(BUILD) tests FLAVOUR=release
	$(BUILD) tests FLAVOUR=asan
	@tests/run.sh soak
	@$(MAKE) fuzz FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600)

tsan: ## run the threaded tests under ThreadSanitizer
	$(BUILD) threads FLAVOUR=tsan
	@tests/run.sh tsan

m32: ## build for 32 bits and run the examples (needs gcc-12-multilib)
	$(BUILD) all FLAVOUR=m32
	@tests/examples.sh build/m32

cxx: ## build what users copy as C++11 and run the examples
	$(BUILD) all FLAVOUR=cxx
	@tests/examples.sh build/cxx

portability: ## compile and test with every compiler, for every CPU and system
	@tests/deps.sh portability
	@tests/portability.sh

fuzz: ## run every fuzzer for FUZZ_SECONDS (60)
	$(BUILD) FLAVOUR=fuzz $(REPLAYS:$B/tests/%=build/fuzz/tests/%)
	@tests/fuzz.sh "$(or $(FUZZ_SECONDS),60)"

coverage: ## say which lines of bags.h no test executes, and why
	$(BUILD) tests replays FLAVOUR=coverage
	@tests/coverage.sh 98 92

bench: ## measure bags.h beside others; BENCH=ARGUMENTS, as --rounds 3 --part 100
	$(BUILD) $(SPEED)
	@$(SPEED) --json build/bench.json $(BENCH)
	@tests/bench/chart.py build/bench.json build/bench.svg; echo build/bench.json build/bench.svg

instructions: ## count the instructions of the hot paths anew, when they may grow
	$(BUILD) $(INSTRUCTIONS)
	@tests/bench/instructions.sh $(INSTRUCTIONS) write

benchformats: ## measure the codecs beside the libraries alone
	$(BUILD) $(BENCHES)
	@set -e; for bench in $(BENCHES); do echo "$$bench"; $$bench; done

lint: ## all warnings of every compiler and analyser
	@tests/deps.sh portability
	@tests/warnings.sh

footprint: ## what it costs to include bags.h, as the README has it
	@tests/footprint.py

format: ## run clang-format over all C files
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean: ## remove build/
	rm -rf build

# --- rules. Objects depend on the flags, which change when a library comes.
$B/flags: FORCE
	@mkdir -p $(@D); echo '$(COMPILE) $(WITH)' | cmp -s - $@ || echo '$(COMPILE) $(WITH)' >$@
FORCE:

OBJECT = @mkdir -p $(@D); echo '  CC $@'; $(COMPILE) $(WARN) $(WITH) -MMD -MP -c $< -o $@
LINK = @mkdir -p $(@D); echo '  LD $@'; $(filter-out -x c++,$(COMPILE)) $(filter %.o,$^) $(LINK_$(FLAVOUR)) -o $@

$B/formats/%.o: formats/%.c $B/flags
	$(OBJECT) $(C99) $(call pkg,--cflags,$(PKG_$*))
$B/examples/%.o: examples/%.c $B/flags
	$(OBJECT) $(C99) $(FORMAT_CFLAGS)
$B/examples/bags/%.o: examples/bags/%.c $B/flags
	$(OBJECT) $(C11) $(FORMAT_CFLAGS) $(call pkg,--cflags,json-c)
$B/examples/07_mpi.o: examples/07_mpi.c $B/flags
	@mkdir -p $(@D); echo '  CC $@'; mpicc $(FLAGS_$(FLAVOUR)) $(CFLAGS) $(WARN) -MMD -MP -c $< -o $@
$B/%.o: %.rc
	@mkdir -p $(@D); echo '  RC $@'; $(CC_windows:gcc=windres) $< $@
$B/tests/bench/%.o: tests/bench/%.c $B/flags
	$(OBJECT) $(C11) $(FORMAT_CFLAGS) $(call pkg,--cflags,$(PEERS))
$B/tests/%.o: tests/%.c $B/flags
	$(OBJECT) $(C11) $(FORMAT_CFLAGS) $(call pkg,--cflags,$(if $(HAVE_CMOCKA),cmocka))

$B/lib/bags.o: bags.h $B/flags
	$(OBJECT) $(C99) -fPIC
$B/lib/bags.o: private COMPILE += -x c -DBAGS_IMPLEMENTATION
$B/lib/%.o: formats/%.c $B/flags
	$(OBJECT) $(C99) -fPIC $(call pkg,--cflags,$(PKG_$*))
$B/lib/libbags.a: $(LIB_OBJECTS)
	@echo '  AR $@'; rm -f $@; $(AR) rcsD $@ $^
$B/lib/$(SHARED): $(LIB_OBJECTS)
	@echo '{ global: bag_*; bags_*; bagi_bag_get*; bagi_load_u64; bagi_view_get*; local: *; };' >$B/lib/exports
	$(LINK) -shared -Wl,-soname,$(SONAME),--version-script,$B/lib/exports,-z,defs $(FORMAT_LIBS) -pthread
$B/lib/bags.pc: formats/bags.pc.in FORCE
	@mkdir -p $(@D); sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(FORMAT_LIBS) -pthread|' $< >$@

$B/examples/%: $B/examples/%.o
	$(LINK) -pthread
$B/examples/06_images: $B/examples/06_images.o $(FORMAT_OBJECTS)
	$(LINK) $(FORMAT_LIBS)
$B/examples/07_mpi: $B/examples/07_mpi.o
	@echo '  LD $@'; mpicc $^ -o $@
$B/balls: $(call C_OBJECTS,examples/demo/*.c) $(FORMAT_OBJECTS)
	$(LINK) $(FORMAT_LIBS)
$B/bags: $(call C_OBJECTS,examples/bags/*.c) $(FORMAT_OBJECTS) $(MANIFEST)
	$(LINK) $(FORMAT_LIBS) $(call pkg,--libs,json-c) -pthread
build/bags: build/release/bags
	@ln -sf release/bags $@
$B/tests/test_%: $B/tests/test_%.o $(TEST_PARTS)
	$(LINK) $(FORMAT_LIBS) $(call pkg,--libs,cmocka) -pthread
# It stands before libc's calls in the whole program: of this test alone.
$B/tests/test_system: $B/tests/system/shim.o $B/tests/system/full_sync.o $B/tests/system/shim.so
# The same before the calls of another program.
$B/tests/system/shim.so: tests/system/shim.c tests/system/shim.h $B/flags
	@mkdir -p $(@D); echo "  LD $@"; $(filter-out -fsanitize=% -fno-sanitize%,$(COMPILE)) $(WARN) $(C11) -fPIC -shared -DBAGS_SHIM_PRELOADED $< -o $@
$(SPEED): $(SPEED_OBJECTS) $B/tests/bags_impl.o $(FORMAT_OBJECTS)
	$(LINK) $(FORMAT_LIBS) $(call pkg,--libs,$(PEERS)) -pthread
$(INSTRUCTIONS): $(INSTRUCTIONS).o $B/tests/bags_impl.o
	$(LINK) -pthread
$B/tests/bench/%: $B/tests/bench/%.o $(TEST_PARTS)
	$(LINK) $(FORMAT_LIBS) -pthread
# A fuzzer has libFuzzer's main, or ours, which runs the files it is given.
$B/tests/fuzz_%: $B/tests/fuzz_%.o $(TEST_PARTS) $(if $(filter fuzz,$(FLAVOUR)),,$B/tests/fuzz_main.o)
	$(LINK) $(if $(filter fuzz,$(FLAVOUR)),-fsanitize=fuzzer) $(FORMAT_LIBS) -pthread

-include $(shell find $B -name '*.d' 2>/dev/null)
endif
