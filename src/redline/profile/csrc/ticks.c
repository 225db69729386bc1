/* What a thread did between looks of the scheduler, laid on the longest stretches of its states:
 * the inner loop of analyse/scheduling.py. */
#include "sweep.h"

enum { MOST = 8, MOST_OFF = 128 }; /* stretches of one tick, and where it is known to have been off */

typedef struct {
    int64_t length, begin, end;
    int crosses; /* an edge of the tick */
} Stretch;

typedef struct {
    Py_buffer buffer;
    Py_ssize_t count;
} Column;

/* The first place whose time is later than `at`, or not earlier. */
static Py_ssize_t place_of(const int64_t *times, Py_ssize_t count, int64_t at, int later) {
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        const Py_ssize_t middle = low + (high - low) / 2;
        if (later ? times[middle] <= at : times[middle] < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Keep the longest; of equal ones those that come first. */
static void keep(Stretch *kept, int *number, Stretch made) {
    int at = *number;
    if (at == MOST) {
        if (kept[MOST - 1].length >= made.length) {
            return;
        }
        at--;
    } else {
        ++*number;
    }
    while (at > 0 && kept[at - 1].length < made.length) {
        kept[at] = kept[at - 1];
        at--;
    }
    kept[at] = made;
}

static int is_before(const Stretch *a, const Stretch *b) {
    if (a->length != b->length) {
        return a->length > b->length;
    }
    return a->begin != b->begin ? a->begin > b->begin : a->end > b->end;
}

/* Let the ends of the longest stretches be of another level, `ns` in all if they hold it. */
static Py_ssize_t take(Stretch *kept, int number, int64_t ns, int64_t shortest, int64_t level,
                       int64_t *out) {
    Py_ssize_t made = 0;
    for (int i = 1; i < number; i++) {
        for (int j = i; j > 0 && is_before(&kept[j], &kept[j - 1]); j--) {
            const Stretch swap = kept[j];
            kept[j] = kept[j - 1];
            kept[j - 1] = swap;
        }
    }
    for (int i = 0; i < number && ns >= shortest && kept[i].length >= shortest; i++) {
        const int64_t taken = ns < kept[i].length ? ns : kept[i].length;
        out[3 * made] = kept[i].end - taken;
        out[3 * made + 1] = kept[i].end;
        out[3 * made++ + 2] = level;
        kept[i].length -= taken;
        kept[i].end -= taken;
        ns -= taken;
    }
    return made;
}

static int open_columns(PyObject *const *args, Column *columns, const Py_ssize_t *sizes, int count) {
    for (int k = 0; k < count; k++) {
        if (PyObject_GetBuffer(args[k], &columns[k].buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
            return k;
        }
        if (columns[k].buffer.itemsize != sizes[k]) {
            PyErr_Format(PyExc_TypeError, "column %d: items of %zd bytes, not of %zd", k,
                         columns[k].buffer.itemsize, sizes[k]);
            PyBuffer_Release(&columns[k].buffer);
            return k;
        }
        columns[k].count = columns[k].buffer.len / sizes[k];
    }
    return count;
}

static int works(const Column *c, Py_ssize_t i) {
    const uint32_t number = ((const uint32_t *)c[1].buffer.buf)[i];
    return number < (uint64_t)c[2].count && !((const uint8_t *)c[2].buffer.buf)[number];
}

/* Where the thread says that it was off its core, in a tick: pieces of states that are no wait, none
 * of which begins before another one's end. One that lasts into the tick may lie wholly in it: the
 * system's looks say how much of it does. */
static int off_in(const Column *c, int64_t begin, int64_t end, Stretch *off) {
    const int64_t *times = c[0].buffer.buf, *begins = c[7].buffer.buf, *lengths = c[8].buffer.buf;
    int number = 0;
    int64_t free_from = begin;
    Py_ssize_t k = place_of(begins, c[7].count, begin, 0);
    k -= k > 0 && lengths[k - 1] > begin - begins[k - 1];
    for (; k < c[7].count && begins[k] < end && number < MOST_OFF; k++) {
        const int64_t from = begins[k] < begin ? begin : begins[k];
        const Py_ssize_t i = place_of(times, c[0].count, from, 1) - 1;
        if (i < 0 || lengths[k] <= 0 || from < free_from || !works(c, i)) {
            continue;
        }
        const int is_inside = i + 1 < c[0].count && times[i + 1] < end;
        int64_t until = is_inside ? times[i + 1] : end;
        until = lengths[k] < until - from ? from + lengths[k] : until;
        if (until > from) {
            off[number++] = (Stretch){until - from, from, until, from > begins[k] || !is_inside};
            free_from = until;
        }
    }
    return number;
}

/* The stretches of a tick: states between two times that are no wait, at least so long, without
 * what is known to have been off. */
static int stretches_of(const Column *c, int64_t begin, int64_t end, int64_t shortest,
                        const Stretch *off, int offs, Stretch *kept) {
    const int64_t *times = c[0].buffer.buf;
    Py_ssize_t first = place_of(times, c[0].count, begin, 1) - 1;
    first = first < 0 ? 0 : first;
    const Py_ssize_t after = place_of(times, c[0].count, end, 0);
    int number = 0, k = 0;
    for (Py_ssize_t i = first; i < after; i++) {
        int64_t from = times[i];
        if (i == first && from < begin) {
            from = begin;
        }
        const int64_t until = i + 1 < after ? times[i + 1] : end;
        for (; k < offs && off[k].begin < until; k++) {
            if (works(c, i) && off[k].begin - from >= shortest) {
                keep(kept, &number, (Stretch){off[k].begin - from, from, off[k].begin, 0});
            }
            from = off[k].end;
        }
        if (works(c, i) && until - from >= shortest) {
            keep(kept, &number, (Stretch){until - from, from, until, 0});
        }
    }
    return number;
}

/* In which order they are given: what is surely in the tick first, then the longest. */
static int is_surer(const void *a, const void *b) {
    const Stretch *one = a, *other = b;
    if (one->crosses != other->crosses) {
        return one->crosses - other->crosses;
    }
    if (one->length != other->length) {
        return one->length > other->length ? -1 : 1;
    }
    return one->begin < other->begin ? -1 : one->begin > other->begin;
}

/* Let known pieces be of another level, one after the other; how much of `ns` is left. */
static int64_t give(Stretch *off, int number, int64_t ns, int64_t level, int64_t *out,
                    Py_ssize_t *made) {
    for (int i = 0; i < number && ns > 0; i++) {
        const int64_t taken = ns < off[i].length ? ns : off[i].length;
        if (taken > 0) {
            out[3 * *made] = off[i].begin;
            out[3 * *made + 1] = off[i].begin + taken;
            out[3 * (*made)++ + 2] = level;
            off[i].begin += taken;
            off[i].length -= taken;
            ns -= taken;
        }
    }
    return ns;
}

/* lay(times, numbers, waits, begins, ends, ready, unseen, off_begins, off_ns, (shortest_ready,
 * ready_level, shortest_sleep, waiting_level)): bytes of int64 [N, 3], begin, end and level of each
 * piece. */
static PyObject *lay(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    static const Py_ssize_t sizes[9] = {8, 4, 1, 8, 8, 8, 8, 8, 8};
    Column c[9];
    long long shortest_ready, ready, shortest_sleep, waiting;
    PyObject *result = NULL;
    if (nargs != 10 || !PyTuple_Check(args[9])) {
        return PyErr_Format(PyExc_TypeError, "lay takes 9 columns and a tuple, not %zd arguments",
                            nargs);
    }
    if (!PyArg_ParseTuple(args[9], "LLLL", &shortest_ready, &ready, &shortest_sleep, &waiting)) {
        return NULL;
    }
    int opened = open_columns(args, c, sizes, 9);
    if (opened == 9) {
        const Py_ssize_t ticks = c[3].count;
        int fits = c[0].count == c[1].count && c[7].count == c[8].count;
        for (int k = 4; k < 7; k++) {
            fits &= c[k].count == ticks;
        }
        if (!fits) {
            PyErr_SetString(PyExc_ValueError, "columns differ in length");
        } else if ((result = PyBytes_FromStringAndSize(
                        NULL, (ticks * (2 * MOST + 1) + c[7].count) * 24)) != NULL) {
            int64_t *out = (int64_t *)PyBytes_AS_STRING(result);
            const int64_t *begins = c[3].buffer.buf, *ends = c[4].buffer.buf;
            const int64_t *ready_ns = c[5].buffer.buf, *unseen_ns = c[6].buffer.buf;
            Py_ssize_t made = 0;
            for (Py_ssize_t i = 0; i < ticks; i++) {
                Stretch kept[MOST], off[MOST_OFF];
                const int offs = off_in(c, begins[i], ends[i], off);
                const int number =
                    stretches_of(c, begins[i], ends[i], shortest_ready, off, offs, kept);
                qsort(off, (size_t)offs, sizeof off[0], is_surer);
                if (ready_ns[i] >= shortest_ready) {
                    const int64_t left = give(off, offs, ready_ns[i], ready, out, &made);
                    made += take(kept, number, left, shortest_ready, ready, out + 3 * made);
                }
                if (unseen_ns[i] >= shortest_sleep) {
                    const int64_t left = give(off, offs, unseen_ns[i], waiting, out, &made);
                    made += take(kept, number, left, shortest_sleep, waiting, out + 3 * made);
                }
            }
            _PyBytes_Resize(&result, made * 24);
        }
    }
    while (opened > 0) {
        PyBuffer_Release(&c[--opened].buffer);
    }
    return result;
}

PyMethodDef rl_tick_methods[] = {
    {"lay", (PyCFunction)(void (*)(void))lay, METH_FASTCALL,
     "lay(times, numbers, waits, begins, ends, ready, unseen, off_begins, off_ns, "
     "(shortest_ready, ready_level, shortest_sleep, waiting_level)) -> bytes of int64 [N, 3]: begin, end, level."},
    {NULL, NULL, 0, NULL},
};
