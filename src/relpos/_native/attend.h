/* Attention whole, for one width of vectors: the scores of W queries stay in a thread's caches from products to values.
 *
 * The second factor of a product is laid out in panels: 2 W columns of a matrix, row by row. So are a plane's keys (a
 * column each), its values and the rows of its query table (a column each).
 */

#define PANEL (2 * W)
#define SOME 256 /* keys at a time, whose values stay near while all queries read them */
#define ROWS (W < 8 ? W : W / 2) /* at a time, of the first factor: as many sums as there are registers for */

/* out = x panel, or out += x panel: ROWS rows of `depth` numbers each, times a panel. */
INLINE void NAME(multiply)(const float *x, int64_t x_row, const float *panel, int64_t depth, float *out,
                           int64_t out_row, int is_more)
{
    FLOATS low[ROWS], high[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        low[i] = is_more ? NAME(load)(out + i * out_row) : (FLOATS){0};
        high[i] = is_more ? NAME(load)(out + i * out_row + W) : (FLOATS){0};
    }
    for (int64_t d = 0; d < depth; d++, panel += PANEL) {
        const FLOATS left = NAME(load)(panel), right = NAME(load)(panel + W);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            const FLOATS many = x[i * x_row + d] - (FLOATS){0};
            low[i] += many * left;
            high[i] += many * right;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        NAME(store)(out + i * out_row, low[i]);
        NAME(store)(out + i * out_row + W, high[i]);
    }
}

/* The same of W rows. */
INLINE void NAME(multiply_all)(const float *x, int64_t x_row, const float *panel, int64_t depth, float *out,
                               int64_t out_row, int is_more)
{
    for (int i = 0; i < W; i += ROWS)
        NAME(multiply)(x + i * x_row, x_row, panel, depth, out + i * out_row, out_row, is_more);
}

