/* Wrapper: a callable that times what it wraps and otherwise passes for it.
 *
 * Used for simulator entry points, `--watch`ed functions and env methods. It binds
 * like a function when found on a class, and forwards attributes.
 */
#include "recorder.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    uint16_t id;
    uint16_t twin; /* another id of the same operation, or `id` itself */
    uint8_t level;
    uint8_t kind;
    uint8_t is_long; /* may last for seconds, so that the calibrator is asked within it and at its end */
} WrapperObject;

uint16_t rl_asked_within;

/* How many long calls this thread is in. A mark that the program gave the same name is none. */
static _Thread_local uint32_t long_calls;

/* A call within one of the same operation, which has no mark of its own. */
static PyObject *call_within(const WrapperObject *w, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames) {
    PyObject *result = PyObject_Vectorcall(w->function, args, nargsf, kwnames);
    const int64_t now = rl_active & RL_ACTIVE_MARKS ? rl_now() : 0;
    if (now >= rl_next_block_ns) {
        rl_asked_within = w->id;
        rl_run_block_hook(now);
        rl_asked_within = 0;
    }
    return result;
}

static int is_inside_its_own(const WrapperObject *w, const RlThread *t) {
    return t->op == w->id || t->op == w->twin;
}

static PyObject *wrapper_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                                    PyObject *kwnames) {
    WrapperObject *w = (WrapperObject *)self;
    const int needed = w->kind == RL_AUTO ? RL_ACTIVE_MARKS : RL_ACTIVE_CALLS;
    RlThread *t = (rl_active & needed) ? rl_thread() : NULL;
    if (w->is_long && t != NULL && t->op == w->id && long_calls > 0) {
        return call_within(w, args, nargsf, kwnames);
    }
    /* An env in an env is one operation, timed once; a sealed region has no inside. */
    if (t == NULL || (w->kind == RL_AUTO ? is_inside_its_own(w, t) : t->sealed) || rl_is_full(t)) {
        return PyObject_Vectorcall(w->function, args, nargsf, kwnames);
    }
    const uint32_t session = rl_session;
    if (w->kind == RL_AUTO) {
        rl_report_callbacks(t);
    } else {
        t->callbacks += 2; /* as the probe would count this call */
    }
    rl_push(t, rl_now(), w->id, w->level, w->kind, self);
    long_calls += w->is_long;
    PyObject *result = PyObject_Vectorcall(w->function, args, nargsf, kwnames);
    long_calls -= w->is_long;
    if ((rl_active & needed) && session == rl_session) {
        const int64_t now = rl_now();
        if (w->kind == RL_AUTO) {
            rl_report_callbacks(t);
        }
        rl_pop_operation(t, now, w->id, w->kind);
        if (w->is_long) {
            rl_ask_at_end(now);
        } else if (w->kind == RL_AUTO) {
            rl_mark_ended(t, now, w->id);
        }
    }
    return result;
}

static PyObject *wrapper_get(PyObject *self, PyObject *instance, PyObject *type) {
    (void)type;
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(self);
    }
    return PyMethod_New(self, instance);
}

static PyObject *wrapper_getattro(PyObject *self, PyObject *name) {
    WrapperObject *w = (WrapperObject *)self;
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) {
        return Py_NewRef(w->function);
    }
    if (PyUnicode_CompareWithASCIIString(name, "__class__") != 0 &&
        PyUnicode_CompareWithASCIIString(name, "__reduce_ex__") != 0 &&
        PyUnicode_CompareWithASCIIString(name, "__reduce__") != 0 &&
        PyUnicode_CompareWithASCIIString(name, "__get__") != 0 &&
        PyUnicode_CompareWithASCIIString(name, "__call__") != 0) {
        PyObject *value = PyObject_GetAttr(w->function, name);
        if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return value;
        }
        PyErr_Clear();
    }
    return PyObject_GenericGetAttr(self, name);
}

