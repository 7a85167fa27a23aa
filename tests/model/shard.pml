/*
 * shard.pml - how a shard is written, resumed, recovered, read, renumbered and derived, and
 * what crashes and power failures leave of it: a model for SPIN 6.
 *
 *     spin -a -DPOWER shard.pml      one process after the other; crashes, power failures
 *     spin -a -DPAIR shard.pml       two writers, recovery, a reader, a removal; crashes
 *     spin -a -DFINALIZE shard.pml   bags_finalize and two claims; crashes
 *     spin -a -DDERIVE shard.pml     bags_derive and a source that is replaced; failures
 *     cc -O2 -DSAFETY -DNOREDUCE -DCOLLAPSE -DVECTORSZ=1024 -DMEMLIM=3000 -o pan pan.c
 *     ./pan -m100000 -w24
 *
 * check.py runs all four, the mutants (-DMUTANT=1 ...), and with -DREPLAY the traces of
 * tests/core/test_power.c. A fault is an assertion that pan names.
 *
 * A shard has one field and N datapoints. Its files, of N units each:
 *
 *     REC      spec.json.partial, which is renamed to spec.json
 *     XB, XI   X.bag, X.idx
 *     RB, RI   refs.bag, refs.idx        (a .crc is written together with its .bag)
 *
 * A unit is the number of the job that wrote it, or 0: lost. `now` is what processes see,
 * `disk` what is on stable storage. After a power failure each unit that differs is one of
 * both, or zeros (torn, lost); a length and a table are of either; each change of a
 * directory was made or not (reordered).
 */
#ifndef N
#define N 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define XB 0
#define XI 1
#define RB 2
#define RI 3
#define FILES 4
#define REC 4
#define DRAFTS 5 /* refs.partial and X.dict: only in traces */
#define DICT 6

/* Calls, as numbers in a trace. */
#define LINK(f) (10 + f)
#define WRITE(f) (20 + f)
#define TRUNCATE(f) (30 + f)
#define SYNC(f) (40 + f)
#define UNLINK(f) (50 + f)
#define MKDIR 60
#define RMDIR 61
#define SYNCDIR 62
#define SYNCPARENT 63
#define RENAME 64
#define RENAMEDICT 65
#define CRASHED 70
#define SYNCED 71
#define CLOSED 72
#define RECOVERED 73
#define OPEN 74
#define OPENLAZY 75
#define END 76

#define NONE 0
#define PARTIAL 1
#define SPEC 2

#define CLAIM 0
#define RESUME 1
#define RECOVER 2

/* ---- the disk ---- */

bool now_dir, disk_dir;
byte now_record, disk_record; /* the name of REC */
bool now_link[FILES], disk_link[FILES];
byte now_length[FILES], disk_length[FILES];
bool now_table[FILES], disk_table[FILES];
byte now_unit[8], disk_unit[8]; /* [f * N + i] */
byte generation; /* of the record: how often it was created */
byte lock;       /* the process that holds REC's lock; 0: none */

/* ---- what the library promised, and what happened ---- */

byte flushed, synced; /* datapoints that survive a crash, a power failure */
byte failures;
bool power;           /* it failed: nothing is certain until a recovery ends */
byte commits;         /* renames of this generation's REC */

#ifdef REPLAY
c_decl {
    \#include <stdio.h>
    \#include <stdlib.h>
    static unsigned char trace[10000];
    static size_t trace_size;

    /* Event number i of the file that TRACE names, a byte each. */
    static int event(int i) {
        if (!trace_size) {
            FILE *file = fopen(getenv("TRACE"), "rb");
            trace_size = file ? fread(trace, 1, sizeof trace, file) : 0;
            if (!trace_size || trace_size == sizeof trace)
                abort();
            fclose(file);
        }
        return i < (int)trace_size ? trace[i] : 0;
    }
}
short at;
bool lazy, no_sync; /* until a sync; as the writer was opened */
#define IS(e) (c_expr { !(event(now.at) - (e)) })
#define NEXT at++
#define MAY_FAIL IS(CRASHED)
#define CONTENT(effect) skip
#else
#define IS(e) true
#define NEXT skip
#define MAY_FAIL (failures < CRASHES)
#define CONTENT(effect) effect
#define lazy false
#endif

