/* The overlap sweep: exact sums over change points, in integer nanoseconds.
 *
 * Buffers in, plain Python objects or bytes out; numpy is not needed to build it.
 */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

enum { LABEL_BITS = 6, DENSE_LABELS = 16, MAX_STREAMS = 16 };

typedef struct {
    Py_buffer buffer;
    Py_ssize_t count;
} Array;

/* A contiguous buffer of items of this size; reports what is wrong otherwise. */
static int open_array(PyObject *object, Py_ssize_t item_size, Array *array) {
    if (PyObject_GetBuffer(object, &array->buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        return -1;
    }
    if (array->buffer.itemsize != item_size) {
        PyErr_Format(PyExc_TypeError, "expected items of %zd bytes, not of %zd", item_size,
                     array->buffer.itemsize);
        PyBuffer_Release(&array->buffer);
        return -1;
    }
    array->count = array->buffer.len / item_size;
    return 0;
}

/* ------------------------------------------------------------------ union and merge */

static int is_sorted(const int64_t *values, Py_ssize_t count) {
    for (Py_ssize_t i = 1; i < count; i++) {
        if (values[i] < values[i - 1]) {
            return 0;
        }
    }
    return 1;
}

/* Times at which the union of the intervals begins and ends, packed with the label. */
static Py_ssize_t union_toggles(const int64_t *starts, const int64_t *ends, Py_ssize_t count,
                                int64_t origin, uint64_t label, uint64_t *out) {
    Py_ssize_t i = 0, j = 0, n = 0, depth = 0;
    while (j < count) {
        if (i < count && starts[i] <= ends[j]) {
            if (depth++ == 0) {
                out[n++] = ((uint64_t)(starts[i] - origin) << LABEL_BITS) | label;
            }
            i++;
        } else {
            if (--depth == 0) {
                out[n++] = ((uint64_t)(ends[j] - origin) << LABEL_BITS) | label;
            }
            j++;
        }
    }
    return n;
}

static void merge(const uint64_t *a, Py_ssize_t na, const uint64_t *b, Py_ssize_t nb,
                  uint64_t *out) {
    Py_ssize_t i = 0, j = 0;
    while (i < na && j < nb) {
        const uint64_t x = a[i], y = b[j];
        const int first = x <= y;
        *out++ = first ? x : y;
        i += first;
        j += !first;
    }
    memcpy(out, a + i, (size_t)(na - i) * 8);
    memcpy(out + (na - i), b + j, (size_t)(nb - j) * 8);
}

/* Merge the runs in `data` pairwise until one is left; returns where it lies. */
static uint64_t *merge_runs(uint64_t *data, uint64_t *spare, Py_ssize_t *bounds, int runs) {
    while (runs > 1) {
        int made = 0;
        for (int r = 0; r < runs; r += 2, made++) {
            const Py_ssize_t lo = bounds[r], mid = bounds[r + 1];
            if (r + 1 < runs) {
                const Py_ssize_t hi = bounds[r + 2];
                merge(data + lo, mid - lo, data + mid, hi - mid, spare + lo);
            } else {
                memcpy(spare + lo, data + lo, (size_t)(mid - lo) * 8);
            }
        }
        for (int r = 1; r <= made; r++) {
            bounds[r] = bounds[2 * r <= runs ? 2 * r : runs];
        }
        runs = made;
        uint64_t *swap = data;
        data = spare;
        spare = swap;
    }
    return data;
}

/* ------------------------------------------------------------------ totals per mask */

typedef struct {
    uint64_t *masks;
    int64_t *totals;
    size_t size, used;
} Totals;

static int64_t *total_of(Totals *t, uint64_t mask) {
    size_t i = (size_t)((mask * 0x9e3779b97f4a7c15u) >> 20) & (t->size - 1);
    while (t->totals[i] != 0 && t->masks[i] != mask) {
        i = (i + 1) & (t->size - 1);
    }
    t->masks[i] = mask;
    return &t->totals[i];
}

static int grow(Totals *t) {
    const Totals old = *t;
    t->size = old.size ? 2 * old.size : 1024;
    t->masks = calloc(t->size, 8);
    t->totals = calloc(t->size, 8);
    if (t->masks == NULL || t->totals == NULL) {
        free(t->masks);
        free(t->totals);
        *t = old;
        return -1;
    }
    for (size_t i = 0; i < old.size; i++) {
        if (old.totals[i] != 0) {
            *total_of(t, old.masks[i]) = old.totals[i];
        }
    }
    free(old.masks);
    free(old.totals);
    return 0;
}

static int scan_sparse(const uint64_t *events, Py_ssize_t count, Totals *totals) {
    uint64_t mask = 0;
    for (Py_ssize_t i = 0; i + 1 < count; i++) {
        mask ^= (uint64_t)1 << (events[i] & 63);
        const int64_t span =
            (int64_t)((events[i + 1] >> LABEL_BITS) - (events[i] >> LABEL_BITS));
        if (mask != 0 && span != 0) {
            if (2 * (totals->used + 1) > totals->size && grow(totals) < 0) {
                return -1;
            }
            int64_t *total = total_of(totals, mask);
            totals->used += *total == 0;
            *total += span;
        }
    }
    return 0;
}

static void scan_dense(const uint64_t *events, Py_ssize_t count, int64_t *totals) {
    uint64_t mask = 0;
    for (Py_ssize_t i = 0; i + 1 < count; i++) {
        mask ^= (uint64_t)1 << (events[i] & 63);
        totals[mask] += (int64_t)((events[i + 1] >> LABEL_BITS) - (events[i] >> LABEL_BITS));
    }
}

static int put_total(PyObject *result, uint64_t mask, int64_t total) {
    PyObject *key = PyLong_FromUnsignedLongLong(mask), *value = PyLong_FromLongLong(total);
    const int failed = key == NULL || value == NULL || PyDict_SetItem(result, key, value) < 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

static PyObject *totals_of(const uint64_t *events, Py_ssize_t count, int labels) {
    PyObject *result = PyDict_New();
    Totals totals = {NULL, NULL, 0, 0};
    int64_t *dense = NULL;
    int failed = result == NULL;
    if (!failed && labels <= DENSE_LABELS) {
        dense = calloc((size_t)1 << labels, 8);
        failed = dense == NULL;
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS;
            scan_dense(events, count, dense);
            Py_END_ALLOW_THREADS;
        }
        for (uint64_t mask = 1; !failed && mask < (uint64_t)1 << labels; mask++) {
            failed = dense[mask] != 0 && put_total(result, mask, dense[mask]) < 0;
        }
    } else if (!failed) {
        Py_BEGIN_ALLOW_THREADS;
        failed = scan_sparse(events, count, &totals) < 0;
        Py_END_ALLOW_THREADS;
        for (size_t i = 0; !failed && i < totals.size; i++) {
            failed = totals.totals[i] != 0 &&
                     put_total(result, totals.masks[i], totals.totals[i]) < 0;
        }
    }
    free(dense);
    free(totals.masks);
    free(totals.totals);
    if (failed) {
        Py_XDECREF(result);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return result;
}

/* ------------------------------------------------------------------ overlap */

static PyObject *sweep_arrays(Array *starts, Array *ends, int labels) {
    Py_ssize_t total = 0;
    int64_t origin = INT64_MAX, last = INT64_MIN;
    for (int k = 0; k < labels; k++) {
        const int64_t *s = starts[k].buffer.buf, *e = ends[k].buffer.buf;
        const Py_ssize_t n = starts[k].count;
        if (ends[k].count != n || !is_sorted(s, n) || !is_sorted(e, n)) {
            PyErr_SetString(PyExc_ValueError, "starts and ends must be sorted and of one length");
            return NULL;
        }
        total += n;
        if (n > 0) {
            origin = s[0] < origin ? s[0] : origin;
            last = e[n - 1] > last ? e[n - 1] : last;
        }
    }
    if (total == 0) {
        return PyDict_New();
    }
    if ((uint64_t)last - (uint64_t)origin >= (uint64_t)1 << (64 - LABEL_BITS)) {
        PyErr_SetString(PyExc_OverflowError, "the intervals span more than 2**58 ns");
        return NULL;
    }
    uint64_t *data = malloc((size_t)total * 16), *spare = malloc((size_t)total * 16);
    PyObject *result = NULL;
    if (data == NULL || spare == NULL) {
        PyErr_NoMemory();
    } else {
        Py_ssize_t bounds[65];
        uint64_t *merged;
        bounds[0] = 0;
        Py_BEGIN_ALLOW_THREADS;
        for (int k = 0; k < labels; k++) {
            bounds[k + 1] =
                bounds[k] + union_toggles(starts[k].buffer.buf, ends[k].buffer.buf,
                                          starts[k].count, origin, (uint64_t)k, data + bounds[k]);
        }
        total = bounds[labels];
        merged = merge_runs(data, spare, bounds, labels);
        Py_END_ALLOW_THREADS;
        result = totals_of(merged, total, labels);
    }
    free(data);
    free(spare);
    return result;
}

static PyObject *overlap_masks(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *start_list, *end_list, *result = NULL;
    Array starts[64], ends[64];
    int opened_starts = 0, opened_ends = 0;
    if (!PyArg_ParseTuple(args, "O!O!:overlap_masks", &PyList_Type, &start_list, &PyList_Type,
                          &end_list)) {
        return NULL;
    }
    const Py_ssize_t labels = PyList_GET_SIZE(start_list);
    if (labels > 64 || PyList_GET_SIZE(end_list) != labels) {
        return PyErr_Format(PyExc_ValueError, "at most 64 labels, not %zd", labels);
    }
    while (opened_starts < labels &&
           open_array(PyList_GET_ITEM(start_list, opened_starts), 8, &starts[opened_starts]) == 0) {
        opened_starts++;
    }
    while (opened_starts == labels && opened_ends < labels &&
           open_array(PyList_GET_ITEM(end_list, opened_ends), 8, &ends[opened_ends]) == 0) {
        opened_ends++;
    }
    if (opened_ends == labels) {
        result = sweep_arrays(starts, ends, (int)labels);
    }
    while (opened_starts > 0) {
        PyBuffer_Release(&starts[--opened_starts].buffer);
    }
    while (opened_ends > 0) {
        PyBuffer_Release(&ends[--opened_ends].buffer);
    }
    return result;
}

/* ------------------------------------------------------------------ streams of states */

typedef struct {
    Array times, states;
} Stream;

static int open_stream(PyObject *pair, Stream *stream) {
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "a stream is a tuple (times int64, states uint32)");
        return -1;
    }
    if (open_array(PyTuple_GET_ITEM(pair, 0), 8, &stream->times) < 0) {
        return -1;
    }
    if (open_array(PyTuple_GET_ITEM(pair, 1), 4, &stream->states) < 0) {
        PyBuffer_Release(&stream->times.buffer);
        return -1;
    }
    if (stream->times.count != stream->states.count) {
        PyErr_SetString(PyExc_ValueError, "times and states differ in length");
        PyBuffer_Release(&stream->times.buffer);
        PyBuffer_Release(&stream->states.buffer);
        return -1;
    }
    return 0;
}

