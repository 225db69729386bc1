/* The extension module redline.profile._native: the recorder. */
#include "recorder.h"

/* In a forked child: leave the parent's session without writing to it. */
static void leave(void) {
    rl_active = 0;
    rl_forget_block_hook();
    rl_writer_abandon();
    rl_session_end();
}

/* A process forked while another thread was ending the session is not told to leave it, and has the
 * locks that this thread held. */
static void leave_if_inherited(void) {
    if (rl_writer_is_inherited()) {
        leave();
    }
}

static PyObject *start(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    static char *keywords[] = {"directory", "ring_words", "budget_bytes", "interval_ns", NULL};
    PyObject *directory = NULL; /* bytes: a name need not be UTF-8 */
    unsigned long long words = 1u << 18;
    long long budget = 64 << 20, interval = 20000000;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|KLL:start", keywords, PyUnicode_FSConverter,
                                     &directory, &words, &budget, &interval)) {
        return NULL;
    }
    if (words < 512 || (words & (words - 1)) != 0) {
        Py_DECREF(directory);
        return PyErr_Format(PyExc_ValueError, "ring_words=%llu must be a power of two from 512 up",
                            words);
    }
    leave_if_inherited();
    rl_session_begin(words, budget);
    const int failed = rl_writer_start(PyBytes_AS_STRING(directory), interval);
    Py_DECREF(directory);
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    (void)rl_thread(); /* the first one, also where a thread of ours opens the window later */
    return PyLong_FromLongLong(rl_base_ns());
}

static PyObject *statistics(void) {
    unsigned long long dropped = atomic_load(&rl_lost_events);
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        dropped += atomic_load(&t->dropped);
    }
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:i,s:L}", "events",
                         (unsigned long long)atomic_load(&rl_events_written), "bytes",
                         (unsigned long long)atomic_load(&rl_bytes_written), "dropped", dropped,
                         "too_deep", (unsigned long long)atomic_load(&rl_too_deep),
                         "write_errno", atomic_load(&rl_writer_error), "writer_cpu_ns",
                         (long long)rl_writer_cpu_ns());
}

static PyObject *stop(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    if (rl_active) {
        rl_close_all(rl_now());
    }
    rl_active = 0;
    rl_next_block_ns = INT64_MAX;
    Py_BEGIN_ALLOW_THREADS;
    rl_writer_stop();
    Py_END_ALLOW_THREADS;
    PyObject *result = statistics();
    rl_session_end();
    return result;
}

static PyObject *get_statistics(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return statistics();
}

