/* Interned names, and the marks that a program sets: operation, phase, step. */
#include "recorder.h"

#include <structmember.h>

static PyObject *names = NULL;      /* list of (id, kind, name, level, module, sealed) */
static PyObject *name_ids = NULL;   /* {(kind, name, level, module): id} */
static PyObject *name_hook = NULL;  /* called with each new tuple while recording */
static PyObject *step_hook = NULL;
static PyObject *operations = NULL; /* {name: Mark} */
static PyObject *phases = NULL;
static unsigned char sealing[(RL_MAX_ID + 8) / 8];

int rl_is_sealing(uint16_t id) { return (sealing[id >> 3] >> (id & 7)) & 1; }

static int add_name(PyObject *key, PyObject *kind, PyObject *name, int level, PyObject *module,
                    int sealed) {
    const int id = RL_FIRST_ID + (int)PyList_GET_SIZE(names);
    PyObject *row = Py_BuildValue("(iOOiOO)", id, kind, name, level, module,
                                  sealed ? Py_True : Py_False);
    PyObject *number = PyLong_FromLong(id);
    int result = -1;
    if (row != NULL && number != NULL && PyDict_SetItem(name_ids, key, number) == 0 &&
        PyList_Append(names, row) == 0) {
        result = id;
        if (sealed) {
            sealing[id >> 3] |= (unsigned char)(1 << (id & 7));
        }
        if (name_hook != NULL) {
            PyObject *done = PyObject_CallOneArg(name_hook, row);
            if (done == NULL) {
                result = -1;
            }
            Py_XDECREF(done);
        }
    }
    Py_XDECREF(row);
    Py_XDECREF(number);
    return result;
}

/* The id of a name. When the ids run out, all further names of a kind and level share
 * one that says so. */
int rl_intern(PyObject *kind, PyObject *name, int level, PyObject *module, int sealed) {
    PyObject *key = Py_BuildValue("(OOiO)", kind, name, level, module);
    if (key == NULL) {
        return -1;
    }
    PyObject *known = PyDict_GetItemWithError(name_ids, key);
    int id = -1;
    if (known != NULL) {
        id = (int)PyLong_AsLong(known);
    } else if (!PyErr_Occurred()) {
        if (RL_FIRST_ID + PyList_GET_SIZE(names) <= RL_MAX_ID - 64) {
            id = add_name(key, kind, name, level, module, sealed);
        } else {
            PyObject *rest = PyUnicode_FromString("(further names)");
            PyObject *rest_key = rest ? Py_BuildValue("(OOiO)", kind, rest, level, Py_None) : NULL;
            if (rest_key != NULL) {
                known = PyDict_GetItemWithError(name_ids, rest_key);
                id = known != NULL ? (int)PyLong_AsLong(known)
                                   : add_name(rest_key, kind, rest, level, Py_None, 0);
            }
            Py_XDECREF(rest);
            Py_XDECREF(rest_key);
        }
    }
    Py_DECREF(key);
    return id;
}

/* ------------------------------------------------------------------ the Mark type */

typedef struct {
    PyObject_HEAD
    PyObject *name;
    uint16_t id;
    uint8_t kind;
} MarkObject;

static void begin(uint16_t id, uint8_t kind) {
    RlThread *t = rl_thread();
    if (t != NULL) {
        rl_report_callbacks(t);
        rl_push(t, rl_now(), id, RL_PYTHON, kind, NULL);
    }
}

static void end(uint16_t id, uint8_t kind) {
    RlThread *t = rl_thread();
    if (t != NULL) {
        const int64_t now = rl_now();
        rl_report_callbacks(t);
        rl_pop_operation(t, now, id, kind);
        rl_mark_ended(t, now, id);
    }
}

static PyObject *mark_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    const MarkObject *mark = (MarkObject *)self;
    if (rl_active & RL_ACTIVE_MARKS) {
#if PY_VERSION_HEX >= 0x030c0000
        if (rl_watches_generators) {
            rl_mark_in_generator();
        }
#endif
        begin(mark->id, mark->kind);
    }
    if (mark->kind == RL_PHASE) { /* behind its begin, which may be the thread's first event */
        rl_enter_phase(mark->id);
    }
    Py_RETURN_NONE;
}

