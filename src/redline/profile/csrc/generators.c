/* Marks that a generator holds open while it is suspended.
 *
 * They would cover what its consumer does between two values. So they end as the generator yields,
 * and begin again as it goes on, in whatever thread that is. What `contextlib.contextmanager` made
 * is left alone: there a mark is meant to cover the block.
 *
 * Python 3.11: the slots and methods by which a generator is resumed are replaced.
 * Python 3.12 and later: callbacks of sys.monitoring; see record/generators.py.
 */
#include "recorder.h"

static PyObject *held = NULL;     /* {address of a suspended generator: (session, ids)} */
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

#if PY_VERSION_HEX < 0x030c0000
/* ------------------------------------------------------------------ Python 3.11 */

enum { CREATED = -2 }; /* `gi_frame_state` of a generator that was never resumed */
enum { NEXT, SEND, THROW, CLOSE, NUM_METHODS };

static iternextfunc next_before = NULL;
static sendfunc send_before = NULL;
static destructor finalize_before = NULL;
static PyObject *methods_before[NUM_METHODS];

typedef struct {
    uint32_t session, marks, depth;
    int counts; /* whether marks were recorded as it went on */
} Resumed;

static Resumed resume(PyObject *generator) {
    Resumed r = {rl_session, 0, 0, rl_active & RL_ACTIVE_MARKS};
    const RlThread *t = r.counts ? rl_known_thread() : NULL;
    if (t != NULL) {
        r.marks = rl_open_marks(t);
        r.depth = t->depth;
    }
    if (PyDict_GET_SIZE(held) > 0) {
        begin_held(generator, ((PyGenObject *)generator)->gi_frame_state != CREATED);
    }
    return r;
}

static void suspend(PyObject *generator, const Resumed *r) {
    if (!r->counts || !(rl_active & RL_ACTIVE_MARKS) || r->session != rl_session) {
        return;
    }
    RlThread *t = rl_known_thread();
    if (t == NULL || t->depth == 0 || rl_open_marks(t) <= r->marks ||
        is_covering(PyEval_GetFrame())) {
        return;
    }
    hold(t, generator, r->marks);
    /* The frame could not end before the marks within it. */
    while (t->depth > r->depth && t->stack[t->depth - 1].kind == RL_FRAME) {
        rl_pop_top(t, rl_now());
    }
}

static PyObject *resumed_next(PyObject *generator) {
    const Resumed r = resume(generator);
    PyObject *value = next_before(generator);
    if (value != NULL) {
        suspend(generator, &r);
    }
    return value;
}

static PySendResult resumed_send(PyObject *generator, PyObject *sent, PyObject **value) {
    const Resumed r = resume(generator);
    const PySendResult found = send_before(generator, sent, value);
    if (found == PYGEN_NEXT) {
        suspend(generator, &r);
    }
    return found;
}

/* What it is suspended in by `yield from` gets the exception first, without a call of ours. */
static void begin_inner(PyObject *generator) {
    PyObject *inner = Py_NewRef(generator);
    while (PyDict_GET_SIZE(held) > 0 && inner != NULL && PyGen_CheckExact(inner)) {
        begin_held(inner, 1);
        Py_SETREF(inner, PyObject_GetAttrString(inner, "gi_yieldfrom"));
    }
    Py_XDECREF(inner);
    PyErr_Clear();
}

static PyObject *call_before(int which, PyObject *generator, PyObject *const *args,
                             Py_ssize_t nargs) {
    PyObject *stack[4] = {generator};
    if (nargs > 3) {
        return PyErr_Format(PyExc_TypeError, "at most 3 arguments, not %zd", nargs);
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        stack[1 + i] = args[i];
    }
    const Resumed r = resume(generator);
    if (which == THROW || which == CLOSE) {
        begin_inner(generator);
    }
    PyObject *value = PyObject_Vectorcall(methods_before[which], stack, (size_t)nargs + 1, NULL);
    if (value != NULL && which != CLOSE) {
        suspend(generator, &r);
    }
    return value;
}

static PyObject *method_next(PyObject *generator, PyObject *const *args, Py_ssize_t nargs) {
    return call_before(NEXT, generator, args, nargs);
}

static PyObject *method_send(PyObject *generator, PyObject *const *args, Py_ssize_t nargs) {
    return call_before(SEND, generator, args, nargs);
}

static PyObject *method_throw(PyObject *generator, PyObject *const *args, Py_ssize_t nargs) {
    return call_before(THROW, generator, args, nargs);
}

static PyObject *method_close(PyObject *generator, PyObject *const *args, Py_ssize_t nargs) {
    return call_before(CLOSE, generator, args, nargs);
}

/* Nobody refers to it any more: it is closed where it is suspended. */
static void finalized(PyObject *generator) {
    if (PyDict_GET_SIZE(held) > 0) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        begin_inner(generator);
        PyErr_Restore(type, value, traceback);
    }
    finalize_before(generator);
}

#define METHOD(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL
static PyMethodDef replaced[NUM_METHODS] = {
    {"__next__", METHOD(method_next), "Implement next(self)."},
    {"send", METHOD(method_send), "send(arg) -> send 'arg' into generator."},
    {"throw", METHOD(method_throw), "throw(value): raise exception in generator."},
    {"close", METHOD(method_close), "close() -> raise GeneratorExit inside generator."},
};