static PyObject *flush(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    Py_BEGIN_ALLOW_THREADS;
    rl_writer_flush();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* Around a fork in the parent. */
static PyObject *pause_writer(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    rl_writer_pause();
    Py_RETURN_NONE;
}

static PyObject *resume_writer(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    const int failed = rl_writer_resume();
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

/* What a forked child calls first. */
static PyObject *abandon(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave();
    Py_RETURN_NONE;
}

static PyObject *set_active(PyObject *module, PyObject *arg) {
    (void)module;
    const long wanted = PyLong_AsLong(arg);
    if (wanted == -1 && PyErr_Occurred()) {
        return NULL;
    }
    const int64_t now = rl_now();
    if (rl_active && !wanted) {
        RlThread *t;
        for (t = rl_first_thread(); t != NULL; t = t->next) {
            rl_tally_time(t, now);
        }
        rl_close_all(now);
        t = rl_thread();
        if (t != NULL) {
            rl_instant(t, now, RL_CODE_WINDOW_OFF);
        }
    } else if (!rl_active && wanted) {
        rl_windows++;
        RlThread *t = rl_thread();
        if (t != NULL) {
            rl_instant(t, now, RL_CODE_WINDOW_ON);
        }
        rl_begin_phases(now);
        for (t = rl_first_thread(); t != NULL; t = t->next) {
            t->tallied_ns = now;
            if (t->counters != NULL) {
                rl_count(t, 0);
            }
        }
    }
    rl_active = (int)wanted;
    Py_RETURN_NONE;
}

static PyObject *get_active(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLong(rl_active);
}

/* probe(on, cpu_ns): the native boundary is (not) observed from here; closes open calls. */
static PyObject *probe(PyObject *module, PyObject *args) {
    (void)module;
    int on;
    unsigned long long cpu_ns;
    if (!PyArg_ParseTuple(args, "pK:probe", &on, &cpu_ns)) {
        return NULL;
    }
    RlThread *t = rl_active ? rl_thread() : NULL;
    if (t == NULL) {
        Py_RETURN_NONE;
    }
    const int64_t now = rl_now();
    rl_report_callbacks(t);
    if (!on) {
        rl_close_calls(now);
    } else if (!(rl_active & RL_ACTIVE_CALLS)) {
        rl_end_returned(now);
    }
    rl_active = on ? rl_active | RL_ACTIVE_CALLS : rl_active & ~RL_ACTIVE_CALLS;
    rl_payload(t, cpu_ns, RL_CODE_CPU);
    rl_instant(t, now, on ? RL_CODE_PROBE_ON : RL_CODE_PROBE_OFF);
    Py_RETURN_NONE;
}

static PyObject *set_block_hook(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *hook;
    long long next_ns;
    if (!PyArg_ParseTuple(args, "OL:set_block_hook", &hook, &next_ns)) {
        return NULL;
    }
    Py_XSETREF(rl_block_hook, hook == Py_None ? NULL : Py_NewRef(hook));
    rl_next_block_ns = hook == Py_None ? INT64_MAX : next_ns;
    rl_block_anchor = 0;
    rl_wake_block_hook_at(INT64_MAX);
    Py_RETURN_NONE;
}

/* When the main thread calls the block hook even if nothing ends; negative: never. */
static PyObject *wake_block_hook(PyObject *module, PyObject *arg) {
    (void)module;
    const long long at_ns = PyLong_AsLongLong(arg);
    if (at_ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    rl_wake_block_hook_at(at_ns < 0 ? INT64_MAX : at_ns);
    Py_RETURN_NONE;
}

/* Which mark's ends the block hook waits for, and how long beyond its time. */
static PyObject *set_block_anchor(PyObject *module, PyObject *args) {
    (void)module;
    int id;
    long long patience_ns;
    if (!PyArg_ParseTuple(args, "iL:set_block_anchor", &id, &patience_ns)) {
        return NULL;
    }
    rl_block_anchor = (uint16_t)id;
    rl_block_patience_ns = patience_ns;
    Py_RETURN_NONE;
}

static PyObject *now(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(rl_now());
}

static PyObject *set_clock(PyObject *module, PyObject *arg) {
    (void)module;
    const long long ns = arg == Py_None ? -1 : PyLong_AsLongLong(arg);
    if (ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    rl_set_clock(ns);
    Py_RETURN_NONE;
}

static PyObject *thread_index(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    RlThread *t = rl_active ? rl_thread() : NULL;
    if (t == NULL) {
        Py_RETURN_NONE;
    }
    return PyLong_FromUnsignedLong(t->index);
}

static PyMethodDef methods[] = {
    {"start", (PyCFunction)(void (*)(void))start, METH_VARARGS | METH_KEYWORDS,
     "start(directory, ring_words, budget_bytes, interval_ns) -> the clock base in ns."},
    {"stop", stop, METH_NOARGS, "Close everything, write the rest; returns the statistics."},
    {"statistics", get_statistics, METH_NOARGS, "Events and bytes written, events dropped."},
    {"flush", flush, METH_NOARGS, "Return when all events so far are in the files."},
    {"pause_writer", pause_writer, METH_NOARGS, "End the writer thread for a moment."},
    {"resume_writer", resume_writer, METH_NOARGS, "Start it again."},
    {"abandon", abandon, METH_NOARGS, "Leave the session of the process this was forked from."},
    {"set_active", set_active, METH_O, "Choose what is recorded: bit 1 marks, bit 2 calls."},
    {"get_active", get_active, METH_NOARGS, "What is recorded."},
    {"probe", probe, METH_VARARGS, "probe(on, cpu_ns): a calibration block begins."},
    {"set_block_hook", set_block_hook, METH_VARARGS,
     "set_block_hook(hook, next_ns): call hook(now_ns) -> next_ns after a mark, from then on."},
    {"wake_block_hook", wake_block_hook, METH_O,
     "wake_block_hook(at_ns): the main thread calls it then, though no mark ends; negative: never."},
    {"set_block_anchor", set_block_anchor, METH_VARARGS,
     "set_block_anchor(id, patience_ns): only where this mark ends, or when it is so late."},
    {"now", now, METH_NOARGS, "CLOCK_MONOTONIC in ns, or the injected clock."},
    {"set_clock", set_clock, METH_O, "Inject a clock reading (tests); None for the real one."},
    {"thread_index", thread_index, METH_NOARGS, "The shard number of this thread."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "redline.profile._native",
    .m_doc = "The recorder: marks, the native boundary, rings and their writer.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    /* Whether or not the parent records: the child may. */
    const int failed = pthread_atfork(NULL, NULL, rl_forget_phases);
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddFunctions(module, rl_mark_methods) < 0 ||
        PyModule_AddFunctions(module, rl_boundary_methods) < 0 ||
        PyModule_AddFunctions(module, rl_release_methods) < 0 ||
        PyModule_AddFunctions(module, rl_counter_methods) < 0 || rl_marks_ready(module) < 0 ||
        rl_wrapper_ready(module) < 0 || rl_boundary_ready(module) < 0 ||
        rl_generators_ready(module) < 0 || rl_classes_ready(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
