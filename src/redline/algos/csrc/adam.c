/* One step of Adam for all parameters of a small network, on the CPU.
 *
 * Kingma and Ba 2015, algorithm 1, in the order of torch's kernel. After t steps, with g the
 * gradient:
 *
 *     m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
 *     p = p - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
 *
 * What is the same for all numbers is computed in double, the rest in float. The file must not be
 * compiled with contraction of a * b + c into one operation: so a number's result depends neither
 * on the instructions used nor on its place in memory.
 *
 * Tensors may be moved between two steps, so at each step they are asked where and what they are,
 * by the function table of DLPack 1.3 that their type has; some 40 ns each.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define MOST_TENSORS 256

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

/* One parameter: where it and what belongs to it lie. */
typedef struct {
    float *parameter, *first, *second;
    const float *gradient;
    int64_t size;
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
    for (int64_t i = 0; i < part->size; i++) {
        float first = f.keep_first * m[i] + f.add_first * g[i];
        float second = f.keep_second * v[i] + f.add_second * (g[i] * g[i]);
        p[i] -= f.step_size * first / (sqrtf(second) / f.root + f.eps);
        m[i] = first;
        v[i] = second;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx2"))) static void
move_avx512(const Part *part, const Factors *factors)
{
    move(part, factors);
}

__attribute__((target("avx2"))) static void
move_avx2(const Part *part, const Factors *factors)
{
    move(part, factors);
}
#endif

static void
move_plain(const Part *part, const Factors *factors)
{
    move(part, factors);
}

typedef struct {
    const char *name;
    void (*move)(const Part *, const Factors *);
} Kernels;

static const Kernels all_kernels[] = {
#if defined(__x86_64__)
    {"avx512", move_avx512},
    {"avx2", move_avx2},
#endif
    {"plain", move_plain},
};
#define NUM_KERNELS (int)(sizeof(all_kernels) / sizeof(all_kernels[0]))

/* Those that every step uses. */
static const Kernels *kernels = &all_kernels[NUM_KERNELS - 1];

#include "../../models/csrc/instructions.h"

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

/* Whether the parameter, gradient and moments are what `move` takes. */
static int
make_part(PyObject *const *objects, Part *part)
{
    DLTensor views[4];
    for (int i = 0; i < 4; i++) {
        if (!view_floats(objects[i], 32, &views[i]) || !is_laid_out_as(&views[i], &views[0]))
            return 0;
        if (views[i].data == NULL && size_of(&views[i]) > 0)
            return 0;
    }
    *part = (Part){first_of(&views[0]), first_of(&views[2]), first_of(&views[3]),
                   first_of(&views[1]), size_of(&views[0])};
    return is_dense(&views[0]);
}

/* A number held by a tensor without axes; NULL if it is none of so many bits. */
static void *
number_of(PyObject *object, int bits)
{
    DLTensor view;
    return view_floats(object, bits, &view) && view.ndim == 0 ? first_of(&view) : NULL;
}

/* The parts of all parameters; their number, or -1 if any of them is not served. */
static int
make_parts(PyObject *const *lists, Part *parts)
{
    Py_ssize_t count = PyList_GET_SIZE(lists[0]);
    if (count > MOST_TENSORS)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *objects[4];
        for (int k = 0; k < 4; k++)
            objects[k] = PyList_GET_ITEM(lists[k], i);
        if (!make_part(objects, &parts[i]))
            return -1;
    }
    return (int)count;
}

/* step(parameters, gradients, first, second, count, learning_rate, beta1, beta2, eps) */
static PyObject *
step(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 9) {
        PyErr_Format(PyExc_TypeError, "step takes 9 arguments, not %zd", nargs);
        return NULL;
    }
    for (int k = 0; k < 4; k++) {
        if (!PyList_Check(args[k]) || PyList_GET_SIZE(args[k]) != PyList_GET_SIZE(args[0])) {
            PyErr_SetString(PyExc_TypeError, "step takes four lists of as many tensors each");
            return NULL;
        }
    }
    double beta1 = PyFloat_AsDouble(args[6]), beta2 = PyFloat_AsDouble(args[7]);
    double eps = PyFloat_AsDouble(args[8]);
    if (PyErr_Occurred())
        return NULL;
    if (tensors == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "call connect first");
        return NULL;
    }
    Part parts[MOST_TENSORS];
    float *count = number_of(args[4], 32);
    const double *learning_rate = number_of(args[5], 64);
    int num_parts = make_parts(args, parts);
    if (count == NULL || learning_rate == NULL || num_parts < 0)
        Py_RETURN_FALSE;
    *count += 1.0f;
    const Factors factors = {
        .keep_first = (float)beta1,
        .add_first = (float)(1.0 - beta1),
        .keep_second = (float)beta2,
        .add_second = (float)(1.0 - beta2),
        .step_size = (float)(*learning_rate / (1.0 - pow(beta1, *count))),
        .root = (float)sqrt(1.0 - pow(beta2, *count)),
        .eps = (float)eps,
    };
    for (int i = 0; i < num_parts; i++)
        kernels->move(&parts[i], &factors);
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
     "step(parameters, gradients, first, second, count, learning_rate, beta1, beta2, eps): one "
     "step, in place; False, and nothing is done, if any tensor is not served."},
    {"connect", connect, METH_O,
     "connect(capsule): ask tensors by the table in their type's __dlpack_c_exchange_api__; False "
     "if its version is not served."},
    USE_METHOD,
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_adam", "Adam's steps on the CPU.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__adam(void)
{
    PyObject *made = PyModule_Create(&module), *names = instructions();
    if (made == NULL || names == NULL || PyModule_AddObjectRef(made, "instructions", names) < 0)
        Py_CLEAR(made);
    Py_XDECREF(names);
    return made;
}
