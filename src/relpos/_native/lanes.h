/* The loops of relpos.c for one width of vectors: W floats, names ending in ISA. Included once for each.
 *
 * A row of scores has places j = 0 .. keys - 1, and `a->query_row[n + j]`, `a->key_row[n + j]` are the rows of the tables
 * that a pair reads; n falls by one from each query to the next. So W queries times W keys, a tile, read 2 W - 1 numbers:
 * one row of a table where they are far, and rows that neighbour each other where they are near.
 */

typedef float NAME(floats) __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef uint16_t NAME(halves) __attribute__((vector_size(2 * W), aligned(2), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(4 * W), aligned(4), may_alias));
#define FLOATS NAME(floats)
#define INTS NAME(ints)
#define HALVES NAME(halves)
#define BITS NAME(bits)

INLINE FLOATS NAME(load)(const float *at) { return *(const FLOATS *)at; }
INLINE INTS NAME(load_ints)(const int32_t *at) { return *(const INTS *)at; }
INLINE void NAME(store)(float *at, FLOATS x) { *(FLOATS *)at = x; }

INLINE FLOATS NAME(gather)(const float *from, INTS at)
{
#if defined(__AVX512F__)
    return (FLOATS)_mm512_i32gather_ps((__m512i)at, from, 4);
#elif defined(__AVX2__)
    return (FLOATS)_mm256_i32gather_ps(from, (__m256i)at, 4);
#else
    FLOATS x;
    for (int l = 0; l < W; l++)
        x[l] = from[at[l]];
    return x;
#endif
}

/* Numbers from place j on; of bfloat16, where `is_low`. */
INLINE FLOATS NAME(read)(const void *from, int64_t j, int is_low)
{
    if (!is_low)
        return NAME(load)((const float *)from + j);
    return (FLOATS)(__builtin_convertvector(*(const HALVES *)((const uint16_t *)from + j), BITS) << 16);
}

/* Numbers of these places of a table; of bfloat16, where `is_low`, and then there is a number more after the last. */
INLINE FLOATS NAME(pick)(const void *from, INTS at, int is_low)
{
    if (!is_low)
        return NAME(gather)(from, at);
#if defined(__AVX512F__)
    return (FLOATS)(NAME(bits))(_mm512_slli_epi32(_mm512_i32gather_epi32((__m512i)at, from, 2), 16));
#elif defined(__AVX2__)
    return (FLOATS)(NAME(bits))(_mm256_slli_epi32(_mm256_i32gather_epi32(from, (__m256i)at, 2), 16));
#else
    FLOATS x;
    for (int l = 0; l < W; l++)
        x[l] = relpos_wide(((const uint16_t *)from)[at[l]]);
    return x;
#endif
}

/* Writes bfloat16, rounded to nearest, ties to even. */
INLINE void NAME(round)(uint16_t *to, FLOATS x)
{
    const BITS bits = (BITS)x;
    *(HALVES *)to = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, HALVES);
}

INLINE INTS NAME(lanes)(void)
{
    INTS lane;
    for (int l = 0; l < W; l++)
        lane[l] = l;
    return lane;
}

INLINE FLOATS NAME(reversed)(FLOATS x) { return __builtin_shuffle(x, W - 1 - NAME(lanes)()); }

INLINE FLOATS NAME(larger)(FLOATS x, FLOATS y)
{
#if defined(__AVX512F__)
    return (FLOATS)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__)
    return (FLOATS)_mm256_max_ps((__m256)x, (__m256)y);
#else
    INTS is = x > y;
    return (FLOATS)((is & (INTS)x) | (~is & (INTS)y));
#endif
}

/* exp(x) for x <= 0, or for what is not above it by more than rounding; 0 where it would be below 1e-38.
 * 2^n e^r with |r| <= ln(2) / 2, e^r by Cephes' polynomial: relative error 2e-7. */
INLINE FLOATS NAME(exp)(FLOATS x)
{
    const float rounding = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    INTS is_normal = ~(x < -87.0f);
    FLOATS shifted = x * 1.44269504088896341f + rounding;
    FLOATS n = shifted - rounding;
    FLOATS r = x - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723212e-6f;
    FLOATS p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (FLOATS)(((INTS)p + ((INTS)shifted << 23)) & is_normal);
}

INLINE FLOATS NAME(either)(INTS is_second, FLOATS first, FLOATS second)
{
#if defined(__AVX512F__)
    return (FLOATS)_mm512_mask_mov_ps((__m512)first, _mm512_movepi32_mask((__m512i)is_second), (__m512)second);
#elif defined(__AVX2__)
    return (FLOATS)_mm256_blendv_ps((__m256)first, (__m256)second, (__m256)is_second);
#else
    return (FLOATS)((~is_second & (INTS)first) | (is_second & (INTS)second));
#endif
}

