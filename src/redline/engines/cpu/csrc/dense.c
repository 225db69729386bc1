/* Dense networks with ReLU between their layers: forward and backward on the CPU.
 *
 * For layers of some hundred units a call of a matrix library costs as much as its arithmetic,
 * and every bias, ReLU and sum of its own as much again. Here a network's pass is one call. The
 * formulas are those of mlp.py, the arrays float32; those of the parameters are
 * held as long as the network lives, and read and written where they lie.
 *
 * Threads share the rows of a batch, each of which goes through all layers in one thread, then the
 * numbers of the weights' gradients: the results do not depend on how many there are.
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

#define MAX_LAYERS 16
#define LONG_PASS 4000000 /* multiplications: some 50 us, in which other threads may run */
#define WIDEST_PANEL 32
#define FEW 2 /* columns: so many are quicker one by one than as a panel */

/* A matrix of any strides, in floats. */
typedef struct {
    float *data;
    int rows, columns;
    ptrdiff_t row, column;
} Matrix;

typedef struct {
    Matrix weight, weight_grad; /* [in, out] */
    float *bias, *bias_grad;
} Layer;

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

static Matrix
transposed(const Matrix *m)
{
    return (Matrix){m->data, m->columns, m->rows, m->column, m->row};
}

static Matrix
rows_of(const Matrix *m, int first, int stop)
{
    return (Matrix){m->data + first * m->row, stop - first, m->columns, m->row, m->column};
}

#if defined(__x86_64__)
#define LANES 16
#define TILE 8
#define TARGET __attribute__((target("avx512f,avx2,fma")))
#define NAME(x) x##_avx512
#include "product.h"
#undef LANES
#undef TILE
#undef TARGET
#undef NAME
#define LANES 8
#define TILE 6
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#include "product.h"
#undef LANES
#undef TILE
#undef TARGET
#undef NAME
#endif
#define LANES 4
#define TILE 6
#define TARGET
#define NAME(x) x##_plain
#include "product.h"

typedef struct {
    const char *name;
    void (*product)(const Matrix *, const Matrix *, float *, ptrdiff_t, const float *, int,
                    float *);
    void (*rectify)(const Matrix *, const Matrix *);
    void (*sum_rows)(const Matrix *, float *);
    void (*row)(const Matrix *, const float *, const float *, ptrdiff_t, float *, ptrdiff_t, int);
} Kernels;

static const Kernels all_kernels[] = {
#if defined(__x86_64__)
    {"avx512", product_avx512, rectify_avx512, sum_rows_avx512, row_avx512},
    {"avx2", product_avx2, rectify_avx2, sum_rows_avx2, row_avx2},
#endif
    {"plain", product_plain, rectify_plain, sum_rows_plain, row_plain},
};
#define NUM_KERNELS (int)(sizeof(all_kernels) / sizeof(all_kernels[0]))

/* Those that every network uses. */
static const Kernels *kernels = &all_kernels[NUM_KERNELS - 1];

#include "instructions.h"

/* The network: its layers, the arrays it holds, and memory for what lies between. */
typedef struct {
    PyObject_HEAD
    int count, rectifies_output, learns;
    Layer layers[MAX_LAYERS];
    Py_buffer held[4 * MAX_LAYERS];
    int num_held, widest;
    float *scratch;
    size_t scratch_floats;
} Network;

/* An array of float32 with so many axes; `view` must be released if 0 is returned. */
static int
get_floats(PyObject *object, Py_buffer *view, int axes, int writable, const char *what)
{
    int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    if (view->ndim != axes || view->format == NULL || strcmp(view->format, "f") != 0) {
        PyErr_Format(PyExc_TypeError, "%s should be float32 with %d axes", what, axes);
        PyBuffer_Release(view);
        return -1;
    }
    for (int axis = 0; axis < axes; axis++) {
        if (view->shape[axis] > INT32_MAX || view->strides[axis] % (Py_ssize_t)sizeof(float)) {
            PyErr_Format(PyExc_ValueError, "%s is too large, or not aligned", what);
            PyBuffer_Release(view);
            return -1;
        }
    }
    return 0;
}

static Matrix
as_matrix(const Py_buffer *view)
{
    const Py_ssize_t size = sizeof(float);
    return (Matrix){view->buf, (int)view->shape[0], (int)view->shape[1], view->strides[0] / size,
                    view->strides[1] / size};
}