static int replace_method(int which) {
    PyObject *dict = PyGen_Type.tp_dict;
    PyObject *before = PyDict_GetItemString(dict, replaced[which].ml_name);
    PyObject *own = PyDescr_NewMethod(&PyGen_Type, &replaced[which]);
    if (before == NULL || own == NULL) {
        Py_XDECREF(own);
        return -1;
    }
    methods_before[which] = Py_NewRef(before);
    const int failed = PyDict_SetItemString(dict, replaced[which].ml_name, own);
    Py_DECREF(own);
    return failed;
}

/* hook_generators(covering): from here on marks are the generators' own. */
static PyObject *hook_generators(PyObject *module, PyObject *codes) {
    (void)module;
    if (set_covering(codes) < 0) {
        return NULL;
    }
    if (next_before == NULL) {
        for (int i = 0; i < NUM_METHODS; i++) {
            if (replace_method(i) < 0) {
                return PyErr_Occurred() ? NULL
                                        : PyErr_Format(PyExc_AttributeError,
                                                       "generators have no method %s",
                                                       replaced[i].ml_name);
            }
        }
        next_before = PyGen_Type.tp_iternext;
        send_before = PyGen_Type.tp_as_async->am_send;
        finalize_before = PyGen_Type.tp_finalize;
        PyGen_Type.tp_iternext = resumed_next;
        PyGen_Type.tp_as_async->am_send = resumed_send;
        PyGen_Type.tp_finalize = finalized;
        PyType_Modified(&PyGen_Type);
    }
    Py_RETURN_NONE;
}

/* unhook_generators(): they are as they were, but for what others have replaced meanwhile. */
static PyObject *unhook_generators(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    if (next_before == NULL || PyGen_Type.tp_iternext != resumed_next) {
        Py_RETURN_NONE;
    }
    for (int i = 0; i < NUM_METHODS; i++) {
        if (PyDict_SetItemString(PyGen_Type.tp_dict, replaced[i].ml_name, methods_before[i]) < 0) {
            return NULL;
        }
        Py_CLEAR(methods_before[i]);
    }
    PyGen_Type.tp_iternext = next_before;
    PyGen_Type.tp_as_async->am_send = send_before;
    PyGen_Type.tp_finalize = finalize_before;
    next_before = NULL;
    PyType_Modified(&PyGen_Type);
    PyDict_Clear(held);
    Py_RETURN_NONE;
}

PyMethodDef rl_generator_methods[] = {
    {"hook_generators", hook_generators, METH_O,
     "hook_generators(codes): marks of a suspended generator end until it goes on, but where one of "
     "these codes resumes it."},
    {"unhook_generators", unhook_generators, METH_NOARGS, "Leave generators alone again."},
    {NULL, NULL, 0, NULL},
};

#else
/* ------------------------------------------------------------------ Python 3.12 and later */

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
static PyObject *generator_of(PyFrameObject **frame, int from_python) {
    *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (from_python && *frame != NULL) { /* the callback has a frame of its own */
        Py_SETREF(*frame, PyFrame_GetBack(*frame));
    }
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

static PyObject *entered(int is_new) {
    PyFrameObject *frame;
    PyObject *generator = generator_of(&frame, is_new);
    if (generator != NULL) {
        enter(generator, !is_new);
        Py_DECREF(generator);
        Py_DECREF(frame);
    }
    Py_RETURN_NONE;
}

/* generator_starts(): for the frame that the calling function is called from. */
static PyObject *generator_starts(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return entered(1);
}

/* PY_RESUME and PY_THROW: (code, offset, ...) */
static PyObject *on_resume(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    if (!(((PyCodeObject *)args[0])->co_flags & CO_GENERATOR)) {
        Py_RETURN_NONE;
    }
    return entered(0);
}

/* PY_YIELD: (code, offset, value) */
static PyObject *on_yield(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)args;
    (void)nargs;
    PyFrameObject *frame;
    PyObject *generator = generator_of(&frame, 0);
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
    PyObject *generator = generator_of(&frame, 0);
    if (generator != NULL) {
        leave(generator, &r);
        Py_DECREF(generator);
        Py_DECREF(frame);
    }
    Py_RETURN_NONE;
}

static PyObject *hook_generators(PyObject *module, PyObject *codes) {
    (void)module;
    if (set_covering(codes) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *unhook_generators(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyDict_Clear(held);
    Py_RETURN_NONE;
}

#define MONITOR(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL
PyMethodDef rl_generator_methods[] = {
    {"hook_generators", hook_generators, METH_O,
     "hook_generators(codes): a generator that one of these resumes keeps its marks."},
    {"unhook_generators", unhook_generators, METH_NOARGS, "Forget what generators hold."},
    {"generator_starts", generator_starts, METH_NOARGS, "Called as a generator starts."},
    {"on_resume", MONITOR(on_resume), "sys.monitoring PY_RESUME and PY_THROW."},
    {"on_yield", MONITOR(on_yield), "sys.monitoring PY_YIELD."},
    {"on_generator_end", MONITOR(on_generator_end), "sys.monitoring PY_RETURN and PY_UNWIND."},
    {NULL, NULL, 0, NULL},
};
#endif

int rl_generators_ready(PyObject *module) {
#if PY_VERSION_HEX >= 0x030c0000
    if (pthread_key_create(&running_key, free) != 0) {
        PyErr_SetString(PyExc_OSError, "no key for what each thread runs is left");
        return -1;
    }
#endif
    held = PyDict_New();
    return held == NULL ? -1 : PyModule_AddFunctions(module, rl_generator_methods);
}
