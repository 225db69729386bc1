/* One step of all parameters of a small network, on the CPU: Adam's, or a target network's.
 *
 * Kingma and Ba 2015, algorithm 1, in the order of torch's kernel. After t steps, with g the
 * gradient:
 *
 *     m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
 *     p = p - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *
 * A target q moves by q = q + tau (p - q), and from tau = 1/2 on by q = p - (1 - tau) (p - q), so
 * that 1 copies.
 *
 * What is the same for all numbers is computed in double, the rest in float. The file must not be
 * compiled with contraction of a * b + c into one operation: so a number's result depends neither
 * on the instructions used nor on its place in memory.
 *
 * Threads share each matrix as they did to make its gradient (`dense.c`): what one of them wrote it
 * finds in its own cache. Between two cores that do not share one, fetching the other's half took
 * as long as four steps.
 *
 * Tensors may be moved between two steps, so at each step they are asked where and what they are,
 * by the function table of DLPack 1.3 that their type has; some 40 ns each.
 */
#define PY_SSIZE_T_CLEAN
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

#define MOST_TENSORS 256
#define MANY 30000 /* numbers; some 10 us, which are worth sharing */
#define VERY_MANY 1000000 /* numbers; some 200 us, in which other threads may run Python */
#define MOST_PIECES 64

/* Version 1 of DLPack: a tensor, and the table of functions in which one asks for it. */
typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *prev_api;
    void *allocate, *export_owned, *import_owned;
    int (*view)(void *object, DLTensor *out);
    void *current_work_stream;
} ExchangeAPI;

#define DL_MAJOR 1
#define DL_CPU 1
#define DL_FLOAT 2

/* One parameter: where it and what belongs to it lie, and in how many pieces it is shared out.
 *
 * Of a target network's the online one's is the gradient, and there are no moments.
 */
typedef struct {
    float *parameter, *first, *second;
    const float *gradient;
    int size, pieces;
} Part;

/* What is the same for all numbers. */
typedef struct {
    float keep_first, add_first, keep_second, add_second, step_size, root, eps;
} Factors;

static inline __attribute__((always_inline)) void
move(const Part *part, const Factors *factors)
{
    float *p = part->parameter, *m = part->first, *v = part->second;
    const float *g = part->gradient;
    const Factors f = *factors;
    for (int i = 0; i < part->size; i++) {
        float first = f.keep_first * m[i] + f.add_first * g[i];
        float second = f.keep_second * v[i] + f.add_second * (g[i] * g[i]);
        p[i] -= f.step_size * first / (sqrtf(second) / f.root + f.eps);
        m[i] = first;
        v[i] = second;
    }
}

