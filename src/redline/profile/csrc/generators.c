/* Marks that a generator holds open while it is suspended.
 *
 * They would cover what its consumer does between two values. So they end as the generator yields,
 * and begin again as it goes on, in whatever thread that is. What `contextlib.contextmanager` made
 * is left alone: there a mark is meant to cover the block.
 *
 * Where a mark begins it is looked whether a generator runs. From its first mark on callbacks of
 * sys.monitoring tell of it and its like, from Python 3.12 on; see record/generators.py.
 */
#include "recorder.h"

#if PY_VERSION_HEX >= 0x030c0000

#include <stddef.h>

int rl_watches_generators = 0;
static PyObject *first_mark = NULL; /* told the code of a generator that begins a mark */
static PyObject *watched = NULL;    /* {address of a code object that is told of: itself} */
static PyObject *held = NULL;       /* {address of a suspended generator: (session, ids)} */
static PyObject *covering = NULL; /* tuple of code objects: what they resume covers their block */

/* The generator goes on: it holds nothing any more, and what it held begins again. */
static void begin_held(PyObject *generator, int again) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *key = PyLong_FromVoidPtr(generator);
    PyObject *found = key ? PyDict_GetItemWithError(held, key) : NULL;
    if (found != NULL) {
        Py_INCREF(found);
        if (PyDict_DelItem(held, key) == 0 && again && (rl_active & RL_ACTIVE_MARKS) &&
            PyLong_AsUnsignedLong(PyTuple_GET_ITEM(found, 0)) == rl_session) {
            rl_begin_marks(PyTuple_GET_ITEM(found, 1));
        }
        Py_DECREF(found);
    }
    Py_XDECREF(key);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(generator);
    }
    PyErr_Restore(type, value, traceback);
}

/* The generator is suspended: the marks beyond the first `above` are its own, and end. */
static void hold(RlThread *t, PyObject *generator, uint32_t above) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *ids = rl_end_marks(t, above);
    PyObject *key = PyLong_FromVoidPtr(generator);
    PyObject *found = ids && key ? Py_BuildValue("(kO)", (unsigned long)rl_session, ids) : NULL;
    if (found == NULL || PyDict_SetItem(held, key, found) < 0) {
        PyErr_WriteUnraisable(generator);
    }
    Py_XDECREF(found);
    Py_XDECREF(key);
    Py_XDECREF(ids);
    PyErr_Restore(type, value, traceback);
}

/* Whether this frame resumes a generator so that it covers what the frame's caller does. */
static int is_covering(PyFrameObject *frame) {
    if (frame == NULL || covering == NULL) {
        return 0;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    int found = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(covering); i++) {
        found |= PyTuple_GET_ITEM(covering, i) == (PyObject *)code;
    }
    Py_DECREF(code);
    return found;
}

static int set_covering(PyObject *codes) {
    if (!PyTuple_Check(codes)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of code objects is needed");
        return -1;
    }
    Py_XSETREF(covering, Py_NewRef(codes));
    return 0;
}

enum { MOST_RUNNING = 256 }; /* generators within one another, of each thread */

typedef struct {
    PyObject *generator; /* borrowed: what runs lives */
    uint32_t session, marks;
} Resumed;

/* Not thread-local: a library that is loaded late has little room for such variables. */
typedef struct {
    uint32_t count;
    Resumed each[MOST_RUNNING];
} Running;

static pthread_key_t running_key;

static Running *running_here(void) {
    Running *running = pthread_getspecific(running_key);
    if (running == NULL) {
        running = calloc(1, sizeof *running);
        if (running != NULL && pthread_setspecific(running_key, running) != 0) {
            free(running);
            running = NULL;
        }
    }
    return running;
}

/* The generator whose frame the callback is called for, and that frame; or NULL. */
static PyObject *generator_of(PyFrameObject **frame) {
    *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyObject *generator = *frame ? PyFrame_GetGenerator(*frame) : NULL;
    if (generator == NULL) {
        Py_CLEAR(*frame);
    }
    return generator;
}