/* Rows become columns: W of them, zero from number `count` on, of W numbers each, or of `depth` where that is less. */
INLINE void NAME(transpose)(const float *x, int64_t x_row, int64_t count, int64_t depth, float *out, int64_t out_row)
{
    const INTS lane = NAME(lanes)();
    FLOATS rows[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
        rows[i] = (FLOATS){0};
        if (i < count)
            memcpy(&rows[i], x + i * x_row, depth < W ? 4 * depth : 4 * W);
    }
#pragma GCC unroll 4
    for (int step = 1; step < W; step *= 2) {
        const INTS from_other = (lane & step) != 0, first = lane + (from_other & (W - step)), second = first + step;
#pragma GCC unroll 16
        for (int i = 0; i < W; i++)
            if (!(i & step)) {
                const FLOATS one = rows[i], other = rows[i + step];
                rows[i] = __builtin_shuffle(one, other, first);
                rows[i + step] = __builtin_shuffle(one, other, second);
            }
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        if (i < depth)
            NAME(store)(out + i * out_row, rows[i]);
}

/* A panel whose columns are rows of x, zero from number `count` on. */
INLINE void NAME(panel_of)(const float *x, int64_t x_row, int64_t count, int64_t depth, float *panel)
{
    for (int64_t d = 0; d < depth; d += W)
        for (int64_t i = 0; i < PANEL; i += W)
            NAME(transpose)(x + i * x_row + d, x_row, count - i, depth - d, panel + d * PANEL + i, PANEL);
}

INLINE float *NAME(row)(relpos_tensor x, int64_t batch, int64_t head, int64_t row)
{
    return x.data + batch * x.batch + head * x.head + row * x.row;
}

/* The rows that some numbers name: the smallest and the largest of them. */
INLINE void NAME(reach)(const int32_t *row, int64_t count, int32_t *least, int32_t *most)
{
    *least = *most = row[0];
    for (int64_t i = 1; i < count; i++) {
        *least = row[i] < *least ? row[i] : *least;
        *most = row[i] > *most ? row[i] : *most;
    }
}

/* The panels of STEP keys, of their values, and of as large a part of the query table; the rows that those keys meet. */
static void NAME(lay_out)(const relpos_attention *a, int64_t plane, int64_t step, float *room, float *unused)
{
    const sizes s = sizes_of(a);
    const int64_t batch = plane / a->heads, head = plane % a->heads, shared = head / a->groups;
    (void)unused;
    for (int64_t j = STEP * step; j < STEP * (step + 1); j += PANEL) {
        const int64_t left = a->keys - j;
        NAME(panel_of)(NAME(row)(a->key, batch, shared, j), a->key.row, left, a->depth, room + j * a->depth);
        if (s.plain_keys)
            NAME(panel_of)(NAME(row)(a->plain_key, batch, shared, j), a->plain_key.row, left, a->depth,
                           room + s.plain_keys + j * a->depth);
        for (int64_t k = j; k < j + PANEL && k < a->keys; k++) {
            const float *value = NAME(row)(a->value, batch, shared, k);
            for (int64_t c = 0; c < a->value_depth; c += PANEL) {
                const int64_t some = a->value_depth - c;
                memcpy(room + s.values + c * s.keys + k * PANEL, value + c, 4 * (some < PANEL ? some : PANEL));
            }
        }
    }
    if (a->key_rows) {
        /* The queries that see any of these keys, and those beside them, whose scores are made together. */
        const int64_t j = STEP * step, end = a->keys < j + STEP ? a->keys : j + STEP;
        const int64_t from = a->distance + j - a->ahead - 2 * PANEL, to = a->distance + end + a->back + 2 * PANEL;
        const int64_t low = from > 0 ? from : 0, high = to < a->queries ? to : a->queries;
        int32_t *rows = (int32_t *)(room + s.rows) + 2 * step;
        rows[0] = 0, rows[1] = -1;
        if (low < high)
            NAME(reach)(a->key_row + a->queries - high + j, high - low + end - j - 1, rows, rows + 1);
    }
    const int64_t steps = s.keys / STEP, panels = s.query_rows / PANEL;
    for (int64_t r = panels * step / steps * PANEL; r < panels * (step + 1) / steps * PANEL; r += PANEL)
        NAME(panel_of)(NAME(row)(a->query_table, 0, head, r), a->query_table.row, a->query_rows - r, a->depth,
                       room + s.query_table + r * a->depth);
}

/* ROWS rows of the key table times the keys that meet any of them; the last ones are as many too. */
static void NAME(by_key)(const relpos_attention *a, int64_t plane, int64_t step, float *room, float *unused)
{
    const sizes s = sizes_of(a);
    const int64_t last = a->key_rows - ROWS, r = ROWS * step < last ? ROWS * step : last;
    const float *table = NAME(row)(a->key_table, 0, plane % a->heads, r);
    float *to = room + s.by_key + r * s.by_key_row;
    (void)unused;
    const int32_t *rows = (const int32_t *)(room + s.rows);
    for (int64_t j = 0; j < s.keys; j += PANEL)
        if (r <= rows[j / STEP * 2 + 1] && rows[j / STEP * 2] < r + ROWS)
            NAME(multiply)(table, a->key_table.row, room + s.plain_keys + j * a->depth, a->depth, to + j, s.by_key_row,
                           0);
}

/* W queries' vectors side by side; where fewer are left, the first again. */
INLINE void NAME(queries)(const relpos_attention *a, relpos_tensor x, int64_t batch, int64_t head, int64_t first,
                          float *to)
{
    for (int64_t i = 0; i < W; i++)
        memcpy(to + i * a->depth, NAME(row)(x, batch, head, first + i < a->queries ? first + i : first), 4 * a->depth);
}

/* The output of W queries, or of as many as are left. */
static void NAME(attend)(const relpos_attention *a, int64_t plane, int64_t step, float *room, float *mine)
{
    const sizes s = sizes_of(a);
    const int64_t batch = plane / a->heads, head = plane % a->heads, first = W * step;
    const int64_t count = a->queries - first < W ? a->queries - first : W;
    float *output = NAME(row)(a->output, batch, head, first);
    float *logsumexp = NAME(row)(a->logsumexp, batch, head, first);
    /* The keys that any of them sees, from the beginning of a panel on. */
    const int64_t from = first - a->distance - a->back, to = first + count - a->distance + a->ahead;
    const int64_t low = from > 0 ? from / PANEL * PANEL : 0, high = to < a->keys ? to : a->keys;
    if (low >= high) {
        for (int64_t i = 0; i < count; i++) {
            memset(output + i * a->output.row, 0, 4 * a->value_depth);
            logsumexp[i] = 0.0f;
        }
        return;
    }
    const int64_t keys = high - low, row = s.keys + WIDEST, table_row = s.query_rows + WIDEST;
    float *query = mine, *scores = query + W * a->depth, *by_query = scores + W * row;
    float *plain = by_query + W * table_row, *sums = plain + W * a->depth;
    NAME(queries)(a, a->query, batch, head, first, query);
    for (int64_t j = low; j < high; j += PANEL)
        NAME(multiply_all)(query, a->depth, room + j * a->depth, a->depth, scores + j - low, row, 0);
    const int64_t n = a->queries - first - count + low;
    if (a->query_rows) {
        int32_t least, most;
        NAME(reach)(a->query_row + n, keys + count - 1, &least, &most);
        NAME(queries)(a, a->plain_query, batch, head, first, plain);
        for (int64_t r = least / PANEL * PANEL; r <= most; r += PANEL)
            NAME(multiply_all)(plain, a->depth, room + s.query_table + r * a->depth, a->depth, by_query + r, table_row, 0);
    }
    float inverse[W];
    const relpos_block block = {
        .x = scores,
        .by_query = a->query_rows ? by_query : 0,
        .by_key = a->key_rows ? room + s.by_key + low : 0,
        .bias = a->bias ? a->bias + head * a->bias_head + n : 0,
        .query_row = a->query_rows ? a->query_row + n : 0,
        .key_row = a->key_rows ? a->key_row + n : 0,
        .runs = a->runs + n,
        .inverse = inverse,
        .logsumexp = logsumexp,
        .batch = 1,
        .heads = 1,
        .queries = count,
        .keys = keys,
        .row = row,
        .query_rows = table_row,
        .by_key_row = s.by_key_row,
        .mode = RELPOS_SOFTMAX,
        .scale = a->scale,
    };
    NAME(score_of)(&block, 0, count, 0, 0);
    for (int64_t c = 0; c < a->value_depth; c += PANEL)
        for (int64_t j = 0; j < keys; j += SOME)
            NAME(multiply_all)(scores + j, row, room + s.values + c * s.keys + (low + j) * PANEL,
                               keys - j < SOME ? keys - j : SOME, sums + c, s.value_depth, j > 0);
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < a->value_depth; c++)
            output[i * a->output.row + c] = sums[i * s.value_depth + c] * inverse[i];
}

#undef PANEL
#undef ROWS
#undef SOME