/* Whether an array's last axis has no gaps, so that rows can be written and read as such. */
static int
has_whole_rows(const Py_buffer *view)
{
    int last = view->ndim - 1;
    return view->shape[last] <= 1 || view->strides[last] == sizeof(float);
}

/* Hold item `i` of a tuple of arrays; NULL with an error set if it is not what it should be. */
static Py_buffer *
hold(Network *self, PyObject *tuple, int i, int axes, int writable, const char *what)
{
    Py_buffer *view = &self->held[self->num_held];
    if (get_floats(PyTuple_GET_ITEM(tuple, i), view, axes, writable, what) < 0)
        return NULL;
    self->num_held++;
    return view;
}

static int
hold_layer(Network *self, int i, PyObject *const *tuples)
{
    Layer *layer = &self->layers[i];
    Py_buffer *weight = hold(self, tuples[0], i, 2, 0, "a weight"), *bias, *grad;
    if (weight == NULL || (bias = hold(self, tuples[1], i, 1, 0, "a bias")) == NULL)
        return -1;
    layer->weight = as_matrix(weight);
    layer->bias = bias->buf;
    int fits = bias->shape[0] == weight->shape[1] && has_whole_rows(bias) &&
               layer->weight.rows > 0 && layer->weight.columns > 0 &&
               (i == 0 || layer->weight.rows == self->layers[i - 1].weight.columns);
    if (self->learns) {
        if ((grad = hold(self, tuples[2], i, 2, 1, "a weight's gradient")) == NULL)
            return -1;
        layer->weight_grad = as_matrix(grad);
        fits = fits && grad->shape[0] == weight->shape[0] && grad->shape[1] == weight->shape[1] &&
               (layer->weight_grad.row == 1 || layer->weight_grad.column == 1);
        if ((grad = hold(self, tuples[3], i, 1, 1, "a bias's gradient")) == NULL)
            return -1;
        layer->bias_grad = grad->buf;
        fits = fits && grad->shape[0] == bias->shape[0] && has_whole_rows(grad);
    }
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "layer %d: shapes or strides do not fit together", i);
        return -1;
    }
    self->widest = layer->weight.rows > self->widest ? layer->weight.rows : self->widest;
    self->widest = layer->weight.columns > self->widest ? layer->weight.columns : self->widest;
    return 0;
}

