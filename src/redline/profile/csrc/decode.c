/* Turn the rows of a shard into change points: at which time which state began.
 *
 * A shard may come in pieces: what is open at the end of one is handed to the next, so that the
 * pieces say together what the whole says.
 */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

#include "recorder.h"

enum { KIND_OPERATION = 0, KIND_INFERRED = 1, KIND_PHASE = 2, KIND_CALL = 3, KIND_NONE = 255 };
enum { NUM_IDS = RL_MAX_ID + 1, STACK = 4096 };

/* What an instant is: (operation, operation without inferred ones, level). */
typedef struct {
    uint16_t op, marked;
    uint8_t level;
} State;

typedef struct {
    uint16_t id;
    int64_t since;
    State outside;
} Open;

typedef struct {
    const unsigned char *kinds, *levels;
    /* results */
    int64_t *times;
    uint32_t *states;
    Py_ssize_t points;
    int64_t *special_times, *special_values;
    uint16_t *special_codes;
    Py_ssize_t specials;
    int64_t *inclusive_ns, *counts;
    uint16_t *open; /* how many entries of each id are */
    uint64_t *keys; /* of each state number */
    uint32_t num_keys;
    /* running */
    uint64_t *index_keys;
    uint32_t *index_numbers;
    Open stack[STACK];
    Py_ssize_t depth, lost;
    State state;
    int64_t now;
    uint64_t high;
    uint16_t used; /* the largest id that has a count or a time */
    int started, there; /* whether an event came, and whether the thread is there */
    uint64_t last_key;
    uint32_t last_number;
} Decoder;

/* What is handed from one piece of a shard to the next; the open entries follow it. */
typedef struct {
    int64_t now, depth, lost;
    uint64_t high;
    State state;
    int32_t started, there;
} Carry;

/* Twice as many as all ids at all levels; what is not used is never touched. */
enum { INDEX_SIZE = 1 << 19 };

static inline uint64_t key_of(State s) {
    return ((uint64_t)s.op << 24) | ((uint64_t)s.marked << 8) | s.level;
}

/* The number of a state from 1 up; 0 means that the thread is not there. */
static uint32_t number_of(Decoder *d, uint64_t key) {
    if (key == d->last_key) {
        return d->last_number;
    }
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 40) & (INDEX_SIZE - 1);
    while (d->index_numbers[i] != 0 && d->index_keys[i] != key) {
        i = (i + 1) & (INDEX_SIZE - 1);
    }
    if (d->index_numbers[i] == 0) {
        if (d->num_keys >= INDEX_SIZE / 2) {
            return 1;
        }
        d->index_keys[i] = key;
        d->keys[d->num_keys] = key;
        d->index_numbers[i] = ++d->num_keys;
    }
    d->last_key = key;
    d->last_number = d->index_numbers[i];
    return d->last_number;
}

static void point(Decoder *d, int64_t now, uint32_t number) {
    if (d->points > 0 && d->times[d->points - 1] == now) {
        d->points--; /* a state of no duration */
    }
    if (d->points == 0 || d->states[d->points - 1] != number) {
        d->times[d->points] = now;
        d->states[d->points++] = number;
    }
    d->there = number != 0;
}

static void special(Decoder *d, int64_t now, uint16_t code, int64_t value) {
    d->special_times[d->specials] = now;
    d->special_codes[d->specials] = code;
    d->special_values[d->specials++] = value;
}

static void enter(Decoder *d, uint16_t id) {
    const unsigned char kind = d->kinds[id];
    if (kind == KIND_OPERATION) {
        d->state.op = d->state.marked = id;
    } else if (kind == KIND_INFERRED) {
        d->state.op = id;
    } else if (kind == KIND_CALL) {
        d->state.level = d->levels[id];
    }
}

static void begin(Decoder *d, int64_t now, uint16_t id) {
    if (d->depth == STACK) {
        d->lost++;
        return;
    }
    Open *o = &d->stack[d->depth++];
    o->id = id;
    o->since = now;
    o->outside = d->state;
    d->counts[id]++;
    d->open[id]++;
    d->used = id > d->used ? id : d->used;
    enter(d, id);
    point(d, now, number_of(d, key_of(d->state)));
}

/* An entry is over; one within another of the same id has no time of its own.
 *
 * Unsigned, where a sum may wrap: times of a damaged file are any numbers. */