static PyObject *mark_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)args;
    (void)nargs;
    const MarkObject *mark = (MarkObject *)self;
    if (mark->kind == RL_PHASE) {
        rl_leave_phase(mark->id);
    }
    if (rl_active & RL_ACTIVE_MARKS) {
        end(mark->id, mark->kind);
    }
    Py_RETURN_NONE;
}

static PyObject *mark_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *function, *module, *result = NULL;
    static char *keywords[] = {"function", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:mark", keywords, &function)) {
        return NULL;
    }
    module = PyImport_ImportModule("redline.profile.marks");
    if (module != NULL) {
        result = PyObject_CallMethod(module, "decorate", "OO", self, function);
        Py_DECREF(module);
    }
    return result;
}

static PyObject *mark_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    MarkObject *mark = (MarkObject *)self;
    PyObject *module = PyImport_ImportModule("redline.profile.marks");
    PyObject *maker =
        module ? PyObject_GetAttrString(module, mark->kind == RL_PHASE ? "phase" : "operation")
               : NULL;
    Py_XDECREF(module);
    return maker ? Py_BuildValue("(N(O))", maker, mark->name) : NULL;
}

static PyObject *mark_repr(PyObject *self) {
    MarkObject *mark = (MarkObject *)self;
    return PyUnicode_FromFormat("%s(%R)", mark->kind == RL_PHASE ? "phase" : "operation",
                                mark->name);
}

static void mark_dealloc(PyObject *self) {
    Py_XDECREF(((MarkObject *)self)->name);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef mark_type_methods[] = {
    {"__enter__", mark_enter, METH_NOARGS, "Begin the operation or phase."},
    {"__exit__", (PyCFunction)(void (*)(void))mark_exit, METH_FASTCALL, "End it."},
    {"__reduce__", mark_reduce, METH_NOARGS, "Pickle by name."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef mark_members[] = {
    {"name", T_OBJECT_EX, offsetof(MarkObject, name), READONLY, "The name given."},
    {"id", T_USHORT, offsetof(MarkObject, id), READONLY, "The interned id."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject MarkType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "redline.profile.Mark",
    .tp_basicsize = sizeof(MarkObject),
    .tp_dealloc = mark_dealloc,
    .tp_repr = mark_repr,
    .tp_call = mark_call,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A named operation or phase: a reentrant context manager, also a decorator.",
    .tp_methods = mark_type_methods,
    .tp_members = mark_members,
};

/* The one Mark of this name; a dictionary look-up from the second call on. */
static PyObject *mark_of(PyObject *table, PyObject *name, const char *kind_name, uint8_t kind) {
    if (!PyUnicode_Check(name)) {
        return PyErr_Format(PyExc_TypeError,
                            "the name of a mark must be a str, not %.100s: pass a short constant "
                            "string such as \"inference\"",
                            Py_TYPE(name)->tp_name);
    }
    PyObject *mark = PyDict_GetItemWithError(table, name);
    if (mark != NULL || PyErr_Occurred()) {
        return Py_XNewRef(mark);
    }
    PyObject *kind_text = PyUnicode_FromString(kind_name);
    const int id = kind_text ? rl_intern(kind_text, name, RL_PYTHON, Py_None, 0) : -1;
    Py_XDECREF(kind_text);
    if (id < 0) {
        return NULL;
    }
    MarkObject *made = PyObject_New(MarkObject, &MarkType);
    if (made == NULL) {
        return NULL;
    }
    made->name = Py_NewRef(name);
    made->id = (uint16_t)id;
    made->kind = kind;
    if (PyDict_SetItem(table, name, (PyObject *)made) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return (PyObject *)made;
}

/* ------------------------------------------------------------------ module functions */

static PyObject *operation(PyObject *module, PyObject *name) {
    (void)module;
    return mark_of(operations, name, "operation", RL_MARK);
}

static PyObject *phase(PyObject *module, PyObject *name) {
    (void)module;
    return mark_of(phases, name, "phase", RL_PHASE);
}

static PyObject *step(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    if (rl_active & RL_ACTIVE_MARKS) {
        RlThread *t = rl_thread();
        const int64_t now = rl_now();
        if (t != NULL) {
            rl_instant(t, now, RL_CODE_STEP);
            rl_mark_ended(t, now, RL_CODE_STEP);
        }
    }
    if (step_hook != NULL) {
        return PyObject_CallNoArgs(step_hook);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ marks of what is suspended */

/* How many marks a thread has open. Their number, and not the stack's depth, stays what it is while
 * native calls are closed for a calibration block. */
uint32_t rl_open_marks(const RlThread *t) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < t->depth; i++) {
        found += t->stack[i].kind == RL_MARK;
    }
    return found;
}

/* End the marks but for the first `above`; their ids, the outermost first, each as often as it was
 * begun. */
PyObject *rl_end_marks(RlThread *t, uint32_t above) {
    PyObject *ids = PyList_New(0);
    uint32_t seen = 0;
    for (uint32_t i = 0; ids != NULL && i < t->depth; i++) {
        if (t->stack[i].kind != RL_MARK || seen++ < above) {
            continue;
        }
        for (int times = 1 + t->stack[i].repeat; times-- > 0;) {
            PyObject *id = PyLong_FromLong(t->stack[i].id);
            if (id == NULL || PyList_Append(ids, id) < 0) {
                Py_CLEAR(ids);
            }
            Py_XDECREF(id);
            if (ids == NULL) {
                return NULL;
            }
        }
    }
    const Py_ssize_t count = ids != NULL ? PyList_GET_SIZE(ids) : 0;
    for (Py_ssize_t i = count; i-- > 0;) {
        rl_report_callbacks(t);
        rl_pop_operation(t, rl_now(), (uint16_t)PyLong_AsLong(PyList_GET_ITEM(ids, i)), RL_MARK);
    }
    PyObject *found = ids != NULL ? PyList_AsTuple(ids) : NULL;
    Py_XDECREF(ids);
    return found;
}

int rl_begin_marks(PyObject *ids) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ids) && (rl_active & RL_ACTIVE_MARKS); i++) {
        const long id = PyLong_AsLong(PyTuple_GET_ITEM(ids, i));
        if (id < RL_FIRST_ID || id > RL_MAX_ID) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "no id: %ld", id);
            }
            return -1;
        }
        begin((uint16_t)id, RL_MARK);
    }
    return 0;
}

