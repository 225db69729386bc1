/* Event files as the recorder frames them: the batches of a piece of a file, joined. */
#include "sweep.h"

#include <string.h>

#include "arrow_stream.h"

/* arrow_schema(): how every shard begins. */
static PyObject *arrow_schema(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)RL_ARROW_SCHEMA, sizeof RL_ARROW_SCHEMA);
}

/* arrow_header(rows): what precedes a batch of so many rows. */
static PyObject *arrow_header(PyObject *module, PyObject *number) {
    (void)module;
    unsigned char header[sizeof RL_ARROW_BATCH];
    const size_t rows = PyLong_AsSize_t(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    rl_arrow_batch_header(header, rows);
    return PyBytes_FromStringAndSize((const char *)header, sizeof header);
}

/* The length of the batch that begins here, and its rows; 0 if it is not whole, or framed
 * otherwise to the byte, or has more rows than the recorder writes. */
static size_t batch_length(const unsigned char *data, size_t length, size_t most, size_t *rows) {
    unsigned char header[sizeof RL_ARROW_BATCH];
    if (length < sizeof header) {
        return 0;
    }
    *rows = 0;
    for (int i = 7; i >= 0; i--) {
        *rows = *rows << 8 | data[RL_ARROW_ROWS_PLACE + i];
    }
    if (*rows > most) {
        return 0;
    }
    const size_t whole = sizeof header + rl_arrow_batch_header(header, *rows);
    return whole <= length && memcmp(header, data, sizeof header) == 0 ? whole : 0;
}

/* unframe(data, most): (deltas, codes) of the batches at its beginning, joined, and their end. */
static PyObject *unframe(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "y*n:unframe", &data, &most)) {
        return NULL;
    }
    const unsigned char *bytes = data.buf;
    const size_t length = (size_t)data.len;
    size_t total = 0, end = 0, rows, whole;
    while ((whole = batch_length(bytes + end, length - end, (size_t)most, &rows)) != 0) {
        total += rows;
        end += whole;
    }
    PyObject *deltas = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(4 * total));
    PyObject *codes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(2 * total));
    PyObject *result = NULL;
    if (deltas != NULL && codes != NULL) {
        char *into[2] = {PyBytes_AS_STRING(deltas), PyBytes_AS_STRING(codes)};
        for (size_t at = 0; at < end;) {
            whole = batch_length(bytes + at, length - at, (size_t)most, &rows);
            const unsigned char *first = bytes + at + sizeof RL_ARROW_BATCH;
            memcpy(into[0], first, 4 * rows);
            memcpy(into[1], first + rl_pad8(4 * rows), 2 * rows);
            into[0] += 4 * rows;
            into[1] += 2 * rows;
            at += whole;
        }
        result = Py_BuildValue("(OOn)", deltas, codes, (Py_ssize_t)end);
    }
    Py_XDECREF(deltas);
    Py_XDECREF(codes);
    PyBuffer_Release(&data);
    return result;
}

PyMethodDef rl_batch_methods[] = {
    {"arrow_schema", arrow_schema, METH_NOARGS, "arrow_schema() -> bytes: how a shard begins."},
    {"arrow_header", arrow_header, METH_O, "arrow_header(rows) -> bytes that precede a batch."},
    {"unframe", unframe, METH_VARARGS,
     "unframe(data, most) -> (deltas, codes, end) of the whole batches at its beginning, joined."},
    {NULL, NULL, 0, NULL},
};
