/* The product of two small matrices, written once for each kind of processor.
 *
 * dense.c includes this file with LANES, the floats of a vector register, TILE, rows of which two
 * registers each are there, TARGET, the instructions that may be used, and NAME, which makes names
 * of them. Each call packs the second matrix into panels of two registers' width; a tile of rows
 * of the first one times such a panel stays in registers from beginning to end.
 */

typedef float NAME(Vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int NAME(Mask) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define PANEL (2 * LANES)

#if !defined(__clang__) /* which has no `__builtin_shuffle` */
/* LANES columns' first LANES numbers as rows of a panel: into[k * PANEL + j] = from[k + j * column].
 *
 * The first half of the columns is shuffled into the second half as cards are; as often as LANES
 * can be halved, and numbers and columns have changed places.
 */
TARGET static inline __attribute__((always_inline)) void
NAME(turn)(const float *from, ptrdiff_t column, float *into)
{
    NAME(Vector) cards[2][LANES];
    NAME(Mask) lower, upper;
    for (int j = 0; j < LANES; j++) {
        lower[j] = j / 2 + (j % 2) * LANES;
        upper[j] = lower[j] + LANES / 2;
    }
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++)
        cards[0][j] = *(const NAME(Vector) *)(from + j * column);
    int now = 0;
#pragma GCC unroll 4
    for (int pass = 1; pass < LANES; pass *= 2, now = 1 - now)
#pragma GCC unroll 8
        for (int j = 0; j < LANES / 2; j++) {
            NAME(Vector) one = cards[now][j], other = cards[now][j + LANES / 2];
            cards[1 - now][2 * j] = __builtin_shuffle(one, other, lower);
            cards[1 - now][2 * j + 1] = __builtin_shuffle(one, other, upper);
        }
#pragma GCC unroll 16
    for (int k = 0; k < LANES; k++)
        *(NAME(Vector) *)(into + k * PANEL) = cards[now][k];
}
#endif

/* Columns first .. first + width - 1 of b as [depth][PANEL], zeros beside them.
 *
 * Columns that lie side by side in memory are read so, some numbers of each at a time: what is
 * written meanwhile stays in the first cache.
 */
TARGET static void
NAME(pack)(const Matrix *b, int first, int width, float *packed)
{
    const float *from = b->data + first * b->column;
    memset(packed, 0, width < PANEL ? (size_t)b->rows * PANEL * sizeof(float) : 0);
    if (b->column == 1 && width == PANEL) {
        for (int k = 0; k < b->rows; k++, from += b->row, packed += PANEL)
            for (int j = 0; j < PANEL; j++)
                packed[j] = from[j];
        return;
    }
    if (b->row != 1) {
        for (int k = 0; k < b->rows; k++, from += b->row, packed += PANEL)
            for (int j = 0; j < width; j++)
                packed[j] = from[j * b->column];
        return;
    }
    for (int top = 0; top < b->rows; top += LANES, packed += LANES * PANEL) {
        int count = b->rows - top < LANES ? b->rows - top : LANES;
#if !defined(__clang__)
        if (count == LANES && width == PANEL) {
            NAME(turn)(from + top, b->column, packed);
            NAME(turn)(from + top + LANES * b->column, b->column, packed + LANES);
            continue;
        }
#endif
        for (int j = 0; j < width; j++)
            for (int k = 0; k < count; k++)
                packed[k * PANEL + j] = from[top + k + j * b->column];
    }
}

/* sum[r][v] = a tile's rows times one or two vectors of a panel. */
TARGET static inline __attribute__((always_inline)) void
NAME(multiply)(const float *const *rows, ptrdiff_t step, const float *panel, int depth,
               const int vectors, NAME(Vector) (*sum)[2])
{
    NAME(Vector) total[TILE][2] = {{{0.0f}}};
    for (int k = 0; k < depth; k++, panel += PANEL) {
        NAME(Vector) left = *(const NAME(Vector) *)panel;
        NAME(Vector) right = *(const NAME(Vector) *)(panel + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < TILE; r++) {
            float factor = rows[r][k * step];
            total[r][0] += factor * left;
            if (vectors > 1)
                total[r][1] += factor * right;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) {
        sum[r][0] = total[r][0];
        sum[r][1] = total[r][1];
    }
}

/* y = w x + bias for numbers of w's rows that lie side by side, rectified likewise.
 *
 * Whole vectors first, then fours, then single numbers: layers of a few inputs have no whole vector,
 * and adding up a vector's lanes one after the other takes longer than its multiplications.
 */
TARGET static void
NAME(row)(const Matrix *w, const float *x, const float *bias, ptrdiff_t bias_step, float *y,
          ptrdiff_t y_step, int rectify)
{
    int inputs = w->columns, whole = inputs / LANES * LANES, fours = inputs / 4 * 4;
    for (int first = 0; first < w->rows; first += 4) {
        int count = w->rows - first < 4 ? w->rows - first : 4;
        const float *rows[4];
        for (int r = 0; r < 4; r++)
            rows[r] = w->data + (first + (r < count ? r : 0)) * w->row;
        NAME(Vector) total[4] = {{0.0f}};
        for (int k = 0; k < whole; k += LANES) {
            NAME(Vector) part = *(const NAME(Vector) *)(x + k);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++)
                total[r] += part * *(const NAME(Vector) *)(rows[r] + k);
        }
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            Four four = {0.0f};
            if (whole > 0)
                for (int part = 0; part < LANES / 4; part++)
                    four += ((const Four *)&total[r])[part];
            for (int k = whole; k < fours; k += 4)
                four += *(const Four *)(x + k) * *(const Four *)(rows[r] + k);
            float sum = bias[(first + (r < count ? r : 0)) * bias_step] + four[0] + four[2];
            sum += four[1] + four[3];
            for (int k = fours; k < inputs; k++)
                sum += rows[r][k] * x[k];
            if (r < count)
                y[(first + r) * y_step] = rectify && sum <= 0.0f ? 0.0f : sum;
        }
    }
}