/* A call of the system and its effect; instead of it, the process may crash. */
#define CALL(e, effect)                                                                \
    atomic {                                                                           \
        if                                                                             \
        :: IS(e) -> NEXT; effect                                                       \
        :: MAY_FAIL -> NEXT; fail(); goto ended                                        \
        fi                                                                             \
    }

/* A process whose directory was replaced changes files that have no name. */
#define ON_MINE(effect)                                                                \
    if                                                                                 \
    :: mine == generation -> effect                                                    \
    :: else -> skip                                                                    \
    fi

#if MUTANT == 11
#define UNLESS_REPLACED(effect) effect
#else
#define UNLESS_REPLACED(effect) ON_MINE(effect)
#endif

byte i, f; /* of loops within one step */

inline store(file) {
    disk_length[file] = now_length[file];
    disk_table[file] = now_table[file];
    for (i : 0 .. N - 1) {
        disk_unit[file * N + i] = now_unit[file * N + i]
    }
    i = 0
}

inline clear(file) {
    now_length[file] = 0;
    now_table[file] = false;
    for (i : 0 .. N - 1) {
        now_unit[file * N + i] = 0
    }
    i = 0
}

inline write(file, start, stop) {
    for (i : 0 .. N - 1) {
        if
        :: i >= start && i < stop -> now_unit[file * N + i] = my_job
        :: else -> skip
        fi
    }
    i = 0;
    if
    :: now_length[file] < stop -> now_length[file] = stop
    :: else -> skip
    fi
}

inline truncate(file, stop) {
    for (i : 0 .. N - 1) {
        if
        :: i >= stop -> now_unit[file * N + i] = 0
        :: else -> skip
        fi
    }
    i = 0;
    now_length[file] = stop;
    now_table[file] = false
}

inline store_directory() {
    disk_record = now_record;
    for (f : 0 .. FILES - 1) {
        disk_link[f] = now_link[f];
        if
        :: !now_link[f] ->
            disk_length[f] = 0;
            disk_table[f] = false;
            for (i : 0 .. N - 1) {
                disk_unit[f * N + i] = 0
            }
            i = 0
        :: else -> skip
        fi
    }
    f = 0
}

inline draw_file() {
    if
    :: now_length[f] != disk_length[f] -> now_length[f] = disk_length[f]
    :: now_length[f] == 2 && disk_length[f] == 0 -> now_length[f] = 1
    :: true
    fi;
    if
    :: now_table[f] != disk_table[f] -> now_table[f] = disk_table[f]
    :: true
    fi;
    for (i : 0 .. N - 1) {
        if
        :: i >= now_length[f] -> now_unit[f * N + i] = 0
        :: i < now_length[f] && now_unit[f * N + i] != disk_unit[f * N + i] ->
            if
            :: now_unit[f * N + i] = disk_unit[f * N + i]
            :: now_unit[f * N + i] = 0
            :: true
            fi
        :: else -> skip
        fi
    }
    i = 0
}

inline power_failure() {
    power = true;
    lock = 0;
    flushed = synced;
    if
    :: now_dir != disk_dir -> now_dir = disk_dir
    :: true
    fi;
    if
    :: now_record != disk_record -> now_record = disk_record
    :: true
    fi;
    for (f : 0 .. FILES - 1) {
        if
        :: now_link[f] != disk_link[f] -> now_link[f] = disk_link[f]
        :: true
        fi;
        draw_file();
        if
        :: !now_link[f] || !now_dir -> now_link[f] = false; clear(f)
        :: else -> skip
        fi;
        store(f);
        disk_link[f] = now_link[f]
    }
    f = 0;
    if
    :: !now_dir -> now_record = NONE
    :: else -> skip
    fi;
    disk_dir = now_dir;
    disk_record = now_record;
    commits = (now_record == SPEC) /* the rename may be undone */
}

