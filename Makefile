# bags.h needs no Makefile: cc program.c. This one serves the rest: the formats,
# the command, the examples and the tests. GNU make; `make help` lists targets.
#
# A flavour is a compiler and its flags. It is built into build/FLAVOUR, as by
# `make all FLAVOUR=asan`. A script may define another one: make FLAVOUR=x
# CC_x=... FLAGS_x=... LINK_x=...

MAKEFLAGS += --no-print-directory --no-builtin-rules
FLAVOUR ?= release
CC_release = $(CC)
CC_cxx = g++ -x c++
CC_$(FLAVOUR) ?= gcc
FLAGS_release = -O2 -g -ffile-prefix-map='$(CURDIR)'=.
FLAGS_asan = -DBAGS_DEBUG -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan = -DBAGS_DEBUG -O1 -g1 -fsanitize=thread
# C++ warns about {0}, which bags.h recommends.
FLAGS_cxx = -DBAGS_DEBUG -O0 -g -std=c++11 -Wno-missing-field-initializers

# The first make of `make deps test` must not search for libraries that are only
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

export PWD := $(CURDIR) # or debugging information depends on where this directory is
B := build/$(FLAVOUR)
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
# For recipes that build: in parallel, unless make was told how.
BUILD = +@$(MAKE) $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))

# --- libraries
have = $(shell pkg-config --exists $1 2>/dev/null && echo $1)
LINUX := $(filter Linux,$(shell uname))
include formats/packages.mk
JSON := $(call have,json-c)
OPTIONAL := $(call have,zlib) $(call have,libmicrohttpd) # of the command
CMOCKA := $(call have,cmocka)
MPICC := $(if $(filter release,$(FLAVOUR)),$(shell command -v mpicc))
PEERS := $(foreach p,lmdb sqlite3 hdf5 liburing,$(call have,$p)) # of the benchmark
SKIPPED := $(foreach f,$(filter-out $(FOUND),$(ALL_FORMATS)),'skipped formats/$f: $(PKG_$f) not found') \
    $(if $(JSON),,'skipped the bags command: json-c not found') \
    $(if $(CMOCKA),,'skipped tests/*/test_*.c: cmocka not found') \
    $(if $(MPICC)$(filter-out release,$(FLAVOUR)),,'skipped examples/07_mpi.c: mpicc not found')

pkg = $(if $(strip $2),$(shell pkg-config $1 $2))
with = $(shell printf ' %s' $(2:%=-D$1_%=1) | tr a-z/ A-Z_)
WITH := $(call with,BAGS_WITH,$(BUILT)) $(if $(MODULES),-DBAGS_MODULES=1) $(call with,COMMAND_WITH,$(OPTIONAL))
PACKAGES := $(foreach f,$(BUILT),$(PKG_$f))
INCLUDES := -I. -Iformats -Iformats/load -Iformats/storage -Iformats/data -Iformats/import -Iformats/export $(call pkg,--cflags,$(PACKAGES) $(JSON) $(OPTIONAL))
TEST_INCLUDES := -Itests/lib $(call pkg,--cflags,$(CMOCKA) $(PEERS)) $(call with,BENCH_WITH,$(PEERS))
# Every program is linked with all of these, and keeps those that it calls.
LIBS := $(if $(LINUX),-Xlinker --as-needed) $(call pkg,--libs,$(PACKAGES) $(JSON) $(OPTIONAL) $(CMOCKA) $(PEERS)) -lm -pthread $(if $(LINUX),-ldl)