static void close_stream(Stream *stream) {
    PyBuffer_Release(&stream->times.buffer);
    PyBuffer_Release(&stream->states.buffer);
}

static void accumulate_streams(const Stream *streams, int count, const int64_t *strides,
                               int64_t begin, int64_t end, int64_t *table) {
    const int64_t *times[MAX_STREAMS];
    const uint32_t *states[MAX_STREAMS];
    Py_ssize_t at[MAX_STREAMS], length[MAX_STREAMS];
    int64_t next[MAX_STREAMS], key = 0, now = begin;
    for (int k = 0; k < count; k++) {
        times[k] = streams[k].times.buffer.buf;
        states[k] = streams[k].states.buffer.buf;
        length[k] = streams[k].times.count;
        at[k] = 0;
        uint32_t state = 0;
        while (at[k] < length[k] && times[k][at[k]] <= begin) {
            state = states[k][at[k]++];
        }
        key += state * strides[k];
        next[k] = at[k] < length[k] ? times[k][at[k]] : INT64_MAX;
    }
    for (;;) {
        int k = 0;
        for (int j = 1; j < count; j++) {
            k = next[j] < next[k] ? j : k;
        }
        const int64_t until = next[k] < end ? next[k] : end;
        table[key] += until - now;
        now = until;
        if (next[k] >= end) {
            return;
        }
        const uint32_t before = at[k] > 0 ? states[k][at[k] - 1] : 0;
        key += ((int64_t)states[k][at[k]] - (int64_t)before) * strides[k];
        at[k]++;
        next[k] = at[k] < length[k] ? times[k][at[k]] : INT64_MAX;
    }
}