static void add_inclusive(Decoder *d, uint16_t id, int64_t since, int64_t now) {
    if (--d->open[id] > 0) {
        return;
    }
    d->inclusive_ns[id] =
        (int64_t)((uint64_t)d->inclusive_ns[id] + ((uint64_t)now - (uint64_t)since));
    d->used = id > d->used ? id : d->used;
}

static void end(Decoder *d, int64_t now, uint16_t id) {
    Py_ssize_t i = d->depth;
    if (d->lost > 0) {
        d->lost--;
        return;
    }
    while (i > 0 && d->stack[i - 1].id != id) {
        i--;
    }
    if (i == 0) {
        return;
    }
    const Open *o = &d->stack[i - 1];
    add_inclusive(d, id, o->since, now);
    if (i == d->depth) {
        d->state = o->outside;
        d->depth--;
    } else {
        d->state = o->outside;
        for (Py_ssize_t j = i; j < d->depth; j++) {
            d->stack[j - 1] = d->stack[j];
            d->stack[j - 1].outside = d->state;
            enter(d, d->stack[j].id);
        }
        d->depth--;
    }
    point(d, now, number_of(d, key_of(d->state)));
}

static void close_all(Decoder *d, int64_t now) {
    while (d->depth > 0) {
        const Open *o = &d->stack[--d->depth];
        add_inclusive(d, o->id, o->since, now);
    }
    d->state = (State){0, 0, RL_PYTHON};
}

static void timed(Decoder *d, int64_t now, uint16_t code) {
    if (code >= 2 * RL_FIRST_ID) {
        const uint16_t id = code >> 1;
        if (d->kinds[id] == KIND_PHASE) {
            special(d, now, code, 0);
        } else if (code & 1) {
            end(d, now, id);
        } else {
            begin(d, now, id);
        }
        return;
    }
    special(d, now, code, 0);
    if (code == RL_CODE_THREAD_END) {
        close_all(d, now);
        point(d, now, 0);
    } else if (code == RL_CODE_WINDOW_OFF) {
        close_all(d, now);
        point(d, now, number_of(d, key_of(d->state)));
    }
}

/* Follow the rows up to the first event at `until` or later; how many that were. */
static Py_ssize_t run(Decoder *d, const uint32_t *deltas, const uint16_t *codes, Py_ssize_t rows,
                      int64_t until) {
    for (Py_ssize_t i = 0; i < rows; i++) {
        const uint16_t code = codes[i];
        if (code == RL_CODE_HIGH) {
            d->high = deltas[i];
            continue;
        }
        if (code == RL_CODE_ANCHOR) {
            d->now = (int64_t)((d->high << 32) | deltas[i]);
            d->high = 0;
            continue;
        }
        if (code >= RL_CODE_CPU && code <= RL_CODE_PROCESS_CPU) {
            special(d, d->now, code, (int64_t)((d->high << 32) | deltas[i]));
            d->high = 0;
            continue;
        }
        const int64_t then = (int64_t)((uint64_t)d->now + deltas[i]); /* may wrap, too */
        if (then >= until) {
            return i;
        }
        d->now = then;
        if (!d->started) {
            d->started = 1;
            point(d, then, number_of(d, key_of(d->state)));
        }
        timed(d, then, code);
    }
    return rows;
}

/* Go on where the piece before ended, at `from`; 0 if that is no carry of ours. */
static int resume(Decoder *d, const Py_buffer *carry, int64_t from) {
    Carry c;
    if (carry->len == 0) {
        return 1;
    }
    if (carry->len < (Py_ssize_t)sizeof c) {
        return 0;
    }
    memcpy(&c, carry->buf, sizeof c);
    if (c.depth < 0 || c.depth > STACK ||
        carry->len != (Py_ssize_t)(sizeof c + (size_t)c.depth * sizeof(Open))) {
        return 0;
    }
    memcpy(d->stack, (const char *)carry->buf + sizeof c, (size_t)c.depth * sizeof(Open));
    for (int64_t i = 0; i < c.depth; i++) {
        if (d->stack[i].id >= NUM_IDS) {
            return 0;
        }
        d->open[d->stack[i].id]++;
    }
    d->now = c.now;
    d->depth = c.depth;
    d->lost = c.lost;
    d->high = c.high;
    d->state = c.state;
    d->started = c.started;
    if (c.there) {
        point(d, from, number_of(d, key_of(d->state)));
    }
    return 1;
}

