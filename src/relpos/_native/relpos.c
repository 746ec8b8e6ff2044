/* What a distance adds to a block of scores, their softmax, and the sums that are its gradient.
 *
 * torch makes the products (a block's scores, its queries times the rows of a table, the rows of a table times its keys);
 * these loops read them by distance. Products are float32 or bfloat16, and every sum is float32. The pure torch twin is
 * twin.py. Attention in float32 is also made whole, its products included: attend.h. fingerprint.h tells whether numbers
 * are still the same. Deterministic: every number is written by one thread, in one order.
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
    void *x;                  /* [batch, heads, queries, keys], `row` places from a query to the next */
    const void *by_query;     /* [heads, batch, queries, query_rows], or null */
    const void *by_key;       /* [heads, key_rows, batch, keys] with the strides below, or null */
    const float *bias;        /* [heads or 1, queries + keys - 1], or null */
    const int32_t *query_row; /* [queries + keys - 1] each, the smallest distance first */
    const int32_t *key_row;
    const int32_t *runs;      /* as relpos_runs gives them */
    float *inverse;           /* [batch, heads, queries] each */
    float *logsumexp;
    float *room;              /* [threads, WIDEST, keys] for bfloat16 */
    int64_t batch, heads, queries, keys, row;
    int64_t query_rows, by_key_head, by_key_row, by_key_batch, bias_head;
    int32_t mode, threads, is_low; /* is_low: x, by_query and by_key are bfloat16 */
    float scale;                   /* of all products */
} relpos_block;

/* [batch, heads, rows, numbers side by side], and how many numbers on the next of each is. */
typedef struct {
    float *data;
    int64_t batch, head, row;
} relpos_tensor;

/* As `_Attention` in attention.py. */
typedef struct {
    relpos_tensor query, plain_query; /* queries and keys: rotated, and as they were; one where nothing rotates */
    relpos_tensor key, plain_key, value;
    relpos_tensor query_table, key_table; /* of no rows, or of at least WIDEST */
    relpos_tensor output, logsumexp;
    const float *bias;        /* [heads or 1, queries + keys - 1], or null */
    const int32_t *query_row; /* as in relpos_block */
    const int32_t *key_row;
    const int32_t *runs;
    float *room; /* relpos_room */
    int64_t batch, heads, groups, queries, keys, depth, value_depth, query_rows, key_rows;
    int64_t bias_head, distance, back, ahead; /* distance: of the first key from the first query; the band */
    int32_t threads;
    float scale; /* of all products */
} relpos_attention;

/* What a plane, a head of a row of the batch, holds in `room`: numbers from its beginning. */
typedef struct {
    int64_t keys, query_rows, value_depth; /* rounded up to whole panels */
    int64_t plain_keys, values, query_table, rows, by_key, by_key_row, plane, thread;
    int64_t planes; /* at a time */
} sizes;

static sizes sizes_of(const relpos_attention *a);

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
#define STEP (2 * WIDEST)
#define ROOM (1 << 23) /* numbers that planes at a time may hold, where that is more than one */

