/* Convolutions with ReLU, forward and backward on the CPU, for images with the channels last.
 *
 * For y = max(0, W x + b), with x the patches of an image, and the gradient e of the loss with
 * respect to y: g = e where y > 0, else 0; then dW = x^T g, db = sum g, dx = g W^T, added up where
 * patches overlap. Everything of one image stays in a core's own cache from beginning to end, which
 * is what this is quicker by than a library that takes one operation after the other.
 *
 * Images are shared out to the threads that the tensor library computes with. Every thread adds up
 * its own dW, and these are added in order: the result depends on the number of threads alone.
 */
#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#define LINE 64   /* bytes of a cache line */
#define BLOCK 128 /* places whose gradients stay in the first cache */

/* A convolution of one image, in floats. */
typedef struct {
    int kernel, run;       /* a patch: so many runs of so many floats */
    ptrdiff_t row;         /* from one run to the next, and one row of the image to the next */
    int places, filters;   /* of the output */
    ptrdiff_t size;        /* of an image */
    ptrdiff_t *starts;     /* [places] of each patch in the image */
} Shape;

#if defined(__x86_64__)
#define LANES 16
#define TILE 12
#define STEP 8
#define TARGET __attribute__((target("avx512f,avx2,fma")))
#define NAME(name) name##_avx512
#define MORE_CASES(call) \
    case 5: call(5); break; case 6: call(6); break; case 7: call(7); break; \
    case 8: call(8); break; case 9: call(9); break; case 10: call(10); break; \
    case 11: call(11); break; default: call(12);
#include "patches.h"
#undef LANES
#undef TILE
#undef STEP
#undef TARGET
#undef NAME
#undef MORE_CASES
#define LANES 8
#define TILE 6
#define STEP 4
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(name) name##_avx2
#define MORE_CASES(call) case 5: call(5); break; default: call(6);
#include "patches.h"
#undef LANES
#undef TILE
#undef STEP
#undef TARGET
#undef NAME
#undef MORE_CASES
#endif
#define LANES 4
#define TILE 4
#define STEP 4
#define TARGET
#define NAME(name) name##_plain
#define MORE_CASES(call)
#include "patches.h"

typedef struct {
    const char *name;
    int panel, step; /* what filters, and what runs, must be multiples of */
    void (*forward)(const Shape *, const float *, const float *, const float *, float *);
    void (*spread)(const Shape *, const float *, const float *, float *);
    void (*gather)(const Shape *, const float *, const float *, float *);
    void (*mask)(const Shape *, const float *, const float *, float *, float *);
    void (*to_floats)(const uint8_t *, float *, ptrdiff_t);
} Kernels;

static const Kernels all_kernels[] = {
#if defined(__x86_64__)
    {"avx512", 32, 8, forward_avx512, spread_avx512, gather_avx512, mask_avx512, to_floats_avx512},
    {"avx2", 16, 4, forward_avx2, spread_avx2, gather_avx2, mask_avx2, to_floats_avx2},
#endif
    {"plain", 8, 4, forward_plain, spread_plain, gather_plain, mask_plain, to_floats_plain},
};
#define NUM_KERNELS (int)(sizeof(all_kernels) / sizeof(all_kernels[0]))

static const Kernels *kernels = &all_kernels[NUM_KERNELS - 1];

#include "instructions.h"

/* What all threads work on. */
typedef struct {
    Shape shape;
    int images, threads;
    const uint8_t *bytes;   /* [images, size], or */
    const float *x;         /* likewise */
    float *panels;          /* forward: W by columns; backward: W^T by columns */
    const float *bias;
    float *y;               /* [images, places, filters] */
    const float *grad;      /* likewise */
    float *dx;              /* as x, or NULL */
    float *sums;            /* [threads, patch + 1, filters] dW and db */
    char *room;             /* [threads, room_size] for one image and one gradient */
    size_t room_size;
} Work;

static const float *
image_of(const Work *work, int image, float *room)
{
    if (work->bytes == NULL)
        return work->x + (ptrdiff_t)image * work->shape.size;
    const uint8_t *from = work->bytes + (ptrdiff_t)image * work->shape.size;
    kernels->to_floats(from, room, work->shape.size);
    return room;
}

static void
forward_own(void *data)
{
    const Work *work = data;
    const Shape *s = &work->shape;
    int first, stop, thread = own_part(work->threads, work->images, &first, &stop);
    float *room = (float *)(work->room + thread * work->room_size);
    ptrdiff_t outputs = (ptrdiff_t)s->places * s->filters;
    for (int i = first; i < stop; i++)
        kernels->forward(s, image_of(work, i, room), work->panels, work->bias,
                         work->y + i * outputs);
}

