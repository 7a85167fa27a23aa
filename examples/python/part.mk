# `make python` builds build/python/bags/ for PYTHON: extensions for the stable ABI.
PYTHON ?= /usr/bin/python3
PYTHON_OUT := $(if $(filter release,$(FLAVOUR)),build/python,$B/python)/bags
PYTHON_INCLUDE = $(shell $(PYTHON) -c 'import os, sysconfig as s; p = s.get_path("include"); print(p if os.path.exists(p + "/Python.h") else "")' 2>/dev/null)
PYTHON_FAR := $(filter mp4 http,$(BUILT))
PYTHON_FORMATS := $(filter-out mp4 http import/% export/%,$(BUILT))
PYTHON_DOORS := $(filter import/% export/%,$(BUILT))
PYTHON_OPTIONAL := jpeg png webp msgpack mp4 zstd http
# The server that the command has, too. It opens libmicrohttpd itself.
PYTHON_SERVER := $(addprefix examples/bags/,serve.c live.c growing.c)
# The command, and the libraries that it opens, which it finds next to itself.
PYTHON_COMMAND := $(if $(COMMAND),$(patsubst $B/%,$(PYTHON_OUT)/command/%,$(COMMAND) $(SHARED)))
PYTHON_SOURCES := $(wildcard examples/python/src/*.c) $(PYTHON_SERVER)
PYTHON_FILES := $(patsubst examples/python/bags/%,$(PYTHON_OUT)/%,$(wildcard $(foreach e,py pyi typed,examples/python/bags/*.$e) examples/python/bags/granular/*.py)) $(PYTHON_OUT)/_core.abi3.so $(PYTHON_OUT)/_far.abi3.so $(PYTHON_OUT)/_doors.abi3.so $(PYTHON_COMMAND)

# The objects come first: another make beside the one below would write them as well.
.PHONY: python
python: $(PIC_BAGS) $B/bags.a $(COMMAND) $(SHARED) $(foreach f,$(PYTHON_FORMATS) $(PYTHON_FAR) $(PYTHON_DOORS),$(call of_format,$B,$f)) ## build the Python package in build/python
	@if [ -n '$(PYTHON_INCLUDE)' ]; then $(MAKE) $(PYTHON_FILES) PYTHON_INCLUDE='$(PYTHON_INCLUDE)' && \
	    { [ ! -f build/viewer.html ] || cp build/viewer.html $(PYTHON_OUT); } && \
	    echo 'bags for Python includes: $(filter $(PYTHON_OPTIONAL),$(BUILT))$(foreach f,$(filter $(PYTHON_OPTIONAL),$(MISSING)),; without $f: $(PKG_$f) not found)'; \
	else echo 'skipped examples/python: Python.h of $(PYTHON) not found (python3-dev)'; fi

$(call objects,$B/pic,$(PYTHON_SOURCES)): $B/pic/%.o: %.c $B/flags
	@mkdir -p $(@D); echo '  CC $@'
	@$(COMPILE) -fPIC -std=gnu11 -Wall -Wextra -Wshadow -Wconversion -Werror $(WITH) -isystem $(PYTHON_INCLUDE) $(filter -I.% -Iformats%,$(INCLUDES)) -MMD -MP -c $< -o $@
$(PYTHON_OUT)/_core.abi3.so: $(call objects,$B/pic,$(filter-out %/far.c %/formats.c,$(PYTHON_SOURCES))) $(foreach f,$(PYTHON_FORMATS),$(call of_format,$B,$f))
$(PYTHON_OUT)/_core.abi3.so: private USED = $(foreach f,$(PYTHON_FORMATS),$(PKG_$f))
$(PYTHON_OUT)/_far.abi3.so: $B/pic/examples/python/src/far.o $(foreach f,$(PYTHON_FAR),$(call of_format,$B,$f))
$(PYTHON_OUT)/_far.abi3.so: private USED = $(foreach f,$(PYTHON_FAR),$(PKG_$f))
$(PYTHON_OUT)/_doors.abi3.so: $B/pic/examples/python/src/formats.o $(foreach f,$(PYTHON_DOORS),$(call of_format,$B,$f)) $B/bags.a
$(PYTHON_OUT)/_doors.abi3.so: private USED = $(foreach f,$(PYTHON_DOORS),$(PKG_$f))
$(PYTHON_OUT)/command/%: $B/%
	@mkdir -p $(@D); cp $< $@
# Each has its own bags.h, and exports nothing but itself.
$(PYTHON_OUT)/%.so: $(PIC_BAGS) examples/python/exports
	@mkdir -p $(@D); echo '  LD $@'
	@$(COMPILE) -shared -Wl,-Bsymbolic,--version-script=examples/python/exports $(filter %.o,$^) $(filter %.a,$^) -Wl,--as-needed $(call pkg,--libs,$(USED)) -lm -pthread $(if $(LINUX),-ldl) -o $@
$(PYTHON_OUT)/%: examples/python/bags/%
	@mkdir -p $(@D); cp $< $@
