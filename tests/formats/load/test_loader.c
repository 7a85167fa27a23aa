/* The loader: that its orders are exact and random, that batches do not depend on
 * ranks and threads, what fields become, states, and faults while threads work. */
// flavours: test: release; check: asan tsan; soak: release
#include "check.h"

#include "../../../formats/formats.h"

#include <math.h>
#include <time.h>
#ifndef _WIN32
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

/* Arithmetic is not repeated at length to find races. */
static bool quick(void) {
#ifdef __SANITIZE_THREAD__
    return true;
#endif
    return getenv("BAGS_QUICK") != NULL;
}

/* ---- permutations ---- */

static unsigned char *seen; /* a bit per index */
#define MOST_SEEN ((1 << 24) + 1)

static void check_bijection(uint64_t length, uint64_t seed) {
    memset(seen, 0, (size_t)length / 8 + 1);
    for (uint64_t i = 0; i < length; i++) {
        uint64_t index = bags_permute(seed, seed + 1, length, i);
        assert_true(index < length);
        assert_false(seen[index / 8] >> index % 8 & 1);
        seen[index / 8] |= (unsigned char)(1 << index % 8);
    }
}

static void a_permutation_has_each_index_once(void **state) {
    (void)state;
    seen = (unsigned char *)malloc(MOST_SEEN / 8 + 1);
    for (uint64_t length = 1; length <= 5000; length += quick() ? 3 : 1)
        check_bijection(length, length);
    for (int k = 13; k <= (getenv("BAGS_SOAK") ? 24 : quick() ? 16 : 20); k++)
        for (int more = -1; more <= 1; more++)
            check_bijection((UINT64_C(1) << k) + (uint64_t)more, (uint64_t)k);
    free(seen);
}

static void the_inverse_finds_every_position(void **state) {
    (void)state;
    uint64_t random = 7;
    for (uint64_t length = 1; length <= 300; length++)
        for (uint64_t i = 0; i < length; i++)
            assert_true(
                bags_permute_inverse(5, 6, length, bags_permute(5, 6, length, i)) == i);
    for (int k = 10; k <= 63; k++)
        for (int more = -1; more <= 1; more++)
            for (int i = 0; i < 100; i++) {
                uint64_t length = (UINT64_C(1) << k) + (uint64_t)more;
                if (length > UINT64_MAX >> 1)
                    continue;
                uint64_t seed = next_random(&random);
                uint64_t position = i == 0   ? 0
                                    : i == 1 ? length - 1
                                             : next_random(&random) % length;
                uint64_t index = bags_permute(seed, 3, length, position);
                assert_true(index < length);
                assert_true(bags_permute_inverse(seed, 3, length, index) == position);
                assert_true(
                    bags_permute(seed, 3, length,
                        bags_permute_inverse(seed, 3, length, position)) == position);
            }
}

/* Resumed trainings and other platforms rely on it. */
static void permutations_never_change(void **state) {
    (void)state;
    static const uint64_t small[10] = {7, 3, 8, 1, 2, 9, 6, 0, 4, 5};
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(bags_permute(1, 2, 10, i), small[i]);
    assert_true(bags_permute(0, 0, 10000000, 12345) == 446153);
    assert_true(bags_permute(UINT64_MAX, 9, UINT64_MAX >> 1, 1) ==
                UINT64_C(7456882200367090155));
}

static void permuting_out_of_range_has_no_result(void **state) {
    (void)state;
    assert_true(bags_permute(1, 1, 0, 0) == UINT64_MAX);
    assert_true(bags_permute(1, 1, 5, 5) == UINT64_MAX);
    assert_true(bags_permute(1, 1, UINT64_C(1) << 63, 5) == UINT64_MAX);
    assert_true(bags_permute_inverse(1, 1, 5, 5) == UINT64_MAX);
    assert_true(bags_permute(1, 1, 1, 0) == 0);
}

/* ---- statistics. z is how far a chi-square is from its mean, in standard
 * deviations: below about 4 for what is random. With BAGS_STATISTICS set, this
 * prints the table of tests/README.md. ---- */

static void check_chi_square(const char *what, uint64_t length, const uint32_t *counts,
    size_t bins, double expected) {
    double sum = 0;
    for (size_t i = 0; i < bins; i++) {
        double off = (double)counts[i] - expected;
        sum += off * off / expected;
    }
    double free_bins = (double)bins - 1;
    double z = (sum - free_bins) / sqrt(2 * free_bins);
    if (getenv("BAGS_STATISTICS"))
        printf("| %s | %ju | %zu | %.0f | %+.2f |\n", what, (uintmax_t)length, bins,
            expected, z);
    if (fabs(z) > 5)
        fail_msg("%s of %ju: z is %.2f", what, (uintmax_t)length, z);
}

/* The number of an order of n elements, below n!. */
static size_t order_number(const uint64_t *order, size_t n) {
    size_t number = 0;
    for (size_t i = 0; i < n; i++) {
        size_t smaller = 0;
        for (size_t k = i + 1; k < n; k++)
            smaller += order[k] < order[i];
        number = number * (n - i) + smaller;
    }
    return number;
}

static void all_orders_of_few_elements_are_equally_frequent(void **state) {
    (void)state;
    static uint32_t counts[720];
    static const size_t orders[] = {6, 24, 120, 720};
    for (size_t n = 3; n <= 6; n++) {
        uint64_t each = quick() ? 500 : 5000, total = each * orders[n - 3];
        uint64_t order[6];
        memset(counts, 0, sizeof counts);
        for (uint64_t t = 0; t < total; t++) {
            for (size_t i = 0; i < n; i++)
                order[i] = bags_permute(t / 100, t % 100, n, i);
            counts[order_number(order, n)]++;
        }
        check_chi_square(
            "orders of all elements", n, counts, orders[n - 3], (double)each);
    }
}

static const uint64_t long_lengths[] = {100, 1000, 4095, 4097, 65537, 1000000, 1281167,
    (UINT64_C(1) << 32) + 1, UINT64_MAX >> 1};

#define BINS 64

/* Where neighbours go, where one position goes in many epochs, and the order of 5
 * positions next to each other. */
static void neighbours_and_positions_go_everywhere(void **state) {
    (void)state;
    static uint32_t pairs[BINS * BINS], apart[BINS], where[BINS], five[120];
    uint64_t total = quick() ? 60000 : 500000;
    for (size_t n = 0; n < sizeof long_lengths / sizeof *long_lengths; n++) {
        uint64_t length = long_lengths[n], order[5];
        double bin = (double)length / BINS;
        memset(pairs, 0, sizeof pairs);
        memset(apart, 0, sizeof apart);
        memset(where, 0, sizeof where);
        memset(five, 0, sizeof five);
        for (uint64_t t = 0; t < total; t++) {
            uint64_t start = t * 7919 % (length - 5);
            for (size_t i = 0; i < 5; i++)
                order[i] = bags_permute(11, t, length, start + i);
            uint64_t one = (uint64_t)((double)order[0] / bin) % BINS;
            uint64_t two = (uint64_t)((double)order[1] / bin) % BINS;
            uint64_t away = (order[1] + length - order[0]) % length - 1;
            pairs[one * BINS + two]++;
            apart[(uint64_t)((double)away * BINS / (double)(length - 1)) % BINS]++;
            where[(uint64_t)((double)bags_permute(12, t, length, 0) / bin) % BINS]++;
            five[order_number(order, 5)]++;
        }
        check_chi_square(
            "orders of 5 neighbours", length, five, 120, (double)total / 120);
        if (length < 100000) /* bins differ in size */
            continue;
        check_chi_square("bins of two neighbours", length, pairs, BINS * BINS,
            (double)total / (BINS * BINS));
        check_chi_square(
            "distance of two neighbours", length, apart, BINS, (double)total / BINS);
        check_chi_square(
            "position 0 of many epochs", length, where, BINS, (double)total / BINS);
    }
}

/* ---- orders ---- */

static bags_order make_order(
    const uint64_t *lengths, size_t count, bags_order_options options) {
    bags_order order;
    assert_ok(
        bags_order_init(&order, lengths, count, &options, &memory.allocator, &said));
    return order;
}

static bags_order_options chunked(uint64_t seed, uint64_t chunk, uint64_t window) {
    bags_order_options options;
    memset(&options, 0, sizeof options);
    options.seed = seed;
    options.chunk = chunk;
    options.window = window;
    return options;
}

static void check_chunks(uint64_t length, uint64_t chunk, uint64_t window) {
    bags_order order = make_order(&length, 1, chunked(length, chunk, window));
    static bags_pick picks[4000];
    static bool found[4000], near[4000];
    uint64_t chunks = (length + chunk - 1) / chunk;
    assert_true(order.length == length);
    assert_ok(bags_order_get(&order, 3, 0, (size_t)length, picks, &said));
    memset(found, 0, sizeof found);
    for (uint64_t i = 0; i < length; i++) {
        assert_true(picks[i].dataset == 0 && picks[i].index < length);
        assert_false(found[picks[i].index]);
        found[picks[i].index] = true;
        /* Seeking finds the same. */
        bags_pick one;
        assert_ok(bags_order_get(&order, 3, i, 1, &one, &said));
        assert_true(one.index == picks[i].index);
    }
    /* The positions of a window have its chunks, entire. */
    for (uint64_t at = 0; at < length;) {
        uint64_t count = 0, different = 0, size = 0;
        memset(near, 0, sizeof near);
        while (at + count < length && (different < window || size > count)) {
            uint64_t number = picks[at + count].index / chunk;
            if (!near[number]) {
                different++;
                size += number == chunks - 1 ? length - number * chunk : chunk;
            }
            near[number] = true;
            count++;
        }
        assert_true(size == count);
        at += count;
    }
    bags_order_free(&order);
}

static void chunks_stay_in_windows_and_each_datapoint_comes_once(void **state) {
    (void)state;
    for (uint64_t length = 1; length <= 40; length++)
        for (uint64_t chunk = 1; chunk <= 12; chunk++)
            for (uint64_t window = 1; window <= 6; window++)
                check_chunks(length, chunk, window);
    check_chunks(3999, 64, 8);
    check_chunks(4000, 7, 100);
    check_chunks(4000, 5000, 3);
    check_chunks(1000, 1, 1000000);
}

static void huge_chunked_orders_do_not_overflow(void **state) {
    (void)state;
    static const uint64_t huge = UINT64_MAX >> 1;
    static const uint64_t chunks[] = {
        1, 64, UINT64_C(1) << 31, (UINT64_C(1) << 62) + 1, UINT64_MAX >> 1, UINT64_MAX};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (size_t w = 0; w < sizeof chunks / sizeof *chunks; w++) {
            bags_order order = make_order(&huge, 1, chunked(1, chunks[c], chunks[w]));
            bags_pick first, last;
            assert_ok(bags_order_get(&order, 0, 0, 1, &first, &said));
            assert_ok(bags_order_get(&order, 0, huge - 1, 1, &last, &said));
            assert_true(first.index < huge && last.index < huge);
            assert_true(first.index != last.index);
            bags_order_free(&order);
        }
}

static void windows_draw_their_chunks_from_everywhere(void **state) {
    (void)state;
    uint64_t length = 1 << 20;
    bags_order order = make_order(&length, 1, chunked(1, 64, 16));
    static bags_pick picks[1024];
    uint64_t low = 0;
    assert_ok(bags_order_get(&order, 0, 1024 * 9, 1024, picks, &said));
    for (size_t i = 0; i < 1024; i++)
        low += picks[i].index < length / 2;
    assert_true(low >= 64 * 2 && low <= 64 * 14);
    bags_order_free(&order);
}

static void a_union_has_each_datapoint_once_and_interleaves(void **state) {
    (void)state;
    uint64_t lengths[] = {300, 0, 500, 1};
    bags_order order = make_order(lengths, 4, chunked(4, 0, 0));
    static bags_pick picks[801];
    static bool found[4][500];
    uint64_t early = 0;
    assert_true(order.length == 801);
    assert_ok(bags_order_get(&order, 1, 0, 801, picks, &said));
    memset(found, 0, sizeof found);
    for (size_t i = 0; i < 801; i++) {
        assert_true(picks[i].index < lengths[picks[i].dataset]);
        assert_false(found[picks[i].dataset][picks[i].index]);
        found[picks[i].dataset][picks[i].index] = true;
        early += i < 100 && picks[i].dataset == 0;
    }
    assert_true(early > 15 && early < 60);
    bags_order_free(&order);
}

static void weights_have_exact_shares_and_walk_each_dataset(void **state) {
    (void)state;
    static const uint64_t lengths[] = {100, 3000, 17};
    static const double weights[] = {0.7, 2, 0.3};
    static const uint64_t shares[] = {239, 683, 102}; /* 238.9 682.7 102.4 */
    static uint32_t times[3][3000];
    static bags_pick picks[4096];
    bags_order_options options = chunked(9, 0, 0);
    options.weights = weights;
    bags_order order = make_order(lengths, 3, options);
    assert_true(order.length == 4096); /* 3117, rounded up */
    memset(times, 0, sizeof times);
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        assert_ok(bags_order_get(&order, epoch, 0, 4096, picks, &said));
        for (size_t i = 0; i < 4096; i++) {
            static uint64_t counts[3];
            size_t d = picks[i].dataset;
            if (i % 1024 == 0)
                memset(counts, 0, sizeof counts);
            counts[d]++;
            if (i % 1024 == 1023)
                for (size_t k = 0; k < 3; k++)
                    assert_true(counts[k] == shares[k]);
            uint32_t before = times[d][picks[i].index]++;
            /* None comes again before each came. */
            static uint64_t total[3];
            if (epoch == 0 && i == 0)
                memset(total, 0, sizeof total);
            assert_true(before == total[d]++ / lengths[d]);
        }
    }
    for (uint64_t i = 0; i < 4096; i += 41) {
        bags_pick one;
        assert_ok(bags_order_get(&order, 4, i, 1, &one, &said));
        assert_true(one.dataset == picks[i].dataset);
        assert_true(one.index == picks[i].index);
    }
    assert_fails(BAGS_ERROR_RANGE,
        bags_order_get(&order, UINT64_MAX / 4096, 0, 1, picks, &said));
    bags_order_free(&order);
}