/* c = a b (+ bias) for one row a and numbers of b's rows that lie side by side, rectified likewise.
 *
 * What is added up comes in the same order as in `product`: so a row is worth the same alone.
 */
TARGET static void
NAME(sum_of_rows)(const Matrix *a, const Matrix *b, float *c, const float *bias, int rectify)
{
    memset(c, 0, (size_t)b->columns * sizeof(float));
    for (int k = 0; k < b->rows; k++) {
        const float *from = b->data + k * b->row;
        float factor = a->data[k * a->column];
        for (int j = 0; j < b->columns; j++)
            c[j] += factor * from[j];
    }
    for (int j = 0; bias != NULL && j < b->columns; j++)
        c[j] += bias[j];
    for (int j = 0; rectify && j < b->columns; j++)
        c[j] = c[j] <= 0.0f ? 0.0f : c[j];
}

/* c = a b (+ bias in every row) (negative results made 0, what is no number left as it is). */
TARGET static void
NAME(product)(const Matrix *a, const Matrix *b, float *c, ptrdiff_t c_row, const float *bias,
              int rectify, float *packed)
{
    const NAME(Vector) zero = {0.0f};
    if (b->columns <= FEW && a->column == 1) { /* a panel would be zeros for the most part */
        const float none = 0.0f;
        for (int j = 0; j < b->columns; j++) {
            for (int k = 0; k < b->rows; k++)
                packed[k] = b->data[k * b->row + j * b->column];
            NAME(row)(a, packed, bias == NULL ? &none : bias + j, 0, c + j, c_row, rectify);
        }
        return;
    }
    if (a->rows == 1 && b->column == 1) {
        NAME(sum_of_rows)(a, b, c, bias, rectify);
        return;
    }
    for (int first = 0; first < b->columns; first += PANEL) {
        int width = b->columns - first < PANEL ? b->columns - first : PANEL;
        NAME(Vector) offset[2] = {zero, zero}, sum[TILE][2];
        if (bias != NULL)
            memcpy(offset, bias + first, (size_t)width * sizeof(float));
        NAME(pack)(b, first, width, packed);
        for (int top = 0; top < a->rows; top += TILE) {
            const float *rows[TILE];
            int count = a->rows - top < TILE ? a->rows - top : TILE;
            for (int r = 0; r < TILE; r++) /* the last row stands in for those that are not */
                rows[r] = a->data + (top + (r < count ? r : count - 1)) * a->row;
            if (width <= LANES)
                NAME(multiply)(rows, a->column, packed, b->rows, 1, sum);
            else
                NAME(multiply)(rows, a->column, packed, b->rows, 2, sum);
            for (int r = 0; r < count; r++) {
                float *into = c + (top + r) * c_row + first;
                for (int v = 0; v < 2; v++) {
                    NAME(Vector) value = sum[r][v] + offset[v];
                    if (rectify)
                        value = (NAME(Vector))((NAME(Mask))value & ~(value <= zero));
                    sum[r][v] = value;
                }
                if (width == PANEL) {
                    ((NAME(Vector) *)into)[0] = sum[r][0];
                    ((NAME(Vector) *)into)[1] = sum[r][1];
                } else {
                    memcpy(into, sum[r], (size_t)width * sizeof(float));
                }
            }
        }
    }
}

/* A gradient through ReLU, given its output. */
TARGET static void
NAME(rectify)(const Matrix *grad, const Matrix *output)
{
    for (int n = 0; n < grad->rows; n++) {
        float *g = grad->data + n * grad->row;
        const float *y = output->data + n * output->row;
        for (int j = 0; j < grad->columns; j++)
            g[j] = y[j] <= 0.0f ? 0.0f : g[j];
    }
}

/* The sum of the rows of a matrix whose rows have no gaps. */
TARGET static void
NAME(sum_rows)(const Matrix *m, float *sum)
{
    memset(sum, 0, (size_t)m->columns * sizeof(float));
    for (int n = 0; n < m->rows; n++)
        for (int j = 0; j < m->columns; j++)
            sum[j] += m->data[n * m->row + j];
}

#undef PANEL