static int states_fit(const Stream *stream, long long size) {
    const uint32_t *states = stream->states.buffer.buf;
    for (Py_ssize_t i = 0; i < stream->states.count; i++) {
        if (states[i] >= size) {
            return 0;
        }
    }
    return is_sorted(stream->times.buffer.buf, stream->times.count);
}

/* accumulate(streams, sizes, begin, end): a table of sizes[0] x sizes[1] x ... int64 */
static PyObject *accumulate(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *stream_list, *size_list, *result = NULL;
    long long begin, end, sizes[MAX_STREAMS], cells = 1;
    Stream streams[MAX_STREAMS];
    int64_t strides[MAX_STREAMS];
    int opened = 0;
    if (!PyArg_ParseTuple(args, "O!O!LL:accumulate", &PyList_Type, &stream_list, &PyList_Type,
                          &size_list, &begin, &end)) {
        return NULL;
    }
    const int count = (int)PyList_GET_SIZE(stream_list);
    if (count < 1 || count > MAX_STREAMS || PyList_GET_SIZE(size_list) != count || end < begin) {
        return PyErr_Format(PyExc_ValueError, "need 1 to %d streams, a size for each, begin <= end",
                            MAX_STREAMS);
    }
    for (int k = count; k-- > 0;) {
        sizes[k] = PyLong_AsLongLong(PyList_GET_ITEM(size_list, k));
        strides[k] = cells;
        if (sizes[k] < 1 || (cells *= sizes[k]) > (1LL << 28)) {
            return PyErr_Occurred() ? NULL
                                    : PyErr_Format(PyExc_ValueError, "a table of over 2**28 cells");
        }
    }
    while (opened < count && open_stream(PyList_GET_ITEM(stream_list, opened), &streams[opened]) == 0) {
        opened++;
    }
    int good = opened == count;
    for (int k = 0; good && k < count; k++) {
        if (!states_fit(&streams[k], sizes[k])) {
            PyErr_Format(PyExc_ValueError, "stream %d is unsorted or has a state beyond its size",
                         k);
            good = 0;
        }
    }
    if (good) {
        result = PyBytes_FromStringAndSize(NULL, cells * 8);
        if (result != NULL) {
            int64_t *table = (int64_t *)PyBytes_AS_STRING(result);
            memset(table, 0, (size_t)cells * 8);
            Py_BEGIN_ALLOW_THREADS;
            accumulate_streams(streams, count, strides, begin, end, table);
            Py_END_ALLOW_THREADS;
        }
    }
    while (opened > 0) {
        close_stream(&streams[--opened]);
    }
    return result;
}