static PyObject *open_marks(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    const RlThread *t = rl_active ? rl_thread() : NULL;
    return PyLong_FromUnsignedLong(t != NULL ? rl_open_marks(t) : 0);
}

static PyObject *end_marks(PyObject *module, PyObject *arg) {
    (void)module;
    const unsigned long above = PyLong_AsUnsignedLong(arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    RlThread *t = rl_active ? rl_thread() : NULL;
    return t != NULL ? rl_end_marks(t, (uint32_t)above) : PyTuple_New(0);
}

static PyObject *begin_marks(PyObject *module, PyObject *ids) {
    (void)module;
    if (!PyTuple_Check(ids)) {
        PyErr_SetString(PyExc_TypeError, "begin_marks takes what end_marks returned");
        return NULL;
    }
    if (rl_begin_marks(ids) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int as_id(PyObject *arg) {
    const long id = PyLong_AsLong(arg);
    if (id < RL_FIRST_ID || id > RL_MAX_ID) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "%ld is not an interned id", id);
        }
        return -1;
    }
    return (int)id;
}

static PyObject *begin_operation(PyObject *module, PyObject *arg) {
    (void)module;
    const int id = as_id(arg);
    if (id < 0) {
        return NULL;
    }
    if (rl_active & RL_ACTIVE_MARKS) {
        begin((uint16_t)id, RL_AUTO);
    }
    Py_RETURN_NONE;
}

static PyObject *end_operation(PyObject *module, PyObject *arg) {
    (void)module;
    const int id = as_id(arg);
    if (id < 0) {
        return NULL;
    }
    if (rl_active & RL_ACTIVE_MARKS) {
        end((uint16_t)id, RL_AUTO);
    }
    Py_RETURN_NONE;
}