inline fail() {
    failures++;
    if
    :: lock == self -> lock = 0
    :: else -> skip
    fi;
#if (defined(POWER) || defined(DERIVE)) && !defined(REPLAY)
    if
    :: power_failure()
    :: true
    fi
#endif
}

/* ---- invariants ---- */

/* While no power failed: what refs.idx lists is in the other files. */
inline check_order() {
    for (i : 0 .. N - 1) {
        if
        :: !power && i < now_length[RI] ->
            assert(now_unit[XB * N + i] == now_unit[RI * N + i]);
            assert(now_unit[RB * N + i] == now_unit[RI * N + i]);
            assert(now_unit[XI * N + i] == now_unit[RI * N + i])
        :: else -> skip
        fi
    }
    i = 0
}

/* The record gets its name now: all else is complete, also on stable storage. */
inline check_commit() {
    assert(mine == generation && lock == self); /* what is renamed is held */
    assert(now_record == PARTIAL);              /* no other process committed it */
    assert(now_table[XB] && now_table[RB]);     /* the record is last */
    assert(disk_table[XB] && disk_table[RB]);
    assert(disk_link[XB] && disk_link[RB]);
    for (i : 0 .. N - 1) {
        assert(now_unit[XB * N + i] == disk_unit[XB * N + i]);
        assert(now_unit[RB * N + i] == disk_unit[RB * N + i]);
        assert(power || now_unit[XB * N + i] == now_unit[RB * N + i])
    }
    i = 0;
    assert(now_length[RB] >= flushed);
    commits++;
    assert(commits == 1)
}

/* How many of the first datapoints have their bytes: `complete`. Without checksums, recovery
 * keeps others too, whose bytes a power failure lost before they were synced. */
inline intact(most) {
    complete = 0;
    do
    :: complete < most && now_unit[XB * N + complete] != 0 -> complete++
    :: else -> break
    od
}

/* What was promised is there: `length` datapoints were found. */
inline check_promise(length) {
    assert(length >= flushed && length >= synced);
    for (i : 0 .. N - 1) {
        if
        :: i < synced ->
            assert(now_unit[XB * N + i] != 0 && now_unit[RB * N + i] != 0)
        :: else -> skip
        fi
    }
    i = 0
}

/* ---- a writer, and bags_recover: both find, take, write and finish shards ---- */

/* It did not exist: an exclusive create. */
inline new_record() {
    now_record = PARTIAL;
    generation++;
    mine = generation;
    lock = 0;
    commits = 0;
    CONTENT(flushed = 0; synced = 0)
}

/* The files of a Bag are created exclusively, too. */
#define CREATE(file)                                                                   \
    CALL(LINK(file), if :: mine == generation && now_link[file] -> goto ended :: mine == generation && !now_link[file] -> now_link[file] = true :: else -> skip fi)

#define HAS_FILES (now_link[XB] || now_link[XI] || now_link[RB] || now_link[RI])
#define PENDING (wrote_xb != wrote_xi)

inline sync_all() {
    CALL(SYNC(XB), ON_MINE(store(XB)));
    CALL(SYNC(XI), ON_MINE(store(XI)));
    CALL(SYNC(RB), ON_MINE(store(RB)));
#if MUTANT != 1
    CALL(SYNC(RI), ON_MINE(store(RI)));
#endif
#ifdef REPLAY
    if
    :: CALL(SYNC(DRAFTS), skip)
    :: !IS(SYNC(DRAFTS)) -> skip
    fi;
#endif
    CALL(SYNC(REC), skip);
    CALL(SYNCDIR, ON_MINE(store_directory()));
    CALL(SYNCPARENT, ON_MINE(disk_dir = now_dir))
}