/* The state of `a` where it is not idle, else that of `b` where that is not, else `a`'s. */
static Py_ssize_t lead_streams(const Stream *a, const Stream *b, const unsigned char *idle,
                               int64_t *times, uint32_t *states) {
    const int64_t *ta = a->times.buffer.buf, *tb = b->times.buffer.buf;
    const uint32_t *sa = a->states.buffer.buf, *sb = b->states.buffer.buf;
    const Py_ssize_t na = a->times.count, nb = b->times.count;
    Py_ssize_t i = 0, j = 0, n = 0;
    uint32_t state_a = 0, state_b = 0, shown = 0;
    while (i < na || j < nb) {
        const int64_t now = j >= nb || (i < na && ta[i] <= tb[j]) ? ta[i] : tb[j];
        while (i < na && ta[i] == now) {
            state_a = sa[i++];
        }
        while (j < nb && tb[j] == now) {
            state_b = sb[j++];
        }
        /* The less idle of the two; of equals the first, unless it is not there. */
        const uint32_t of_equals = state_a ? state_a : state_b;
        const uint32_t lead = idle[state_a] == idle[state_b]  ? of_equals
                              : idle[state_a] < idle[state_b] ? state_a
                                                              : state_b;
        if (lead != shown) {
            times[n] = now;
            states[n++] = lead;
            shown = lead;
        }
    }
    return n;
}

