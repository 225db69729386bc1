/* The priority tree's search and update for batches on the CPU.
 *
 * Works on the arrays of `replay/tree.py` and gives, bit for bit, what the tensor code there
 * gives: running sums are taken from left to right and a parent is recomputed from its
 * children. The file must not be compiled with contraction of a * b + c into one operation.
 *
 * Levels are numbered from the leaves up; the children of node i are 16 i .. 16 i + 15.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>

#define FAN 16
#define MAX_LEVELS 16

typedef struct {
    Py_buffer view;
    double *value;
    Py_ssize_t length;
} Level;

/* A contiguous buffer of elements of this size; `view` must be released if 0 is returned. */
static int
get_array(PyObject *object, Py_buffer *view, Py_ssize_t item_size, int flags, const char *what)
{
    if (PyObject_GetBuffer(object, view, flags | PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    if (view->itemsize != item_size) {
        PyErr_Format(PyExc_TypeError, "%s has elements of %zd bytes, not %zd", what,
                     view->itemsize, item_size);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static void
release_levels(Level *levels, int count)
{
    for (int level = 0; level < count; level++)
        PyBuffer_Release(&levels[level].view);
}

/* The number of levels taken from a tuple of writable float64 arrays, or -1. */
static int
get_levels(PyObject *tuple, Level *levels, const char *what)
{
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : 0;
    if (count < 1 || count > MAX_LEVELS) {
        PyErr_Format(PyExc_ValueError, "%s should be a tuple of 1 to %d arrays", what, MAX_LEVELS);
        return -1;
    }
    for (int level = 0; level < count; level++) {
        Level *into = &levels[level];
        if (get_array(PyTuple_GET_ITEM(tuple, level), &into->view, sizeof(double),
                      PyBUF_WRITABLE, what) < 0) {
            release_levels(levels, level);
            return -1;
        }
        into->value = into->view.buf;
        into->length = into->view.len / (Py_ssize_t)sizeof(double);
    }
    for (int level = 0; level + 1 < count; level++) {
        if (levels[level].length > levels[level + 1].length * FAN) {
            PyErr_Format(PyExc_ValueError, "%s: level %d has more nodes than its parents take",
                         what, level);
            release_levels(levels, (int)count);
            return -1;
        }
    }
    return (int)count;
}

/* What is looked for, moved to between zero and the greatest number below the total. */
static inline double
clamped(double target, double total)
{
    double most = nextafter(total, 0.0);
    target = target < 0.0 ? 0.0 : target;
    return target > most ? most : target;
}

/* The first of `count` running sums that exceeds the target; they never fall. */
static inline Py_ssize_t
first_above(const double *running, Py_ssize_t count, double target)
{
    Py_ssize_t low = 0;
    while (count > 0) {
        Py_ssize_t half = count / 2;
        int above = running[low + half] > target;
        low = above ? low : low + half + 1;
        count = above ? half : count - half - 1;
    }
    return low;
}

/* From a node and what is left of its target, the child where its running sum exceeds that. */
static inline Py_ssize_t
descend(const double *children, double *rest)
{
    double running[FAN], sum = 0.0;
    for (int child = 0; child < FAN; child++)
        running[child] = sum += children[child];
    double target = clamped(*rest, sum);
    int child = 0;
    for (int i = 0; i < FAN; i++)
        child += running[i] <= target;
    *rest -= running[child] - children[child];
    return child;
}

static void
find_all(const Level *levels, int count, double *running, const double *fraction, int64_t *found,
         Py_ssize_t n)
{
    const Level *top = &levels[count - 1];
    double sum = 0.0;
    for (Py_ssize_t node = 0; node < top->length; node++)
        running[node] = sum += top->value[node];
    for (Py_ssize_t i = 0; i < n; i++) {
        double rest = fraction[i] * sum;
        Py_ssize_t node = first_above(running, top->length, clamped(rest, sum));
        rest -= running[node] - top->value[node];
        for (int level = count - 2; level >= 0; level--)
            node = node * FAN + descend(&levels[level].value[node * FAN], &rest);
        found[i] = node;
    }
}

static PyObject *
tree_find(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "find(sums, fraction, found)");
        return NULL;
    }
    Level levels[MAX_LEVELS];
    int count = get_levels(args[0], levels, "sums");
    if (count < 0)
        return NULL;
    PyObject *result = NULL;
    Py_buffer fraction, found;
    double *running = NULL;
    if (get_array(args[1], &fraction, sizeof(double), PyBUF_SIMPLE, "fraction") < 0)
        goto no_fraction;
    if (get_array(args[2], &found, sizeof(int64_t), PyBUF_WRITABLE, "found") < 0)
        goto no_found;
    if (found.len != fraction.len) {
        PyErr_SetString(PyExc_ValueError, "fraction and found differ in length");
        goto done;
    }
    const Level *top = &levels[count - 1];
    running = PyMem_Malloc((size_t)top->length * sizeof(double));
    if (running == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    double total = 0.0;
    for (Py_ssize_t node = 0; node < top->length; node++)
        total += top->value[node];
    if (!(total > 0.0)) {
        PyErr_SetString(PyExc_ValueError, "the tree is empty: there is nothing to find");
        goto done;
    }
    find_all(levels, count, running, fraction.buf, found.buf,
             fraction.len / (Py_ssize_t)sizeof(double));
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(running);
    PyBuffer_Release(&found);
no_found:
    PyBuffer_Release(&fraction);
no_fraction:
    release_levels(levels, count);
    return result;
}

/* Recompute the parent of a node; `minima` is a level below `sums`, having none of its own for
 * the leaves, of which an empty one is 0 and plays no part in the minimum. */
static inline void
recompute(const Level *sums, const Level *minima, int level, Py_ssize_t parent)
{
    const double *children = &sums[level].value[parent * FAN];
    double sum = 0.0, least = INFINITY;
    if (level == 0) {
        for (int child = 0; child < FAN; child++) {
            double value = children[child];
            sum += value;
            least = value > 0.0 && value < least ? value : least;
        }
    } else {
        const double *lower = &minima[level - 1].value[parent * FAN];
        for (int child = 0; child < FAN; child++) {
            sum += children[child];
            least = lower[child] < least ? lower[child] : least;
        }
    }
    sums[level + 1].value[parent] = sum;
    minima[level].value[parent] = least;
}

static void
set_all(const Level *sums, const Level *minima, int count, const int64_t *index,
        const double *value, Py_ssize_t n)
{
    double *leaves = sums[0].value;
    for (Py_ssize_t i = 0; i < n; i++)
        leaves[index[i]] = value[i];
    /* Where a leaf occurs twice the larger value counts, whatever the order. */
    for (Py_ssize_t i = 0; i < n; i++)
        if (value[i] > leaves[index[i]])
            leaves[index[i]] = value[i];
    Py_ssize_t width = FAN;
    for (int level = 0; level + 1 < count; level++, width *= FAN) {
        Py_ssize_t last = -1;
        for (Py_ssize_t i = 0; i < n; i++) {
            Py_ssize_t parent = index[i] / width;
            if (parent != last)
                recompute(sums, minima, level, parent);
            last = parent;
        }
    }
}

static PyObject *
tree_set(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "set(sums, minima, index, value)");
        return NULL;
    }
    Level sums[MAX_LEVELS], minima[MAX_LEVELS];
    int count = get_levels(args[0], sums, "sums");
    if (count < 0)
        return NULL;
    PyObject *result = NULL;
    int above = get_levels(args[1], minima, "minima");
    if (above < 0)
        goto no_minima;
    Py_buffer index, value;
    if (get_array(args[2], &index, sizeof(int64_t), PyBUF_SIMPLE, "index") < 0)
        goto no_index;
    if (get_array(args[3], &value, sizeof(double), PyBUF_SIMPLE, "value") < 0)
        goto no_value;
    if (index.len != value.len || above != count - 1) {
        PyErr_SetString(PyExc_ValueError, "index and value, or sums and minima, do not match");
        goto done;
    }
    for (int level = 0; level < above; level++) {
        if (minima[level].length != sums[level + 1].length) {
            PyErr_SetString(PyExc_ValueError, "sums and minima differ in length");
            goto done;
        }
    }
    const int64_t *leaf = index.buf;
    Py_ssize_t n = index.len / (Py_ssize_t)sizeof(int64_t);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (leaf[i] < 0 || leaf[i] >= sums[0].length) {
            PyErr_Format(PyExc_IndexError, "leaf %lld of a tree of %zd", (long long)leaf[i],
                         sums[0].length);
            goto done;
        }
    }
    set_all(sums, minima, count, leaf, value.buf, n);
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&value);
no_value:
    PyBuffer_Release(&index);
no_index:
    release_levels(minima, above);
no_minima:
    release_levels(sums, count);
    return result;
}

static PyMethodDef methods[] = {
    {"find", (PyCFunction)(void (*)(void))tree_find, METH_FASTCALL,
     "find(sums, fraction, found): leaves whose running sums first exceed fractions of the total."},
    {"set", (PyCFunction)(void (*)(void))tree_set, METH_FASTCALL,
     "set(sums, minima, index, value): write leaves and what lies above them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_tree", "Search and update of a priority tree on the CPU.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__tree(void)
{
    return PyModule_Create(&module);
}
