/* Counters of the processor and the kernel, by operation: Linux's perf_event_open.
 *
 * Each thread that is recorded has a group of counters, which is read whenever its operation
 * changes: what was counted since the reading before belongs to the operation until then. So the
 * counts are exact but for the marks' own work, and cost two system calls per change. All of this
 * runs with the GIL held. Only the threads that set marks are counted.
 */
#include "recorder.h"

#ifdef __linux__
#include <errno.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef struct {
    uint32_t type;
    uint64_t config;
    int user_only;
} Spec;

typedef struct {
    uint64_t enabled;
    uint64_t running;
    uint64_t values[RL_MAX_COUNTERS];
} Reading;

struct RlCounters {
    int fds[RL_MAX_COUNTERS]; /* the first one leads the group */
    int open;
    uint64_t id;              /* of the leader: its number may become another file's */
    Reading last;
};

int rl_num_counters = 0;
static Spec specs[RL_MAX_COUNTERS];
static double *totals = NULL; /* [RL_MAX_ID + 1, RL_MAX_COUNTERS] of the process */
static int is_fake = 0;
static Reading fake;

#ifdef __linux__
static int open_counter(Spec spec, int leader) {
    struct perf_event_attr about;
    memset(&about, 0, sizeof about);
    about.size = sizeof about;
    about.type = spec.type;
    about.config = spec.config;
    about.exclude_kernel = (uint64_t)(spec.user_only != 0);
    about.exclude_hv = 1;
    about.disabled = leader < 0; /* until the group is whole */
    about.read_format =
        PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    return (int)syscall(SYS_perf_event_open, &about, 0, -1, leader, PERF_FLAG_FD_CLOEXEC);
}

static int take_reading(const RlCounters *c, Reading *into) {
    uint64_t words[3 + RL_MAX_COUNTERS], id = 0;
    /* A program that becomes a daemon closes all files and opens its own under their numbers. */
    if (ioctl(c->fds[0], PERF_EVENT_IOC_ID, &id) != 0 || id != c->id) {
        return 0;
    }
    const ssize_t bytes = read(c->fds[0], words, sizeof words);
    if (bytes < (ssize_t)(8 * (3 + c->open)) || words[0] != (uint64_t)c->open) {
        return 0;
    }
    into->enabled = words[1];
    into->running = words[2];
    memcpy(into->values, words + 3, 8 * (size_t)c->open);
    return 1;
}

static void close_counters(RlCounters *c) {
    uint64_t id = 0;
    const int ours = c->open > 0 && ioctl(c->fds[0], PERF_EVENT_IOC_ID, &id) == 0 && id == c->id;
    for (int i = c->open; ours && i-- > 0;) {
        close(c->fds[i]);
    }
    c->open = 0;
}

static int open_counters(RlCounters *c) {
    for (int i = 0; i < rl_num_counters; i++) {
        c->fds[i] = open_counter(specs[i], i ? c->fds[0] : -1);
        if (c->fds[i] < 0 ||
            (i == 0 && ioctl(c->fds[0], PERF_EVENT_IOC_ID, &c->id) != 0)) {
            close_counters(c);
            return 0;
        }
        c->open = i + 1;
    }
    return c->open > 0 && ioctl(c->fds[0], PERF_EVENT_IOC_ENABLE, PERF_IOC_FLAG_GROUP) == 0;
}
#else
static int take_reading(const RlCounters *c, Reading *into) {
    (void)c;
    (void)into;
    return 0;
}
static void close_counters(RlCounters *c) { c->open = 0; }
static int open_counters(RlCounters *c) {
    (void)c;
    return 0;
}
#endif

static int reading(const RlCounters *c, Reading *into) {
    if (is_fake) {
        *into = fake;
        return 1;
    }
    return take_reading(c, into);
}

/* Of a thread that begins to be recorded; called by it. */
void rl_counters_begin(RlThread *t) {
    rl_count_if_counting(t); /* the end of the thread that the struct was of */
    rl_counters_end(t);
    if (rl_num_counters == 0) {
        return;
    }
    RlCounters *c = calloc(1, sizeof *c);
    if (totals == NULL) {
        totals = calloc((RL_MAX_ID + 1) * RL_MAX_COUNTERS, sizeof *totals);
    }
    if (c != NULL && totals != NULL && (is_fake || open_counters(c)) && reading(c, &c->last)) {
        t->counters = c;
        return;
    }
    if (c != NULL) {
        close_counters(c);
    }
    free(c);
}

/* What was counted since the last reading is that of its present operation; none: of nothing. */
void rl_count(RlThread *t, int counts) {
    Reading now;
    RlCounters *c = t->counters;
    if (!reading(c, &now)) {
        return;
    }
    /* Where there are more counters than the processor has, each runs a part of the time. */
    const uint64_t enabled = now.enabled - c->last.enabled, running = now.running - c->last.running;
    const double scale = running > 0 && running < enabled ? (double)enabled / (double)running : 1.0;
    for (int i = 0; counts && totals != NULL && i < rl_num_counters; i++) {
        totals[(size_t)t->op * RL_MAX_COUNTERS + (size_t)i] +=
            scale * (double)(now.values[i] - c->last.values[i]);
    }
    c->last = now;
}