/* Lanes whose number has the bit `step` take what is `step` places on. */
INLINE void NAME(move)(FLOATS *x, int size, int step)
{
    const INTS moves = (NAME(lanes)() & step) != 0;
#pragma GCC unroll 32
    for (int m = 0; m < size; m++)
        x[m] = NAME(either)(moves, x[m], x[m + step]);
}

/* Lanes whose number has the bit `step` take what was `step` places before, of `size` places, and of none before those. */
INLINE void NAME(move_back)(FLOATS *x, int size, int step)
{
    const INTS moves = (NAME(lanes)() & step) != 0;
#pragma GCC unroll 32
    for (int m = size + step - 1; m >= 0; m--)
        x[m] = NAME(either)(moves, m < size ? x[m] : (FLOATS){0}, m < step ? (FLOATS){0} : x[m - step]);
}

/* Lane l of x[m] = from[row[m + l]][j + l] for m < W: what a tile reads of a key table, its last query first. */
INLINE void NAME(diagonals)(FLOATS x[2 * W - 1], const void *from, int64_t j, const int32_t *row, int64_t stride,
                            const int is_low)
{
#pragma GCC unroll 32
    for (int m = 0; m < 2 * W - 1; m++)
        x[m] = NAME(read)(from, row[m] * stride + j, is_low);
    if (W > 8)
        NAME(move)(x, W + 7, 8);
    if (W > 4)
        NAME(move)(x, W + 3, 4);
    NAME(move)(x, W + 1, 2);
    NAME(move)(x, W, 1);
}

/* from[row[l]]. */
INLINE FLOATS NAME(rows)(const void *from, const int32_t *row, const int is_low)
{
    if (!is_low)
        return NAME(gather)(from, NAME(load_ints)(row));
    FLOATS x;
    for (int l = 0; l < W; l++)
        x[l] = relpos_read(from, row[l], is_low);
    return x;
}

/* The same of rows that go on up, or go on down, by one or not at all, in a table of `size` rows, at least W. */
INLINE FLOATS NAME(neighbours)(const void *from, const int32_t *row, int64_t size, const int is_low)
{
#if defined(__AVX2__)
    const int32_t low = row[0] < row[W - 1] ? row[0] : row[W - 1], most = (int32_t)size - W;
    const int32_t first = low < most ? low : most;
    return __builtin_shuffle(NAME(read)(from, first, is_low), NAME(load_ints)(row) - first);
#else
    (void)size;
    return NAME(rows)(from, row, is_low);
#endif
}

/* Sums W keys' products from j on of W queries, the first of which is at `at`, with what distances say; not where they are
 * far. A query's sums are `row` places after those of the one before. `most` holds the largest, of the last query first. */
INLINE void NAME(add_tile)(const relpos_block *a, place at, int64_t j, float *to, FLOATS most[W], const int is_low)
{
    const int64_t n = at.n + j - (W - 1);
    const int32_t *query_row = a->query_row + n, *key_row = a->key_row + n, run = a->runs[n];
    const int are_near = run <= 1 - 2 * W && a->query_rows >= W;
    if (run >= 2 * W - 1) /* far */
        return;
    FLOATS sums[2 * W - 1]; /* of the last query first */
    if (at.by_key)
        NAME(diagonals)(sums, at.by_key, j, key_row, a->by_key_row, is_low);
    else
#pragma GCC unroll 16
        for (int m = 0; m < W; m++)
            sums[m] = (FLOATS){0};
    if (at.by_query)
#pragma GCC unroll 16
        for (int m = 0; m < W; m++) {
            const int64_t of_query = (W - 1 - m) * a->query_rows;
            const void *by_query = (const char *)at.by_query + (is_low ? 2 : 4) * of_query;
            if (are_near)
                sums[m] += NAME(neighbours)(by_query, query_row + m, a->query_rows, is_low);
            else
                sums[m] += NAME(rows)(by_query, query_row + m, is_low);
        }
    /* All loads before all stores: rows a page apart would wait for each other. */
#pragma GCC unroll 16
    for (int m = 0; m < W; m++) {
        sums[m] = (sums[m] + NAME(read)(at.x, (W - 1 - m) * a->row + j, is_low)) * a->scale;
        if (at.bias)
            sums[m] += NAME(load)(at.bias + j + m - (W - 1));
        most[m] = NAME(larger)(most[m], sums[m]);
    }
#pragma GCC unroll 16
    for (int m = 0; m < W; m++)
        NAME(store)(to + (W - 1 - m) * a->row + j, sums[m]);
}

/* The same for one query, of far tiles and of all keys past the tiles; `runs` are those of the tiles' last query. Returns
 * the largest, or the largest lane of `most`. */