/* What users recorded must stay what it was. */
static void orders_are_the_same_in_every_version(void **state) {
    (void)state;
    static const double weights[] = {1, 2.5, 0.25};
    static const uint64_t lengths[] = {1000, 77, 3333};
    static const struct {
        size_t count;
        uint64_t chunk, window, hash;
        bool weighted;
    } cases[] = {
        {1, 0, 0, UINT64_C(0x99825134F45CCC50), false},
        {3, 0, 0, UINT64_C(0x01D10E6AFDDC13F4), false},
        {1, 7, 0, UINT64_C(0xF4FDD8E7B6E36218), false},
        {3, 7, 5, UINT64_C(0x9A3DB168353D1040), false},
        {3, 16, 300, UINT64_C(0x3C82C7F2EBC6A044), false},
        {3, 4000, 2, UINT64_C(0x5D789EEAF9683AA0), false},
        {3, 0, 0, UINT64_C(0xDDCDF4E74DBADE9B), true},
        {2, 16, 2, UINT64_C(0xD52F36F9B6B93199), true},
    };
    static bags_pick picks[999];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bags_order order;
        bags_order_options options;
        uint64_t hash = 0;
        memset(&options, 0, sizeof options);
        options.seed = 42;
        options.chunk = cases[i].chunk;
        options.window = cases[i].window;
        options.weights = cases[i].weighted ? weights : NULL;
        assert_ok(
            bags_order_init(&order, lengths, cases[i].count, &options, NULL, &said));
        for (uint64_t epoch = 0; epoch < 2; epoch++)
            for (uint64_t at = 0; at < order.length; at += 999) {
                uint64_t left = order.length - at;
                size_t count = (size_t)(left < 999 ? left : 999);
                assert_ok(bags_order_get(&order, epoch, at, count, picks, &said));
                for (size_t k = 0; k < count; k++)
                    hash = (hash ^ (uint64_t)picks[k].dataset << 32 ^ picks[k].index) *
                           UINT64_C(0x9E3779B97F4A7C15);
            }
        if (hash != cases[i].hash)
            fail_msg("case %d: %016jx", (int)i, (uintmax_t)hash);
        bags_order_free(&order);
    }
}

/* ---- selections ---- */

/* What is selected of three datasets at random, and the same as a list of picks. */
typedef struct choice {
    bags_selection selections[3];
    uint64_t lengths[3], numbers[3][40];
    bags_pick picks[2000];
    size_t count;
} choice;

static void choose(choice *c, uint64_t *random, uint64_t take) {
    memset(c, 0, sizeof *c);
    for (size_t d = 0; d < 3; d++) {
        bags_selection *s = &c->selections[d];
        size_t before = c->count;
        c->lengths[d] = next_random(random) % 30;
        s->kind = (bags_selection_kind)(next_random(random) % 3);
        s->borrowed = next_random(random) % 2;
        for (uint64_t i = 0; s->kind == BAGS_SELECTION_ALL && i < c->lengths[d]; i++) {
            c->picks[c->count].dataset = d;
            c->picks[c->count++].index = i;
        }
        if (s->kind == BAGS_SELECTION_ALL || !c->lengths[d])
            goto take;
        s->numbers = c->numbers[d];
        s->count = next_random(random) % 20;
        for (size_t i = 0; i < s->count; i++) {
            bool range = s->kind == BAGS_SELECTION_RANGES;
            uint64_t start = next_random(random) % c->lengths[d];
            uint64_t stop =
                range ? start + next_random(random) % (c->lengths[d] - start + 1)
                      : start + 1;
            c->numbers[d][range ? 2 * i : i] = start;
            if (range)
                c->numbers[d][2 * i + 1] = stop;
            for (uint64_t k = start; k < stop; k++) {
                c->picks[c->count].dataset = d;
                c->picks[c->count++].index = k;
            }
        }
    take:
        if (take && c->count - before > take)
            c->count = before + (size_t)take;
    }
}

static int compare_picks(const void *a, const void *b) {
    const bags_pick *one = (const bags_pick *)a, *two = (const bags_pick *)b;
    return one->dataset != two->dataset ? (one->dataset < two->dataset ? -1 : 1)
           : one->index == two->index   ? 0
           : one->index < two->index    ? -1
                                        : 1;
}

static void what_is_selected_comes_as_often_as_it_is_listed(void **state) {
    (void)state;
    static choice c;
    static bags_pick picks[2000];
    uint64_t random = 5;
    for (int round = 0; round < 2000; round++) {
        bags_order_options options = chunked(3, round % 3 ? 0 : 4, 0);
        options.selections = c.selections;
        options.take = round % 5 ? 0 : 1 + next_random(&random) % 9;
        options.in_order = round % 3 == 1;
        choose(&c, &random, options.take);
        bags_order order = make_order(c.lengths, 3, options);
        for (size_t d = 0; d < 3; d++) /* what was not borrowed was copied */
            if (!c.selections[d].borrowed ||
                c.selections[d].kind == BAGS_SELECTION_RANGES)
                memset(c.numbers[d], 255, sizeof c.numbers[d]);
        assert_int_equal(order.length, c.count);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            assert_ok(bags_order_get(&order, epoch, 0, c.count, picks, &said));
            for (size_t i = 0; i < c.count; i++) { /* alone it is the same */
                bags_pick one;
                assert_ok(bags_order_get(&order, epoch, i, 1, &one, &said));
                assert_int_equal(compare_picks(&one, &picks[i]), 0);
            }
            if (!options.in_order) {
                qsort(picks, c.count, sizeof *picks, compare_picks);
                qsort(c.picks, c.count, sizeof *picks, compare_picks);
            }
            for (size_t i = 0; i < c.count; i++)
                assert_int_equal(compare_picks(&picks[i], &c.picks[i]), 0);
        }
        bags_order_free(&order);
    }
}

static void weights_walk_what_is_selected(void **state) {
    (void)state;
    static const uint64_t lengths[] = {50, 9}, numbers[] = {7, 8, 1, 3, 40, 42};
    static const double weights[] = {1, 3};
    static bags_pick picks[1024];
    bags_selection selections[2];
    bags_order_options options = chunked(1, 0, 0);
    memset(selections, 0, sizeof selections);
    selections[0].kind = BAGS_SELECTION_RANGES; /* 7, 1, 2, 40, 41 */
    selections[0].numbers = numbers;
    selections[0].count = 3;
    options.selections = selections;
    options.weights = weights;
    bags_order order = make_order(lengths, 2, options);
    assert_int_equal(order.length, 1024);
    assert_ok(bags_order_get(&order, 0, 0, 1024, picks, &said));
    size_t counts[50] = {0};
    for (size_t i = 0; i < 1024; i++)
        counts[picks[i].index] += picks[i].dataset == 0;
    for (size_t i = 0; i < 50; i++)
        assert_int_equal(
            counts[i] / 51, i == 7 || i == 1 || i == 2 || i == 40 || i == 41 ? 1 : 0);
    bags_order_free(&order);
    selections[0].count = 0;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_order_init(&order, lengths, 2, &options, NULL, &said));
    assert_says("dataset 0 is empty, but has a weight");
    bags_order_free(&order);
}

/* Of n draws of n datapoints each is drawn as often as the binomial distribution
 * states, and pairs of neighbours are independent. */
static void draws_with_replacement_are_binomial(void **state) {
    (void)state;
    static bags_pick picks[1000];
    static uint32_t counts[1000], often[6], pairs[100];
    static const double binomial[] = {.36770, .36806, .18403, .06128, .01528, .00365};
    bags_order_options options = chunked(8, 0, 0);
    uint64_t length = 1000, rounds = quick() ? 40 : 400;
    options.replacement = true;
    bags_order order = make_order(&length, 1, options);
    memset(often, 0, sizeof often);
    memset(pairs, 0, sizeof pairs);
    for (uint64_t epoch = 0; epoch < rounds; epoch++) {
        assert_ok(bags_order_get(&order, epoch, 0, 1000, picks, &said));
        memset(counts, 0, sizeof counts);
        for (size_t i = 0; i < 1000; i++) {
            assert_true(picks[i].index < 1000);
            counts[picks[i].index]++;
            if (i % 2)
                pairs[picks[i - 1].index / 100 * 10 + picks[i].index / 100]++;
        }
        for (size_t i = 0; i < 1000; i++)
            often[counts[i] < 5 ? counts[i] : 5]++;
    }
    check_chi_square(
        "draws of two positions", length, pairs, 100, (double)rounds * 500 / 100);
    for (size_t k = 0; k < 6; k++) {
        double all = (double)rounds * 1000, expected = binomial[k] * all;
        assert_true(fabs(often[k] - expected) < 5 * sqrt(expected) + 1);
    }
    bags_order_free(&order);
    options.take = 3; /* and of a selection, only what it has */
    order = make_order(&length, 1, options);
    assert_ok(bags_order_get(&order, 0, 0, 3, picks, &said));
    for (size_t i = 0; i < 3; i++)
        assert_true(picks[i].index < 3);
    bags_order_free(&order);
    /* Of very many, too: every part of them is drawn. */
    uint64_t huge = UINT64_MAX >> 1;
    options.take = 0;
    order = make_order(&huge, 1, options);
    memset(counts, 0, sizeof counts);
    assert_ok(bags_order_get(&order, 0, 0, 1000, picks, &said));
    for (size_t i = 0; i < 1000; i++) {
        assert_true(picks[i].index < huge);
        counts[picks[i].index / (huge / 10 + 1)]++;
        counts[10 + picks[i].index % 10]++;
    }
    check_chi_square("draws of 2^63", huge, counts, 10, 100);
    check_chi_square("last digits of draws", huge, counts + 10, 10, 100);
    bags_order_free(&order);
}

static uint64_t hash_of(bags_selection_kind kind, const uint64_t *numbers, size_t count,
    uint64_t take, size_t place) {
    static const uint64_t lengths[] = {10, 10};
    bags_selection selections[2];
    bags_order_options options = chunked(0, 0, 0);
    memset(selections, 0, sizeof selections);
    selections[place].kind = kind;
    selections[place].numbers = numbers;
    selections[place].count = count;
    options.selections = selections;
    options.take = take;
    bags_order order = make_order(lengths, 2, options);
    uint64_t hash = order.selection;
    bags_order_free(&order);
    return hash;
}

static void equal_selections_have_equal_hashes_and_others_not(void **state) {
    (void)state;
    static const uint64_t list[] = {0, 1, 2, 3, 7, 8}, ranges[] = {0, 4, 5, 5, 7, 9};
    static const uint64_t parts[] = {0, 5, 5, 10}, turned[] = {1, 0};
    static const bags_selection_kind by_index = BAGS_SELECTION_INDICES;
    static const bags_selection_kind by_range = BAGS_SELECTION_RANGES;
    uint64_t hashes[12];
    size_t count = 0;
    assert_true(hash_of(by_index, list, 6, 0, 0) == hash_of(by_range, ranges, 3, 0, 0));
    hashes[count++] = hash_of(BAGS_SELECTION_ALL, NULL, 0, 0, 0);
    assert_true(hashes[0] == 0);
    assert_true(hash_of(by_range, parts, 2, 0, 0) == 0);
    assert_true(hash_of(BAGS_SELECTION_ALL, NULL, 0, 10, 0) == 0);
    hashes[count++] = hash_of(by_index, list, 6, 0, 0);
    hashes[count++] = hash_of(by_index, list, 6, 0, 1);
    hashes[count++] = hash_of(by_index, list, 5, 0, 0);
    hashes[count++] = hash_of(by_index, list, 2, 0, 0);
    hashes[count++] = hash_of(by_index, turned, 2, 0, 0);
    hashes[count++] = hash_of(by_index, NULL, 0, 0, 0);
    hashes[count++] = hash_of(by_index, NULL, 0, 0, 1);
    hashes[count++] = hash_of(BAGS_SELECTION_ALL, NULL, 0, 4, 0);
    hashes[count++] = hash_of(BAGS_SELECTION_ALL, NULL, 0, 5, 0);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            assert_true(hashes[i] != hashes[k]);
}