static PyObject *intern(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    static char *keywords[] = {"kind", "name", "level", "module", "sealed", NULL};
    PyObject *kind, *name, *origin = Py_None;
    int level = RL_PYTHON, sealed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UU|iOp:intern", keywords, &kind, &name, &level,
                                     &origin, &sealed)) {
        return NULL;
    }
    if (level < 0 || level >= RL_NUM_LEVELS) {
        return PyErr_Format(PyExc_ValueError, "level must be in [0, %d), not %d", RL_NUM_LEVELS,
                            level);
    }
    const int id = rl_intern(kind, name, level, origin, sealed);
    return id < 0 ? NULL : PyLong_FromLong(id);
}

static PyObject *get_names(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyList_GetSlice(names, 0, PyList_GET_SIZE(names));
}

static PyObject *asked_within(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLong(rl_asked_within);
}

/* {id: (time_ns, ends)}, counted from the first time that this thread asks in a session. */
static PyObject *tallies(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *found = PyDict_New();
    RlThread *t = rl_active ? rl_thread() : NULL;
    if (t == NULL || found == NULL) {
        return found;
    }
    if (t->tallies == NULL) {
        t->tallies = calloc(RL_MAX_ID + 1, sizeof *t->tallies);
        if (t->tallies == NULL) {
            Py_DECREF(found);
            return PyErr_NoMemory();
        }
        t->tallied_ns = rl_now();
    }
    rl_tally_time(t, rl_now());
    const Py_ssize_t used = RL_FIRST_ID + PyList_GET_SIZE(names);
    for (Py_ssize_t id = 0; found != NULL && id < used; id++) {
        const RlTally each = t->tallies[id];
        if (each.time_ns == 0 && each.ends == 0) {
            continue;
        }
        PyObject *key = PyLong_FromSsize_t(id);
        PyObject *value = Py_BuildValue("(LK)", (long long)each.time_ns,
                                        (unsigned long long)each.ends);
        if (key == NULL || value == NULL || PyDict_SetItem(found, key, value) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return found;
}

static PyObject *set_hook(PyObject **slot, PyObject *hook) {
    PyObject *old = *slot;
    *slot = hook == Py_None ? NULL : Py_NewRef(hook);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *set_name_hook(PyObject *module, PyObject *hook) {
    (void)module;
    return set_hook(&name_hook, hook);
}

static PyObject *set_step_hook(PyObject *module, PyObject *hook) {
    (void)module;
    return set_hook(&step_hook, hook);
}

PyMethodDef rl_mark_methods[] = {
    {"operation", operation, METH_O, "operation(name) -> the Mark of this operation."},
    {"phase", phase, METH_O, "phase(name) -> the Mark of this phase."},
    {"step", step, METH_NOARGS, "Count one step of the program."},
    {"begin", begin_operation, METH_O, "begin(id): begin an automatic operation."},
    {"end", end_operation, METH_O, "end(id): end the innermost one of this id."},
    {"open_marks", open_marks, METH_NOARGS, "How many marks this thread has open."},
    {"end_marks", end_marks, METH_O, "end_marks(first) -> ids of all but the first; these end."},
    {"begin_marks", begin_marks, METH_O, "begin_marks(ids): begin them again."},
    {"intern", (PyCFunction)(void (*)(void))intern, METH_VARARGS | METH_KEYWORDS,
     "intern(kind, name, level=0, module=None, sealed=False) -> id."},
    {"names", get_names, METH_NOARGS, "All interned (id, kind, name, level, module, sealed)."},
    {"asked_within", asked_within, METH_NOARGS,
     "The id of the operation within which the block hook is being called; 0: at an end."},
    {"tallies", tallies, METH_NOARGS,
     "tallies() -> {id: (time_ns, ends)} of this thread's operations since it first asked."},
    {"set_name_hook", set_name_hook, METH_O, "Call this with each name interned from now on."},
    {"set_step_hook", set_step_hook, METH_O, "Call this at each step()."},
    {NULL, NULL, 0, NULL},
};

int rl_marks_ready(PyObject *module) {
    names = PyList_New(0);
    name_ids = PyDict_New();
    operations = PyDict_New();
    phases = PyDict_New();
    if (names == NULL || name_ids == NULL || operations == NULL || phases == NULL ||
        PyType_Ready(&MarkType) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Mark", (PyObject *)&MarkType);
}