static void
backward_own(void *data)
{
    const Work *work = data;
    const Shape *s = &work->shape;
    int first, stop, thread = own_part(work->threads, work->images, &first, &stop);
    float *masked = (float *)(work->room + thread * work->room_size);
    ptrdiff_t outputs = (ptrdiff_t)s->places * s->filters;
    float *room = masked + outputs;
    ptrdiff_t patch = (ptrdiff_t)s->kernel * s->run;
    float *dw = work->sums + thread * (patch + 1) * s->filters, *db = dw + patch * s->filters;
    for (int i = first; i < stop; i++) {
        kernels->mask(s, work->y + i * outputs, work->grad + i * outputs, masked, db);
        kernels->gather(s, image_of(work, i, room), masked, dw);
        if (work->dx != NULL) {
            float *dx = work->dx + (ptrdiff_t)i * s->size;
            memset(dx, 0, s->size * sizeof(float));
            kernels->spread(s, masked, work->panels, dx);
        }
    }
}

static int
make_shape(Shape *s, int height, int width, int channels, int kernel, int stride, int filters)
{
    int down = (height - kernel) / stride + 1, across = (width - kernel) / stride + 1;
    *s = (Shape){.kernel = kernel,
                 .run = kernel * channels,
                 .row = (ptrdiff_t)width * channels,
                 .places = down * across,
                 .filters = filters,
                 .size = height * (ptrdiff_t)width * channels};
    s->starts = malloc(s->places * sizeof(ptrdiff_t));
    if (s->starts == NULL)
        return -1;
    for (int i = 0; i < down; i++)
        for (int j = 0; j < across; j++)
            s->starts[i * across + j] = (ptrdiff_t)i * stride * s->row + j * stride * channels;
    return 0;
}

/* W scaled as panels [filters / panel][patch][panel]. */
static void
pack_weight(const Shape *s, const float *weight, float scale, float *panels)
{
    int channels = s->run / s->kernel, area = s->kernel * s->kernel, panel = kernels->panel;
    for (int f = 0; f < s->filters; f++)
        for (int c = 0; c < channels; c++)
            for (int a = 0; a < area; a++) {
                ptrdiff_t place = (ptrdiff_t)(f / panel) * panel * s->kernel * s->run;
                place += (ptrdiff_t)(a * channels + c) * panel + f % panel;
                panels[place] = scale * weight[(f * channels + c) * area + a];
            }
}

/* W^T scaled as panels [patch / panel][filters][panel]; panels do not reach over runs. */
static void
pack_transposed(const Shape *s, const float *weight, float scale, float *panels)
{
    int channels = s->run / s->kernel, area = s->kernel * s->kernel, panel = kernels->panel;
    for (int f = 0; f < s->filters; f++)
        for (int c = 0; c < channels; c++)
            for (int a = 0; a < area; a++) {
                int k = a * channels + c;
                ptrdiff_t place = (ptrdiff_t)(k / panel) * panel * s->filters;
                place += (ptrdiff_t)f * panel + k % panel;
                panels[place] = scale * weight[(f * channels + c) * area + a];
            }
}

/* The next multiple of a cache line, which a vector must not lie across. */
static size_t
whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Take memory for the weights' panels, `sums` floats and a room for each thread. */
static int
make_memory(Work *work, size_t sums)
{
    const Shape *s = &work->shape;
    size_t weights = whole_lines((size_t)s->kernel * s->run * s->filters * sizeof(float));
    sums = whole_lines(sums * sizeof(float));
    work->room_size = whole_lines(work->room_size);
    char *memory = aligned_alloc(LINE, weights + sums + work->threads * work->room_size);
    if (memory == NULL)
        return -1;
    work->panels = (float *)memory;
    work->sums = (float *)(memory + weights);
    work->room = memory + weights + sums;
    return 0;
}

static void
free_memory(Work *work)
{
    free(work->panels);
    free(work->shape.starts);
}

static void
set_images(Work *work, unsigned long long x, int is_bytes)
{
    if (is_bytes)
        work->bytes = (const uint8_t *)x;
    else
        work->x = (const float *)x;
}

/* forward(x, is_bytes, images, height, width, channels, kernel, stride, filters, weight, scale,
 *         bias, y, threads) */