# --- programs
objects = $(patsubst %.c,$1/%.o,$(wildcard $2))
of_format = $(call objects,$1,$(filter $(call in_folders,$2 $(PARTS_$2)),$(FORMAT_FILES)))
# What the importers share, and the exporters.
SHARE := formats/import/import.o formats/export/export.o
programs = $(patsubst %.c,$B/%,$(filter-out $(foreach m,$(subst /,_,$(MISSING)),$1$m.c $1$(m)_parts.c),$(wildcard $1*.c)))
EXAMPLES := $(filter-out $(if $(MPICC),,%_mpi) $(if $(filter jpeg png,$(MISSING)),%_images) $(if $(filter jpeg,$(MISSING)),%_train),$(call programs,examples/))
COMMAND := $(if $(JSON),$(if $(filter-out cxx,$(FLAVOUR)),$B/bags))
INSTALLED := $(COMMAND:$B/%=$B/installed/%)
COMMAND_OBJECTS := $(filter-out %/implementation.o,$(call objects,$B,examples/bags/*.c))
DEMO := $(if $(filter-out cxx,$(FLAVOUR)),$B/balls $B/curve)
# The shim of two tests replaces calls of Linux.
TESTS := $(if $(CMOCKA),$(filter-out $(if $(LINUX),,%/test_system %/test_cache) $(if $(and $(LINUX),$(filter jpeg,$(BUILT))),,%/test_cuda %/test_cuda_video) $(if $(filter mp4,$(BUILT)),,%/test_cuda_video),$(foreach d,core formats formats/load formats/storage formats/data formats/import formats/export,$(call programs,tests/$d/test_))))
FUZZERS := $(call programs,tests/fuzz/fuzz_)
BENCHES := $(call programs,tests/bench/bench_) $B/tests/bench/instructions
SPEED := $B/tests/bench/speed
# What several tests share; a fuzzer without libFuzzer has a main that replays files.
SUPPORT := $(call objects,$B,tests/lib/*.c)
REPLAY := $(if $(filter fuzz,$(FLAVOUR)),,$B/tests/fuzz/main.o)

.PHONY: help all demo deps test check asan tsan soak fuzz coverage portability lint footprint bench
.PHONY: benchformats instructions format clean programs print-formats FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: $(EXAMPLES) $(DEMO) $(COMMAND) $(if $(filter build/release/bags,$(COMMAND)),build/bags) ## build the formats, the command and the examples
	@$(if $(strip $(SKIPPED)),printf '%s\n' $(SKIPPED),:)

help: ## print this list
	@sed -n 's/^\([a-z0-9]*\):.*## */  make \1\t/p' Makefile formats/install.mk $(wildcard examples/*/part.mk) | expand -t 21

demo: ## run the demo; OUT=DIR sets the output directory, PHOTOS=DIR your photographs
	$(BUILD) all
	@examples/demo/demo.sh "$(or $(PHOTOS),tests/data/photos)" "$(or $(OUT),build/demo)"

deps: ## install the libraries and tools that demo and test need (apt-get)
test: ## build and run the most effective tests (5 minutes)
check: ## build and run all other tests; installs their tools
asan: ## build and run every test program under AddressSanitizer and UBSan
tsan: ## build and run the tests of threads under ThreadSanitizer
soak: ## run for hours: every fault, 500 kills, each fuzzer for ten minutes
fuzz: ## run every fuzzer for FUZZ_SECONDS (60)
coverage: ## list the lines of bags.h that no test executes, with the reasons
portability: ## test every compiler, CPU and system; CELLS='m32 s390x' selects some
lint: ## run every compiler and analyser with all warnings
footprint: ## measure the code size and compile time of bags.h
bench: ## compare the speed of bags.h with others; BENCH='--rounds 3 --part 100'
benchformats: ## compare the speed of the codecs with the libraries alone
instructions: ## update the instruction counts of the hot paths

test check asan tsan soak:
	@tests/run.sh $@
deps fuzz coverage:
	@tests/$(if $(filter fuzz,$@),fuzz/)$@.sh
portability lint:
	@tests/deps.sh portability
	@tests/$@.sh $(if $(filter $@,portability),$(CELLS))
bench benchformats instructions footprint:
	@tests/bench/run.sh $@

format: ## run clang-format on all C files
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean: ## remove build/
	rm -rf build

# For scripts: those of NAMES that are tests or fuzzers of formats that can be built;
# how the formats were compiled, and what a program that uses them is linked with.
programs: $(filter $(addprefix %/,$(NAMES)),$(TESTS) $(FUZZERS) $(BENCHES) $(SPEED))
	@:
print-formats:
	@echo '$(WITH) $(INCLUDES)'; echo '$(SHARE:%=$B/%) $(foreach f,$(BUILT),$(call of_format,$B,$f)) $(LIBS)'

# A sanitizer's programs may contain what its shared libraries need.
PIC_BAGS := $B/$(if $(filter asan tsan,$(FLAVOUR)),,pic/)bags.o

# --- compile and link. Objects depend on the flags, which change when a library is
# installed. What users copy is C99; the command and the tests are C11. Formats are in
# shared libraries, too: modules, the Python package, those that are installed.
COMPILE = $(CC_$(FLAVOUR)) $(FLAGS_$(FLAVOUR)) $(CPPFLAGS) $(CFLAGS)
SETTINGS = $(COMPILE) $(WITH)
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror
STANDARD = $(if $(filter bags.h formats/% examples/0% examples/1%,$<),-std=c99,-std=gnu11) -Wstrict-prototypes -Wc++-compat
OBJECT = @mkdir -p $(@D); echo '  CC $@'; $(COMPILE) $(WARN) $(if $(filter cxx,$(FLAVOUR)),,$(STANDARD)) \
    $(WITH) $(INCLUDES) $(if $(filter tests/%,$<),$(TEST_INCLUDES)) \
    $(if $(findstring /pic/,$@)$(filter formats/%,$<)$(filter $(PIC_BAGS),$@),-fPIC) -MMD -MP -c -o $@
LINK = @mkdir -p $(@D); echo '  LD $@'; $(COMPILE) -x none $(filter %.o,$^) $(filter %.a,$^) $(LINK_$(FLAVOUR)) $(OWN) $(LDFLAGS) $(LIBS) -o $@

$B/flags $B/peers $B/libdir: FORCE
	@mkdir -p $(@D); echo '$(NEW)' | cmp -s - $@ || echo '$(NEW)' >$@
$B/flags: private NEW = $(SETTINGS)
$B/peers: private NEW = $(PEERS)
$B/libdir: private NEW = $(abspath $(LIBDIR))
$(call objects,$B,tests/bench/*.c): $B/peers
FORCE:

$B/bags.o $B/pic/bags.o: bags.h $B/flags
	$(OBJECT) -DBAGS_IMPLEMENTATION $(if $(filter cxx,$(FLAVOUR)),,-x c) $<
# Each example has an implementation of its own, which takes seconds to optimize.
$B/examples/%.o: examples/%.c $B/flags
	$(OBJECT) $(if $(findstring /,$*),,-O0) $<
# What tests contain takes longer to optimize than to run, unless they measure speed.
$B/%.o: %.c $B/flags
	$(OBJECT) $(if $(filter tests/%,$(filter-out tests/bench/%,$<)),-O0) $<
$B/examples/07_mpi $B/examples/07_mpi.o: private CC_release = mpicc
# The implementation and the formats: a program takes the objects that it needs.
$B/bags.a: $B/bags.o $(SHARE:%=$B/%) $(foreach f,$(filter-out $(MODULES),$(BUILT)),$(call of_format,$B,$f))
$B/modules.a: $(foreach f,$(MODULES),$(call of_format,$B,$f))
$B/bags.a $B/modules.a:
	@mkdir -p $(@D); echo '  AR $@'; rm -f $@; $(AR) rcsD $@ $^

$(EXAMPLES) $(TESTS) $(FUZZERS) $(BENCHES): %: %.o
$(TESTS) $(FUZZERS) $(BENCHES): $(SUPPORT)
$(FUZZERS): $(REPLAY)
$(SPEED): $(filter-out $(BENCHES:%=%.o),$(call objects,$B,tests/bench/*.c))
$B/balls: $B/examples/demo/balls.o $B/examples/demo/world.o
$B/curve: $B/examples/demo/curve.o
# The modules call the bags.h of the command. The dlopen of sanitizers finds them by a
# DT_RPATH alone. Only the command that is installed knows LIBDIR.
EXPORTED = $(if $(MODULES),-Wl$(,)--dynamic-list=formats/exports$(,)--disable-new-dtags$(,)-rpath='$$ORIGIN:$$ORIGIN/../lib$1')
$B/bags $(INSTALLED): $(COMMAND_OBJECTS) formats/exports | $(SHARED)
$B/bags: private OWN = $(call EXPORTED)
$(INSTALLED): $B/libdir
$(INSTALLED): private OWN = $(call EXPORTED,$(LIBDIR:%=:$(abspath $(LIBDIR))))
$(foreach f,$(MODULES),$(eval $(call shared,$f): $(call of_format,$B,$f)))
$(SHARED): private OWN = -shared
# These replace calls of libc, in these tests alone and, preloaded, in another program.
$B/tests/core/test_system $B/tests/formats/storage/test_cache: $B/tests/lib/system/shim.o $B/tests/lib/system/full_sync.o $B/tests/lib/system/shim.so
$B/tests/lib/system/shim.so: tests/lib/system/shim.c tests/lib/system/shim.h $B/flags
	@mkdir -p $(@D); echo '  LD $@'; $(filter-out -fsanitize=% -fno-sanitize%,$(COMPILE)) $(WARN) -fPIC -shared -DBAGS_SHIM_PRELOADED $< -o $@

# libcuda.so.1, libnvjpeg.so.12 and libnvcuvid.so.1 for computers without a GPU.
MOCK := $B/tests/formats/load/mock
$B/tests/formats/load/test_cuda $B/tests/formats/load/test_cuda_video: | $(MOCK)/libcuda.so.1
$(MOCK)/libcuda.so.1: tests/formats/load/cuda_mock.c tests/formats/load/cuda_mock_video.h formats/load/cuda_kernels.h $B/flags
	@mkdir -p $(@D); echo '  LD $@'; $(COMPILE) $(WARN) -fPIC -shared -fvisibility=hidden -ffp-contract=off $(if $(filter mp4,$(BUILT)),-DMOCK_WITH_VIDEO) $< $(call pkg,--cflags --libs,libjpeg $(if $(filter mp4,$(BUILT)),libavcodec libavutil)) -pthread -o $@ && ln -sf libcuda.so.1 $(@D)/libnvjpeg.so.12$(if $(filter mp4,$(BUILT)), && ln -sf libcuda.so.1 $(@D)/libnvcuvid.so.1)

PROGRAMS := $(EXAMPLES) $(DEMO) $(TESTS) $(FUZZERS) $(BENCHES) $(SPEED)
$(PROGRAMS): $B/modules.a
$(PROGRAMS) $B/bags $(INSTALLED): $B/bags.a
$(PROGRAMS) $B/bags $(INSTALLED) $(SHARED):
	$(LINK)
build/bags: build/release/bags
	@ln -sf release/bags $@

-include formats/install.mk $(wildcard examples/*/part.mk) $(shell find $B -name '*.d' 2>/dev/null)
endif