static void enter(PyObject *generator, int again) {
    const RlThread *t = (rl_active & RL_ACTIVE_MARKS) ? rl_known_thread() : NULL;
    Running *running = running_here();
    if (running != NULL) {
        if (running->count == MOST_RUNNING) { /* the outermost is forgotten: its marks stay open */
            running->count--;
            memmove(running->each, running->each + 1, running->count * sizeof *running->each);
        }
        running->each[running->count++] =
            (Resumed){generator, rl_session, t ? rl_open_marks(t) : 0};
    }
    if (PyDict_GET_SIZE(held) > 0) {
        begin_held(generator, again);
    }
}

/* What it began with, and whether that is known; it and all within it run no longer. */
static int leave(PyObject *generator, Resumed *found) {
    Running *running = running_here();
    for (uint32_t i = running ? running->count : 0; i-- > 0;) {
        if (running->each[i].generator == generator) {
            *found = running->each[i];
            running->count = i;
            return found->session == rl_session;
        }
    }
    return 0;
}

/* Whether it runs here, as far as this session knows. */
static int is_running(PyObject *generator) {
    const Running *running = running_here();
    for (uint32_t i = running ? running->count : 0; i-- > 0;) {
        if (running->each[i].generator == generator) {
            return running->each[i].session == rl_session;
        }
    }
    return 0;
}

#if PY_VERSION_HEX < 0x030e0000
/* The innermost generator that runs here, or NULL: also if that is a coroutine. What a generator
 * handles is a part of it, and the innermost of these is the thread's. */