static PyObject *carry_of(const Decoder *d) {
    const Carry c = {d->now, d->depth, d->lost, d->high, d->state, d->started, d->there};
    const size_t open = (size_t)d->depth * sizeof(Open);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof c + open));
    if (bytes != NULL) {
        memcpy(PyBytes_AS_STRING(bytes), &c, sizeof c);
        memcpy(PyBytes_AS_STRING(bytes) + sizeof c, d->stack, open);
    }
    return bytes;
}

static int allocate(Decoder *d, Py_ssize_t rows) {
    const size_t n = (size_t)rows + 3;
    d->times = malloc(n * 8);
    d->states = malloc(n * 4);
    d->special_times = malloc(n * 8);
    d->special_values = malloc(n * 8);
    d->special_codes = malloc(n * 2);
    d->inclusive_ns = calloc(NUM_IDS, 8);
    d->counts = calloc(NUM_IDS, 8);
    d->open = calloc(NUM_IDS, sizeof *d->open);
    d->keys = calloc(INDEX_SIZE, 8);
    d->index_keys = calloc(INDEX_SIZE, 8);
    d->index_numbers = calloc(INDEX_SIZE, 4);
    d->last_key = UINT64_MAX;
    return d->times && d->states && d->special_times && d->special_values && d->special_codes &&
           d->inclusive_ns && d->counts && d->open && d->keys && d->index_keys && d->index_numbers;
}

static void release(Decoder *d) {
    free(d->times);
    free(d->states);
    free(d->special_times);
    free(d->special_values);
    free(d->special_codes);
    free(d->inclusive_ns);
    free(d->counts);
    free(d->open);
    free(d->keys);
    free(d->index_keys);
    free(d->index_numbers);
    free(d);
}

static PyObject *result_of(const Decoder *d, Py_ssize_t rows) {
    const Py_ssize_t ids = (Py_ssize_t)d->used + 1;
    PyObject *carry = carry_of(d);
    if (carry == NULL) {
        return NULL;
    }
    return Py_BuildValue(
        "{s:y#,s:y#,s:y#,s:y#,s:y#,s:y#,s:y#,s:y#,s:L,s:n,s:N}", "times", (char *)d->times,
        d->points * 8, "states", (char *)d->states, d->points * 4, "special_times",
        (char *)d->special_times, d->specials * 8, "special_codes", (char *)d->special_codes,
        d->specials * 2, "special_values", (char *)d->special_values, d->specials * 8, "keys",
        (char *)d->keys, (Py_ssize_t)d->num_keys * 8, "inclusive_ns", (char *)d->inclusive_ns,
        ids * 8, "counts", (char *)d->counts, ids * 8, "last_ns", (long long)d->now, "rows", rows,
        "carry", carry);
}

/* decode(deltas, codes, kinds, levels, carry, from_ns, until_ns) -> dict of bytes, see
 * analyse/decoded.py */
static PyObject *decode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer deltas, codes, kinds, levels, carry;
    long long from, until;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*LL:decode", &deltas, &codes, &kinds, &levels, &carry,
                          &from, &until)) {
        return NULL;
    }
    const Py_ssize_t rows = deltas.len / 4;
    Decoder *d = calloc(1, sizeof *d);
    if (codes.len / 2 != rows || kinds.len < NUM_IDS || levels.len < NUM_IDS) {
        PyErr_SetString(PyExc_ValueError, "columns differ in length, or the name tables are short");
    } else if (d == NULL || !allocate(d, rows)) {
        PyErr_NoMemory();
    } else if (!resume(d, &carry, from)) {
        PyErr_SetString(PyExc_ValueError, "no carry of an earlier piece");
    } else {
        Py_ssize_t done;
        d->kinds = kinds.buf;
        d->levels = levels.buf;
        Py_BEGIN_ALLOW_THREADS;
        done = run(d, deltas.buf, codes.buf, rows, until);
        Py_END_ALLOW_THREADS;
        result = result_of(d, done);
    }
    if (d != NULL) {
        release(d);
    }
    PyBuffer_Release(&deltas);
    PyBuffer_Release(&codes);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&levels);
    PyBuffer_Release(&carry);
    return result;
}

PyMethodDef rl_decode_methods[] = {
    {"decode", decode, METH_VARARGS, "decode(deltas, codes, kinds, levels, carry, from_ns, until_ns) -> dict of bytes."},
    {NULL, NULL, 0, NULL},
};
