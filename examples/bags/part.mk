# SQLite's extension: formats/sql.c with an implementation of bags.h of its own.
ifneq ($(filter sql,$(BUILT)),)
ifneq ($(filter release asan,$(FLAVOUR)),)
all: $B/bags-sql.so
$B/bags-sql.so: formats/sql.c formats/data.h formats/private.h bags.h $B/flags
	@mkdir -p $(@D); echo '  LD $@'; $(filter-out -fsanitize=% -fno-sanitize%,$(COMPILE)) -std=c99 $(WARN) -fPIC -shared -fvisibility=hidden -DBAGS_SQL_EXTENSION -I. -Iformats $(call pkg,--cflags,sqlite3) $< -o $@ -lm -pthread
endif
endif
