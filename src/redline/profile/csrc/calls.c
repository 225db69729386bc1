/* Begins and ends of native functions per stretch of time: the inner loop of report/bins.py. */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

enum { CODES = 1 << 16 };

/* Of each function and stretch: begins less ends, the sum of their times, both without what lies
 * within a call of the same function, and all begins; and of each function how far ends ever were
 * ahead of begins, and how many are open in the end. */
typedef struct {
    int64_t *counts, *sums, *calls; /* [functions, stretches + 2] */
    int64_t *least, *open;          /* [functions] */
} Tables;

static void tally_rows(const int64_t *times, const uint16_t *codes, Py_ssize_t rows,
                       const int16_t *places, const int64_t *edges, Py_ssize_t num_edges,
                       Tables tables) {
    Py_ssize_t at = 0; /* the first edge that is not before the row */
    for (Py_ssize_t i = 0; i < rows; i++) {
        const int16_t place = places[codes[i]];
        if (place < 0) {
            continue;
        }
        while (at < num_edges && edges[at] < times[i]) {
            at++;
        }
        while (at > 0 && edges[at - 1] >= times[i]) {
            at--; /* of a damaged file */
        }
        const int64_t sign = codes[i] & 1 ? -1 : 1;
        const Py_ssize_t cell = place * (num_edges + 1) + at;
        const int64_t before = tables.open[place];
        tables.open[place] += sign;
        if (before == 0 || tables.open[place] == 0) {
            tables.counts[cell] += sign;
            /* Unsigned, as the sum may wrap on its way. */
            tables.sums[cell] = (int64_t)((uint64_t)tables.sums[cell] +
                                          (sign > 0 ? (uint64_t)times[i] : -(uint64_t)times[i]));
        }
        if (sign < 0) {
            if (tables.open[place] < tables.least[place]) {
                tables.least[place] = tables.open[place];
            }
        } else {
            /* A stretch holds what begins with it: at its edge that is the next one. */
            const int is_edge = at < num_edges - 1 && edges[at] == times[i];
            tables.calls[cell + is_edge]++;
        }
    }
}

/* tally(times, codes, places, edges, functions): five tables as bytes of int64, see above. */
static PyObject *tally(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer times, codes, places, edges;
    Py_ssize_t functions;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*n:tally", &times, &codes, &places, &edges, &functions)) {
        return NULL;
    }
    const Py_ssize_t rows = times.len / 8, num_edges = edges.len / 8;
    const int16_t *place = places.buf;
    int fits = codes.len / 2 == rows && places.len == 2 * CODES && num_edges > 0 && functions >= 0;
    for (Py_ssize_t i = 0; fits && i < CODES; i++) {
        fits = place[i] < functions;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "columns differ in length, or a place has no function");
    } else {
        const size_t cells = (size_t)functions * (size_t)(num_edges + 1);
        int64_t *all = calloc(3 * cells + 2 * (size_t)functions + 1, 8);
        if (all == NULL) {
            PyErr_NoMemory();
        } else {
            const Tables t = {all, all + cells, all + 2 * cells, all + 3 * cells,
                              all + 3 * cells + functions};
            Py_BEGIN_ALLOW_THREADS;
            tally_rows(times.buf, codes.buf, rows, place, edges.buf, num_edges, t);
            Py_END_ALLOW_THREADS;
            const Py_ssize_t table = (Py_ssize_t)(8 * cells), column = 8 * functions;
            result = Py_BuildValue("(y#y#y#y#y#)", (char *)t.counts, table, (char *)t.sums, table,
                                   (char *)t.calls, table, (char *)t.least, column,
                                   (char *)t.open, column);
            free(all);
        }
    }
    PyBuffer_Release(&times);
    PyBuffer_Release(&codes);
    PyBuffer_Release(&places);
    PyBuffer_Release(&edges);
    return result;
}

PyMethodDef rl_call_methods[] = {
    {"tally", tally, METH_VARARGS,
     "tally(times, codes, places, edges, functions) -> (counts, sums, calls, least, open)."},
    {NULL, NULL, 0, NULL},
};