INLINE float NAME(add)(const relpos_block *a, place at, const int32_t *runs, int64_t tiled, float *to, FLOATS most,
                       const int is_low)
{
    const int32_t *query_row = a->query_row + at.n, *key_row = a->key_row + at.n;
    int64_t j = 0;
    for (; j + W <= a->keys; j += W) {
        const int is_far = j < tiled && runs[j] >= 2 * W - 1;
        if (j < tiled && !is_far)
            continue;
        FLOATS sum = NAME(read)(at.x, j, is_low);
        if (is_far) {
            if (at.by_query)
                sum += relpos_read(at.by_query, query_row[j], is_low);
            if (at.by_key)
                sum += NAME(read)(at.by_key, key_row[j] * a->by_key_row + j, is_low);
        } else {
            if (at.by_query)
                sum += NAME(rows)(at.by_query, query_row + j, is_low);
            if (at.by_key) {
                const INTS of_row = NAME(load_ints)(key_row + j) * (int32_t)a->by_key_row;
                sum += NAME(pick)(at.by_key, of_row + NAME(lanes)() + (int32_t)j, is_low);
            }
        }
        sum *= a->scale;
        if (at.bias)
            sum += NAME(load)(at.bias + j);
        NAME(store)(to + j, sum);
        most = NAME(larger)(most, sum);
    }
    float largest = most[0];
    for (int l = 1; l < W; l++)
        largest = most[l] > largest ? most[l] : largest;
    for (; j < a->keys; j++) {
        float sum = relpos_read(at.x, j, is_low);
        if (at.by_query)
            sum += relpos_read(at.by_query, query_row[j], is_low);
        if (at.by_key)
            sum += relpos_read(at.by_key, (int64_t)key_row[j] * a->by_key_row + j, is_low);
        sum *= a->scale;
        if (at.bias)
            sum += at.bias[j];
        to[j] = sum;
        largest = sum > largest ? sum : largest;
    }
    return largest;
}

/* x = exp(x - shift); returns the sum. */
INLINE float NAME(exp_row)(float *x, float shift, int64_t keys)
{
    FLOATS sums = {0}, more = {0};
    int64_t j = 0;
    for (; j + 2 * W <= keys; j += 2 * W) {
        FLOATS p = NAME(exp)(NAME(load)(x + j) - shift), q = NAME(exp)(NAME(load)(x + j + W) - shift);
        NAME(store)(x + j, p);
        NAME(store)(x + j + W, q);
        sums += p;
        more += q;
    }
    sums += more;
    for (; j < keys; j += W) {
        FLOATS rest = (FLOATS){0} - __builtin_inff();
        int64_t count = keys - j < W ? keys - j : W;
        memcpy(&rest, x + j, 4 * count);
        FLOATS p = NAME(exp)(rest - shift);
        memcpy(x + j, &p, 4 * count);
        sums += p;
    }
    float sum = 0.0f;
    for (int l = 0; l < W; l++)
        sum += sums[l];
    return sum;
}

/* The probabilities of a row, times `factor`, in bfloat16. */
INLINE void NAME(round_row)(uint16_t *to, const float *x, float factor, int64_t keys)
{
    int64_t j = 0;
    for (; j + W <= keys; j += W)
        NAME(round)(to + j, NAME(load)(x + j) * factor);
    FLOATS rest = {0};
    HALVES rounded;
    memcpy(&rest, x + j, 4 * (keys - j));
    NAME(round)((uint16_t *)&rounded, rest * factor);
    memcpy(to + j, &rounded, 2 * (keys - j));
}

/* Makes of a row of sums what is asked for. */
INLINE void NAME(finish)(const relpos_block *a, place at, float *sums, int64_t row, float largest, const int is_low)
{
    float inverse = 1.0f;
    if (a->mode == RELPOS_WEIGHTS) {
        NAME(exp_row)(sums, a->logsumexp[row], a->keys);
    } else if (a->mode == RELPOS_SOFTMAX && largest == -__builtin_inff()) { /* sees nothing */
        memset(at.x, 0, (is_low ? 2 : 4) * a->keys);
        a->inverse[row] = a->logsumexp[row] = 0.0f;
        return;
    } else if (a->mode == RELPOS_SOFTMAX) {
        const float sum = NAME(exp_row)(sums, largest, a->keys);
        a->inverse[row] = inverse = 1.0f / sum;
        a->logsumexp[row] = largest + logf(sum);
    }
    if (is_low)
        NAME(round_row)(at.x, sums, inverse, a->keys);
}