static void selections_refuse_what_makes_no_sense(void **state) {
    (void)state;
    static const uint64_t lengths[] = {10, 3}, list[] = {0, 3, UINT64_MAX, 2, 1, 4};
    static const struct {
        bags_selection_kind kind;
        size_t first, count;
        bags_code code;
        const char *says;
    } cases[] = {
        {BAGS_SELECTION_INDICES, 0, 2, BAGS_ERROR_RANGE,
            "selection of dataset 1: index 3 out of range (length 3)"},
        {BAGS_SELECTION_INDICES, 2, 1, BAGS_ERROR_RANGE, "18446744073709551615"},
        {BAGS_SELECTION_RANGES, 3, 1, BAGS_ERROR_RANGE, "(2:1, length 3)"},
        {BAGS_SELECTION_RANGES, 4, 1, BAGS_ERROR_RANGE, "(1:4, length 3)"},
        {BAGS_SELECTION_ALL, 0, 1, BAGS_ERROR_ARGUMENT, "do not fit together"},
        {(bags_selection_kind)3, 0, 1, BAGS_ERROR_ARGUMENT, "do not fit together"},
    };
    bags_selection selections[2];
    bags_order order;
    bags_order_options options = chunked(0, 0, 0);
    options.selections = selections;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(selections, 0, sizeof selections);
        selections[1].kind = cases[i].kind;
        selections[1].numbers = list + cases[i].first;
        selections[1].count = cases[i].count;
        assert_fails(
            cases[i].code, bags_order_init(&order, lengths, 2, &options, NULL, &said));
        assert_says(cases[i].says);
        bags_order_free(&order);
    }
    options.selections = NULL;
    options.replacement = options.in_order = true;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_order_init(&order, lengths, 2, &options, NULL, &said));
    assert_says("replacement and in_order");
    options.in_order = false;
    options.chunk = 2;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_order_init(&order, lengths, 2, &options, NULL, &said));
    assert_says("replacement and chunk");
}

static void orders_refuse_what_makes_no_sense(void **state) {
    (void)state;
    static const uint64_t lengths[] = {10, 20};
    static const uint64_t huge[] = {UINT64_MAX >> 1, 1};
    static const uint64_t empty[] = {10, 0};
    static const double bad[][2] = {{1, 0}, {1, -1}, {1, (double)NAN},
        {1, (double)INFINITY}, {1, 1e-5}, {1e308, 1e308}};
    bags_order order;
    bags_order_options options = chunked(0, 0, 3);
    bags_pick picks[2];
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_order_init(&order, lengths, 2, &options, NULL, &said));
    assert_says("window without chunk");
    options.chunk = 2;
    options.in_order = true;
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_order_init(&order, lengths, 2, &options, NULL, &said));
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_order_init(&order, lengths, 0, NULL, NULL, &said));
    assert_fails(BAGS_ERROR_LIMIT, bags_order_init(&order, huge, 2, NULL, NULL, &said));
    bags_order_free(&order);
    memset(&options, 0, sizeof options);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.weights = bad[i];
        assert_fails(BAGS_ERROR_ARGUMENT,
            bags_order_init(&order, lengths, 2, &options, NULL, &said));
        bags_order_free(&order);
    }
    options.weights = bad[0];
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_order_init(&order, empty, 2, &options, NULL, &said));
    bags_order_free(&order);
    assert_ok(bags_order_init(&order, lengths, 2, NULL, NULL, &said));
    assert_fails(BAGS_ERROR_RANGE, bags_order_get(&order, 0, 29, 2, picks, &said));
    assert_ok(bags_order_get(&order, UINT64_MAX, 30, 0, picks, &said));
    bags_order_free(&order);
}

/* ---- datasets ---- */

#define LENGTH 203

/* image: 12 x 10 pixels that depend on index, row and column. */
static unsigned char pixel_of(uint64_t i, size_t y, size_t x, size_t c) {
    return (unsigned char)(i + 16 * y + 3 * x + 80 * c);
}

static size_t frames_of(uint64_t i) { return 4 + (size_t)(i % 5); }