static int wrapper_setattro(PyObject *self, PyObject *name, PyObject *value) {
    return PyObject_SetAttr(((WrapperObject *)self)->function, name, value);
}

static PyObject *wrapper_repr(PyObject *self) {
    return PyObject_Repr(((WrapperObject *)self)->function);
}

/* Equal to what it wraps: tensor subclasses look up by the original what they handle. */
static Py_hash_t wrapper_hash(PyObject *self) {
    return PyObject_Hash(((WrapperObject *)self)->function);
}

static PyObject *wrapper_compare(PyObject *self, PyObject *other, int comparison) {
    if (comparison != Py_EQ && comparison != Py_NE) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (Py_TYPE(other) == &RlWrapperType) {
        other = ((WrapperObject *)other)->function;
    }
    return PyObject_RichCompare(((WrapperObject *)self)->function, other, comparison);
}

/* Travels by name, or as what it wraps: the process that receives it wraps for itself. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *module = PyImport_ImportModule("redline.profile.marks");
    PyObject *result = NULL;
    if (module != NULL) {
        result = PyObject_CallMethod(module, "reduced", "OO", self,
                                     ((WrapperObject *)self)->function);
        Py_DECREF(module);
    }
    return result;
}

static int wrapper_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((WrapperObject *)self)->function);
    return 0;
}

static int wrapper_clear(PyObject *self) {
    Py_CLEAR(((WrapperObject *)self)->function);
    return 0;
}

static void wrapper_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    wrapper_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"function", "id", "operation", "level", "is_long", "twin", NULL};
    PyObject *function;
    int id, operation = 0, level = RL_PYTHON, is_long = 0, twin = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oi|pipi:Wrapper", keywords, &function, &id,
                                     &operation, &level, &is_long, &twin)) {
        return NULL;
    }
    if (!PyCallable_Check(function)) {
        return PyErr_Format(PyExc_TypeError, "only a callable can be wrapped, not %R", function);
    }
    if (id < RL_FIRST_ID || id > RL_MAX_ID || level < 0 || level >= RL_NUM_LEVELS) {
        return PyErr_Format(PyExc_ValueError, "id %d or level %d is out of range", id, level);
    }
    if (twin != 0 && (twin < RL_FIRST_ID || twin > RL_MAX_ID)) {
        return PyErr_Format(PyExc_ValueError, "twin %d is out of range", twin);
    }
    WrapperObject *w = (WrapperObject *)type->tp_alloc(type, 0);
    if (w != NULL) {
        w->vectorcall = wrapper_vectorcall;
        w->function = Py_NewRef(function);
        w->id = (uint16_t)id;
        w->twin = (uint16_t)(twin != 0 ? twin : id);
        w->level = (uint8_t)level;
        w->kind = operation ? RL_AUTO : RL_CALL;
        w->is_long = (uint8_t)(operation && is_long);
    }
    return (PyObject *)w;
}

static PyMethodDef wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, "Pickle by name, or as the wrapped callable."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject RlWrapperType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "redline.profile.Wrapper",
    .tp_basicsize = sizeof(WrapperObject),
    .tp_dealloc = wrapper_dealloc,
    .tp_repr = wrapper_repr,
    .tp_hash = wrapper_hash,
    .tp_richcompare = wrapper_compare,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(WrapperObject, vectorcall),
    .tp_getattro = wrapper_getattro,
    .tp_setattro = wrapper_setattro,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_doc = "Wrapper(function, id, operation=False, level=0, is_long=False, twin=0).",
    .tp_traverse = wrapper_traverse,
    .tp_clear = wrapper_clear,
    .tp_methods = wrapper_methods,
    .tp_descr_get = wrapper_get,
    .tp_new = wrapper_new,
};

int rl_wrapper_ready(PyObject *module) {
    if (PyType_Ready(&RlWrapperType) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Wrapper", (PyObject *)&RlWrapperType);
}
