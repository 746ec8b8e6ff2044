/* What a distance adds to a block of scores, their softmax, and the sums that are its gradient.
 *
 * torch makes the products (a block's scores, its queries times the rows of a table, the rows of a table times its keys);
 * these loops read them by distance. Products are float32 or bfloat16, and every sum is float32. Deterministic: every
 * number is written by one thread, in one order. The pure torch twin is twin.py.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RELPOS_ADD, RELPOS_SOFTMAX, RELPOS_WEIGHTS };

/* As `Block` in kernel.py. */
typedef struct {
    void *x;                  /* [batch, heads, queries, keys] */
    const void *by_query;     /* [heads, batch, queries, query_rows], or null */
    const void *by_key;       /* [heads, key_rows, batch, keys] with the strides below, or null */
    const float *bias;        /* [heads or 1, queries + keys - 1], or null */
    const int32_t *query_row; /* [queries + keys - 1] each, the smallest distance first */
    const int32_t *key_row;
    const int32_t *runs;      /* as relpos_runs gives them */
    float *inverse;           /* [batch, heads, queries] each */
    float *logsumexp;
    float *room;              /* [threads, WIDEST, keys] for bfloat16 */
    int64_t batch, heads, queries, keys;
    int64_t query_rows, by_key_head, by_key_row, by_key_batch, bias_head;
    int32_t mode, threads, is_low; /* is_low: x, by_query and by_key are bfloat16 */
    float scale;                   /* of all products */
} relpos_block;

/* Where one query's numbers begin. */
typedef struct {
    void *x;
    const void *by_query, *by_key;
    const float *bias;
    int64_t n;
} place;

#define INLINE static inline __attribute__((always_inline))
#define WIDEST 16 /* floats in a vector */
#define KEYS 256  /* at a time, of a thread that sums by key */

INLINE place place_of(const relpos_block *a, int64_t row)
{
    const int64_t query = row % a->queries, head = row / a->queries % a->heads, batch = row / a->queries / a->heads;
    const int64_t n = a->queries - 1 - query, size = a->is_low ? 2 : 4;
    const int64_t of_query = ((head * a->batch + batch) * a->queries + query) * a->query_rows;
    const int64_t of_key = head * a->by_key_head + batch * a->by_key_batch;
    return (place){
        (char *)a->x + size * row * a->keys,
        a->by_query ? (const char *)a->by_query + size * of_query : 0,
        a->by_key ? (const char *)a->by_key + size * of_key : 0,
        a->bias ? a->bias + head * a->bias_head + n : 0,
        n,
    };
}

/* A bfloat16 number: the upper half of a float. */
INLINE float relpos_wide(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}

INLINE float relpos_read(const void *from, int64_t j, int is_low)
{
    return is_low ? relpos_wide(((const uint16_t *)from)[j]) : ((const float *)from)[j];
}

#define JOIN(x, y) x##_##y
#define JOINED(x, y) JOIN(x, y)
#define NAME(x) JOINED(x, ISA)

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define ISA avx512
#define W 16
#include "lanes.h"
#undef ISA
#undef W
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define ISA avx2
#define W 8
#include "lanes.h"
#undef ISA
#undef W
#pragma GCC pop_options
#endif
#define ISA portable
#define W 4
#include "lanes.h"
#undef ISA
#undef W

typedef struct {
    const char *name;
    int width;
    void (*score)(const relpos_block *, int64_t, int64_t, float *);
    void (*sum_by_query)(const relpos_block *, int64_t);
    void (*sum_by_key)(const relpos_block *, int64_t, int64_t, int64_t, int64_t);
} loops;

static const loops all[] = {
#if defined(__x86_64__)
    {"avx512", 16, score_avx512, sum_by_query_avx512, sum_by_key_avx512},
    {"avx2", 8, score_avx2, sum_by_query_avx2, sum_by_key_avx2},
#endif
    {"portable", 4, score_portable, sum_by_query_portable, sum_by_key_portable},
};
static const int count = sizeof all / sizeof *all;

static int can(int i)
{
#if defined(__x86_64__)
    if (i == 0)
        return __builtin_cpu_supports("x86-64-v4");
    if (i == 1)
        return __builtin_cpu_supports("x86-64-v3");
#endif
    return 1;
}

static const loops *chosen;

/* Takes the widest loops that this processor has, or those of the given name; returns their name, or null for none. */
const char *relpos_choose(const char *name)
{
    for (int i = 0; i < count; i++)
        if (can(i) && (!name || !strcmp(name, all[i].name)))
            return (chosen = all + i)->name;
    return 0;
}

void relpos_score(const relpos_block *a)
{
    const loops *with = chosen;
    const int64_t groups = (a->queries + with->width - 1) / with->width, all = a->batch * a->heads * groups;
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t thread = 0; thread < a->threads; thread++) {
        float *room = a->room ? a->room + thread * WIDEST * a->keys : 0;
        for (int64_t i = all * thread / a->threads; i < all * (thread + 1) / a->threads; i++) {
            const int64_t query = i % groups * with->width, left = a->queries - query;
            with->score(a, i / groups * a->queries + query, left < with->width ? left : with->width, room);
        }
    }
}

void relpos_sum_by_query(const relpos_block *a)
{
    const int64_t rows = a->batch * a->heads * a->queries;
    const loops *with = chosen;
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        with->sum_by_query(a, row);
}

void relpos_sum_by_key(const relpos_block *a)
{
    const int64_t parts = (a->keys + KEYS - 1) / KEYS, planes = a->batch * a->heads;
    const loops *with = chosen;
#pragma omp parallel for num_threads(a->threads) schedule(static)
    for (int64_t i = 0; i < planes * parts; i++) {
        const int64_t plane = i / parts, first = i % parts * KEYS;
        const int64_t keys = a->keys - first < KEYS ? a->keys - first : KEYS;
        with->sum_by_key(a, plane / a->heads, plane % a->heads, first, keys);
    }
}

/* From each place on: how many have the same rows, where those are as many as a tile reads; else minus how many have query
 * rows that go on up, or go on down, by one or not at all. Either of the rows may be null. */
void relpos_runs(const int32_t *query_row, const int32_t *key_row, int32_t *runs, int64_t size)
{
    int32_t same = 0, steps = 0, way = 0; /* of the place after */
    for (int64_t n = size - 1; n >= 0; n--) {
        const int is_last = n + 1 == size;
        const int32_t step = is_last || !query_row ? 0 : query_row[n + 1] - query_row[n];
        same = !is_last && !step && (!key_row || key_row[n] == key_row[n + 1]) ? same + 1 : 1;
        const int is_step = !is_last && step * step <= 1;
        steps = !is_step ? 1 : step * way < 0 ? 2 : steps + 1;
        way = !is_step ? 0 : step ? step : way;
        runs[n] = same >= 2 * WIDEST - 1 ? same : -steps;
    }
}