static void write_dataset(const char *path, uint64_t length, uint64_t first) {
    static const bags_field fields[] = {{"frames", "array(int16,3)[]"},
        {"image", "array(uint8,12,10,3)"}, {"label", "int(4)"}, {"name", "utf8"},
        {"scores", "i64[]"}, {"shape", "array"}, {"words", "utf8[]"}};
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.shard_length = length ? 60 : 0;
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, 7, &options, &said));
    for (uint64_t i = first; i < first + length; i++) {
        unsigned char pixels[12 * 10 * 3], *to = pixels;
        int16_t frames[9][3];
        float shape[9];
        uint64_t image_shape[] = {12, 10, 3}, frame_shape[] = {3};
        uint64_t shape_shape[] = {i % 3 + 1, 2};
        bags_value frame_values[9], scores[3], words[2];
        char name[32];
        for (size_t y = 0; y < 12; y++)
            for (size_t x = 0; x < 10; x++)
                for (size_t c = 0; c < 3; c++)
                    *to++ = pixel_of(i, y, x, c);
        for (size_t k = 0; k < frames_of(i); k++) {
            for (size_t j = 0; j < 3; j++)
                frames[k][j] = (int16_t)(i * 100 + k * 10 + j);
            frame_values[k] = bags_array(BAGS_DTYPE_INT16, 1, frame_shape, frames[k]);
        }
        for (size_t k = 0; k < 9; k++)
            shape[k] = (float)i + (float)k / 2;
        for (size_t k = 0; k < 3; k++)
            scores[k] = bags_int(-(int64_t)(i * 10 + k));
        snprintf(name, sizeof name, "name %d", (int)i);
        words[0] = bags_utf8(name);
        words[1] = bags_utf8("");
        bags_value image = bags_array(BAGS_DTYPE_UINT8, 3, image_shape, pixels);
        bags_value label = bags_int((int64_t)i), text = bags_utf8(name);
        bags_value any = bags_array(BAGS_DTYPE_FLOAT32, 2, shape_shape, shape);
        bags_entry entries[] = {{"frames", frame_values, frames_of(i)},
            {"image", &image, 1}, {"label", &label, 1}, {"name", &text, 1},
            {"scores", scores, (size_t)(i % 4)}, {"shape", &any, 1},
            {"words", words, (size_t)(i % 3)}};
        assert_ok(bags_writer_append(writer, entries, 7, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
}

static bags_reader *open_dataset(const char *path) {
    bags_reader_options options;
    bags_reader *reader;
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    assert_opens(reader, bags_reader_open(path, &options, &said));
    return reader;
}

static bags_loader_options usual(uint32_t batch) {
    bags_loader_options options;
    memset(&options, 0, sizeof options);
    options.batch = batch;
    options.epochs = 1;
    options.threads = 3;
    options.allocator = &memory.allocator;
    return options;
}

static bags_loader *open_loader(
    const bags_reader *reader, const bags_loader_options *options) {
    bags_loader *loader;
    assert_opens(loader, bags_loader_open(&reader, 1, options, &said));
    return loader;
}

static const bags_batch *next(bags_loader *loader) {
    const bags_batch *batch;
    assert_ok(bags_loader_next(loader, &batch, &said));
    return batch;
}

static const bags_tensor *tensor(const bags_batch *batch, const char *name) {
    for (size_t i = 0; i < batch->count; i++)
        if (!strcmp(batch->tensors[i].name, name))
            return &batch->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* ---- what fields become ---- */

static void check_batch(const bags_batch *b) {
    const bags_tensor *label = tensor(b, "label"), *name = tensor(b, "name");
    const bags_tensor *image = tensor(b, "image"), *any = tensor(b, "shape");
    const bags_tensor *scores = tensor(b, "scores");
    const bags_tensor *words = tensor(b, "words");
    const bags_tensor *frames = tensor(b, "frames");
    assert_true(b->count == 7 && label->dtype == BAGS_DTYPE_INT64);
    assert_true(label->dims == 1 && label->shape[0] == b->length);
    assert_true(image->dims == 4 && image->shape[1] == 12 && image->shape[2] == 10 &&
                image->shape[3] == 3);
    assert_true(frames->dims == 2 && frames->shape[1] == 3);
    for (size_t i = 0; i < b->length; i++) {
        uint64_t index = b->picks[i].index, first, count;
        char text[32];
        int size = snprintf(text, sizeof text, "name %d", (int)index);
        assert_true(((const int64_t *)label->data)[i] == (int64_t)index);
        assert_bytes(bags_tensor_get(b, name, i, &first, &count), text, (size_t)size);
        assert_true(first == i && count == 1);
        bags_view pixels = bags_tensor_get(b, image, i, NULL, NULL);
        assert_true(pixels.size == 360);
        assert_true(pixels.data[3 * (5 * 10 + 7) + 2] == pixel_of(index, 5, 7, 2));
        const bags_value *value = &any->values[i];
        assert_true(value->kind == BAGS_KIND_ARRAY && value->dims == 2);
        assert_true(value->shape[0] == index % 3 + 1 && value->shape[1] == 2);
        assert_true(((const float *)value->data)[1] == (float)index + 0.5f);
        bags_view got = bags_tensor_get(b, any, i, NULL, NULL);
        assert_true(got.data == value->data && got.size == value->size);
        assert_true(got.size == (index % 3 + 1) * 2 * sizeof(float));
        for (uint64_t k = any->ends[i] + got.size; k < any->ends[i + 1]; k++)
            assert_true(((const unsigned char *)any->data)[k] == 0);
        bags_tensor_get(b, scores, i, &first, &count);
        assert_true(count == index % 4 && scores->offsets[i] == first);
        for (uint64_t k = 0; k < count; k++)
            assert_true(((const int64_t *)scores->data)[first + k] ==
                        -(int64_t)(index * 10 + k));
        bags_view both = bags_tensor_get(b, words, i, &first, &count);
        assert_true(count == index % 3);
        assert_true(both.size == (count ? (size_t)size : 0));
        bags_tensor_get(b, frames, i, &first, &count);
        assert_true(count == frames_of(index));
        assert_true(((const int16_t *)frames->data)[3 * (first + 2) + 1] ==
                    (int16_t)(index * 100 + 21));
    }
}

static void fields_become_tensors_values_and_offsets(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(16);
    bags_loader *loader = open_loader(reader, &options);
    static bool found[LENGTH];
    uint64_t batches = 0;
    memset(found, 0, sizeof found);
    assert_true(bags_loader_batches(loader) == 13);
    for (const bags_batch *b; (b = next(loader)) != NULL; batches++) {
        assert_true(b->epoch == 0 && b->batch == batches);
        assert_true(b->position == 16 * batches && b->skipped == 0);
        assert_true(b->length == (batches < 12 ? 16u : 11u) && b->bytes > 0);
        check_batch(b);
        for (size_t i = 0; i < b->length; i++) {
            assert_false(found[b->picks[i].index]);
            found[b->picks[i].index] = true;
        }
    }
    assert_true(batches == 13 && !next(loader));
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static bags_load_field field_of(const char *name) {
    bags_load_field field;
    memset(&field, 0, sizeof field);
    field.name = name;
    return field;
}

static void numbers_are_converted_and_must_fit(void **state) {
    (void)state;
    write_dataset(at("x"), 300, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(300);
    bags_load_field fields[3] = {
        field_of("label"), field_of("image"), field_of("shape")};
    fields[0].dtype = BAGS_DTYPE_INT16;
    fields[1].dtype = BAGS_DTYPE_FLOAT32;
    fields[2].dtype = BAGS_DTYPE_FLOAT64;
    options.fields = fields;
    options.field_count = 3;
    bags_loader *loader = open_loader(reader, &options);
    const bags_batch *b = next(loader);
    for (size_t i = 0; i < b->length; i++) {
        uint64_t index = b->picks[i].index;
        assert_true(((const int16_t *)b->tensors[0].data)[i] == (int)index);
        assert_true(((const float *)b->tensors[1].data)[360 * i + 5] ==
                    (float)pixel_of(index, 0, 1, 2));
        assert_true(b->tensors[2].values[i].dtype == BAGS_DTYPE_FLOAT64);
        assert_true(
            ((const double *)b->tensors[2].values[i].data)[1] == (double)index + 0.5);
    }
    bags_loader_close(loader);
    fields[0].dtype = BAGS_DTYPE_UINT8; /* 299 */
    options.order.in_order = true;
    loader = open_loader(reader, &options);
    assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
    assert_says("/x: field \"label\": datapoint 256: element 0: value out of "
                "range for uint8 (256)");
    /* It stays failed. */
    assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
    assert_says("datapoint 256");
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* What no blob could become is not damage, which would leave out all of them. */
static void impossible_conversions_are_not_skipped(void **state) {
    (void)state;
    static const uint64_t two[] = {2}, three[] = {3};
    static const struct {
        const char *name;
        bags_dtype dtype;
        const uint64_t *shape;
        const char *says;
    } bad[] = {
        {"frames", BAGS_DTYPE_FLOAT16, NULL,
            "/x: field \"frames\": values of type array(int16,3)[] cannot "
            "become float16"},
        {"frames", BAGS_DTYPE_FLOAT32, two, "become float32 of that shape"},
        {"label", BAGS_DTYPE_COMPLEX64, NULL, "int(4) cannot become complex"},
        {"real", BAGS_DTYPE_INT32, NULL, "array(float32,-1) cannot become int"},
        {"name", BAGS_DTYPE_INT32, two, "utf8 cannot become int32"},
    };
    static const bags_field extra = {"real", "array(float32,-1)"};
    bags_reader *reader, *readers[2];
    bags_loader_options options = usual(4);
    bags_load_field field;
    bags_writer *writer;
    const bags_batch *b;
    options.fields = &field;
    options.field_count = 1;
    options.skip_damaged = true;
    write_dataset(at("x"), 10, 0);
    assert_opens(writer, bags_writer_open(at("y"), &extra, 1, NULL, &said));
    assert_ok(bags_writer_close(writer, &said));
    readers[0] = open_dataset(at("x"));
    readers[1] = open_dataset(at("y"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        reader = readers[!strcmp(bad[i].name, "real")];
        field = field_of(bad[i].name);
        field.dtype = bad[i].dtype;
        field.shape = bad[i].shape;
        field.dims = bad[i].shape != NULL;
        const bags_reader *const one = reader;
        assert_refused(BAGS_ERROR_TYPE, bags_loader_open(&one, 1, &options, &said));
        assert_says(bad[i].says);
    }
    field = field_of("frames");
    field.dtype = BAGS_DTYPE_FLOAT32;
    field.dims = 1;
    field.shape = three;
    bags_loader_close(open_loader(readers[0], &options));
    field = field_of("shape"); /* its type states no dtype: float32 */
    field.dtype = BAGS_DTYPE_INT32;
    bags_loader *loader = open_loader(readers[0], &options);
    assert_fails(BAGS_ERROR_TYPE, bags_loader_next(loader, &b, &said));
    assert_says("field \"shape\": datapoint ");
    assert_says("float32 cannot become int32");
    bags_loader_close(loader);
    bags_reader_close(readers[0]);
    bags_reader_close(readers[1]);
}

static void integers_become_floats_only_if_exact(void **state) {
    (void)state;
    static const int64_t values[] = {
        1700000001234567890, -16777217, INT64_C(1) << 60, 16777218, INT64_MIN};
    static const char *const says[] = {
        "element 0: not exactly representable as float64 (1700000001234567890)",
        "element 0: not exactly representable as float32 (-16777217)"};
    static const bags_field type = {"n", "i64"};
    bags_load_field field = field_of("n");
    bags_loader_options options = usual(1);
    bags_writer *writer;
    const bags_batch *b;
    options.fields = &field;
    options.field_count = 1;
    options.order.in_order = true;
    assert_opens(writer, bags_writer_open(at("x"), &type, 1, NULL, &said));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        bags_value value = bags_int(values[i]);
        bags_entry entry = {"n", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader = open_dataset(at("x"));
    for (uint64_t i = 0; i < sizeof values / sizeof *values; i++) {
        field.dtype = i ? BAGS_DTYPE_FLOAT32 : BAGS_DTYPE_FLOAT64;
        bags_loader *loader = open_loader(reader, &options);
        assert_ok(bags_loader_seek(loader, 0, i, &said));
        if (i < 2) {
            assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
            assert_says(says[i]);
        } else
            assert_true(
                *(const float *)next(loader)->tensors[0].data == (float)values[i]);
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}

/* Windows of frames and scores start at the same item. */
static void windows_of_sequences_are_aligned(void **state) {
    (void)state;
    write_dataset(at("x"), 100, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(10);
    bags_load_field fields[2] = {field_of("frames"), field_of("label")};
    uint32_t starts[8] = {0};
    fields[0].window = 2;
    fields[0].stride = 2;
    options.fields = fields;
    options.field_count = 2;
    options.window_start = BAGS_WINDOW_RANDOM;
    options.epochs = 20;
    bags_loader *loader = open_loader(reader, &options);
    for (const bags_batch *b; (b = next(loader)) != NULL;) {
        const bags_tensor *t = &b->tensors[0];
        assert_true(t->dims == 3 && t->shape[0] == 10 && t->shape[1] == 2 &&
                    t->shape[2] == 3 && !t->offsets);
        for (size_t i = 0; i < b->length; i++) {
            const int16_t *frames = (const int16_t *)t->data + 6 * i;
            int base = (int)b->picks[i].index * 100;
            int start = (frames[0] - base) / 10;
            assert_true(start >= 0 && start + 3 <= (int)frames_of(b->picks[i].index));
            assert_true(frames[3] == frames[0] + 20);
            starts[start]++;
        }
    }
    for (int i = 0; i < 6; i++)
        assert_true(starts[i] > 20);
    bags_loader_close(loader);
    options.window_start = 1;
    loader = open_loader(reader, &options);
    const bags_batch *b = next(loader);
    assert_true(((const int16_t *)b->tensors[0].data)[0] ==
                (int16_t)(b->picks[0].index * 100 + 10));
    bags_loader_close(loader);
    options.window_start = 2; /* needs 5 frames; some have 4 */
    loader = open_loader(reader, &options);
    bags_code code = BAGS_OK;
    while (!code)
        code = bags_loader_next(loader, &b, &said);
    assert_true(code == BAGS_ERROR_RANGE);
    assert_says("field \"frames\": datapoint *too short for the window (4 "
                "items, needs 5)");
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* A test double of bags_resample: the nearest pixel. */
static bags_code resample_nearest(const bags_image *image, const void *pixels,
    size_t stride, const bags_box *box, bags_filter filter, uint32_t width,
    uint32_t height, bags_buffer *buffer, void *out, size_t out_stride,
    bags_error *err) {
    (void)filter;
    if (box || bags_buffer_reserve(buffer, 1, err))
        return BAGS_ERROR_MEMORY;
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++)
            memcpy((unsigned char *)out + y * out_stride + x * image->channels,
                (const unsigned char *)pixels + y * image->height / height * stride +
                    x * image->width / width * image->channels,
                image->channels);
    return BAGS_OK;
}

static const bags_loader_images images = {resample_nearest, NULL, NULL, NULL, NULL};

static void images_are_resized_mirrored_and_normalised(void **state) {
    (void)state;
    write_dataset(at("x"), 100, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(100);
    bags_load_field field = field_of("image");
    options.images = &images;
    options.fields = &field;
    options.field_count = 1;
    options.order.in_order = true;
    field.width = 5;
    field.height = 6;
    bags_loader *loader = open_loader(reader, &options);
    const bags_batch *b = next(loader);
    const bags_tensor *t = &b->tensors[0];
    assert_true(t->dtype == BAGS_DTYPE_UINT8 && t->dims == 4 && t->shape[1] == 6 &&
                t->shape[2] == 5 && t->shape[3] == 3);
    const unsigned char *pixels = (const unsigned char *)t->data + 7 * 90;
    for (size_t y = 0; y < 6; y++)
        for (size_t x = 0; x < 5; x++)
            assert_true(pixels[(y * 5 + x) * 3 + 1] == pixel_of(7, 2 * y, 2 * x, 1));
    bags_loader_close(loader);

    /* The middle: 12 x 10 to 18 x 15, then 15 x 15 of it from row (18 - 15) / 2,
     * which is 1.5 and rounds to 2. */
    field.width = field.height = 15;
    field.crop = BAGS_CROP_CENTER;
    field.flip_x = 0.5;
    field.nchw = true;
    field.dtype = BAGS_DTYPE_FLOAT32;
    field.mean[1] = 0.5f;
    field.std[1] = 0.25f;
    loader = open_loader(reader, &options);
    b = next(loader);
    t = &b->tensors[0];
    size_t mirrored = 0;
    assert_true(t->shape[1] == 3 && t->shape[2] == 15 && t->shape[3] == 15);
    for (size_t i = 0; i < 100; i++) {
        const float *to = (const float *)t->data + i * 675;
        volatile float first = (float)pixel_of(i, 1, 0, 0) / 255.0f;
        bool flip = to[0] != first;
        mirrored += flip;
        for (size_t y = 0; y < 15; y++)
            for (size_t x = 0; x < 15; x++) {
                size_t from = flip ? 14 - x : x;
                unsigned char p = pixel_of(i, (y + 2) * 12 / 18, from * 10 / 15, 1);
                volatile float expected = (float)p / 255.0f;
                expected = (expected - 0.5f) / 0.25f;
                assert_true(to[225 + y * 15 + x] == expected);
            }
    }
    assert_true(mirrored > 30 && mirrored < 70);
    bags_loader_close(loader);

    /* Random crops differ between epochs, and not between runs. */
    uint64_t digests[2][2];
    field.crop = BAGS_CROP_RANDOM;
    field.channels = 1;
    options.epochs = 2;
    for (int run = 0; run < 2; run++) {
        options.threads = run ? 1 : 3;
        loader = open_loader(reader, &options);
        for (int epoch = 0; epoch < 2; epoch++) {
            b = next(loader);
            assert_true(b->tensors[0].shape[1] == 1);
            digests[run][epoch] = bags_batch_digest(b);
        }
        bags_loader_close(loader);
    }
    assert_true(digests[0][0] == digests[1][0]);
    assert_true(digests[0][1] == digests[1][1]);
    assert_true(digests[0][0] != digests[0][1]);
    bags_reader_close(reader);
}

/* ---- warps and colours ---- */

typedef struct drawing {
    uint64_t refused;
    uint32_t width, height; /* of the images that were seen */
} drawing;

/* Turn by a quarter, and halve the brightness; every other image has a norm of its own. */
static bags_code draw_quarter(void *user, const bags_load_item *item,
    const bags_image *image, bags_load_draw *draw, bags_error *err) {
    const drawing *d = (const drawing *)user;
    static const double quarter[9] = {0, 1, 0, 1, 0, 0, 0, 0, 1};
    if (item->pick.index == d->refused) {
        bags_fail(err, BAGS_ERROR_VALUE, "not this one");
        err->system = 7;
        return BAGS_ERROR_VALUE;
    }
    if (image->width != 10 || image->height != 12)
        return bags_fail(
            err, BAGS_ERROR_ARGUMENT, "%d x %d", (int)image->width, (int)image->height);
    /* What was drawn is scaled to the tensor. */
    if (draw->matrix[0] < 2 || draw->matrix[0] > 2 || draw->matrix[4] < 3 ||
        draw->matrix[4] > 3 || draw->mean[0] < 0.5f)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "what was drawn differs");
    memcpy(draw->matrix, quarter, sizeof quarter);
    draw->jitter.brightness = 0.5;
    if (item->pick.index % 2) {
        draw->mean[0] = 0;
        draw->std[0] = 0.5f;
    }
    return BAGS_OK;
}

static void a_callback_chooses_the_matrix_the_colours_and_the_norm(void **state) {
    (void)state;
    write_dataset(at("x"), 20, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(20);
    bags_load_field field = field_of("image");
    bags_warp_options warp;
    drawing d = {99, 0, 0};
    memset(&warp, 0, sizeof warp);
    options.fields = &field;
    options.field_count = 1;
    options.order.in_order = true;
    field.width = 5;
    field.height = 4;
    field.warp = &warp;
    field.filter = BAGS_FILTER_NEAREST;
    field.dtype = BAGS_DTYPE_FLOAT32;
    field.mean[0] = 0.5f;
    field.draw = draw_quarter;
    field.user = &d;
    bags_loader *loader = open_loader(reader, &options);
    memset(&warp, 0xff, sizeof warp); /* it was copied */
    const bags_batch *b = next(loader);
    for (size_t i = 0; i < 20; i++)
        for (size_t y = 0; y < 4; y++)
            for (size_t x = 0; x < 5; x++) {
                const float *to =
                    (const float *)b->tensors[0].data + ((i * 4 + y) * 5 + x) * 3;
                volatile float red = (float)(pixel_of(i, x, y, 0) / 2) / 255.0f;
                red = i % 2 ? red / 0.5f : red - 0.5f;
                assert_true(to[0] >= red && to[0] <= red);
            }
    bags_loader_close(loader);
    memset(&warp, 0, sizeof warp);
    d.refused = 13;
    loader = open_loader(reader, &options);
    assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
    assert_says("x: field \"image\": datapoint 13: not this one");
    assert_int_equal(said.system, 7);
    bags_loader_close(loader);
    options.skip_damaged = true;
    loader = open_loader(reader, &options);
    b = next(loader);
    assert_true(b->length == 19 && b->skipped == 1);
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void flips_have_their_probability(void **state) {
    (void)state;
    write_dataset(at("x"), 400, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(400);
    bags_load_field field = field_of("image");
    bags_warp_options warp;
    memset(&warp, 0, sizeof warp);
    options.images = &images;
    options.fields = &field;
    options.field_count = 1;
    options.order.in_order = true;
    field.width = 10;
    field.height = 12;
    /* By the matrix or without it, the same. */
    for (int i = 0; i < 4; i++) {
        size_t found[2] = {0, 0};
        field.filter = BAGS_FILTER_NEAREST;
        field.warp = i % 2 ? &warp : NULL;
        field.filter = i % 2 ? BAGS_FILTER_NEAREST : BAGS_FILTER_BILINEAR;
        field.flip_x = i < 2 ? 0.25 : 0;
        field.flip_y = i < 2 ? 0.75 : 1;
        bags_loader *loader = open_loader(reader, &options);
        const bags_batch *b = next(loader);
        for (size_t k = 0; k < 400; k++) {
            const unsigned char *to =
                (const unsigned char *)b->tensors[0].data + k * 360;
            bool right =
                to[0] != pixel_of(k, 0, 0, 0) && to[0] != pixel_of(k, 11, 0, 0);
            bool down = to[0] != pixel_of(k, 0, right ? 9 : 0, 0);
            found[0] += right;
            found[1] += down;
            for (size_t y = 0; y < 12; y++)
                for (size_t x = 0; x < 10; x++)
                    assert_true(to[(y * 10 + x) * 3] ==
                                pixel_of(k, down ? 11 - y : y, right ? 9 - x : x, 0));
        }
        if (i < 2)
            assert_true(
                found[0] > 60 && found[0] < 140 && found[1] > 260 && found[1] < 340);
        else
            assert_true(found[0] == 0 && found[1] == 400);
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}

static void warps_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    write_dataset(at("x"), 10, 0);
    bags_reader *reader = open_dataset(at("x"));
    const bags_reader *one = reader;
    for (int i = 0; i < 23; i++) {
        bags_loader_options options = usual(4);
        bags_load_field field = field_of("image");
        bags_warp_options warp;
        bags_jitter_options jitter;
        const char *why = "out of range (";
        memset(&warp, 0, sizeof warp);
        memset(&jitter, 0, sizeof jitter);
        options.images = &images;
        options.fields = &field;
        options.field_count = 1;
        field.width = field.height = 4;
        field.crop = BAGS_CROP_RANDOM;
        field.warp = &warp;
        field.jitter = &jitter;
        if (i == 0)
            warp.degrees.high = 361;
        if (i == 1) {
            warp.degrees.low = 1;
            why = "invalid range of degrees (low 1 > high 0)";
        }
        if (i == 2)
            warp.degrees.high = (double)NAN;
        if (i == 3)
            warp.scale.high = 1; /* from 0 */
        if (i == 4)
            warp.shear_x.low = -90;
        if (i == 5)
            warp.shear_y.high = 90;
        if (i == 6)
            warp.translate_x.low = -1.1;
        if (i == 7)
            warp.translate_y.high = 1.1;
        if (i == 8)
            warp.perspective = 0.7;
        if (i == 9)
            warp.perspective = -0.1;
        if (i == 10)
            field.flip_x = 1.5;
        if (i == 11)
            field.flip_y = -0.5;
        if (i == 12)
            field.area.high = 1.5;
        if (i == 13)
            field.area.high = 0.5; /* from 0 */
        if (i == 14)
            field.aspect.low = field.aspect.high = -1;
        if (i == 15)
            jitter.brightness.low = -1;
        if (i == 16)
            jitter.contrast.high = 1001;
        if (i == 17)
            jitter.saturation.high = (double)INFINITY;
        if (i == 18)
            jitter.hue.low = -0.6;
        if (i == 19) {
            field.crop = BAGS_CROP_NONE;
            field.aspect.low = field.aspect.high = 1;
            why = "need crop BAGS_CROP_RANDOM";
        }
        if (i == 20) {
            field.scaled = true;
            why = "scaled excludes warp";
        }
        if (i > 20) {
            field.width = field.height = 0;
            field.crop = BAGS_CROP_NONE;
            field.jitter = i == 21 ? &jitter : NULL;
            field.warp = i == 22 ? &warp : NULL;
            why = "without width and height";
        }
        assert_refused(BAGS_ERROR_ARGUMENT, bags_loader_open(&one, 1, &options, &said));
        assert_says(why);
    }
    bags_reader_close(reader);
}

static bags_code decode_length(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    (void)scratch;
    if (item->pick.index == *(const uint64_t *)user)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "refused");
    *value = bags_uint(item->blob.size);
    return BAGS_OK;
}

static void a_callback_decodes_and_its_failure_is_named(void **state) {
    (void)state;
    write_dataset(at("x"), 100, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(10);
    bags_load_field field = field_of("name");
    uint64_t bad = UINT64_MAX;
    field.decode = decode_length;
    field.user = &bad;
    field.dtype = BAGS_DTYPE_INT32;
    options.fields = &field;
    options.field_count = 1;
    bags_loader *loader = open_loader(reader, &options);
    const bags_batch *b = next(loader);
    for (size_t i = 0; i < 10; i++)
        assert_true(((const int32_t *)b->tensors[0].data)[i] ==
                    (b->picks[i].index < 10 ? 6 : 7));
    bags_loader_close(loader);
    bad = 44;
    loader = open_loader(reader, &options);
    bags_code code = BAGS_OK;
    uint64_t batches = 0;
    for (; !code && batches < 100; batches++)
        code = bags_loader_next(loader, &b, &said);
    assert_true(code == BAGS_ERROR_CORRUPT &&
                batches == 1 + bags_permute_inverse(0, 0, 100, 44) / 10);
    assert_says("/x: field \"name\": datapoint 44: refused");
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* Arrays that are larger, or smaller, than their shape. */
static bags_code decode_wrong(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    static const uint64_t shape[3] = {64, 64, 3};
    const size_t *size = (const size_t *)user;
    (void)item;
    if (bags_buffer_reserve(scratch, 16, err))
        return BAGS_ERROR_MEMORY;
    memset(scratch->data, 0, 16);
    *value = bags_array(BAGS_DTYPE_UINT8, 3, shape, scratch->data);
    if (*size)
        value->size = *size;
    else
        value->data = NULL;
    return BAGS_OK;
}

static void a_callback_whose_array_is_not_its_shape_is_an_error(void **state) {
    (void)state;
    static const uint64_t shape[3] = {64, 64, 3};
    write_dataset(at("x"), 10, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (int form = 0; form < 3; form++) /* values, stacked, an image */
        for (size_t size = 0; size <= 16; size += 8) {
            bags_loader_options options = usual(10);
            bags_load_field field = field_of("name");
            const bags_batch *b;
            field.decode = decode_wrong;
            field.user = &size;
            field.dtype = form ? BAGS_DTYPE_UINT8 : BAGS_DTYPE_NONE;
            field.dims = form == 1 ? 3 : 0;
            field.shape = form == 1 ? shape : NULL;
            field.width = field.height = form == 2 ? 64 : 0;
            options.images = &images;
            options.fields = &field;
            options.field_count = 1;
            bags_loader *loader = open_loader(reader, &options);
            assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
            bags_loader_close(loader);
        }
    bags_reader_close(reader);
}

/* A codec of the program's own whose values are numbers, of a type that the loader
 * does not know. */
static bags_code decode_size(void *codec, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)codec;
    (void)scratch;
    (void)err;
    *value = bags_int(250 + (int64_t)blob.size);
    return BAGS_OK;
}

/* A dataset of one field of a codec's own type, and its only batch's digest. */
static uint64_t digest_of_numbers(
    bags_registry *registry, const char *path, const int64_t *numbers, size_t count) {
    static const bags_field field = {"a", "number"};
    bags_writer_options writing;
    bags_reader_options reading;
    bags_writer *writer;
    bags_reader *reader;
    const bags_batch *b = NULL;
    memset(&writing, 0, sizeof writing);
    memset(&reading, 0, sizeof reading);
    writing.any_type = true;
    reading.registry = registry;
    assert_opens(writer, bags_writer_open(path, &field, 1, &writing, &said));
    for (size_t i = 0; i < count; i++) {
        bags_value value = bags_blob(&numbers[i], sizeof *numbers);
        bags_entry entry = {"a", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_opens(reader, bags_reader_open(path, &reading, &said));
    bags_loader_options options = usual((uint32_t)count);
    options.order.in_order = true;
    bags_loader *loader = open_loader(reader, &options);
    assert_ok(bags_loader_next(loader, &b, &said));
    assert_int_equal(b->length, count);
    for (size_t i = 0; i < count; i++)
        assert_true(b->tensors[0].values[i].sint == numbers[i]);
    uint64_t digest = bags_batch_digest(b);
    bags_loader_close(loader);
    bags_reader_close(reader);
    return digest;
}

static bags_code decode_number(void *codec, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    int64_t number;
    (void)codec;
    (void)scratch;
    (void)err;
    memcpy(&number, blob.data, sizeof number);
    *value = bags_int(number);
    return BAGS_OK;
}

static void a_digest_sees_the_numbers_of_values(void **state) {
    static const bags_codec codec = {
        "number", NULL, NULL, decode_number, NULL, NULL, NULL};
    static const int64_t numbers[] = {7, -7, 0, INT64_MAX, INT64_MIN};
    bags_registry *registry;
    (void)state;
    assert_opens(registry, bags_registry_create(NULL, &said));
    assert_ok(bags_registry_add(registry, &codec, &said));
    uint64_t digest = digest_of_numbers(registry, at("x"), numbers, 5);
    assert_true(digest == digest_of_numbers(registry, at("same"), numbers, 5));
    for (size_t i = 0; i < 5; i++) {
        int64_t changed[5];
        char name[2] = {(char)('0' + i), 0};
        memcpy(changed, numbers, sizeof numbers);
        changed[i] ^= 1;
        assert_true(digest != digest_of_numbers(registry, at(name), changed, 5));
    }
    bags_registry_free(registry);
}

static void numbers_of_other_codecs_are_converted(void **state) {
    static const bags_codec codec = {"size", NULL, NULL, decode_size, NULL, NULL, NULL};
    static const bags_field size_field = {"a", "size"};
    bags_writer_options writing;
    bags_reader_options reading;
    bags_registry *registry;
    bags_writer *writer;
    bags_reader *reader;
    const bags_batch *b = NULL;
    (void)state;
    memset(&writing, 0, sizeof writing);
    memset(&reading, 0, sizeof reading);
    assert_opens(registry, bags_registry_create(NULL, &said));
    assert_ok(bags_registry_add(registry, &codec, &said));
    writing.any_type = true;
    assert_opens(writer, bags_writer_open(at("x"), &size_field, 1, &writing, &said));
    for (size_t i = 0; i < 8; i++) {
        bags_value value = bags_blob("12345678", i);
        bags_entry entry = {"a", &value, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    reading.registry = registry;
    assert_opens(reader, bags_reader_open(at("x"), &reading, &said));
    bags_loader_options options = usual(6);
    bags_load_field field = field_of("a");
    field.dtype = BAGS_DTYPE_UINT8;
    options.order.in_order = true;
    options.fields = &field;
    options.field_count = 1;
    bags_loader *loader = open_loader(reader, &options);
    assert_ok(bags_loader_next(loader, &b, &said));
    for (size_t i = 0; i < 6; i++) {
        const bags_value *value = &b->tensors[0].values[i];
        assert_true(value->kind == BAGS_KIND_ARRAY && value->dims == 0 &&
                    value->dtype == BAGS_DTYPE_UINT8 && value->size == 1 &&
                    *(const uint8_t *)value->data == 250 + i);
    }
    assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
    assert_says("datapoint 6: element 0: value out of range for uint8 (256)");
    bags_loader_close(loader);
    bags_reader_close(reader);
    bags_registry_free(registry);
}

/* ---- the same batches in every way ---- */

/* The digests of all batches of an epoch, of all ranks together. */
static void collect(const bags_reader *const *readers, size_t count,
    bags_loader_options options, uint32_t ranks, uint64_t *digests, uint64_t *skipped) {
    *skipped = 0;
    memset(digests, 0, 128 * sizeof *digests);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        bags_loader *loader;
        options.rank = rank;
        options.ranks = ranks;
        assert_opens(loader, bags_loader_open(readers, count, &options, &said));
        for (const bags_batch *b; (b = next(loader)) != NULL;) {
            digests[b->epoch * 64 + b->batch] += bags_batch_digest(b);
            *skipped += b->skipped;
        }
        bags_loader_close(loader);
    }
}

static void batches_do_not_depend_on_ranks_and_threads(void **state) {
    (void)state;
    uint64_t expected[128], digests[128], bad = 77, skipped;
    write_dataset(at("x"), LENGTH, 0);
    write_dataset(at("y"), 50, 1000);
    bags_reader *readers[2] = {open_dataset(at("x")), open_dataset(at("y"))};
    const bags_reader *both[2] = {readers[0], readers[1]};
    bags_load_field fields[3] = {
        field_of("image"), field_of("words"), field_of("name")};
    bags_loader_options options = usual(23);
    fields[0].width = fields[0].height = 4;
    fields[0].crop = BAGS_CROP_RANDOM;
    fields[0].flip_x = 0.5;
    bags_warp_options warp;
    bags_jitter_options jitter;
    memset(&warp, 0, sizeof warp);
    memset(&jitter, 0, sizeof jitter);
    warp.degrees.high = 30;
    warp.perspective = 0.4;
    jitter.brightness.high = 2;
    jitter.hue.high = 0.3;
    fields[2].decode = decode_length;
    fields[2].dtype = BAGS_DTYPE_UINT8;
    fields[2].user = &bad;
    options.images = &images;
    options.fields = fields;
    options.field_count = 3;
    options.skip_damaged = true;
    options.epochs = 2;
    for (int how = 0; how < 3; how++) {
        static const double weights[] = {1, 2};
        options.order.weights = how == 1 ? weights : NULL;
        options.order.chunk = how == 2 ? 8 : 0;
        fields[0].warp = how ? &warp : NULL;
        fields[0].jitter = how < 2 ? &jitter : NULL;
        options.threads = BAGS_THREADS_NONE;
        collect(both, 2, options, 1, expected, &skipped);
        /* Each of the two datasets has a datapoint 77 or not. */
        assert_true(how == 1 ? skipped > 0 : skipped == 2);
        for (uint32_t ranks = 1; ranks <= 4; ranks++)
            for (int32_t threads = 1; threads <= 7; threads += threads) {
                uint64_t again;
                options.threads = threads;
                options.prefetch = threads == 2;
                collect(both, 2, options, ranks, digests, &again);
                assert_true(again == skipped);
                assert_memory_equal(digests, expected, sizeof digests);
            }
    }
    bags_reader_close(readers[0]);
    bags_reader_close(readers[1]);
}

static void slices_of_any_batch_and_any_ranks_are_even(void **state) {
    (void)state;
    write_dataset(at("x"), 30, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(0);
    options.threads = 1;
    for (uint32_t batch = 1; batch <= 31; batch += 3)
        for (uint32_t ranks = 1; ranks <= 9; ranks++) {
            bool found[30] = {false};
            uint64_t least[30], most[30] = {0};
            memset(least, 0xff, sizeof least);
            for (uint32_t rank = 0; rank < ranks; rank++) {
                options.batch = batch;
                options.rank = rank;
                options.ranks = ranks;
                bags_loader *loader = open_loader(reader, &options);
                for (const bags_batch *b; (b = next(loader)) != NULL;) {
                    uint64_t n = b->length;
                    least[b->batch] = n < least[b->batch] ? n : least[b->batch];
                    most[b->batch] = n > most[b->batch] ? n : most[b->batch];
                    for (size_t i = 0; i < n; i++) {
                        uint64_t index = b->picks[i].index;
                        uint64_t place = bags_permute_inverse(0, 0, 30, index);
                        assert_true(place / batch == b->batch);
                        assert_true(place == b->position + i);
                        assert_false(found[index]);
                        found[index] = true;
                    }
                }
                bags_loader_close(loader);
            }
            for (size_t i = 0; i < 30; i++) {
                assert_true(found[i]);
                assert_true(most[i] <= least[i] + 1 || least[i] == UINT64_MAX);
            }
        }
    bags_reader_close(reader);
}

static void short_batches_are_dropped_on_request(void **state) {
    (void)state;
    write_dataset(at("x"), 30, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(7);
    options.drop_last = true;
    options.epochs = 2;
    bags_loader *loader = open_loader(reader, &options);
    for (uint64_t i = 0; i < 8; i++) {
        const bags_batch *b = next(loader);
        assert_true(b->length == 7 && b->epoch == i / 4 && b->batch == i % 4);
    }
    assert_true(!next(loader));
    bags_loader_close(loader);
    options.batch = 31;
    assert_refused(BAGS_ERROR_ARGUMENT,
        bags_loader_open((const bags_reader *const *)&reader, 1, &options, &said));
    bags_reader_close(reader);
}

static void a_batch_is_held_as_long_as_requested(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (int32_t threads = BAGS_THREADS_NONE; threads < 3; threads++) {
        bags_loader_options options = usual(10);
        const bags_batch *held[21];
        uint64_t digests[21];
        options.threads = threads;
        options.hold = 4;
        bags_loader *loader = open_loader(reader, &options);
        for (size_t i = 0; i < 21; i++) {
            held[i] = next(loader);
            digests[i] = bags_batch_digest(held[i]);
            for (size_t k = i < 4 ? 0 : i - 4; k <= i; k++) {
                assert_true(held[k]->batch == k);
                assert_true(bags_batch_digest(held[k]) == digests[k]);
            }
        }
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}

static void a_batch_is_held_across_seeks(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (int32_t threads = BAGS_THREADS_NONE; threads < 3; threads++)
        for (uint32_t hold = 0; hold < 4; hold++) {
            bags_loader_options options = usual(10);
            const bags_batch *held[40];
            uint64_t digests[40];
            options.threads = threads;
            options.hold = hold;
            bags_loader *loader = open_loader(reader, &options);
            for (size_t i = 0; i < 40; i++) {
                uint64_t batch = i * 7 % 20;
                if (i % 3)
                    assert_ok(bags_loader_seek(loader, 0, batch, &said));
                for (size_t k = i < hold + 1 ? 0 : i - hold - 1; k < i; k++)
                    assert_true(bags_batch_digest(held[k]) == digests[k]);
                held[i] = next(loader);
                assert_true(i % 3 == 0 || held[i]->batch == batch);
                digests[i] = bags_batch_digest(held[i]);
                for (size_t k = i < hold ? 0 : i - hold; k <= i; k++)
                    assert_true(bags_batch_digest(held[k]) == digests[k]);
            }
            bags_loader_close(loader);
        }
    bags_reader_close(reader);
}

/* ---- states ---- */

static void a_state_continues_with_other_ranks_and_threads(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    const bags_reader *one = reader;
    bags_loader_options options = usual(20);
    uint64_t expected[128], skipped;
    options.epochs = 2;
    collect(&one, 1, options, 1, expected, &skipped);
    for (uint64_t stop = 0; stop <= 22; stop++) {
        unsigned char saved[BAGS_LOADER_STATE];
        uint32_t ranks = (uint32_t)stop % 3 + 1;
        options.rank = 1;
        options.ranks = 4;
        bags_loader *loader = open_loader(reader, &options);
        for (uint64_t i = 0; i < stop; i++)
            next(loader);
        assert_ok(bags_loader_save(loader, saved, &said));
        bags_loader_close(loader);
        uint64_t digests[128];
        memset(digests, 0, sizeof digests);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            options.rank = rank;
            options.ranks = ranks;
            options.threads = 1 + (int32_t)stop % 2;
            loader = open_loader(reader, &options);
            if (stop % 2)
                next(loader); /* restoring is seeking */
            assert_ok(bags_loader_restore(loader, saved, sizeof saved, &said));
            for (const bags_batch *b; (b = next(loader)) != NULL;)
                digests[b->epoch * 64 + b->batch] += bags_batch_digest(b);
            bags_loader_close(loader);
        }
        for (uint64_t i = 0; i < 22; i++)
            assert_true(digests[i / 11 * 64 + i % 11] ==
                        (i < stop ? 0 : expected[i / 11 * 64 + i % 11]));
    }
    bags_reader_close(reader);
}

static void a_state_of_something_else_is_refused_by_name(void **state) {
    (void)state;
    unsigned char saved[BAGS_LOADER_STATE], bad[BAGS_LOADER_STATE];
    write_dataset(at("x"), LENGTH, 0);
    write_dataset(at("y"), LENGTH + 1, 0);
    write_dataset(at("z"), LENGTH, 5);
    bags_reader *x = open_dataset(at("x")), *y = open_dataset(at("y"));
    bags_reader *z = open_dataset(at("z"));
    bags_loader_options options = usual(20);
    bags_loader *loader = open_loader(x, &options);
    next(loader);
    assert_ok(bags_loader_save(loader, saved, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_loader_restore(loader, saved, 63, &said));
    assert_says("63 bytes, expected 64");
    for (size_t i = 0; i < sizeof saved; i++) {
        memcpy(bad, saved, sizeof bad);
        bad[i] ^= 4;
        assert_fails(
            BAGS_ERROR_CORRUPT, bags_loader_restore(loader, bad, sizeof bad, &said));
    }
    bags_loader_close(loader);
    static const char *const says[] = {"number of datapoints differs (203, here "
                                       "204)",
        "the datasets differ", "batch size differs (20, here 21)",
        "seed differs (0, here 8)", "chunk, window, weights"};
    for (int i = 0; i < 5; i++) {
        bags_loader_options other = options;
        other.batch = i == 2 ? 21 : 20;
        other.order.seed = i == 3 ? 8 : 0;
        other.order.chunk = i == 4 ? 3 : 0;
        loader = open_loader(i == 0 ? y : i == 1 ? z : x, &other);
        assert_fails(
            BAGS_ERROR_VALUE, bags_loader_restore(loader, saved, sizeof saved, &said));
        assert_says(says[i]);
        /* It still loads from the start. */
        assert_true(next(loader)->batch == 0);
        bags_loader_close(loader);
    }
    /* What is drawn for images is part of it, what else becomes of them is not. */
    bags_load_field field = field_of("image");
    bags_warp_options warp;
    bags_jitter_options jitter;
    memset(&warp, 0, sizeof warp);
    memset(&jitter, 0, sizeof jitter);
    options.fields = &field;
    options.field_count = 1;
    field.width = field.height = 4;
    field.warp = &warp;
    field.jitter = &jitter;
    for (int i = 0; i < 5; i++) {
        warp.degrees.high = i == 1 ? 10 : 0;
        jitter.hue.high = i == 2 ? 0.1 : 0;
        field.flip_y = i == 3 ? 0.5 : 0;
        field.nchw = i == 4;
        loader = open_loader(x, &options);
        if (i == 0)
            assert_ok(bags_loader_save(loader, saved, &said));
        bags_code code = bags_loader_restore(loader, saved, sizeof saved, &said);
        assert_true(code == (i % 4 ? BAGS_ERROR_VALUE : BAGS_OK));
        if (code)
            assert_says("what is drawn for images differ");
        bags_loader_close(loader);
    }
    field.warp = NULL;
    field.jitter = NULL;
    field.nchw = false;
    field.crop = BAGS_CROP_RANDOM;
    field.filter = BAGS_FILTER_NEAREST;
    for (int i = 0; i < 4; i++) {
        field.flip_x = i == 1 ? 0.5 : 0;
        field.area.low = field.area.high = i == 2 ? 0.5 : 0;
        field.aspect.low = field.aspect.high = i == 3 ? 1 : 0;
        loader = open_loader(x, &options);
        if (i == 0)
            assert_ok(bags_loader_save(loader, saved, &said));
        bags_code code = bags_loader_restore(loader, saved, sizeof saved, &said);
        assert_true(code == (i ? BAGS_ERROR_VALUE : BAGS_OK));
        bags_loader_close(loader);
    }
    memset(&field.aspect, 0, sizeof field.aspect);
    field.dtype = BAGS_DTYPE_FLOAT32;
    for (int i = 0; i < 3; i++) {
        field.mean[1] = i == 0 ? NAN : 0;
        field.std[2] = i == 1 ? INFINITY : i == 2 ? -1 : 0;
        const bags_reader *one = x;
        assert_refused(BAGS_ERROR_ARGUMENT, bags_loader_open(&one, 1, &options, &said));
        assert_says("mean and std must be finite");
    }
    bags_reader_close(x);
    bags_reader_close(y);
    bags_reader_close(z);
}

static void elements_have_a_mean_and_a_deviation(void **state) {
    (void)state;
    static const double mean[] = {1.5, -2, 1e9}, std[] = {0.25, 0, 3};
    static const bags_field fields[] = {
        {"a", "array(float64,3)"}, {"n", "int"}, {"s", "array(int16,3)[]"}};
    uint64_t shape[] = {3};
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(at("m"), fields, 3, NULL, &said));
    for (int64_t i = 0; i < 20; i++) {
        double a[] = {(double)i / 7, (double)-i, 1e9 + (double)i};
        int16_t s[2][3] = {{(int16_t)i, 2, 3}, {4, 5, (int16_t)-i}};
        bags_value one = bags_array(BAGS_DTYPE_FLOAT64, 1, shape, a);
        bags_value n = bags_int(i), items[2];
        items[0] = bags_array(BAGS_DTYPE_INT16, 1, shape, s[0]);
        items[1] = bags_array(BAGS_DTYPE_INT16, 1, shape, s[1]);
        bags_entry entries[] = {{"a", &one, 1}, {"n", &n, 1}, {"s", items, 2}};
        assert_ok(bags_writer_append(writer, entries, 3, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader = open_dataset(at("m"));
    bags_load_field of[3];
    bags_loader_options options = {0};
    memset(of, 0, sizeof of);
    options.batch = 20;
    options.order.in_order = true;
    options.fields = of;
    options.field_count = 3;
    of[0].name = "a";
    of[1].name = "n";
    of[2].name = "s";
    for (size_t i = 0; i < 3; i++) {
        of[i].dtype = BAGS_DTYPE_FLOAT32;
        of[i].element_mean = mean;
        of[i].element_std = std;
        of[i].elements = i == 1 ? 1 : 3;
    }
    bags_loader *loader = open_loader(reader, &options);
    const bags_batch *b = next(loader);
    for (size_t i = 0; i < 20; i++) {
        double x[] = {(double)i / 7, -(double)i, 1e9 + (double)i};
        for (size_t k = 0; k < 3; k++) {
            double by = std[k] > 0 ? std[k] : 1;
            volatile float want = (float)((x[k] - mean[k]) / by);
            assert_true(((const float *)b->tensors[0].data)[3 * i + k] == want);
        }
        assert_true(((const float *)b->tensors[1].data)[i] ==
                    (float)(((double)i - 1.5) / 0.25));
        assert_true(((const float *)b->tensors[2].data)[6 * i] ==
                    (float)(((double)i - 1.5) / 0.25));
        assert_true(((const float *)b->tensors[2].data)[6 * i + 4] == 7.0f);
    }
    bags_loader_close(loader);
    const double bad[] = {0, NAN, 0}, tiny[] = {1e-300, 1, 1};
    for (int i = 0; i < 6; i++) {
        bags_load_field saved = of[0];
        of[0].elements = i == 0 ? 2 : i == 1 ? 0 : 3;
        of[0].element_mean = i == 2 ? bad : mean;
        of[0].element_std = i == 3 ? bad : std;
        if (i == 4)
            of[0].dtype = BAGS_DTYPE_NONE;
        if (i == 5)
            of[0].element_mean = of[0].element_std = NULL;
        assert_refused(BAGS_ERROR_ARGUMENT,
            bags_loader_open((const bags_reader *const *)&reader, 1, &options, &said));
        assert_says(i == 0             ? "mean and std have 2 elements (a value has 3)"
                    : i == 1 || i == 5 ? "must be set together"
                    : i == 4           ? "need dtype float32 or float64"
                                       : "mean and std must be finite");
        of[0] = saved;
    }
    of[0].element_std = tiny; /* what float32 cannot hold is no infinity */
    loader = open_loader(reader, &options);
    assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
    assert_says("element 0: (x - mean) / std out of range for float32");
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void two_loaders_share_a_reader(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options[2] = {usual(10), usual(10)};
    bags_loader *apart, *both[2];
    uint64_t expected[2][32] = {{0}};
    options[1].order.seed = 1;
    options[1].threads = 2;
    for (int i = 0; i < 2; i++) {
        apart = open_loader(reader, &options[i]);
        for (const bags_batch *b; (b = next(apart)) != NULL;)
            expected[i][b->batch] = bags_batch_digest(b);
        bags_loader_close(apart);
    }
    assert_true(expected[0][0] != expected[1][0]);
    for (int i = 0; i < 2; i++)
        both[i] = open_loader(reader, &options[i]);
    for (uint64_t k = 0; k < bags_loader_batches(both[0]); k++)
        for (int i = 0; i < 2; i++)
            assert_true(bags_batch_digest(next(both[i])) == expected[i][k]);
    bags_loader_close(both[0]);
    assert_null(next(both[1]));
    bags_loader_close(both[1]);
    bags_reader_close(reader);
}

static void seeking_is_like_getting_there(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(10);
    options.epochs = 0;
    bags_loader *loader = open_loader(reader, &options);
    static const uint64_t where[][2] = {
        {3, 4}, {0, 0}, {1000000000000, 20}, {0, 7}, {3, 4}};
    uint64_t first = 0;
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        assert_ok(bags_loader_seek(loader, where[i][0], where[i][1], &said));
        const bags_batch *b = next(loader);
        assert_true(b->epoch == where[i][0] && b->batch == where[i][1]);
        assert_true(b->picks[0].index ==
                    bags_permute(0, where[i][0], LENGTH, 10 * where[i][1]));
        if (i == 0)
            first = bags_batch_digest(b);
        if (i == 4)
            assert_true(bags_batch_digest(b) == first);
    }
    assert_fails(BAGS_ERROR_RANGE, bags_loader_seek(loader, 0, 21, &said));
    bags_loader_close(loader);
    bags_reader_close(reader);
}

/* Documents of one token each, or none but for the first, the middle and the last. */
static bags_reader *open_documents(const char *path, bool all) {
    bags_field field = {"ids", "array(uint16,-1)"};
    bags_writer *writer = bags_writer_open(path, &field, 1, NULL, &said);
    assert_non_null(writer);
    for (uint16_t i = 0; i < 11; i++) {
        uint64_t size = all || i % 5 == 0;
        bags_value ids = bags_array(BAGS_DTYPE_UINT16, 1, &size, &i);
        bags_entry entry = {"ids", &ids, 1};
        assert_ok(bags_writer_append(writer, &entry, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    return open_dataset(path);
}

static void a_packed_row_that_does_not_exist_is_refused_and_nothing_moves(
    void **state) {
    (void)state;
    unsigned char saved[BAGS_LOADER_STATE];
    bags_tokens_options rows = {0};
    rows.field = "ids";
    rows.length = 1;
    rows.pack = true;
    for (int few = 0; few < 2; few++) {
        bags_reader *reader = open_documents(at(few ? "few" : "all"), !few);
        const bags_reader *readers[] = {reader};
        bags_tokens *tokens = bags_tokens_open(readers, 1, &rows, &said);
        assert_non_null(tokens);
        bags_loader_options options = {0};
        options.tokens = tokens;
        options.batch = 2;
        options.threads = 2;
        options.order.in_order = true;
        bags_loader *loader = open_loader(reader, &options);
        const bags_batch *b = next(loader);
        if (few) /* its first, middle and last document are those of the other */
            assert_fails(BAGS_ERROR_CORRUPT,
                bags_loader_restore(loader, saved, sizeof saved, &said));
        assert_fails(BAGS_ERROR_RANGE, bags_loader_seek(loader, 0, 6, &said));
        assert_fails(
            BAGS_ERROR_RANGE, bags_loader_seek(loader, 0, UINT64_C(1) << 63, &said));
        b = next(loader);
        assert_true(b->batch == 1 && b->pieces[b->rows[0]].document == (few ? 10 : 2));
        for (int i = 2; i < 5 && !few; i++)
            next(loader);
        assert_ok(bags_loader_save(loader, saved, &said));
        bags_loader_close(loader);
        bags_tokens_close(tokens);
        bags_reader_close(reader);
    }
}

/* ---- options, memory, faults ---- */

/* Datapoint 7 comes at every second position. */
static bags_code prefer_seven(void *user, uint64_t epoch, uint64_t start, size_t count,
    bags_pick *picks, bags_error *err) {
    if (*(const bool *)user)
        return bags_fail(err, BAGS_ERROR_VALUE, "no more hard examples");
    for (size_t i = 0; i < count; i++) {
        picks[i].dataset = 0;
        picks[i].index = (start + i) % 2 ? 7 : (start + i + epoch) % LENGTH;
    }
    return BAGS_OK;
}

static void a_sampler_chooses_each_position_and_keeps_states(void **state) {
    (void)state;
    bool fails = false;
    unsigned char saved[BAGS_LOADER_STATE];
    uint64_t digests[2] = {0, 0};
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(8);
    options.sampler = prefer_seven;
    options.sampler_user = &fails;
    options.sampler_length = 50;
    options.sampler_hash = 1;
    options.epochs = 2;
    bags_loader *loader = open_loader(reader, &options);
    assert_true(bags_loader_batches(loader) == 7);
    for (uint64_t n = 0; n < 14; n++) {
        const bags_batch *b = next(loader);
        assert_true(b->length == (n % 7 == 6 ? 2 : 8));
        for (size_t i = 0; i < b->length; i++) {
            uint64_t position = n % 7 * 8 + i;
            assert_true(
                b->picks[i].index == (position % 2 ? 7 : (position + n / 7) % LENGTH));
            assert_true(((const int64_t *)tensor(b, "label")->data)[i] ==
                        (int64_t)b->picks[i].index);
        }
        digests[0] += n > 5 ? bags_batch_digest(b) : 0;
        if (n == 5)
            assert_ok(bags_loader_save(loader, saved, &said));
    }
    assert_true(next(loader) == NULL);
    bags_loader_close(loader);
    options.threads = 1;
    loader = open_loader(reader, &options);
    assert_ok(bags_loader_restore(loader, saved, sizeof saved, &said));
    for (const bags_batch *b; (b = next(loader)) != NULL;)
        digests[1] += bags_batch_digest(b);
    assert_true(digests[0] == digests[1]);
    bags_loader_close(loader);
    for (int i = 0; i < 3; i++) { /* another order, none, and one that fails */
        bags_loader_options other = options;
        const bags_batch *b;
        other.sampler_hash = i == 0 ? 2 : 1;
        if (i == 1)
            other.sampler = NULL;
        loader = open_loader(reader, &other);
        if (i < 2)
            assert_fails(BAGS_ERROR_VALUE,
                bags_loader_restore(loader, saved, sizeof saved, &said));
        if (i < 2)
            assert_says("sampler");
        fails = i == 2;
        if (i == 2)
            assert_fails(BAGS_ERROR_VALUE, bags_loader_next(loader, &b, &said));
        bags_loader_close(loader);
    }
    fails = false;
    options.sampler_length = 0;
    assert_true(
        !bags_loader_open((const bags_reader *const *)&reader, 1, &options, &said));
    assert_says("sampler_length must be 1 to 2^63-1");
    options.sampler_length = 1000;
    options.order.in_order = true;
    assert_true(
        !bags_loader_open((const bags_reader *const *)&reader, 1, &options, &said));
    bags_reader_close(reader);
}

static void peeking_shows_the_batch_that_next_returns(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (int i = 0; i < 2; i++) {
        bags_loader_options options = usual(16);
        unsigned char before[BAGS_LOADER_STATE], after[BAGS_LOADER_STATE];
        options.epochs = 2;
        options.threads = i == 1 ? BAGS_THREADS_NONE : 3;
        bags_loader *loader = open_loader(reader, &options);
        uint64_t batches = 0;
        bool ended = false;
        while (!ended) {
            const bags_batch *first = NULL, *second;
            bool late = true;
            assert_ok(bags_loader_save(loader, before, &said));
            while (late)
                assert_ok(bags_loader_peek(loader, 0.01, &first, &late, &said));
            assert_ok(bags_loader_peek(loader, 0, &second, NULL, &said));
            assert_ok(bags_loader_save(loader, after, &said));
            assert_true(first == second && memcmp(before, after, sizeof after) == 0);
            ended = first == NULL;
            if (!ended)
                check_batch(first);
            assert_true(next(loader) == first);
            assert_true(ended || first->epoch * 13 + first->batch == batches++);
        }
        assert_true(batches == 26);
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}

static bags_code decode_until_closed(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const struct timespec moment = {0, 1000000};
    (void)scratch;
    (void)err;
    __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
    while (!bags_loader_is_stopping())
        nanosleep(&moment, NULL);
    *value = bags_uint(item->blob.size);
    return BAGS_OK;
}

static void a_loader_that_is_closed_or_moved_calls_no_function_again(void **state) {
    (void)state;
    write_dataset(at("x"), 100, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(50);
    bags_load_field field = field_of("name");
    const struct timespec moment = {0, 1000000};
    const bags_batch *batch;
    int calls = 0;
    bool late;
    field.decode = decode_until_closed;
    field.user = &calls;
    options.threads = 1;
    options.fields = &field;
    options.field_count = 1;
    bags_loader *loader = open_loader(reader, &options);
    for (int i = 1; i <= 2; i++) {
        assert_ok(bags_loader_peek(loader, 0, &batch, &late, &said));
        assert_true(!batch && late);
        while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) < i)
            nanosleep(&moment, NULL);
        if (i == 1)
            assert_ok(bags_loader_seek(loader, 0, 1, &said));
        else
            bags_loader_close(loader);
        assert_true(calls == i && !bags_loader_is_stopping());
    }
    bags_reader_close(reader);
}

#ifndef _WIN32
static void a_child_refuses_a_loader_that_has_threads(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (int begun = 0; begun < 2; begun++) {
        bags_loader_options options = usual(16);
        bags_loader *loader = open_loader(reader, &options);
        int status = 0;
        if (begun)
            check_batch(next(loader));
        pid_t child = fork();
        if (child == 0) {
            const bags_batch *b = NULL;
            bags_code expected = begun ? BAGS_ERROR_STATE : BAGS_OK;
            alarm(300);
            bool right = bags_loader_next(loader, &b, &said) == expected &&
                         bags_loader_peek(loader, 600, &b, NULL, &said) == expected &&
                         bags_loader_seek(loader, 0, 1, &said) == expected &&
                         (!begun || strstr(said.message, "fork()"));
            bags_loader_close(loader);
            _exit(!right);
        }
        assert_true(waitpid(child, &status, 0) == child && status == 0);
        if (begun)
            check_batch(next(loader));
        bags_loader_close(loader);
    }
    bags_reader_close(reader);
}
#endif

static void an_empty_dataset_has_no_batches(void **state) {
    (void)state;
    write_dataset(at("x"), 0, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(10);
    options.epochs = 0;
    bags_loader *loader = open_loader(reader, &options);
    assert_true(bags_loader_batches(loader) == 0 && !next(loader));
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void invalid_options_are_refused(void **state) {
    (void)state;
    static const uint64_t shape[] = {2};
    write_dataset(at("x"), 10, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (int i = 0; i < 40; i++) {
        bags_loader_options options = usual(4);
        bags_load_field fields[2] = {field_of("image"), field_of("image")};
        const bags_reader *readers[] = {reader};
        bags_code code = i < 2 ? BAGS_ERROR_FIELD : BAGS_ERROR_ARGUMENT;
        options.images = &images;
        options.fields = fields;
        options.field_count = i == 1 ? 2 : i == 26 ? 0 : 1;
        if (i == 27)
            options.fields = NULL;
        fields[0].width = fields[0].height = i > 12 && i < 32 ? 4 : 0;
        if (i == 0)
            fields[0].name = "no such field";
        if (i == 2)
            options.ranks = options.rank = 3;
        if (i == 3)
            options.rank = 1;
        if (i == 4)
            options.threads = -2;
        if (i == 5)
            options.threads = 5000;
        if (i == 6)
            options.window_start = -2;
        if (i == 7)
            fields[0].window = 2; /* not a sequence */
        if (i == 8)
            fields[0].flip_x = 0.5; /* no size */
        if (i == 37)
            fields[0].flip_x = -0.5;
        if (i == 38)
            fields[0].flip_y = (double)NAN;
        if (i == 39)
            fields[0].area.low = 0.5;
        if (i == 9)
            fields[0].dims = 7;
        if (i == 10) {
            fields[0].dims = 1; /* without a dtype */
            fields[0].shape = shape;
        }
        if (i == 11) {
            fields[0].name = "name";
            fields[0].dtype = BAGS_DTYPE_INT8;
            code = BAGS_ERROR_TYPE;
        }
        if (i == 12) {
            fields[0].name = "frames";
            fields[0].stride = 2; /* without window */
        }
        if (i == 13)
            options.images = NULL;
        if (i == 14)
            fields[0].width = 0;
        if (i == 15)
            fields[0].channels = 2;
        if (i == 16)
            fields[0].dtype = BAGS_DTYPE_INT32;
        if (i == 17)
            fields[0].mean[2] = 1; /* of uint8 */
        if (i == 18) {
            fields[0].crop = BAGS_CROP_CENTER;
            fields[0].resize = 3;
        }
        if (i == 19)
            fields[0].scaled = true; /* no random crop */
        if (i == 20)
            fields[0].dims = 1;
        if (i == 21)
            fields[0].crop = (bags_crop)3;
        if (i == 22)
            fields[0].height = 70000;
        if (i == 23)
            fields[0].name = NULL;
        if (i == 24)
            options.fields = NULL;
        if (i == 25)
            readers[0] = NULL;
        if (i == 28)
            fields[0].resize = 5; /* no crop */
        if (i == 29) {
            fields[0].resize = 5;
            fields[0].crop = BAGS_CROP_RANDOM;
        }
        if (i == 30)
            options.window_start = BAGS_WINDOW_RANDOM; /* no window */
        if (i == 31)
            options.window_start = 1;
        if (i == 32)
            fields[0].filter = BAGS_FILTER_BICUBIC; /* no size */
        if (i == 33)
            fields[0].shape = shape; /* no dims */
        if (i == 34) {
            options.threads = BAGS_THREADS_NONE;
            options.ahead = 3;
        }
        if (i == 35 || i == 36)
            fields[0].orient = true; /* no size; no JPEG or PNG */
        if (i == 36)
            fields[0].width = fields[0].height = 4;
        assert_refused(code, bags_loader_open(i == 25 ? NULL : readers, i == 25 ? 0 : 1,
                                 &options, &said));
    }
    bags_reader_close(reader);
}

static void the_steady_state_allocates_nothing(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(50);
    options.epochs = 0;
    options.threads = BAGS_THREADS_NONE;
    bags_loader *loader = open_loader(reader, &options);
    for (int i = 0; i < 200; i++)
        next(loader);
    uint64_t calls = memory.calls;
    for (int i = 0; i < 100; i++)
        next(loader);
    assert_true(memory.calls == calls);
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static uint64_t page_faults(void) {
    struct rusage usage;
    assert_true(getrusage(RUSAGE_SELF, &usage) == 0);
    return (uint64_t)usage.ru_minflt;
}

/* malloc maps blocks of this size when they are allocated, and returns them when they are
 * freed. */
static void large_batches_are_in_the_same_pages_again(void **state) {
    (void)state;
    enum { SIDE = 512, BATCH = 40 };
    static float pixels[SIDE * SIDE];
    static const bags_field field = {"image", "array(float32,512,512)"};
    uint64_t shape[] = {SIDE, SIDE}, indices[BATCH] = {0};
    bags_selection selection = {BAGS_SELECTION_INDICES, indices, BATCH, false};
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(at("x"), &field, 1, NULL, &said));
    bags_value image = bags_array(BAGS_DTYPE_FLOAT32, 2, shape, pixels);
    bags_entry entry = {"image", &image, 1};
    assert_ok(bags_writer_append(writer, &entry, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader = open_dataset(at("x"));
    bags_loader_options options = usual(BATCH);
    options.order.selections = &selection;
    options.epochs = 0;
    options.threads = 1;
    options.ahead = 1;
    options.allocator = NULL;
    bags_loader *loader = open_loader(reader, &options);
    for (int i = 0; i < 6; i++)
        next(loader);
    uint64_t before = page_faults();
    for (int i = 0; i < 6; i++)
        assert_true(next(loader)->tensors[0].size == (size_t)BATCH << 20);
    assert_true(page_faults() - before < 6 * 1000); /* of 10,240 pages each */
    bags_loader_close(loader);
    bags_reader_close(reader);
}

static void memory_does_not_depend_on_the_length(void **state) {
    (void)state;
    uint64_t used = 0;
    for (uint64_t length = 1000; length <= 1000000000; length *= 1000) {
        uint64_t before = memory.used;
        bags_order order = make_order(&length, 1, chunked(1, 64, 256));
        bags_pick picks[64];
        assert_ok(bags_order_get(&order, 0, length / 2, 64, picks, &said));
        assert_true(used == 0 || memory.used - before == used);
        used = memory.used - before;
        bags_order_free(&order);
    }
}

static void closing_in_mid_epoch_never_hangs(void **state) {
    (void)state;
    write_dataset(at("x"), LENGTH, 0);
    bags_reader *reader = open_dataset(at("x"));
    for (uint32_t i = 0; i < 60; i++) {
        bags_loader_options options = usual(1 + i % 40);
        options.threads = 1 + (int32_t)(i % 5);
        options.ahead = 1 + i % 3;
        options.epochs = i % 2;
        bags_loader *loader = open_loader(reader, &options);
        for (uint32_t k = 0; k < i % 7; k++)
            next(loader);
        if (i % 4 == 3)
            assert_ok(bags_loader_seek(loader, 0, 2, &said));
        if (i % 8 == 7)
            next(loader);
        bags_loader_close(loader);
    }
    bags_loader_close(NULL);
    bags_reader_close(reader);
}

/* Load two epochs, and save and restore, with every call failing once. */
static bags_code run_once(const bags_env *env, uint64_t *done) {
    bags_reader_options reading;
    bags_loader_options options = usual(40);
    bags_load_field fields[4] = {
        field_of("image"), field_of("words"), field_of("shape"), field_of("frames")};
    static const double weights[] = {1};
    unsigned char saved[BAGS_LOADER_STATE];
    const bags_batch *batch;
    bags_loader *loader = NULL;
    memset(&reading, 0, sizeof reading);
    reading.env = *env;
    reading.no_mmap = true;
    *done = 0;
    poison();
    bags_reader *reader = bags_reader_open(at("x"), &reading, &said);
    bags_code code = reader ? BAGS_OK : said.code;
    fields[0].width = fields[0].height = 3;
    fields[0].dtype = BAGS_DTYPE_FLOAT32;
    options.images = &images;
    options.fields = fields;
    options.field_count = 4;
    options.order.weights = weights;
    options.allocator = env->allocator;
    options.threads = 2;
    options.prefetch = true;
    if (!code) {
        poison();
        loader =
            bags_loader_open((const bags_reader *const *)&reader, 1, &options, &said);
        code = loader ? BAGS_OK : said.code;
    }
    for (int i = 0; i < 5 && !code; i++) {
        poison();
        code = bags_loader_next(loader, &batch, &said);
        *done += !code;
    }
    if (!code) {
        poison();
        code = bags_loader_save(loader, saved, &said);
    }
    if (!code) {
        poison();
        code = bags_loader_restore(loader, saved, sizeof saved, &said);
    }
    if (!code) {
        poison();
        code = bags_loader_next(loader, &batch, &said);
        *done += !code;
    }
    bags_loader_close(loader);
    bags_reader_close(reader);
    return code;
}

static void every_failure_of_memory_and_files_is_reported(void **state) {
    (void)state;
    write_dataset(at("x"), 70, 0);
    bags_env env = {&memory.allocator, &disk.io};
    uint64_t done;
    assert_true(!run_once(&env, &done) && done == 6);
    for (int files = 0; files < 2; files++) {
        uint64_t total = files ? disk.calls : memory.calls, step, tried = 0;
        memory.calls = disk.calls = 0;
        assert_true(!run_once(&env, &done));
        total = files ? disk.calls : memory.calls;
        step = quick() ? total / 60 + 1 : 1;
        for (uint64_t n = 1; n <= total; n += step, tried++) {
            memory.calls = memory.failed = disk.calls = disk.failed = 0;
            memory.fail_at = files ? 0 : n;
            disk.fail_at = files ? n : 0;
            disk.fail_with = 5; /* EIO */
            bags_code code = run_once(&env, &done);
            /* With threads the calls come in another order: the last may not
             * come, and a failed prefetch or close is no failure. */
            if (code)
                assert_true(files ? code == BAGS_ERROR_IO : code == BAGS_ERROR_MEMORY);
            else
                assert_true(done == 6);
            if (code)
                assert_says(files ? "x*Input/output error" : "out of memory");
            assert_true(memory.live == 0);
        }
        memory.fail_at = disk.fail_at = 0;
        assert_true(tried > 20);
    }
}

/* It is not damage: all of the epoch would be left out. */
static void a_replaced_dataset_is_an_error_that_is_not_skipped(void **state) {
    (void)state;
    skip_on_windows("a directory with open files cannot be renamed");
    for (int32_t threads = BAGS_THREADS_NONE; threads < 3; threads += 3) {
        bags_loader_options options = usual(100);
        bags_reader_options few;
        bags_reader *reader;
        const bags_batch *b = NULL;
        bags_code code = BAGS_OK;
        uint64_t loaded = 0;
        unsigned char saved[BAGS_LOADER_STATE];
        write_dataset(at("x"), 1200, 0);
        write_dataset(at("y"), 1200, 0);
        memset(&few, 0, sizeof few);
        few.no_mmap = true;
        few.max_files = 2;
        assert_opens(reader, bags_reader_open(at("x"), &few, &said));
        assert_int_equal(shard_count(reader), 20);
        assert_int_equal(rename(at("x/000003"), at("old")), 0);
        assert_int_equal(rename(at("y/000003"), at("x/000003")), 0);
        options.threads = threads;
        options.skip_damaged = true;
        options.order.in_order = true;
        bags_loader *loader = open_loader(reader, &options);
        for (; !code; loaded += code ? 0 : b->length) {
            if (loaded == 0) /* later ones read nothing */
                assert_ok(bags_loader_save(loader, saved, &said));
            code = bags_loader_next(loader, &b, NULL);
            assert_true(code || (b && b->skipped == 0));
        }
        assert_ok(bags_loader_save(loader, saved, &said));
        assert_fails(BAGS_ERROR_CHANGED, bags_loader_next(loader, &b, &said));
        assert_says("was replaced, renamed or removed since it was opened");
        assert_int_equal(loaded, 100);
        bags_loader_close(loader);
        bags_reader_close(reader);
        remove_tree(at("x"));
        remove_tree(at("y"));
        remove_tree(at("old"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_permutation_has_each_index_once),
        TEST(the_inverse_finds_every_position),
        TEST(permutations_never_change),
        TEST(permuting_out_of_range_has_no_result),
        TEST(all_orders_of_few_elements_are_equally_frequent),
        TEST(neighbours_and_positions_go_everywhere),
        TEST(chunks_stay_in_windows_and_each_datapoint_comes_once),
        TEST(huge_chunked_orders_do_not_overflow),
        TEST(windows_draw_their_chunks_from_everywhere),
        TEST(a_union_has_each_datapoint_once_and_interleaves),
        TEST(weights_have_exact_shares_and_walk_each_dataset),
        TEST(orders_are_the_same_in_every_version),
        TEST(what_is_selected_comes_as_often_as_it_is_listed),
        TEST(weights_walk_what_is_selected),
        TEST(draws_with_replacement_are_binomial),
        TEST(equal_selections_have_equal_hashes_and_others_not),
        TEST(selections_refuse_what_makes_no_sense),
        TEST(orders_refuse_what_makes_no_sense),
        TEST(fields_become_tensors_values_and_offsets),
        TEST(numbers_are_converted_and_must_fit),
        TEST(impossible_conversions_are_not_skipped),
        TEST(integers_become_floats_only_if_exact),
        TEST(windows_of_sequences_are_aligned),
        TEST(images_are_resized_mirrored_and_normalised),
        TEST(a_callback_chooses_the_matrix_the_colours_and_the_norm),
        TEST(flips_have_their_probability),
        TEST(warps_out_of_range_are_refused_by_name),
        TEST(a_callback_decodes_and_its_failure_is_named),
        TEST(a_callback_whose_array_is_not_its_shape_is_an_error),
        TEST(a_digest_sees_the_numbers_of_values),
        TEST(numbers_of_other_codecs_are_converted),
        TEST(batches_do_not_depend_on_ranks_and_threads),
        TEST(slices_of_any_batch_and_any_ranks_are_even),
        TEST(short_batches_are_dropped_on_request),
        TEST(a_batch_is_held_as_long_as_requested),
        TEST(a_batch_is_held_across_seeks),
        TEST(a_state_continues_with_other_ranks_and_threads),
        TEST(a_state_of_something_else_is_refused_by_name),
        TEST(elements_have_a_mean_and_a_deviation),
        TEST(two_loaders_share_a_reader),
        TEST(seeking_is_like_getting_there),
        TEST(a_packed_row_that_does_not_exist_is_refused_and_nothing_moves),
        TEST(a_sampler_chooses_each_position_and_keeps_states),
        TEST(peeking_shows_the_batch_that_next_returns),
        TEST(a_loader_that_is_closed_or_moved_calls_no_function_again),
#ifndef _WIN32
        TEST(a_child_refuses_a_loader_that_has_threads),
#endif
        TEST(an_empty_dataset_has_no_batches),
        TEST(invalid_options_are_refused),
        TEST(the_steady_state_allocates_nothing),
        TEST(large_batches_are_in_the_same_pages_again),
        TEST(memory_does_not_depend_on_the_length),
        TEST(closing_in_mid_epoch_never_hangs),
        TEST(every_failure_of_memory_and_files_is_reported),
        TEST(a_replaced_dataset_is_an_error_that_is_not_skipped),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