static PyObject *
forward(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long x, weight, bias, y;
    int is_bytes, images, height, width, channels, kernel, stride, filters, threads;
    float scale;
    if (!PyArg_ParseTuple(args, "KpiiiiiiiKfKKi:forward", &x, &is_bytes, &images, &height, &width,
                          &channels, &kernel, &stride, &filters, &weight, &scale, &bias, &y,
                          &threads))
        return NULL;
    Work work = {
        .images = images, .threads = threads, .bias = (const float *)bias, .y = (float *)y};
    set_images(&work, x, is_bytes);
    if (make_shape(&work.shape, height, width, channels, kernel, stride, filters) < 0)
        return PyErr_NoMemory();
    work.room_size = is_bytes ? work.shape.size * sizeof(float) : 0;
    if (make_memory(&work, 0) < 0) {
        free_memory(&work);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    pack_weight(&work.shape, (const float *)weight, scale, work.panels);
    run_all(forward_own, &work, work.threads);
    Py_END_ALLOW_THREADS
    free_memory(&work);
    Py_RETURN_NONE;
}

/* The threads' sums added in order, as gradients of the weights and the biases. */
static void
write_sums(Work *work, float scale, float *dw, float *db)
{
    const Shape *s = &work->shape;
    int channels = s->run / s->kernel, area = s->kernel * s->kernel;
    size_t weights = (size_t)s->kernel * s->run * s->filters, sums = weights + s->filters;
    for (int t = 1; t < work->threads; t++)
        for (size_t i = 0; i < sums; i++)
            work->sums[i] += work->sums[t * sums + i];
    for (int f = 0; f < s->filters; f++)
        for (int c = 0; c < channels; c++)
            for (int a = 0; a < area; a++)
                dw[(f * channels + c) * area + a] =
                    scale * work->sums[(size_t)(a * channels + c) * s->filters + f];
    memcpy(db, work->sums + weights, s->filters * sizeof(float));
}

/* backward(x, is_bytes, images, height, width, channels, kernel, stride, filters, weight, scale, y,
 *          grad, dx or 0, dw, db, threads) */
static PyObject *
backward(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long x, weight, y, grad, dx, dw, db;
    int is_bytes, images, height, width, channels, kernel, stride, filters, threads;
    float scale;
    if (!PyArg_ParseTuple(args, "KpiiiiiiiKfKKKKKi:backward", &x, &is_bytes, &images, &height,
                          &width, &channels, &kernel, &stride, &filters, &weight, &scale, &y, &grad,
                          &dx, &dw, &db, &threads))
        return NULL;
    Work work = {.images = images,
                 .threads = threads,
                 .y = (float *)y,
                 .grad = (const float *)grad,
                 .dx = (float *)dx};
    set_images(&work, x, is_bytes);
    if (make_shape(&work.shape, height, width, channels, kernel, stride, filters) < 0)
        return PyErr_NoMemory();
    Shape *s = &work.shape;
    work.room_size = ((size_t)s->places * filters + (is_bytes ? s->size : 0)) * sizeof(float);
    size_t sums = ((size_t)s->kernel * s->run + 1) * filters * threads;
    if (make_memory(&work, sums) < 0) {
        free_memory(&work);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    memset(work.sums, 0, sums * sizeof(float));
    if (work.dx != NULL)
        pack_transposed(s, (const float *)weight, scale, work.panels);
    run_all(backward_own, &work, work.threads);
    write_sums(&work, scale, (float *)dw, (float *)db);
    Py_END_ALLOW_THREADS
    free_memory(&work);
    Py_RETURN_NONE;
}

/* serves(channels, kernel, filters, has_gradient, threads) */
static PyObject *
serves(PyObject *module, PyObject *args)
{
    (void)module;
    int channels, kernel, filters, has_gradient, threads;
    if (!PyArg_ParseTuple(args, "iiipi:serves", &channels, &kernel, &filters, &has_gradient,
                          &threads))
        return NULL;
    int fills = filters % kernels->panel == 0 &&
                channels * kernel % (has_gradient ? kernels->panel : kernels->step) == 0;
    return PyBool_FromLong(fills && (threads == 1 || parallel != NULL));
}

static PyMethodDef methods[] = {
    {"forward", forward, METH_VARARGS,
     "forward(x, is_bytes, images, height, width, channels, kernel, stride, filters, weight, scale, "
     "bias, y, threads): y from x, by addresses."},
    {"backward", backward, METH_VARARGS,
     "backward(x, is_bytes, images, height, width, channels, kernel, stride, filters, weight, scale, "
     "y, grad, dx or 0, dw, db, threads): the gradients, by addresses."},
    {"serves", serves, METH_VARARGS,
     "serves(channels, kernel, filters, has_gradient, threads): whether such a convolution, of images "
     "with or without gradient, is served."},
    USE_METHOD,
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_convolution", "Convolutions on the CPU.", -1, methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC
PyInit__convolution(void)
{
    find_threads();
    PyObject *made = PyModule_Create(&module), *names = instructions();
    if (made == NULL || names == NULL || PyModule_AddObjectRef(made, "instructions", names) < 0)
        Py_CLEAR(made);
    Py_XDECREF(names);
    return made;
}