inline finish() {
#ifdef REPLAY
    /* The .idx are synced if they are kept; a longer file is truncated; a table larger than
     * the buffer takes several calls. */
    do
    :: IS(SYNC(XI)) || IS(TRUNCATE(XI)) -> NEXT
    :: !IS(SYNC(XI)) && !IS(TRUNCATE(XI)) -> break
    od;
#endif
    CALL(WRITE(XB), CONTENT(ON_MINE(now_table[XB] = true)));
#ifdef REPLAY
    do
    :: IS(WRITE(XB)) || IS(TRUNCATE(XB)) || IS(SYNC(XI)) || IS(TRUNCATE(XI)) -> NEXT
    :: IS(SYNC(RI)) || IS(TRUNCATE(RI)) -> NEXT
    :: IS(WRITE(RB)) -> break
    od;
#endif
    CALL(WRITE(RB), CONTENT(ON_MINE(now_table[RB] = true)));
#ifdef REPLAY
    do
    :: IS(WRITE(RB)) || IS(TRUNCATE(RB)) -> NEXT
    :: !IS(WRITE(RB)) && !IS(TRUNCATE(RB)) -> break
    od;
    if /* the trailers of checksums */
    :: IS(WRITE(XB)) -> NEXT
    :: !IS(WRITE(XB)) -> skip
    fi;
#endif
    if
    :: !lazy ->
        CALL(SYNC(XB), CONTENT(ON_MINE(store(XB))));
#ifdef REPLAY
        if
        :: IS(WRITE(RB)) -> NEXT
        :: !IS(WRITE(RB)) -> skip
        fi;
#endif
#if MUTANT != 2
        CALL(SYNC(RB), CONTENT(ON_MINE(store(RB))));
#endif
        CALL(SYNCDIR, CONTENT(ON_MINE(store_directory())))
    :: lazy -> skip
    fi;
#ifdef REPLAY
    do /* without syncs a trailer may still be in front of the commit */
    :: lazy && (IS(WRITE(RB)) || IS(WRITE(XB))) -> NEXT
    :: !lazy || !(IS(WRITE(RB)) || IS(WRITE(XB))) -> break
    od;
#endif
    CALL(RENAME, CONTENT(check_commit()); now_record = SPEC);
    if
    :: !lazy ->
        CALL(SYNCDIR, CONTENT(store_directory()));
        CALL(SYNCPARENT, CONTENT(disk_dir = now_dir));
        atomic { CONTENT(intact(now_length[RB])); CONTENT(synced = complete); CONTENT(flushed = complete) }
    :: lazy -> skip
    fi;
    if
    :: /* bagi_stream_remove: unless the path leads to another file now */
        CALL(UNLINK(XI), UNLESS_REPLACED(now_link[XI] = false; clear(XI)));
        CALL(UNLINK(RI), UNLESS_REPLACED(now_link[RI] = false; clear(RI)))
#ifdef REPLAY
    :: !IS(UNLINK(XI)) -> skip /* keep_idx */
#endif
    fi;
#ifdef REPLAY
    if
    :: CALL(UNLINK(DRAFTS), skip)
    :: !IS(UNLINK(DRAFTS)) -> skip
    fi;
    for (f : 0 .. FILES - 1) {
        now_link[f] = false
    }
    f = 0;
    now_record = NONE;
    now_dir = false; /* the next shard */
#endif
    atomic {
        if
        :: lock == self -> lock = 0
        :: else -> skip
        fi
    }
}

/* A file that exists is removed; one that does not needs no call. */
#define REMOVE(file)                                                                   \
    if                                                                                 \
    :: now_link[file] && mine == generation ->                                         \
        CALL(UNLINK(file), ON_MINE(now_link[file] = false; clear(file)))               \
    :: else -> skip                                                                    \
    fi

inline discard() {
    assert(synced == 0 && (flushed == 0 || generation != mine));
#ifdef REPLAY
    if
    :: IS(UNLINK(DRAFTS)) -> NEXT; CALL(SYNCDIR, skip)
    :: !IS(UNLINK(DRAFTS)) -> skip
    fi;
#endif
    REMOVE(RI);
    REMOVE(RB);
#ifdef REPLAY
    do
    :: IS(UNLINK(DICT)) -> NEXT
    :: !IS(UNLINK(DICT)) -> break
    od;
#endif
    REMOVE(XI);
    REMOVE(XB);
    CALL(UNLINK(REC), assert(mine == generation && lock == self); now_record = NONE; lock = 0);
    CALL(RMDIR, if :: now_record == NONE && mine == generation -> now_dir = false :: else -> skip fi)
}