static PyObject *innermost(void) {
    const PyThreadState *state = PyThreadState_Get();
    if (state->exc_info == &state->exc_state) {
        return NULL;
    }
    char *at = (char *)state->exc_info - offsetof(PyGenObject, gi_exc_state);
    return PyGen_CheckExact((PyObject *)at) ? Py_NewRef((PyObject *)at) : NULL;
}
#else
/* The same, by the frames from here on outwards. */
static PyObject *innermost(void) {
    const PyThreadState *state = PyThreadState_Get();
    if (state->exc_info == &state->exc_state) {
        return NULL;
    }
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyObject *found = NULL;
    while (frame != NULL && found == NULL) {
        found = PyFrame_GetGenerator(frame);
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    Py_XDECREF(frame);
    if (found != NULL && !PyGen_CheckExact(found)) {
        Py_CLEAR(found);
    }
    return found;
}
#endif

/* Have Python told of a code object; 0 if that fails. */
static int watch(PyCodeObject *code) {
    PyObject *key = PyLong_FromVoidPtr(code);
    int done = key != NULL && PyDict_GetItemWithError(watched, key) != NULL;
    if (key != NULL && !done && !PyErr_Occurred()) {
        PyObject *told = PyObject_CallOneArg(first_mark, (PyObject *)code);
        done = told != NULL && PyDict_SetItem(watched, key, (PyObject *)code) == 0;
        Py_XDECREF(told);
    }
    if (PyErr_Occurred()) {
        rl_hook_failed(first_mark);
    }
    Py_XDECREF(key);
    return done;
}

/* Watch the innermost generator from this frame on outwards. Where `contextlib` resumed it, what
 * it marks is held by the one outside, if there is one: that first. */
static void watch_from(PyFrameObject *frame) {
    PyObject *generator = NULL;
    Py_INCREF(frame);
    while (frame != NULL && (generator = PyFrame_GetGenerator(frame)) == NULL) {
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    if (generator == NULL) {
        return;
    }
    if (PyGen_CheckExact(generator) && !is_running(generator)) {
        PyFrameObject *resumer = PyFrame_GetBack(frame);
        if (is_covering(resumer)) {
            watch_from(resumer);
        }
        Py_XDECREF(resumer);
        PyCodeObject *code = PyGen_GetCode((PyGenObject *)generator);
        if (watch(code)) {
            enter(generator, 0);
        }
        Py_DECREF(code);
    }
    Py_DECREF(generator);
    Py_DECREF(frame);
}

/* A mark begins: its generator is told of from here on. */
void rl_mark_in_generator(void) {
    PyObject *generator = innermost();
    if (generator != NULL && !is_running(generator)) {
        PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
        if (frame != NULL) {
            watch_from(frame);
            Py_DECREF(frame);
        }
    }
    Py_XDECREF(generator);
}

static PyObject *entered(PyObject *code, int again) {
    PyFrameObject *frame;
    if (((PyCodeObject *)code)->co_flags & CO_GENERATOR) {
        PyObject *generator = generator_of(&frame);
        if (generator != NULL) {
            enter(generator, again);
            Py_DECREF(generator);
            Py_DECREF(frame);
        }
    }
    Py_RETURN_NONE;
}

/* PY_START: (code, offset). What another held at this address is forgotten: Python 3.13 ends some
 * without a word. */
static PyObject *on_start(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    return entered(args[0], 0);
}

/* PY_RESUME and PY_THROW: (code, offset, ...) */
static PyObject *on_resume(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    return entered(args[0], 1);
}

/* PY_YIELD: (code, offset, value) */
static PyObject *on_yield(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)args;
    (void)nargs;
    PyFrameObject *frame;
    PyObject *generator = generator_of(&frame);
    Resumed r;
    if (generator == NULL) {
        Py_RETURN_NONE;
    }
    RlThread *t = (rl_active & RL_ACTIVE_MARKS) ? rl_known_thread() : NULL;
    if (leave(generator, &r) && t != NULL && t->depth > 0 && rl_open_marks(t) > r.marks) {
        PyFrameObject *resumer = PyFrame_GetBack(frame);
        if (!is_covering(resumer)) {
            hold(t, generator, r.marks);
        }
        Py_XDECREF(resumer);
    }
    Py_DECREF(generator);
    Py_DECREF(frame);
    Py_RETURN_NONE;
}

/* PY_RETURN and PY_UNWIND: (code, offset, ...) */
static PyObject *on_generator_end(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    Resumed r;
    PyFrameObject *frame;
    if (!(((PyCodeObject *)args[0])->co_flags & CO_GENERATOR)) {
        Py_RETURN_NONE;
    }
    PyObject *generator = generator_of(&frame);
    if (generator != NULL) {
        leave(generator, &r);
        Py_DECREF(generator);
        Py_DECREF(frame);
    }
    Py_RETURN_NONE;
}

static PyObject *hook_generators(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *codes, *told;
    if (!PyArg_ParseTuple(args, "OO:hook_generators", &codes, &told) || set_covering(codes) < 0) {
        return NULL;
    }
    Py_XSETREF(first_mark, Py_NewRef(told));
    PyDict_Clear(watched);
    rl_watches_generators = 1;
    Py_RETURN_NONE;
}

static PyObject *unhook_generators(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    rl_watches_generators = 0;
    PyDict_Clear(held);
    PyDict_Clear(watched);
    Py_RETURN_NONE;
}

#define MONITOR(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL
PyMethodDef rl_generator_methods[] = {
    {"hook_generators", hook_generators, METH_VARARGS,
     "hook_generators(codes, first_mark): first_mark(code) is called as a generator begins a mark "
     "and is not known to run; one that a frame of these codes resumes keeps its marks."},
    {"unhook_generators", unhook_generators, METH_NOARGS, "Forget what generators hold."},
    {"on_start", MONITOR(on_start), "sys.monitoring PY_START."},
    {"on_resume", MONITOR(on_resume), "sys.monitoring PY_RESUME and PY_THROW."},
    {"on_yield", MONITOR(on_yield), "sys.monitoring PY_YIELD."},
    {"on_generator_end", MONITOR(on_generator_end), "sys.monitoring PY_RETURN and PY_UNWIND."},
    {NULL, NULL, 0, NULL},
};

int rl_generators_ready(PyObject *module) {
    if (pthread_key_create(&running_key, free) != 0) {
        PyErr_SetString(PyExc_OSError, "no key for what each thread runs is left");
        return -1;
    }
    held = PyDict_New();
    watched = PyDict_New();
    if (held == NULL || watched == NULL) {
        return -1;
    }
    return PyModule_AddFunctions(module, rl_generator_methods);
}

#else

int rl_generators_ready(PyObject *module) {
    (void)module;
    return 0;
}

#endif