/* `step_size` is tau. */
static inline __attribute__((always_inline)) void
follow(const Part *part, const Factors *factors)
{
    float *target = part->parameter;
    const float *online = part->gradient, tau = factors->step_size;
    for (int i = 0; i < part->size; i++) {
        float way = online[i] - target[i];
        target[i] = tau < 0.5f ? target[i] + tau * way : online[i] - (1.0f - tau) * way;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx2"))) static void
move_avx512(const Part *part, const Factors *factors)
{
    move(part, factors);
}

__attribute__((target("avx512f,avx2"))) static void
follow_avx512(const Part *part, const Factors *factors)
{
    follow(part, factors);
}

__attribute__((target("avx2"))) static void
move_avx2(const Part *part, const Factors *factors)
{
    move(part, factors);
}

__attribute__((target("avx2"))) static void
follow_avx2(const Part *part, const Factors *factors)
{
    follow(part, factors);
}
#endif

static void
move_plain(const Part *part, const Factors *factors)
{
    move(part, factors);
}

static void
follow_plain(const Part *part, const Factors *factors)
{
    follow(part, factors);
}

typedef void (*Kernel)(const Part *, const Factors *);

typedef struct {
    const char *name;
    Kernel move, follow;
} Kernels;

static const Kernels all_kernels[] = {
#if defined(__x86_64__)
    {"avx512", move_avx512, follow_avx512},
    {"avx2", move_avx2, follow_avx2},
#endif
    {"plain", move_plain, follow_plain},
};
#define NUM_KERNELS (int)(sizeof(all_kernels) / sizeof(all_kernels[0]))

/* Those that every step uses. */
static const Kernels *kernels = &all_kernels[NUM_KERNELS - 1];

#include "instructions.h"

/* Where tensors say what they are; NULL until `connect`. */
static const ExchangeAPI *tensors;

/* Whether an object is a tensor of so many bits per float, in main memory. */
static int
view_floats(PyObject *object, int bits, DLTensor *view)
{
    if (tensors->view(object, view) < 0) {
        PyErr_Clear(); /* no tensor, or one without memory of its own */
        return 0;
    }
    return view->device.type == DL_CPU && view->dtype.code == DL_FLOAT &&
           view->dtype.bits == bits && view->dtype.lanes == 1;
}

static void *
first_of(const DLTensor *view)
{
    return (char *)view->data + view->byte_offset;
}

static int64_t
size_of(const DLTensor *view)
{
    int64_t size = 1;
    for (int axis = 0; axis < view->ndim; axis++)
        size *= view->shape[axis];
    return size;
}

/* Whether its numbers fill one piece of memory, in whatever order of the axes. */
static int
is_dense(const DLTensor *view)
{
    int64_t size = size_of(view), filled = 1;
    while (filled < size) {
        int axis = 0;
        while (axis < view->ndim && (view->shape[axis] == 1 || view->strides[axis] != filled))
            axis++;
        if (axis == view->ndim)
            return 0;
        filled *= view->shape[axis];
    }
    return 1;
}

static int
is_laid_out_as(const DLTensor *view, const DLTensor *other)
{
    if (view->ndim != other->ndim)
        return 0;
    for (int axis = 0; axis < view->ndim; axis++) {
        if (view->shape[axis] != other->shape[axis])
            return 0;
        if (view->shape[axis] > 1 && view->strides[axis] != other->strides[axis])
            return 0;
    }
    return 1;
}

/* Whether a parameter and what belongs to it, some tensors, are what kernels take.
 *
 * The members of an ensemble [E, in, out] are shared out one by one.
 */
static int
make_part(PyObject *const *objects, int count, Part *part)
{
    DLTensor views[4];
    for (int i = 0; i < count; i++) {
        if (!view_floats(objects[i], 32, &views[i]) || !is_laid_out_as(&views[i], &views[0]))
            return 0;
        if (views[i].data == NULL && size_of(&views[i]) > 0)
            return 0;
    }
    int64_t size = size_of(&views[0]);
    if (size > INT32_MAX || !is_dense(&views[0]))
        return 0;
    *part = (Part){.parameter = first_of(&views[0]), .gradient = first_of(&views[1]),
                   .size = (int)size, .pieces = 1};
    if (count > 2) {
        part->first = first_of(&views[2]);
        part->second = first_of(&views[3]);
    }
    if (size > 0 && views[0].ndim == 3 && views[0].shape[0] <= MOST_PIECES)
        part->pieces = (int)views[0].shape[0];
    return 1;
}

/* A number held by a tensor without axes; NULL if it is none of so many bits. */
static void *
number_of(PyObject *object, int bits)
{
    DLTensor view;
    return view_floats(object, bits, &view) && view.ndim == 0 ? first_of(&view) : NULL;
}

/* The parts of all parameters, from some lists; their number, or -1 if any of them is not served. */
static int
make_parts(PyObject *const *lists, int num_lists, Part *parts)
{
    Py_ssize_t count = PyList_GET_SIZE(lists[0]);
    if (count > MOST_TENSORS)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *objects[4];
        for (int k = 0; k < num_lists; k++)
            objects[k] = PyList_GET_ITEM(lists[k], i);
        if (!make_part(objects, num_lists, &parts[i]))
            return -1;
    }
    return (int)count;
}

/* Whether so many arguments are lists of one length; an error is set if not. */
static int
are_lists(PyObject *const *args, int count, const char *what)
{
    for (int k = 0; k < count; k++) {
        if (!PyList_Check(args[k]) || PyList_GET_SIZE(args[k]) != PyList_GET_SIZE(args[0])) {
            PyErr_SetString(PyExc_TypeError, what);
            return 0;
        }
    }
    if (tensors == NULL)
        PyErr_SetString(PyExc_RuntimeError, "call connect first");
    return tensors != NULL;
}

/* What all threads of a step work on. */
typedef struct {
    const Part *parts;
    int count, threads;
    Kernel kernel;
    Factors factors;
} Step;

static void
do_own(void *data)
{
    const Step *step = data;
    for (int i = 0; i < step->count; i++) {
        const Part *part = &step->parts[i];
        for (int piece = 0; piece < part->pieces; piece++) {
            int begin = begin_of(piece, part->pieces, part->size), first, stop;
            own_part(step->threads, begin_of(piece + 1, part->pieces, part->size) - begin, &first,
                     &stop);
            Part own = {part->parameter + begin + first, NULL, NULL,
                        part->gradient + begin + first, stop - first, 1};
            if (part->first != NULL) {
                own.first = part->first + begin + first;
                own.second = part->second + begin + first;
            }
            step->kernel(&own, &step->factors);
        }
    }
}

static void
do_all(const Part *parts, int count, Kernel kernel, const Factors *factors, long threads)
{
    int64_t numbers = 0;
    for (int i = 0; i < count; i++)
        numbers += parts[i].size;
    int shared = numbers > MANY && threads > 1 ? (int)(threads < 1024 ? threads : 1024) : 1;
    Step step = {parts, count, shared, kernel, *factors};
    PyThreadState *others = numbers > VERY_MANY ? PyEval_SaveThread() : NULL;
    run_all(do_own, &step, shared);
    if (others != NULL)
        PyEval_RestoreThread(others);
}

/* The steps taken so far, of which every parameter has a count of its own that all agree.
 *
 * Adds one to each of them, and gives the sum; -1, and nothing is done, if they are no numbers of 32
 * bits or differ, as they do once a parameter has been left out of a step.
 */
static float
count_step(PyObject *list)
{
    Py_ssize_t size = PyList_Check(list) ? PyList_GET_SIZE(list) : 0;
    if (size < 1 || size > MOST_TENSORS)
        return -1.0f;
    float *counts[MOST_TENSORS];
    for (Py_ssize_t i = 0; i < size; i++) {
        counts[i] = number_of(PyList_GET_ITEM(list, i), 32);
        if (counts[i] == NULL || *counts[i] != *counts[0])
            return -1.0f;
    }
    float present = *counts[0] + 1.0f;
    for (Py_ssize_t i = 0; i < size; i++)
        *counts[i] = present;
    return present;
}

static PyObject *
step(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 10) {
        PyErr_Format(PyExc_TypeError, "step takes 10 arguments, not %zd", nargs);
        return NULL;
    }
    double beta1 = PyFloat_AsDouble(args[6]), beta2 = PyFloat_AsDouble(args[7]);
    double eps = PyFloat_AsDouble(args[8]);
    long threads = PyLong_AsLong(args[9]);
    /* The lists last: a number of somebody else's kind may run Python, which may change them. */
    if (PyErr_Occurred() || !are_lists(args, 4, "step takes four lists of as many tensors each"))
        return NULL;
    Part parts[MOST_TENSORS];
    const double *learning_rate = number_of(args[5], 64);
    int num_parts = make_parts(args, 4, parts);
    if (learning_rate == NULL || num_parts < 0)
        Py_RETURN_FALSE;
    float count = count_step(args[4]);
    if (count < 0.0f)
        Py_RETURN_FALSE;
    const Factors factors = {
        .keep_first = (float)beta1,
        .add_first = (float)(1.0 - beta1),
        .keep_second = (float)beta2,
        .add_second = (float)(1.0 - beta2),
        .step_size = (float)(*learning_rate / (1.0 - pow(beta1, count))),
        .root = (float)sqrt(1.0 - pow(beta2, count)),
        .eps = (float)eps,
    };
    do_all(parts, num_parts, kernels->move, &factors, threads);
    Py_RETURN_TRUE;
}