static PyObject *
network_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"weights", "biases", "weight_grads", "bias_grads", "rectifies_output",
                            NULL};
    PyObject *tuples[4];
    int rectifies_output;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!p", names, &PyTuple_Type, &tuples[0],
                                     &PyTuple_Type, &tuples[1], &PyTuple_Type, &tuples[2],
                                     &PyTuple_Type, &tuples[3], &rectifies_output))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(tuples[0]), grads = PyTuple_GET_SIZE(tuples[2]);
    if (count < 1 || count > MAX_LAYERS || PyTuple_GET_SIZE(tuples[1]) != count ||
        (grads != 0 && grads != count) || PyTuple_GET_SIZE(tuples[3]) != grads) {
        PyErr_Format(PyExc_ValueError, "a network has 1 to %d layers, and one of each array for "
                     "each of them", MAX_LAYERS);
        return NULL;
    }
    Network *self = (Network *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->count = (int)count;
    self->rectifies_output = rectifies_output;
    self->learns = grads > 0;
    for (int i = 0; i < self->count; i++) {
        if (hold_layer(self, i, tuples) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void
network_dealloc(Network *self)
{
    for (int i = 0; i < self->num_held; i++)
        PyBuffer_Release(&self->held[i]);
    PyMem_Free(self->scratch);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* At least so many floats that nobody else uses. */
static float *
scratch(Network *self, size_t floats)
{
    if (floats > self->scratch_floats) {
        float *larger = PyMem_Realloc(self->scratch, floats * sizeof(float));
        if (larger == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        self->scratch = larger;
        self->scratch_floats = floats;
    }
    return self->scratch;
}

/* What a packed panel of any product takes, when batches have so many rows. */
static size_t
panel_floats(const Network *self, int rows)
{
    size_t depth = (size_t)(rows > self->widest ? rows : self->widest);
    return depth * WIDEST_PANEL;
}

/* Whether a pass over so many rows is worth letting other threads run. */
static int
is_long_pass(const Network *self, Py_ssize_t rows)
{
    double multiplications = 0.0;
    for (int i = 0; i < self->count; i++)
        multiplications += (double)self->layers[i].weight.rows * self->layers[i].weight.columns;
    return multiplications * (double)rows > LONG_PASS;
}

/* Memory for a pass: the network's own, or some for itself where another thread may begin one. */
static float *
begin_pass(Network *self, size_t floats, int is_long)
{
    if (!is_long)
        return scratch(self, floats);
    float *memory = PyMem_RawMalloc(floats * sizeof(float));
    if (memory == NULL)
        PyErr_NoMemory();
    return memory;
}

static void
end_pass(float *memory, int is_long, PyThreadState *others)
{
    if (!is_long)
        return;
    PyMem_RawFree(memory);
    PyEval_RestoreThread(others);
}

static int
is_rectified(const Network *self, int i)
{
    return i + 1 < self->count || self->rectifies_output;
}

/* The input and the outputs of all layers; num_taken says how many must be released. */
typedef struct {
    Py_buffer views[MAX_LAYERS + 1];
    int num_taken;
} Tape;

static void
release_tape(Tape *tape)
{
    for (int i = 0; i < tape->num_taken; i++)
        PyBuffer_Release(&tape->views[i]);
}

static int
take_tape(const Network *self, PyObject *list, int writable, Tape *tape)
{
    tape->num_taken = 0;
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != self->count + 1) {
        PyErr_Format(PyExc_ValueError, "a tape is a list of the input and %d outputs", self->count);
        return -1;
    }
    for (int i = 0; i <= self->count; i++) {
        Py_buffer *view = &tape->views[i];
        if (get_floats(PyList_GET_ITEM(list, i), view, 2, writable && i > 0, "a tape's array") < 0)
            break;
        tape->num_taken++;
        int width = i == 0 ? self->layers[0].weight.rows : self->layers[i - 1].weight.columns;
        if (view->shape[1] != width || view->shape[0] != tape->views[0].shape[0] ||
            !has_whole_rows(view)) {
            PyErr_Format(PyExc_ValueError, "array %d of the tape should be [rows, %d]", i, width);
            break;
        }
    }
    if (PyErr_Occurred()) {
        release_tape(tape);
        return -1;
    }
    return 0;
}

/* What all threads of a pass work on. */
typedef struct {
    const Network *network;
    int rows, threads;
    Matrix tape[MAX_LAYERS + 1]; /* the input and the outputs of all layers */
    Matrix grad;                 /* that of the last output, as it was given */
    Matrix grads[MAX_LAYERS];    /* those of all outputs, through ReLU */
    Matrix to_input;             /* that of the last of the inputs; no data: nobody asked for it */
    int *active;                 /* [rows] where each thread's rows with gradients lie, or NULL */
    float *panels;               /* [threads, panel] */
    size_t panel;
} Pass;

static void
forward_own(void *data)
{
    const Pass *pass = data;
    const Network *network = pass->network;
    int first, stop, thread = own_part(pass->threads, pass->rows, &first, &stop);
    for (int i = 0; i < network->count; i++) {
        const Layer *layer = &network->layers[i];
        Matrix x = rows_of(&pass->tape[i], first, stop);
        Matrix y = rows_of(&pass->tape[i + 1], first, stop);
        kernels->product(&x, &layer->weight, y.data, y.row, layer->bias,
                         is_rectified(network, i), pass->panels + thread * pass->panel);
    }
}

/* Copy the gradient of the last output; how many rows, without those left out that are all zero.
 *
 * Where two critics are asked and the lesser value counts, each has a gradient for half of the rows.
 * Their numbers go to `active`; without it all rows are taken. (What is left out would be no number
 * where a weight is none.)
 */
static int
take_rows(const Matrix *from, const Matrix *into, int *active)
{
    int taken = 0;
    for (int n = 0; n < from->rows; n++) {
        int is_zero = active != NULL;
        for (int j = 0; j < into->columns; j++) {
            float value = from->data[n * from->row + j * from->column];
            into->data[taken * into->row + j] = value;
            is_zero = is_zero && value == 0.0f;
        }
        if (active != NULL)
            active[taken] = n;
        taken += !is_zero;
    }
    return taken;
}

/* Rows side by side to where they belong, from the last on; zeros between them. */
static void
spread_rows(const Matrix *rows, const int *active, int taken)
{
    size_t size = (size_t)rows->columns * sizeof(float);
    for (int n = rows->rows - 1; n >= 0; n--) {
        float *into = rows->data + n * rows->row;
        if (taken > 0 && active[taken - 1] == n)
            memmove(into, rows->data + --taken * rows->row, size);
        else
            memset(into, 0, size);
    }
}

/* Gradients through ReLU, given the outputs from this row on, or the rows in `active` after it. */
static void
rectify_rows(const Matrix *grad, const Matrix *outputs, int first, const int *active)
{
    if (active == NULL) {
        Matrix own = rows_of(outputs, first, first + grad->rows);
        kernels->rectify(grad, &own);
        return;
    }
    for (int n = 0; n < grad->rows; n++) {
        Matrix one = rows_of(grad, n, n + 1);
        Matrix y = rows_of(outputs, first + active[n], first + active[n] + 1);
        kernels->rectify(&one, &y);
    }
}

/* The gradients of the outputs of all layers, from the last to the first, and of the input. */
static void
backward_own_rows(void *data)
{
    const Pass *pass = data;
    const Network *network = pass->network;
    int first, stop, thread = own_part(pass->threads, pass->rows, &first, &stop);
    int *active = pass->active == NULL ? NULL : pass->active + first;
    float *packed = pass->panels + thread * pass->panel;
    Matrix from = rows_of(&pass->grad, first, stop);
    Matrix grad = rows_of(&pass->grads[network->count - 1], first, stop);
    int taken = take_rows(&from, &grad, active);
    grad.rows = taken;
    for (int i = network->count - 1; i >= 0; i--) {
        Matrix into = pass->to_input;
        if (is_rectified(network, i))
            rectify_rows(&grad, &pass->tape[i + 1], first, active);
        if (i > 0)
            into = pass->grads[i - 1];
        if (into.data == NULL)
            continue;
        const Matrix *weight = &network->layers[i].weight;
        Matrix last = rows_of(weight, weight->rows - into.columns, weight->rows);
        Matrix turned = transposed(&last);
        into = rows_of(&into, first, stop);
        kernels->product(&grad, &turned, into.data, into.row, NULL, 0, packed);
        grad = into;
        grad.rows = taken;
    }
    if (active != NULL && pass->to_input.data != NULL) {
        grad.rows = stop - first;
        spread_rows(&grad, active, taken);
    }
}

/* The gradients of this thread's part of the weights and biases. */
static void
backward_own_weights(void *data)
{
    const Pass *pass = data;
    for (int i = 0; i < pass->network->count; i++) {
        const Layer *layer = &pass->network->layers[i];
        const Matrix *x = &pass->tape[i], *grad = &pass->grads[i], *into = &layer->weight_grad;
        int turns = into->row == 1; /* it lies as [out, in] */
        Matrix turned = transposed(turns ? grad : x);
        ptrdiff_t step = turns ? into->column : into->row;
        int first, stop, thread = own_part(pass->threads, turned.rows, &first, &stop);
        Matrix own = rows_of(&turned, first, stop);
        kernels->product(&own, turns ? x : grad, into->data + first * step, step, NULL, 0,
                         pass->panels + thread * pass->panel);
        own_part(pass->threads, grad->columns, &first, &stop);
        Matrix columns = {grad->data + first, grad->rows, stop - first, grad->row, 1};
        kernels->sum_rows(&columns, layer->bias_grad + first);
    }
}

/* How many threads a pass of so many rows takes of those that it may. */
static int
threads_of(const Network *self, const Py_buffer *input, long threads)
{
    if (threads < 1 || !is_long_pass(self, input->shape[0]))
        return 1;
    return (int)(threads < input->shape[0] ? threads : input->shape[0]);
}

/* With room for panels of that many rows, where products are taken over these. */
static Pass
make_pass(const Network *self, const Tape *tape, int threads, int depth)
{
    Pass pass = {.network = self, .rows = (int)tape->views[0].shape[0], .threads = threads};
    for (int i = 0; i <= self->count; i++)
        pass.tape[i] = as_matrix(&tape->views[i]);
    pass.panel = panel_floats(self, depth);
    return pass;
}

/* An optional number among the arguments; -1 with an error set if it is none. */
static long
number_at(PyObject *const *args, Py_ssize_t nargs, Py_ssize_t place)
{
    return place < nargs ? PyLong_AsLong(args[place]) : 1;
}

static PyObject *
network_forward(Network *self, PyObject *const *args, Py_ssize_t nargs)
{
    Tape tape;
    if (nargs < 1 || nargs > 2) {
        PyErr_SetString(PyExc_TypeError, "forward(tape, threads=1)");
        return NULL;
    }
    long threads = number_at(args, nargs, 1);
    if (PyErr_Occurred() || take_tape(self, args[0], 1, &tape) < 0)
        return NULL;
    int is_long = is_long_pass(self, tape.views[0].shape[0]);
    Pass pass = make_pass(self, &tape, threads_of(self, &tape.views[0], threads), 0);
    PyObject *result = NULL;
    pass.panels = begin_pass(self, (size_t)pass.threads * pass.panel, is_long);
    if (pass.panels != NULL) {
        PyThreadState *others = is_long ? PyEval_SaveThread() : NULL;
        run_all(forward_own, &pass, pass.threads);
        end_pass(pass.panels, is_long, others);
        result = Py_NewRef(Py_None);
    }
    release_tape(&tape);
    return result;
}

/* Memory for the gradients of all outputs; the panels come after it. */
static int
backward(Network *self, Pass *pass, int weights)
{
    size_t rows = (size_t)pass->rows, floats = (size_t)pass->threads * pass->panel, width = 0;
    for (int i = 0; i < self->count; i++)
        width += (size_t)self->layers[i].weight.columns;
    int is_long = is_long_pass(self, (Py_ssize_t)rows);
    /* A gradient that is zero leaves nothing out where those of weights are wanted. */
    size_t numbers = weights ? 0 : rows;
    float *memory = begin_pass(self, floats + rows * width + numbers, is_long), *next = memory;
    if (memory == NULL)
        return -1;
    PyThreadState *others = is_long ? PyEval_SaveThread() : NULL;
    for (int i = 0; i < self->count; i++) {
        int columns = self->layers[i].weight.columns;
        pass->grads[i] = (Matrix){next, pass->rows, columns, columns, 1};
        next += rows * (size_t)columns;
    }
    pass->panels = next;
    pass->active = weights ? NULL : (int *)(next + floats);
    run_all(backward_own_rows, pass, pass->threads);
    if (weights)
        run_all(backward_own_weights, pass, pass->threads);
    end_pass(memory, is_long, others);
    return 0;
}

/* The gradient of the last inputs [rows, some of them], to write to; 1 if there is none. */
static int
take_to_input(const Network *self, PyObject *object, Py_ssize_t rows, Py_buffer *view)
{
    if (object == Py_None)
        return 1;
    if (get_floats(object, view, 2, 1, "to_input") < 0)
        return -1;
    if (view->shape[0] == rows && view->shape[1] <= self->layers[0].weight.rows &&
        has_whole_rows(view))
        return 0;
    PyErr_SetString(PyExc_ValueError, "to_input should be [rows, some of the inputs]");
    PyBuffer_Release(view);
    return -1;
}

static PyObject *
network_backward(Network *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 2 || nargs > 5) {
        PyErr_SetString(PyExc_TypeError,
                        "backward(tape, grad, threads=1, weights=1, to_input=None)");
        return NULL;
    }
    long threads = number_at(args, nargs, 2), weights = number_at(args, nargs, 3);
    if (PyErr_Occurred())
        return NULL;
    if (weights && !self->learns) {
        PyErr_SetString(PyExc_ValueError, "this network was made without gradients");
        return NULL;
    }
    Tape tape;
    Py_buffer grad, to_input;
    PyObject *result = NULL;
    if (take_tape(self, args[0], 0, &tape) < 0)
        return NULL;
    if (get_floats(args[1], &grad, 2, 0, "grad") < 0)
        goto no_grad;
    const Py_buffer *output = &tape.views[self->count];
    if (grad.shape[0] != output->shape[0] || grad.shape[1] != output->shape[1]) {
        PyErr_SetString(PyExc_ValueError, "grad should be [rows, outputs]");
        goto no_input;
    }
    int none = take_to_input(self, nargs > 4 ? args[4] : Py_None, grad.shape[0], &to_input);
    if (none < 0)
        goto no_input;
    int rows = (int)tape.views[0].shape[0], own = threads_of(self, &tape.views[0], threads);
    Pass pass = make_pass(self, &tape, own, rows);
    pass.grad = as_matrix(&grad);
    if (!none)
        pass.to_input = as_matrix(&to_input);
    if (backward(self, &pass, weights != 0) == 0)
        result = Py_NewRef(Py_None);
    if (!none)
        PyBuffer_Release(&to_input);
no_input:
    PyBuffer_Release(&grad);
no_grad:
    release_tape(&tape);
    return result;
}

static PyObject *
network_row(Network *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "row(x, out)");
        return NULL;
    }
    Py_buffer x, out;
    PyObject *result = NULL;
    if (get_floats(args[0], &x, 1, 0, "x") < 0)
        return NULL;
    if (get_floats(args[1], &out, 1, 1, "out") < 0)
        goto no_out;
    const Layer *last = &self->layers[self->count - 1];
    if (x.shape[0] != self->layers[0].weight.rows || out.shape[0] != last->weight.columns ||
        !has_whole_rows(&x) || !has_whole_rows(&out)) {
        PyErr_SetString(PyExc_ValueError, "x should be [inputs] and out [outputs]");
        goto done;
    }
    size_t width = (size_t)self->widest;
    float *space = scratch(self, 2 * width + panel_floats(self, 0));
    if (space == NULL)
        goto done;
    const float *from = x.buf;
    for (int i = 0; i < self->count; i++) {
        const Layer *layer = &self->layers[i];
        float *into = i + 1 < self->count ? space + (size_t)(i % 2) * width : out.buf;
        if (layer->weight.row == 1) {
            Matrix turned = transposed(&layer->weight);
            kernels->row(&turned, from, layer->bias, 1, into, 1, is_rectified(self, i));
        } else {
            Matrix one = {(float *)from, 1, layer->weight.rows, layer->weight.rows, 1};
            kernels->product(&one, &layer->weight, into, layer->weight.columns, layer->bias,
                             is_rectified(self, i), space + 2 * width);
        }
        from = into;
    }
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&out);
no_out:
    PyBuffer_Release(&x);
    return result;
}