/* lead(a, b, idle): one stream (times bytes, states bytes) out of two. */
static PyObject *lead(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *first, *second, *times = NULL, *states = NULL, *result = NULL;
    Py_buffer idle;
    Stream a, b;
    if (!PyArg_ParseTuple(args, "OOy*:lead", &first, &second, &idle)) {
        return NULL;
    }
    if (open_stream(first, &a) == 0) {
        if (open_stream(second, &b) == 0) {
            const Py_ssize_t most = a.times.count + b.times.count;
            if (!states_fit(&a, idle.len) || !states_fit(&b, idle.len) || idle.len < 1) {
                PyErr_SetString(PyExc_ValueError, "unsorted, or a state without an idle flag");
            } else if ((times = PyBytes_FromStringAndSize(NULL, most * 8)) != NULL &&
                       (states = PyBytes_FromStringAndSize(NULL, most * 4)) != NULL) {
                const Py_ssize_t n = lead_streams(&a, &b, idle.buf,
                                                  (int64_t *)PyBytes_AS_STRING(times),
                                                  (uint32_t *)PyBytes_AS_STRING(states));
                if (_PyBytes_Resize(&times, n * 8) == 0 && _PyBytes_Resize(&states, n * 4) == 0) {
                    result = PyTuple_Pack(2, times, states);
                }
            }
            close_stream(&b);
        }
        close_stream(&a);
    }
    PyBuffer_Release(&idle);
    Py_XDECREF(times);
    Py_XDECREF(states);
    return result;
}

static PyMethodDef methods[] = {
    {"overlap_masks", overlap_masks, METH_VARARGS,
     "overlap_masks(starts, ends) -> {mask: ns}; lists of sorted int64 buffers per label."},
    {"accumulate", accumulate, METH_VARARGS,
     "accumulate(streams, sizes, begin, end) -> bytes of the int64 table of durations."},
    {"lead", lead, METH_VARARGS, "lead(a, b, idle) -> (times, states) of the less idle one of two."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "redline.profile._sweep",
    .m_doc = "The analysis inner loops: decode shards, merge streams, sum durations.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__sweep(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddFunctions(module, rl_decode_methods) < 0 ||
        PyModule_AddFunctions(module, rl_batch_methods) < 0 ||
        PyModule_AddFunctions(module, rl_row_methods) < 0 ||
        PyModule_AddFunctions(module, rl_tick_methods) < 0 ||
        PyModule_AddFunctions(module, rl_call_methods) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