/* The complete datapoints: bagi_scan_rows. Without checksums, lost data of X.bag does not
 * show. */
inline scan() {
    complete = 0;
    do
    :: complete < N && complete < now_length[RI] && complete < now_length[RB] &&
        complete < now_length[XI] && complete < now_length[XB] &&
        now_unit[RI * N + complete] != 0 && now_unit[RB * N + complete] != 0 &&
        now_unit[XI * N + complete] != 0 && now_link[XB] && now_link[XI] &&
        now_link[RB] && now_link[RI] -> complete++
    :: else -> break
    od
}

proctype Worker(byte self; byte my_job; byte mode) {
    byte mine = 0, appended = 0, complete = 0, tries = 0;
    byte wrote_xb = 0, wrote_xi = 0, wrote_rb = 0, wrote_ri = 0;
    bool foreign = false;
#ifdef REPLAY
    no_sync = false;
    if
    :: IS(OPEN) && mode != RECOVER -> NEXT
    :: IS(OPENLAZY) && mode != RECOVER -> NEXT; no_sync = true
    :: !IS(OPEN) && !IS(OPENLAZY) && mode == RECOVER -> skip
    fi;
    lazy = no_sync;
#endif
    if
    :: mode == CLAIM -> goto claim
    :: else -> skip
    fi;

    /* bagi_writer_find, _open_record */
    atomic {
        if
        :: !now_dir && mode == RESUME -> goto claim
        :: !now_dir && mode == RECOVER -> goto ended
        :: now_dir && now_record == SPEC -> goto ended
        :: else -> mine = generation
        fi
    }
    atomic {
        if
        :: now_record == PARTIAL && generation == mine -> foreign = false
        :: now_record == NONE && generation == mine && HAS_FILES ->
            assert(synced == 0);
            goto ended /* files that no writer left */
        :: now_record == NONE && generation == mine && !HAS_FILES -> foreign = true
        :: else -> goto ended
        fi
    }
    if
    :: foreign -> /* no record: the writer crashed before it, or is about to make it */
        CALL(LINK(REC), if :: now_record != NONE || !now_dir -> goto ended :: else -> new_record() fi)
    :: else -> skip
    fi;
    atomic {
        if
#if MUTANT == 3
        :: now_dir && now_record == PARTIAL && generation == mine -> lock = self
#else
        :: now_dir && now_record == PARTIAL && generation == mine && lock == 0 -> lock = self
#endif
        :: else -> goto ended /* locked, finished or removed */
        fi
    }
#ifdef REPLAY
    if /* drafts are ended before anything that they refer to is changed */
    :: IS(WRITE(DRAFTS)) -> NEXT; CALL(SYNC(DRAFTS), skip); complete = 1
    :: IS(TRUNCATE(XB)) -> complete = 1
    :: !IS(WRITE(DRAFTS)) && !IS(TRUNCATE(XB)) -> complete = 0
    fi;
#else
    atomic { scan() }
#endif
    if
    :: complete == 0 ->
        if
        :: now_link[RI] && now_length[RI] > 0 -> /* not explained by a crash: left alone */
            atomic { assert(power && synced == 0); lock = 0; goto ended }
        :: else -> skip
        fi;
        discard();
        if
        :: mode == RESUME -> goto claim
        :: else -> goto ended
        fi
    :: else -> skip
    fi;
    atomic { CONTENT(check_promise(complete)) }
#if MUTANT == 4
    complete = complete - (complete == 2);
#endif
    CALL(TRUNCATE(XB), CONTENT(truncate(XB, complete)));
    CALL(TRUNCATE(XI), CONTENT(truncate(XI, complete)));
    CALL(TRUNCATE(RB), CONTENT(truncate(RB, complete)));
    CALL(TRUNCATE(RI), CONTENT(truncate(RI, complete)));
    atomic {
        appended = complete;
        wrote_xb = complete;
        wrote_xi = complete;
        wrote_rb = complete;
        wrote_ri = complete
    }
    if
    :: mode == RECOVER -> goto complete_it
    :: else -> goto writing
    fi;

claim:
    /* bagi_writer_claim: mkdir, then the record, which is locked, written and synced. */
    if
    :: tries == 2 -> goto ended
    :: else -> tries++
    fi;
#ifdef REPLAY
    lazy = no_sync;
    if
    :: IS(SYNCPARENT) -> NEXT
    :: !IS(SYNCPARENT) -> skip
    fi;
#endif
    CALL(MKDIR, if :: now_dir -> goto ended :: else -> now_dir = true fi);
    CALL(LINK(REC), if :: now_record != NONE || !now_dir -> goto claim :: else -> new_record() fi);
    atomic {
        if
        :: now_dir && now_record == PARTIAL && generation == mine && lock == 0 -> lock = self
        :: else -> goto claim /* a recovery took it */
        fi
    }
    CALL(WRITE(REC), skip);
    if
    :: !lazy -> CALL(SYNC(REC), skip)
    :: lazy -> skip
    fi;
#ifdef REPLAY
    if
    :: IS(LINK(RB)) -> NEXT /* refs.crc: with checksums */
    :: !IS(LINK(RB)) -> skip
    fi;
    if
    :: IS(SYNCDIR) -> NEXT
    :: lazy && !IS(SYNCDIR) -> skip
    fi;
#else
    CALL(SYNCDIR, ON_MINE(store_directory()));
#endif
    CREATE(XB);
    CREATE(XI);
    CREATE(RB);
    CREATE(RI);
    appended = 0;
    wrote_xb = 0;
    wrote_xi = 0;
    wrote_rb = 0;
    wrote_ri = 0;

writing:
#ifdef REPLAY
    /* Counts stand for "some": wrote_xb != wrote_xi if X.bag was written and not yet X.idx. */
    do
    :: IS(WRITE(XB)) -> NEXT; wrote_xb = 1 - wrote_xi
    :: IS(WRITE(XI)) && PENDING -> NEXT; wrote_xi = wrote_xb
    :: IS(WRITE(RB)) && !PENDING -> NEXT; wrote_rb = 1 - wrote_ri
    :: IS(WRITE(RI)) && !PENDING && wrote_rb != wrote_ri -> NEXT; wrote_ri = wrote_rb
    :: IS(LINK(DRAFTS)) && !PENDING -> NEXT
    :: IS(WRITE(DRAFTS)) && !PENDING -> NEXT
    :: IS(SYNC(DRAFTS)) && !PENDING -> NEXT
    :: IS(LINK(DICT)) ->
        NEXT;
        CALL(WRITE(DICT), skip);
        CALL(SYNC(DICT), skip);
        CALL(RENAMEDICT, skip);
        CALL(SYNCDIR, skip)
    :: IS(SYNC(XB)) && !PENDING && wrote_rb == wrote_ri -> sync_all(); lazy = false
    :: IS(SYNCED) && !PENDING && wrote_rb == wrote_ri -> NEXT
    :: IS(CRASHED) -> NEXT; fail(); goto ended
    :: (IS(WRITE(XB)) || IS(SYNC(XI)) || IS(TRUNCATE(XI))) && !PENDING &&
        wrote_rb == wrote_ri -> goto complete_it
    od;
#else
    do
    :: appended < N -> appended++
    :: wrote_xb < appended ->
        CALL(WRITE(XB), assert(mine != generation || lock == self); ON_MINE(write(XB, wrote_xb, appended)));
        wrote_xb = appended
    :: wrote_xi < wrote_xb ->
        CALL(WRITE(XI), ON_MINE(write(XI, wrote_xi, wrote_xb)));
        wrote_xi = wrote_xb
#if MUTANT == 5
    :: wrote_rb < wrote_xb ->
        CALL(WRITE(RB), ON_MINE(write(RB, wrote_rb, wrote_xb)));
        wrote_rb = wrote_xb
#else
    :: wrote_rb < wrote_xi && !PENDING ->
        CALL(WRITE(RB), ON_MINE(write(RB, wrote_rb, wrote_xi)));
        wrote_rb = wrote_xi
#endif
    :: wrote_ri < wrote_rb ->
        CALL(WRITE(RI), ON_MINE(write(RI, wrote_ri, wrote_rb); check_order()));
        wrote_ri = wrote_rb;
        atomic {
            if /* bags_writer_flush returns */
            :: wrote_ri == appended && mine == generation ->
                intact(appended);
                flushed = (complete > flushed -> complete : flushed)
            :: else -> skip
            fi
        }
    :: appended > 0 && wrote_ri == appended && synced < appended ->
        sync_all();
        atomic {
            if /* bags_writer_sync returns */
            :: mine == generation -> intact(appended); synced = complete; flushed = complete
            :: else -> skip
            fi
        }
    :: appended > 0 && wrote_ri == appended -> break
    od;
#endif

complete_it:
    finish();
ended:
    atomic {
        if
        :: lock == self -> lock = 0
        :: else -> skip
        fi
    }
#ifdef REPLAY
    do
    :: IS(CLOSED) || IS(RECOVERED) || IS(SYNCPARENT) || IS(SYNCED) || IS(CRASHED) -> NEXT
    :: IS(MKDIR) && mode != RECOVER -> tries = 0; goto claim
    :: IS(END) -> assert(false) /* the model allows the whole trace */
    :: true -> break
    od
#endif
}