static PyObject *
move_towards(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 4) {
        PyErr_Format(PyExc_TypeError, "move_towards takes 4 arguments, not %zd", nargs);
        return NULL;
    }
    double tau = PyFloat_AsDouble(args[2]);
    long threads = PyLong_AsLong(args[3]);
    if (PyErr_Occurred() ||
        !are_lists(args, 2, "move_towards takes two lists of as many tensors each"))
        return NULL;
    Part parts[MOST_TENSORS];
    int num_parts = make_parts(args, 2, parts);
    if (num_parts < 0)
        Py_RETURN_FALSE;
    const Factors factors = {.step_size = (float)tau};
    do_all(parts, num_parts, kernels->follow, &factors, threads);
    Py_RETURN_TRUE;
}

static PyObject *
connect(PyObject *module, PyObject *capsule)
{
    (void)module;
    const ExchangeAPI *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (table == NULL)
        return NULL;
    if (table->major != DL_MAJOR || table->view == NULL)
        Py_RETURN_FALSE;
    tensors = table;
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"step", (PyCFunction)(void (*)(void))step, METH_FASTCALL,
     "step(parameters, gradients, first, second, counts, learning_rate, beta1, beta2, eps, threads): "
     "one step of Adam, in place; False, and nothing is done, if any tensor is not served, or the "
     "counts of steps differ."},
    {"move_towards", (PyCFunction)(void (*)(void))move_towards, METH_FASTCALL,
     "move_towards(targets, online, tau, threads): move the targets a part of the way, in place; "
     "False, and nothing is done, if any tensor is not served."},
    {"connect", connect, METH_O,
     "connect(capsule): ask tensors by the table in their type's __dlpack_c_exchange_api__; False "
     "if its version is not served."},
    USE_METHOD,
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_parameters", "Steps of parameters on the CPU.", -1, methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC
PyInit__parameters(void)
{
    find_threads();
    PyObject *made = PyModule_Create(&module), *names = instructions();
    if (made == NULL || names == NULL || PyModule_AddObjectRef(made, "instructions", names) < 0)
        Py_CLEAR(made);
    Py_XDECREF(names);
    return made;
}