INLINE void NAME(score_of)(const relpos_block *a, int64_t row, int64_t count, float *room, const int is_low)
{
    FLOATS most[W];
    for (int i = 0; i < W; i++)
        most[i] = (FLOATS){0} - __builtin_inff();
    const place first = place_of(a, row);
    float *sums = is_low ? room : first.x;
    const int64_t tiled = count < W ? 0 : a->keys / W * W;
    const int32_t *runs = a->runs + first.n - (W - 1); /* read where there are tiles */
    for (int64_t j = 0; j < tiled; j += W)
        NAME(add_tile)(a, first, j, sums, most, is_low);
    for (int64_t i = 0; i < count; i++, sums += a->row) {
        const place at = place_of(a, row + i);
        const float largest = NAME(add)(a, at, runs, tiled, sums, most[W - 1 - i], is_low);
        NAME(finish)(a, at, sums, row + i, largest, is_low);
    }
}

/* The scores of `count` queries of a head, at most W, from `row` on. */
static void NAME(score)(const relpos_block *a, int64_t row, int64_t count, float *room)
{
    if (a->is_low)
        NAME(score_of)(a, row, count, room, 1);
    else
        NAME(score_of)(a, row, count, room, 0);
}

/* by_query[row of a pair] += x of the pair, over one query's pairs. */
static void NAME(sum_by_query)(const relpos_block *a, int64_t row)
{
    const place at = place_of(a, row);
    const float *x = at.x;
    float *sums = (float *)at.by_query;
    const int32_t *query_row = a->query_row + at.n, *runs = a->runs + at.n;
    int64_t j = 0;
    while (j < a->keys) {
        int64_t end = j + runs[j] < a->keys ? j + runs[j] : a->keys;
        if (end - j >= W) {
            const int32_t to = query_row[j];
            FLOATS many = {0};
            float sum = 0.0f;
            for (; j + W <= end; j += W)
                many += NAME(load)(x + j);
            for (int l = 0; l < W; l++)
                sum += many[l];
            sums[to] += sum;
        } else if (runs[j] <= -W && j + W <= a->keys && abs(query_row[j + W - 1] - query_row[j]) == W - 1) {
            const int up = query_row[j + 1] > query_row[j];
            float *to = sums + query_row[j] - (up ? 0 : W - 1);
            FLOATS some = NAME(load)(x + j);
            NAME(store)(to, NAME(load)(to) + (up ? some : NAME(reversed)(some)));
            j += W;
        } else {
            const int32_t to = query_row[j];
            float sum = x[j++];
            while (j < a->keys && query_row[j] == to)
                sum += x[j++];
            sums[to] += sum;
        }
    }
}

/* by_key[row of a pair, key] += x of the pair, over W queries, the first of which is at `at`, and W keys from j on. */
INLINE void NAME(sum_tile)(const relpos_block *a, place at, int64_t j)
{
    const float *x = at.x;
    float *sums = (float *)at.by_key;
    const int64_t n = at.n + j - (W - 1);
    const int32_t *key_row = a->key_row + n;
    FLOATS by_number[2 * W - 1];
#pragma GCC unroll 16
    for (int m = 0; m < W; m++)
        by_number[m] = NAME(load)(x + (W - 1 - m) * a->row + j);
    if (a->runs[n] >= 2 * W - 1) {
        FLOATS sum = by_number[0];
#pragma GCC unroll 16
        for (int m = 1; m < W; m++)
            sum += by_number[m];
        float *to = sums + key_row[0] * a->by_key_row + j;
        NAME(store)(to, NAME(load)(to) + sum);
        return;
    }
    NAME(move_back)(by_number, W, 1);
    NAME(move_back)(by_number, W + 1, 2);
    if (W > 4)
        NAME(move_back)(by_number, W + 3, 4);
    if (W > 8)
        NAME(move_back)(by_number, W + 7, 8);
#pragma GCC unroll 32
    for (int m = 0; m < 2 * W - 1; m++) {
        float *to = sums + key_row[m] * a->by_key_row + j;
        NAME(store)(to, NAME(load)(to) + by_number[m]);
    }
}

/* by_key[row of a pair, key] += x of the pair, over the pairs of `count` keys from `first` on with all queries. */
static void NAME(sum_by_key)(const relpos_block *a, int64_t batch, int64_t head, int64_t first, int64_t count)
{
    const int64_t row = (batch * a->heads + head) * a->queries, tiled = a->queries / W * W, last = first + count;
    for (int64_t query = 0; query < tiled; query += W)
        for (int64_t j = first; j + W <= last; j += W)
            NAME(sum_tile)(a, place_of(a, row + query), j);
    for (int64_t query = 0; query < a->queries; query++) {
        const place at = place_of(a, row + query);
        const float *x = at.x;
        float *sums = (float *)at.by_key;
        for (int64_t j = query < tiled ? last - count % W : first; j < last; j++)
            sums[a->key_row[at.n + j] * a->by_key_row + j] += x[j];
    }
}
