/* The times of rows, piece by piece, and up to where they can be. */
#include "sweep.h"

#include "recorder.h"

/* Where a shard is in time: ns since the process's base, and whether an absolute time said so. */
typedef struct {
    int64_t now;
    int anchored;
} Clock;

static int is_payload(uint16_t code) {
    return code >= RL_CODE_ANCHOR && code <= RL_CODE_PROCESS_CPU;
}

/* An absolute time comes in two rows, and is no earlier than the last one and what passed since. */
static int anchor(Clock *clock, const uint32_t *deltas, const uint16_t *codes, Py_ssize_t i) {
    if (i == 0 || codes[i - 1] != RL_CODE_HIGH || deltas[i - 1] >= RL_LARGEST_HIGH) {
        return 0;
    }
    const int64_t absolute = (int64_t)((uint64_t)deltas[i - 1] << 32 | deltas[i]);
    if (clock->anchored && absolute < clock->now) {
        return 0;
    }
    clock->now = absolute;
    clock->anchored = 1;
    return 1;
}

/* How many of the rows are sound; `first` becomes the time of the first that has one. */
static Py_ssize_t pass(Clock *clock, const uint32_t *deltas, const uint16_t *codes, Py_ssize_t rows,
                       int64_t *first) {
    int timed = 0;
    *first = clock->now;
    for (Py_ssize_t i = 0; i < rows; i++) {
        if (codes[i] == RL_CODE_ANCHOR) {
            if (!anchor(clock, deltas, codes, i)) {
                return i;
            }
        } else if (!is_payload(codes[i])) {
            clock->now = (int64_t)((uint64_t)clock->now + deltas[i]);
            if (!timed) {
                timed = 1;
                *first = clock->now;
            }
        }
    }
    return rows;
}

/* pass_rows(deltas, codes, now_ns, anchored) -> (sound, first_ns, now_ns, anchored) */
static PyObject *pass_rows(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer deltas, codes;
    PyObject *result = NULL;
    long long now;
    Clock clock;
    int64_t first;
    if (!PyArg_ParseTuple(args, "y*y*Lp:pass_rows", &deltas, &codes, &now, &clock.anchored)) {
        return NULL;
    }
    const Py_ssize_t rows = codes.len / 2;
    if (deltas.len / 4 != rows) {
        PyErr_SetString(PyExc_ValueError, "deltas and codes differ in length");
    } else {
        Py_ssize_t sound;
        clock.now = now;
        Py_BEGIN_ALLOW_THREADS;
        sound = pass(&clock, deltas.buf, codes.buf, rows, &first);
        Py_END_ALLOW_THREADS;
        result = Py_BuildValue("(nLLN)", sound, (long long)first, (long long)clock.now,
                               PyBool_FromLong(clock.anchored));
    }
    PyBuffer_Release(&deltas);
    PyBuffer_Release(&codes);
    return result;
}

/* row_times(deltas, codes, since_ns): the time of each row; payloads have that of the row before. */
static PyObject *row_times(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer deltas, codes;
    PyObject *result = NULL;
    long long since;
    if (!PyArg_ParseTuple(args, "y*y*L:row_times", &deltas, &codes, &since)) {
        return NULL;
    }
    const Py_ssize_t rows = codes.len / 2;
    if (deltas.len / 4 != rows) {
        PyErr_SetString(PyExc_ValueError, "deltas and codes differ in length");
    } else if ((result = PyBytes_FromStringAndSize(NULL, rows * 8)) != NULL) {
        const uint32_t *d = deltas.buf;
        const uint16_t *c = codes.buf;
        int64_t *times = (int64_t *)PyBytes_AS_STRING(result);
        uint64_t now = (uint64_t)since; /* may wrap: a damaged file holds any numbers */
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t i = 0; i < rows; i++) {
            if (c[i] == RL_CODE_ANCHOR && i > 0) {
                now = ((uint64_t)d[i - 1] << 32) + d[i];
            } else if (!is_payload(c[i])) {
                now += d[i];
            }
            times[i] = (int64_t)now;
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&deltas);
    PyBuffer_Release(&codes);
    return result;
}

PyMethodDef rl_row_methods[] = {
    {"pass_rows", pass_rows, METH_VARARGS,
     "pass_rows(deltas, codes, now_ns, anchored) -> (sound, first_ns, now_ns, anchored)."},
    {"row_times", row_times, METH_VARARGS,
     "row_times(deltas, codes, since_ns) -> bytes of the int64 time of each row."},
    {NULL, NULL, 0, NULL},
};
