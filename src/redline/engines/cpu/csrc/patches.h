/* Convolutions as products with patches, written once for each kind of processor.
 *
 * convolution.c includes this file with LANES, the floats of a vector register, TILE, rows of which
 * two registers each are there, TARGET, the instructions that may be used, and NAME, which makes
 * names of them. A patch is what one place of the output sees: KH runs of RUN floats, one image row
 * apart, as images have their channels last. Nothing is copied: a tile of patches, or of places in
 * them, times a panel of two registers' width stays in registers from beginning to end.
 */

typedef float NAME(Vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int NAME(Mask) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define PANEL (2 * LANES)

/* total[r] += rows[r][0 .. depth) times a panel [depth][PANEL]. */
TARGET static inline __attribute__((always_inline)) void
NAME(add_products)(const float *const *rows, ptrdiff_t offset, const float *panel, int depth,
                   const int count, NAME(Vector) (*total)[2])
{
    for (int k = 0; k < depth; k++, panel += PANEL) {
        NAME(Vector) left = *(const NAME(Vector) *)panel;
        NAME(Vector) right = *(const NAME(Vector) *)(panel + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < count; r++) {
            float factor = rows[r][offset + k];
            total[r][0] += factor * left;
            total[r][1] += factor * right;
        }
    }
}

/* Outputs of `count` places: bias + patch times panel, rectified. */
TARGET static inline __attribute__((always_inline)) void
NAME(forward_some)(const Shape *s, const float *const *rows, const float *panel, const float *bias,
                   float *out, const int count)
{
    NAME(Vector) total[TILE][2];
#pragma GCC unroll 16
    for (int r = 0; r < count; r++) {
        total[r][0] = *(const NAME(Vector) *)bias;
        total[r][1] = *(const NAME(Vector) *)(bias + LANES);
    }
    for (int y = 0; y < s->kernel; y++)
        NAME(add_products)(rows, y * s->row, panel + (ptrdiff_t)y * s->run * PANEL, s->run, count,
                           total);
    const NAME(Vector) zero = {0.0f};
#pragma GCC unroll 16
    for (int r = 0; r < count; r++, out += s->filters) {
        for (int v = 0; v < 2; v++) {
            NAME(Mask) negative = total[r][v] < zero; /* false of what is no number: it stays */
            *(NAME(Vector) *)(out + v * LANES) =
                (NAME(Vector))(~negative & (NAME(Mask))total[r][v]);
        }
    }
}

/* Add `count` gradients [filters] times a panel [filters][PANEL] to the places they came from. */
TARGET static inline __attribute__((always_inline)) void
NAME(spread_some)(const Shape *s, const float *const *grads, const float *panel, float *const *to,
                  ptrdiff_t offset, const int count)
{
    NAME(Vector) total[TILE][2];
    const NAME(Vector) zero = {0.0f};
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
        total[r][0] = total[r][1] = zero;
    NAME(add_products)(grads, 0, panel, s->filters, count, total);
#pragma GCC unroll 16
    for (int r = 0; r < count; r++) {
        *(NAME(Vector) *)(to[r] + offset) += total[r][0];
        *(NAME(Vector) *)(to[r] + offset + LANES) += total[r][1];
    }
}

#define CASES(call) \
    switch (count) { \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 4: call(4); break; \
        MORE_CASES(call) \
    }

/* One image: y [places, filters] from x. */
TARGET static void
NAME(forward)(const Shape *s, const float *x, const float *panels, const float *bias, float *y)
{
    int tiles = (s->places + TILE - 1) / TILE;
    for (int p = 0; p < s->filters; p += PANEL) {
        const float *panel = panels + (ptrdiff_t)p * s->kernel * s->run;
        for (int t = 0; t < tiles; t++) {
            int first = begin_of(t, tiles, s->places);
            int count = begin_of(t + 1, tiles, s->places) - first;
            const float *rows[TILE];
            for (int r = 0; r < count; r++)
                rows[r] = x + s->starts[first + r];
            float *out = y + (ptrdiff_t)first * s->filters + p;
#define CALL(n) NAME(forward_some)(s, rows, panel, bias + p, out, n)
            CASES(CALL)
#undef CALL
        }
    }
}

/* One image: dx, zero at first, from grad [places, filters]. */
TARGET static void
NAME(spread)(const Shape *s, const float *grad, const float *panels, float *dx)
{
    int tiles = (s->places + TILE - 1) / TILE;
    for (int y = 0; y < s->kernel; y++) {
        for (int p = 0; p < s->run; p += PANEL) {
            const float *panel = panels + (ptrdiff_t)(y * s->run + p) * s->filters;
            for (int t = 0; t < tiles; t++) {
                int first = begin_of(t, tiles, s->places);
                int count = begin_of(t + 1, tiles, s->places) - first;
                const float *grads[TILE];
                float *to[TILE];
                for (int r = 0; r < count; r++) {
                    grads[r] = grad + (ptrdiff_t)(first + r) * s->filters;
                    to[r] = dx + s->starts[first + r];
                }
                ptrdiff_t offset = y * s->row + p;
#define CALL(n) NAME(spread_some)(s, grads, panel, to, offset, n)
                CASES(CALL)
#undef CALL
            }
        }
    }
}

/* Add patches of x from place `first` on, transposed, times their gradients to dw. */
TARGET static inline __attribute__((always_inline)) void
NAME(gather_some)(const Shape *s, const float *x, const ptrdiff_t *starts, const float *grad,
                  int count, float *dw)
{
    ptrdiff_t filters = s->filters;
    NAME(Vector) total[STEP][2];
#pragma GCC unroll 16
    for (int i = 0; i < STEP; i++) {
        total[i][0] = *(NAME(Vector) *)(dw + i * filters);
        total[i][1] = *(NAME(Vector) *)(dw + i * filters + LANES);
    }
    for (int place = 0; place < count; place++, grad += filters) {
        const float *patch = x + starts[place];
        NAME(Vector) left = *(const NAME(Vector) *)grad;
        NAME(Vector) right = *(const NAME(Vector) *)(grad + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < STEP; i++) {
            float factor = patch[i];
            total[i][0] += factor * left;
            total[i][1] += factor * right;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < STEP; i++) {
        *(NAME(Vector) *)(dw + i * filters) = total[i][0];
        *(NAME(Vector) *)(dw + i * filters + LANES) = total[i][1];
    }
}

/* One image: add x's patches, transposed, times grad [places, filters] to dw [patch, filters]. */
TARGET static void
NAME(gather)(const Shape *s, const float *x, const float *grad, float *dw)
{
    int blocks = (s->places + BLOCK - 1) / BLOCK;
    for (int b = 0; b < blocks; b++) {
        int first = begin_of(b, blocks, s->places);
        int count = begin_of(b + 1, blocks, s->places) - first;
        for (int p = 0; p < s->filters; p += PANEL) {
            const float *g = grad + (ptrdiff_t)first * s->filters + p;
            for (int y = 0; y < s->kernel; y++)
                for (int k = 0; k < s->run; k += STEP)
                    NAME(gather_some)(s, x + y * s->row + k, s->starts + first, g, count,
                                      dw + (ptrdiff_t)(y * s->run + k) * s->filters + p);
        }
    }
}

/* The gradient where the output was positive, and its sum over places. */
TARGET static void
NAME(mask)(const Shape *s, const float *y, const float *grad, float *masked, float *sum)
{
    const NAME(Vector) zero = {0.0f};
    ptrdiff_t outputs = (ptrdiff_t)s->places * s->filters;
    for (ptrdiff_t f = 0; f < s->filters; f += LANES) {
        NAME(Vector) total = *(NAME(Vector) *)(sum + f);
        for (ptrdiff_t i = f; i < outputs; i += s->filters) {
            NAME(Mask) off = *(const NAME(Vector) *)(y + i) <= zero;
            NAME(Vector) kept =
                (NAME(Vector))(~off & *(const NAME(Mask) *)(grad + i));
            *(NAME(Vector) *)(masked + i) = kept;
            total += kept;
        }
        *(NAME(Vector) *)(sum + f) = total;
    }
}

TARGET static void
NAME(to_floats)(const uint8_t *from, float *to, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i++)
        to[i] = from[i];
}

#undef CASES
#undef PANEL