#ifdef POWER

/* A writer; then recovery or a writer that resumes, until nothing fails any more. */
init {
    byte complete = 0, before = 0, was = 0;
    run Worker(1, 1, CLAIM);
    (_nr_pr == 1);
    do
    :: failures > 0 ->
        if
        :: run Worker(2, 2, RECOVER)
        :: run Worker(2, 2, RESUME)
        fi;
        (_nr_pr == 1);
        if
        :: true -> break
        :: failures < CRASHES -> skip
        fi
    :: failures == 0 -> break
    od;
    failures = CRASHES;
    run Worker(3, 3, RECOVER);
    (_nr_pr == 1);
    atomic {
        if
        :: now_dir && now_record == SPEC ->
            complete = now_length[RB];
            check_promise(complete)
        :: else -> assert(synced == 0)
        fi;
        before = now_length[RB];
        was = now_record
    }
    run Worker(3, 3, RECOVER); /* twice is once */
    (_nr_pr == 1);
    assert(now_length[RB] == before && now_record == was)
}
#endif

#ifdef PAIR

/* It opens a file, then compares the record with the one that it found first. */
inline open_file(file, result) {
#if MUTANT == 6
    atomic {
        if
        :: now_record == SPEC && generation == known -> skip
        :: else -> goto ended
        fi
    }
#endif
    atomic {
        if
        :: now_link[file] -> result = now_unit[file * N]
        :: else -> goto ended
        fi
    }
#if MUTANT != 6
    atomic {
        if
        :: now_record == SPEC && generation == known -> skip
        :: else -> goto ended
        fi
    }
#endif
}

