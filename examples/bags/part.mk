# SQLite's extension: sql.c with an implementation of bags.h of its own.
ifneq ($(filter sql,$(BUILT)),)
ifneq ($(filter release asan,$(FLAVOUR)),)
all: $B/bags-sql.so
SQL_ZSTD := $(if $(filter zstd,$(BUILT)),libzstd)
$B/bags-sql.so: formats/data/sql.c $(wildcard formats/*.h formats/data/*) formats/zstd.c bags.h $B/flags
	@mkdir -p $(@D); echo '  LD $@'; $(filter-out -fsanitize=% -fno-sanitize%,$(COMPILE)) -std=c99 $(WARN) -fPIC -shared -fvisibility=hidden -DBAGS_SQL_EXTENSION $(SQL_ZSTD:%=-DBAGS_WITH_ZSTD) $(filter -I.% -Iformats%,$(INCLUDES)) $(call pkg,--cflags,sqlite3 $(SQL_ZSTD)) $< -o $@ $(call pkg,--libs,$(SQL_ZSTD)) -lm -pthread
endif
endif