INLINE place place_of(const relpos_block *a, int64_t row)
{
    const int64_t query = row % a->queries, head = row / a->queries % a->heads, batch = row / a->queries / a->heads;
    const int64_t n = a->queries - 1 - query, size = a->is_low ? 2 : 4;
    const int64_t of_query = ((head * a->batch + batch) * a->queries + query) * a->query_rows;
    const int64_t of_key = head * a->by_key_head + batch * a->by_key_batch;
    return (place){
        (char *)a->x + size * row * a->row,
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

/* Bytes of a fingerprint: words side by side, of a block, of what one thread takes at a time. */
enum { LANES = 8, STRIPES = 16, BLOCK = LANES * STRIPES * 8, PIECE = 64 * BLOCK };

/* splitmix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of x. */
INLINE uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
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
#include "attend.h"
#include "fingerprint.h"
#undef ISA
#undef W
#undef FLOATS
#undef INTS
#undef HALVES
#undef BITS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define ISA avx2
#define W 8
#include "lanes.h"
#include "attend.h"
#include "fingerprint.h"
#undef ISA
#undef W
#undef FLOATS
#undef INTS
#undef HALVES
#undef BITS
#pragma GCC pop_options
#endif
#define ISA portable
#define W 4
#include "lanes.h"
#include "attend.h"
#include "fingerprint.h"
#undef ISA
#undef W
#undef FLOATS
#undef INTS
#undef HALVES
#undef BITS

typedef void work(const relpos_attention *, int64_t plane, int64_t step, float *of_plane, float *of_thread);

typedef struct {
    const char *name;
    int width, rows; /* of a step by query; of a step by row of the key table */
    void (*score)(const relpos_block *, int64_t, int64_t, float *);
    void (*sum_by_query)(const relpos_block *, int64_t);
    void (*sum_by_key)(const relpos_block *, int64_t, int64_t, int64_t, int64_t);
    work *lay_out, *by_key, *attend;
    uint64_t (*piece)(const unsigned char *, int64_t, uint64_t, const uint64_t *);
} loops;

#define LOOPS(isa, width, rows) \
    {#isa,          width,       rows,         score_##isa, sum_by_query_##isa, sum_by_key_##isa, \
     lay_out_##isa, by_key_##isa, attend_##isa, piece_##isa}

static const loops all[] = {
#if defined(__x86_64__)
    LOOPS(avx512, 16, 8),
    LOOPS(avx2, 8, 4),
#endif
    LOOPS(portable, 4, 4),
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

static int64_t whole(int64_t x) { return (x + STEP - 1) / STEP * STEP; }

static sizes sizes_of(const relpos_attention *a)
{
    sizes s = {.keys = whole(a->keys), .query_rows = whole(a->query_rows), .value_depth = whole(a->value_depth)};
    const int64_t keys = s.keys * a->depth, is_rotated = a->plain_key.data != a->key.data;
    s.plain_keys = is_rotated ? keys : 0;
    s.values = s.plain_keys + keys;
    s.query_table = s.values + s.keys * s.value_depth;
    s.rows = s.query_table + s.query_rows * a->depth;
    s.by_key = s.rows + 2 * s.keys / STEP;
    s.by_key_row = s.keys + WIDEST; /* rows a power of two apart would share a few places of the caches */
    s.plane = s.by_key + a->key_rows * s.by_key_row;
    s.thread = WIDEST * (2 * a->depth + s.keys + s.query_rows + s.value_depth + 2 * WIDEST);
    s.planes = s.plane < ROOM ? ROOM / s.plane : 1;
    s.planes = s.planes < a->threads ? s.planes : a->threads;
    return s;
}

/* How many numbers `room` is to have. */
int64_t relpos_room(const relpos_attention *a)
{
    const sizes s = sizes_of(a);
    return s.planes * s.plane + a->threads * s.thread;
}

/* All steps of some planes, shared among threads: each takes a stretch, and so a whole plane where there are as many. */
static void share(const relpos_attention *a, const sizes *s, work *of_step, int64_t first, int64_t planes, int64_t steps)
{
    const int64_t all = planes * steps;
#pragma omp for schedule(static)
    for (int64_t thread = 0; thread < a->threads; thread++) {
        float *of_thread = a->room + s->planes * s->plane + thread * s->thread;
        for (int64_t i = all * thread / a->threads; i < all * (thread + 1) / a->threads; i++)
            of_step(a, first + i / steps, i % steps, a->room + i / steps * s->plane, of_thread);
    }
}

void relpos_attend(const relpos_attention *a)
{
    const loops *with = chosen;
    const sizes s = sizes_of(a);
    const int64_t planes = a->batch * a->heads;
#pragma omp parallel num_threads(a->threads)
    for (int64_t first = 0; first < planes; first += s.planes) {
        const int64_t some = planes - first < s.planes ? planes - first : s.planes;
        share(a, &s, with->lay_out, first, some, s.keys / STEP);
        share(a, &s, with->by_key, first, some, (a->key_rows + with->rows - 1) / with->rows);
        share(a, &s, with->attend, first, some, (a->queries + with->width - 1) / with->width);
    }
}

/* 64 bits that stand for `size` bytes, whatever the number of threads. */
uint64_t relpos_fingerprint(const void *from, int64_t size, int32_t threads)
{
    const loops *with = chosen;
    uint64_t key[LANES * STRIPES], all = 0;
    for (int i = 0; i < LANES * STRIPES; i++)
        key[i] = mixed(i);
#pragma omp parallel for num_threads(threads) schedule(static) reduction(^ : all)
    for (int64_t i = 0; i < (size + PIECE - 1) / PIECE; i++) {
        const int64_t left = size - i * PIECE;
        all ^= with->piece((const unsigned char *)from + i * PIECE, left < PIECE ? left : PIECE, i, key);
    }
    return mixed(all ^ size);
}