proctype Reader() {
    byte known = 0, refs = 0, data = 0;
    atomic { now_record == SPEC -> known = generation }
    open_file(RB, refs);
    open_file(XB, data);
    assert(refs == data && data != 0); /* no two shards are mixed */
ended:
    skip
}

/* A finished shard is moved away, and another job starts at its path. */
proctype Remove() {
    atomic {
        now_record == SPEC -> now_record = NONE;
        now_dir = false;
        for (f : 0 .. FILES - 1) {
            now_link[f] = false;
            clear(f)
        }
        f = 0
    }
}

init {
    atomic {
        run Worker(1, 1, CLAIM);
        if
        :: run Worker(2, 2, CLAIM)
        :: run Worker(2, 2, RESUME)
        fi;
        if
        :: run Worker(3, 3, RECOVER)
        :: run Remove()
        fi;
        run Reader()
    }
}
#endif

#ifdef FINALIZE

#define FINISHED 9 /* the shard that gets another number */
byte slot[3];      /* which shard has each number; 0: none */
bool done[3], marked;

#define UNFINISHED(n) (slot[n] != 0 && slot[n] != FINISHED && !done[slot[n] - 1])

proctype Claim(byte self; byte number) {
#if MUTANT == 7
    if
    :: marked -> goto ended
    :: else -> skip
    fi;
#endif
    atomic {
        if
        :: slot[number] == 0 -> slot[number] = self
        :: else -> goto ended /* mkdir fails */
        fi
    }
#if MUTANT != 7
    if
    :: marked ->
        atomic {
            if
            :: slot[number] == self -> slot[number] = 0
            :: else -> skip
            fi
        }
        goto ended
    :: else -> skip
    fi;
#endif
    if
    :: failures < CRASHES -> failures++; goto ended
    :: true -> skip
    fi;
    assert(slot[number] == self); /* nothing was renamed over it */
    done[self - 1] = true;
ended:
    skip
}

