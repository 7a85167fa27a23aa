/*
 * megatron.c - imports token datasets of Megatron-LM: X.idx, with X.bin next to it. No
 * library needed.
 *
 * Each document is a datapoint with the field `tokens`: array(DTYPE,-1), or
 * array(DTYPE,-1)[] if some document does not have exactly one sequence. Both index
 * formats are supported:
 *
 *     MMIDIDX   magic 9, version u64, dtype u8, sequences n u64, boundaries m u64;
 *               lengths i32[n], byte offsets in X.bin i64[n], boundaries i64[m]
 *     TNTIDX    magic 8, version u64, dtype u64, element size u64, sequences n u64,
 *               sizes s u64, boundaries m u64; first sizes i64[n + 1], element offsets
 *               i64[n + 1], sizes i64[s], boundaries i64[m]. Without boundaries, as
 *               written by fairseq, each sequence is a document. Elements are imported
 *               unchanged (fairseq adds 1 to each)
 *
 * Document i consists of sequences boundary[i] up to, but not including, boundary[i +
 * 1]. Dtype 7 is float32 or, in older versions, float64; the size of X.bin tells. Left
 * out: sequence modes, and bytes of X.bin that belong to no sequence.
 */
#include "import.h"
#include "try.h"

#include <inttypes.h>

#define MG_LIMIT ((uint64_t)1 << 40) /* maximum bytes of an index */

typedef struct mg_state {
    bool legacy; /* TNTIDX */
    uint64_t count, element;
    bags_dtype dtype;
    const unsigned char *lengths, *offsets, *boundaries; /* boundaries NULL: none */
} mg_state;

static const unsigned char mg_magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
static const unsigned char mg_legacy_magic[8] = {'T', 'N', 'T', 'I', 'D', 'X', 0, 0};

static uint64_t mg_u64(const unsigned char *at) {
    return bags_load_bytes(at, 8, false);
}

/* The number of elements in a sequence, checked by mg_check; the next function returns
 * their offset in X.bin. */
static uint64_t mg_length(const mg_state *m, uint64_t i) {
    return m->legacy ? mg_u64(m->offsets + 8 * i + 8) - mg_u64(m->offsets + 8 * i)
                     : bags_load_bytes(m->lengths + 4 * i, 4, false);
}

static uint64_t mg_offset(const mg_state *m, uint64_t i) {
    return mg_u64(m->offsets + 8 * i) * (m->legacy ? m->element : 1);
}

static bags_dtype mg_dtype(uint64_t code) {
    static const bags_dtype dtypes[] = {BAGS_DTYPE_NONE, BAGS_DTYPE_UINT8,
        BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, BAGS_DTYPE_INT32, BAGS_DTYPE_INT64,
        BAGS_DTYPE_FLOAT64, BAGS_DTYPE_FLOAT32, BAGS_DTYPE_UINT16};
    return code < sizeof dtypes / sizeof *dtypes ? dtypes[code] : BAGS_DTYPE_NONE;
}

static bags_code mg_bad(bags_source *s, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "invalid %s", what);
}

/* Take a part from the front of an index, and move *all past it. */
static const unsigned char *mg_part(bags_view *all, uint64_t count, uint64_t size) {
    const unsigned char *part = all->data;
    if (count > all->size / size)
        return NULL;
    all->data += (size_t)(count * size);
    all->size -= (size_t)(count * size);
    return part;
}

static bags_code mg_parse(
    bags_source *s, bags_view all, uint64_t *boundaries, uint64_t *code) {
    mg_state *m = (mg_state *)s->state;
    size_t head = m->legacy ? 48 : 34;
    const unsigned char *at = all.data + (m->legacy ? 8 : 9);
    if (all.size < head)
        return mg_bad(s, "index (truncated)");
    if (mg_u64(at) != 1)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "version %" PRIu64 " is not supported (only 1)", mg_u64(at));
    *code = m->legacy ? mg_u64(at + 8) : at[8];
    m->count = mg_u64(at + (m->legacy ? 24 : 9));
    uint64_t sizes = m->legacy ? mg_u64(at + 32) : 0;
    *boundaries = m->legacy ? 0 : mg_u64(at + 17);
    all.data += head;
    all.size -= head;
    if (m->count >= all.size)
        return mg_bad(s, "number of sequences");
    if (m->legacy) {
        /* If there are boundaries, their number precedes the rest. */
        uint64_t bare = 8 * (2 * (m->count + 1) + sizes);
        if (sizes > all.size / 8)
            return mg_bad(s, "number of sizes");
        if (all.size != bare) {
            const unsigned char *number = mg_part(&all, 1, 8);
            *boundaries = number ? mg_u64(number) : 0;
            if (!number || *boundaries > all.size / 8 ||
                all.size != bare + 8 * *boundaries)
                return mg_bad(s, "index (its size differs from the sum of its parts)");
        }
        (void)mg_part(&all, m->count + 1, 8);
        m->offsets = mg_part(&all, m->count + 1, 8);
        (void)mg_part(&all, sizes, 8);
    } else {
        m->lengths = mg_part(&all, m->count, 4);
        m->offsets = m->lengths ? mg_part(&all, m->count, 8) : NULL;
    }
    bool has = !m->legacy || *boundaries;
    m->boundaries = has && m->offsets ? mg_part(&all, *boundaries, 8) : NULL;
    if (!m->offsets || (has && !m->boundaries))
        return mg_bad(s, "index (truncated)");
    if (all.size && all.size != m->count)
        return mg_bad(s, "index (bytes after its parts)");
    if (all.size)
        bags_source_leave_out(s, "mode of a sequence", m->count, "modes");
    return BAGS_OK;
}