void rl_counters_end(RlThread *t) {
    if (t->counters != NULL) {
        close_counters(t->counters);
        free(t->counters);
        t->counters = NULL;
    }
}

/* Before a session: nothing was counted yet. */
void rl_counters_reset(void) {
    free(totals);
    totals = NULL;
}

/* set_counters([(type, config, user_only), ...]): of threads that are recorded from now on. */
static PyObject *set_counters(PyObject *module, PyObject *wanted) {
    (void)module;
    Spec found[RL_MAX_COUNTERS];
    if (!PyList_Check(wanted) || PyList_GET_SIZE(wanted) > RL_MAX_COUNTERS) {
        return PyErr_Format(PyExc_ValueError, "a list of at most %d counters, not %R",
                            RL_MAX_COUNTERS, wanted);
    }
    const int number = (int)PyList_GET_SIZE(wanted);
    for (int i = 0; i < number; i++) {
        unsigned long long config;
        unsigned int type;
        PyObject *each = PyList_GET_ITEM(wanted, i);
        if (!PyTuple_Check(each) ||
            !PyArg_ParseTuple(each, "IKp:set_counters", &type, &config, &found[i].user_only)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "each counter is (type, config, user_only)");
            }
            return NULL;
        }
        found[i].type = type;
        found[i].config = config;
    }
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        rl_counters_end(t); /* they would be read as what they are not */
    }
    memcpy(specs, found, sizeof specs);
    rl_num_counters = number;
    rl_counters_reset();
    Py_RETURN_NONE;
}

/* try_counter(type, config, user_only) -> 0, or the errno of the system's refusal. */
static PyObject *try_counter(PyObject *module, PyObject *args) {
    (void)module;
    Spec spec;
    unsigned long long config;
    unsigned int type;
    if (!PyArg_ParseTuple(args, "IKp:try_counter", &type, &config, &spec.user_only)) {
        return NULL;
    }
#ifdef __linux__
    spec.type = type;
    spec.config = config;
    const int file = open_counter(spec, -1);
    if (file >= 0) {
        close(file);
        return PyLong_FromLong(0);
    }
    return PyLong_FromLong(errno);
#else
    return PyLong_FromLong(38); /* ENOSYS */
#endif
}

/* counts() -> {operation's id: (count, ...)} of the process so far, 0 for none. */
static PyObject *counts(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *found = PyDict_New();
    for (RlThread *t = rl_first_thread(); rl_active && t != NULL; t = t->next) {
        rl_count_if_counting(t);
    }
    for (long id = 0; found != NULL && totals != NULL && id <= RL_MAX_ID; id++) {
        const double *row = totals + id * RL_MAX_COUNTERS;
        int any = 0;
        for (int i = 0; i < rl_num_counters; i++) {
            any |= row[i] != 0.0;
        }
        if (!any) {
            continue;
        }
        PyObject *key = PyLong_FromLong(id), *values = PyTuple_New(rl_num_counters);
        for (int i = 0; values != NULL && i < rl_num_counters; i++) {
            PyObject *value = PyFloat_FromDouble(row[i]);
            if (value == NULL) {
                Py_CLEAR(values);
            } else {
                PyTuple_SET_ITEM(values, i, value);
            }
        }
        if (key == NULL || values == NULL || PyDict_SetItem(found, key, values) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(key);
        Py_XDECREF(values);
    }
    return found;
}

/* set_counts(enabled, running, values): inject readings (tests); set_counts() for real ones. */
static PyObject *set_counts(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long enabled = 0, running = 0;
    PyObject *values = NULL;
    if (!PyArg_ParseTuple(args, "|KKO!:set_counts", &enabled, &running, &PyTuple_Type, &values)) {
        return NULL;
    }
    memset(&fake, 0, sizeof fake);
    for (Py_ssize_t i = 0; values != NULL && i < PyTuple_GET_SIZE(values); i++) {
        const unsigned long long value = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(values, i));
        if (PyErr_Occurred()) {
            return NULL;
        }
        if (i < RL_MAX_COUNTERS) {
            fake.values[i] = value;
        }
    }
    fake.enabled = enabled;
    fake.running = running;
    is_fake = values != NULL;
    Py_RETURN_NONE;
}

PyMethodDef rl_counter_methods[] = {
    {"set_counters", set_counters, METH_O, "set_counters([(type, config, user_only), ...])."},
    {"try_counter", try_counter, METH_VARARGS, "try_counter(type, config, user_only) -> errno."},
    {"counts", counts, METH_NOARGS, "counts() -> {id: (count, ...)} of all operations so far."},
    {"set_counts", set_counts, METH_VARARGS, "set_counts(enabled, running, values): inject."},
    {NULL, NULL, 0, NULL},
};