static PyMethodDef network_methods[] = {
    {"forward", (PyCFunction)(void (*)(void))network_forward, METH_FASTCALL,
     "forward(tape, threads=1): write the outputs [rows, out] of all layers; the tape begins with "
     "the input."},
    {"backward", (PyCFunction)(void (*)(void))network_backward, METH_FASTCALL,
     "backward(tape, grad, threads=1, weights=1, to_input=None): write the gradients of weights and "
     "biases, and of the last of the inputs, given that of the output [rows, out]."},
    {"row", (PyCFunction)(void (*)(void))network_row, METH_FASTCALL,
     "row(x, out): the outputs [out] of one input [in]."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject network_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "redline.engines.cpu._dense.Network",
    .tp_doc = "Network(weights, biases, weight_grads, bias_grads, rectifies_output): tuples of "
              "float32 arrays [in, out] and [out]; those of gradients may be empty.",
    .tp_basicsize = sizeof(Network),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = network_new,
    .tp_dealloc = (destructor)network_dealloc,
    .tp_methods = network_methods,
};

static PyMethodDef methods[] = {
    USE_METHOD,
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_dense", "Dense networks with ReLU on the CPU.", -1, methods, NULL, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC
PyInit__dense(void)
{
    find_threads();
    PyObject *made = PyModule_Create(&module), *names = instructions();
    if (made == NULL || names == NULL || PyType_Ready(&network_type) < 0 ||
        PyModule_AddIntConstant(made, "MOST_LAYERS", MAX_LAYERS) < 0 ||
        PyModule_AddObjectRef(made, "instructions", names) < 0 ||
        PyModule_AddObjectRef(made, "Network", (PyObject *)&network_type) < 0)
        Py_CLEAR(made);
    Py_XDECREF(names);
    return made;
}