proctype Finalize() {
    byte to = 0;
    if
    :: UNFINISHED(0) || UNFINISHED(1) || UNFINISHED(2) -> goto ended
    :: else -> skip
    fi;
    marked = true;
#if MUTANT != 8
    atomic {
        if
        :: UNFINISHED(0) || UNFINISHED(1) || UNFINISHED(2) -> goto ended
        :: else -> skip
        fi
    }
#endif
    if
    :: failures < CRASHES -> failures++; goto ended
    :: true -> skip
    fi;
    /* rename() replaces an empty directory, such as one that was only claimed */
    atomic {
        if
        :: slot[1] == FINISHED && (slot[0] == 0 || UNFINISHED(0)) -> slot[0] = FINISHED; slot[1] = 0
        :: else -> skip
        fi
    }
ended:
    skip
}

init {
    slot[1] = FINISHED;
    atomic { run Claim(1, 0); run Claim(2, 2); run Finalize() }
    (_nr_pr == 1);
    assert((slot[0] == FINISHED) + (slot[1] == FINISHED) + (slot[2] == FINISHED) == 1);
    assert(!done[0] || slot[0] == 1);
    assert(!done[1] || slot[2] == 2)
}
#endif

#ifdef DERIVE

byte source = 1;              /* the version of the source */
byte has_link, has_refs;      /* versions, in the derived shard; 0: not there */
byte disk_has_link, disk_has_refs;
bool refs_synced, has_spec, disk_has_spec, dead;

inline derive_fails() {
    failures++;
    if
    :: true -> skip /* a crash */
    :: true ->      /* a power failure */
        if
        :: has_link = disk_has_link
        :: true
        fi;
        if
        :: has_refs = disk_has_refs
        :: !refs_synced -> has_refs = 0
        :: true
        fi;
        if
        :: has_spec = disk_has_spec
        :: true
        fi
    fi;
    goto ended
}

#define STEP(effect)                                                                   \
    atomic {                                                                           \
        if                                                                             \
        :: effect                                                                      \
        :: failures < CRASHES -> derive_fails()                                        \
        fi                                                                             \
    }

proctype Replace() { source = 2 }

proctype Derive() {
    byte refs = 0;
    STEP(refs = source);     /* what is selected */
    STEP(has_link = source); /* by its path */
#if MUTANT != 9
    if
    :: source != refs -> has_link = 0; goto ended /* bags_reader_check_shard */
    :: else -> skip
    fi;
#endif
    STEP(has_refs = refs);
#if MUTANT != 10
    STEP(refs_synced = true);
    STEP(disk_has_refs = has_refs; disk_has_link = has_link);
#endif
    STEP(has_spec = true);
    STEP(disk_has_spec = true);
ended:
    /* Whoever finds spec.json finds all of one version. */
    assert(!has_spec || (has_link != 0 && has_link == has_refs))
}

init {
    atomic { run Derive(); run Replace() }
}
#endif

#ifdef REPLAY
init {
    run Worker(1, 1, CLAIM);
    (_nr_pr == 1);
    do
    :: run Worker(1, 1, RECOVER); (_nr_pr == 1)
    :: run Worker(1, 1, RESUME); (_nr_pr == 1)
    od
}
#endif