/* Check the lengths and offsets of sequences in X.bin. */
static bags_code mg_check(bags_source *s) {
    const mg_state *m = (const mg_state *)s->state;
    uint64_t end = 0;
    for (uint64_t i = 0; i < m->count; i++) {
        uint64_t length = mg_length(m, i), offset = mg_u64(m->offsets + 8 * i);
        bool fits = length <= INT64_MAX / 8 && offset <= INT64_MAX / 8;
        offset = mg_offset(m, i);
        if (!fits || offset > s->file.size ||
            length * m->element > s->file.size - offset)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "sequence %" PRIu64 " out of range (%" PRIu64 " elements of %" PRIu64
                " bytes at %" PRIu64 ", size of the file %" PRIu64 ")",
                i, length, m->element, offset, s->file.size);
        if (offset + length * m->element > end)
            end = offset + length * m->element;
    }
    if (end < s->file.size)
        bags_source_leave_out(
            s, "byte", s->file.size - end, "%s", bags_import_base(s->where));
    return BAGS_OK;
}

/* Check the documents. *single becomes true if each has exactly one sequence. */
static bags_code mg_check_documents(bags_source *s, uint64_t boundaries, bool *single) {
    const mg_state *m = (const mg_state *)s->state;
    uint64_t last = 0;
    *single = true;
    s->length = m->count;
    if (!m->boundaries)
        return BAGS_OK;
    for (uint64_t i = 0; i < boundaries; i++) {
        uint64_t next = mg_u64(m->boundaries + 8 * i);
        if (next < last || next > m->count || (i == 0 && next))
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "boundary %" PRIu64 " of the documents is invalid (%" PRIu64
                " after %" PRIu64 ", %" PRIu64 " sequences)",
                i, next, last, m->count);
        *single = *single && (i == 0 || next == last + 1);
        last = next;
    }
    if (last != m->count)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "the documents end at sequence %" PRIu64 " of %" PRIu64, last, m->count);
    s->length = boundaries ? boundaries - 1 : 0;
    return BAGS_OK;
}

/* Resolve dtype 7. Its meaning depends on the version: X.bin ends after the last
 * element of either 4 or 8 bytes. */
static void mg_resolve(bags_source *s, uint64_t code) {
    mg_state *m = (mg_state *)s->state;
    uint64_t elements = 0;
    for (uint64_t i = 0; i < m->count && code == 7; i++)
        elements += mg_length(m, i);
    if (elements && elements <= s->file.size / 8)
        m->dtype = BAGS_DTYPE_FLOAT64;
    m->element = bags_dtype_size(m->dtype);
}

static bags_code mg_open(bags_source *s) {
    mg_state *m = (mg_state *)s->state;
    uint64_t boundaries = 0, number = 0, any = UINT64_MAX;
    bags_view all;
    bool single = false;
    if (!bags_import_ends(s->path, ".idx"))
        return bags_source_fail(s, BAGS_ERROR_TYPE, "not the .idx file of a pair");
    FORMAT_TRY(bags_source_load(s, s->path, MG_LIMIT, &all));
    m->legacy = all.size >= 8 && !memcmp(all.data, mg_legacy_magic, 8);
    if (!m->legacy && (all.size < 9 || memcmp(all.data, mg_magic, 9) != 0))
        return mg_bad(s, "index (it begins neither with MMIDIDX nor with TNTIDX)");
    FORMAT_TRY(mg_parse(s, all, &boundaries, &number));
    m->dtype = mg_dtype(number);
    if (!m->dtype)
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, "unknown dtype (code %" PRIu64 ")", number);
    FORMAT_TRY(mg_check_documents(s, boundaries, &single));
    char *bin = bags_source_text(s, s->path, strlen(s->path));
    if (!bin)
        return BAGS_ERROR_MEMORY;
    memcpy(bin + strlen(bin) - 3, "bin", 3);
    FORMAT_TRY(bags_source_open_file(s, bin));
    mg_resolve(s, number);
    if (m->legacy && mg_u64(all.data + 24) != m->element)
        return mg_bad(s, "size of an element");
    bags_source_field(
        s, "tokens", bags_source_number_type(s, m->dtype, 1, &any, !single));
    return mg_check(s);
}

static bags_code mg_read(bags_source *s, uint64_t index) {
    const mg_state *m = (const mg_state *)s->state;
    uint64_t first = index, stop = index + 1;
    if (s->ended)
        return BAGS_OK;
    if (m->boundaries) {
        first = mg_u64(m->boundaries + 8 * index);
        stop = mg_u64(m->boundaries + 8 * index + 8);
    }
    bags_value *values =
        (bags_value *)bags_source_alloc(s, (size_t)(stop - first) + 1, sizeof *values);
    if (!values)
        return BAGS_ERROR_MEMORY;
    for (uint64_t i = first; i < stop; i++) {
        bags_view bytes;
        FORMAT_TRY(
            bags_source_copy(s, mg_offset(m, i), mg_length(m, i) * m->element, &bytes));
        values[i - first] = bags_blob(bytes.data, bytes.size);
    }
    s->entries[0].values = values;
    s->entries[0].count = (size_t)(stop - first);
    return BAGS_OK;
}

static bool mg_detect(const char *path) {
    return bags_import_ends(path, ".idx") &&
           (bags_import_starts(path, mg_magic, sizeof mg_magic) ||
               bags_import_starts(path, mg_legacy_magic, sizeof mg_legacy_magic));
}

const bags_importer bags_import_megatron = {
    "megatron", mg_detect, sizeof(mg_state), mg_open, mg_read, NULL};
