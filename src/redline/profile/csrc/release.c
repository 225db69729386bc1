/* Releases: what it takes to free an object of a native library, which no call event shows.
 *
 * The dealloc slot of the library's type is replaced by one that times it. Only what Python code
 * lets go of counts: inside a native call a release is that call's work, and a native thread's (of
 * autograd, say) is not Python's doing. Such a thread must not be taken for one that runs Python.
 */
#include "recorder.h"

enum { MAX_TYPES = 16 };

/* Never forgotten: a native type made meanwhile may have inherited the slot. No type in it derives
 * from another: the release of one would call that of its base, which would not find its own. */
static struct {
    PyTypeObject *type;
    destructor release;
    uint16_t id;
    uint8_t level;
} timed[MAX_TYPES];
static int timed_count = 0;

static int place_of(const PyTypeObject *type) {
    for (; type != NULL; type = type->tp_base) {
        for (int i = 0; i < timed_count; i++) {
            if (timed[i].type == type) {
                return i;
            }
        }
    }
    return -1; /* never: the slot is found in these types and in what inherits it only */
}

static void timed_release(PyObject *self) {
    const int i = place_of(Py_TYPE(self));
    RlThread *t = (rl_active & RL_ACTIVE_CALLS) ? rl_known_thread() : NULL;
    if (t == NULL || t->level != RL_PYTHON || t->sealed || t->depth >= RL_MAX_DEPTH) {
        timed[i].release(self);
        return;
    }
    const uint32_t session = rl_session;
    t->callbacks++; /* two readings of the clock: about what a callback of the probe costs */
    rl_push(t, rl_now(), timed[i].id, timed[i].level, RL_CALL, &timed[i]);
    timed[i].release(self);
    if ((rl_active & RL_ACTIVE_CALLS) && session == rl_session) {
        rl_pop_operation(t, rl_now(), timed[i].id, RL_CALL);
    }
}

/* The slot that classes written in Python have: it calls that of their native base. */
static destructor slot_of_python_classes(void) {
    PyObject *name = PyUnicode_FromString("Released");
    PyObject *made = name ? PyObject_CallFunction((PyObject *)&PyType_Type, "O(){}", name) : NULL;
    destructor slot = made ? ((PyTypeObject *)made)->tp_dealloc : NULL;
    Py_XDECREF(name);
    Py_XDECREF(made);
    return slot;
}

/* Whether a type can be added, or its place be used again. */
static int may_be_timed(PyTypeObject *type, int place) {
    if (type->tp_dealloc == NULL || type->tp_dealloc == timed_release) {
        return 0;
    }
    if (place < timed_count) {
        /* Somebody else's slot may call ours: they would call each other for ever. */
        return type->tp_dealloc == timed[place].release;
    }
    for (int i = 0; i < timed_count; i++) {
        if (PyType_IsSubtype(type, timed[i].type) || PyType_IsSubtype(timed[i].type, type)) {
            return 0;
        }
    }
    return place < MAX_TYPES;
}

static PyObject *time_release(PyObject *module, PyObject *args) {
    (void)module;
    PyTypeObject *type;
    int id, level;
    if (!PyArg_ParseTuple(args, "O!ii:time_release", &PyType_Type, &type, &id, &level)) {
        return NULL;
    }
    if (id < RL_FIRST_ID || id > RL_MAX_ID || level <= RL_PYTHON || level >= RL_NUM_LEVELS) {
        return PyErr_Format(PyExc_ValueError, "id %d or level %d is out of range", id, level);
    }
    const destructor of_python = slot_of_python_classes();
    if (of_python == NULL) {
        return NULL;
    }
    int i = 0;
    while (i < timed_count && timed[i].type != type) {
        i++;
    }
    if (type->tp_dealloc == of_python || !may_be_timed(type, i)) {
        Py_RETURN_FALSE;
    }
    if (i == timed_count) {
        timed[i].type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    }
    timed[i].release = type->tp_dealloc;
    timed[i].id = (uint16_t)id;
    timed[i].level = (uint8_t)level;
    timed_count += i == timed_count;
    type->tp_dealloc = timed_release;
    Py_RETURN_TRUE;
}

static PyObject *restore_release(PyObject *module, PyObject *subject) {
    (void)module;
    for (int i = 0; i < timed_count; i++) {
        if ((PyObject *)timed[i].type == subject && timed[i].type->tp_dealloc == timed_release) {
            timed[i].type->tp_dealloc = timed[i].release;
        }
    }
    Py_RETURN_NONE;
}

/* set_in_type(type, name, value): put it into the dictionary of a native type that does not let
 * itself be changed from Python; returns what was there. `with` looks its methods up there, and calls
 * them without an event. */
static PyObject *set_in_type(PyObject *module, PyObject *args) {
    (void)module;
    PyTypeObject *type;
    PyObject *name, *value;
    if (!PyArg_ParseTuple(args, "O!UO:set_in_type", &PyType_Type, &type, &name, &value)) {
        return NULL;
    }
    PyObject *dict = type->tp_dict; /* NULL for the builtins' static types from Python 3.12 on */
    PyObject *before = dict ? PyDict_GetItemWithError(dict, name) : NULL;
    if (before == NULL) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_AttributeError, "%s has no %R of its own",
                                               type->tp_name, name);
    }
    Py_INCREF(before);
    if (PyDict_SetItem(dict, name, value) < 0) {
        Py_DECREF(before);
        return NULL;
    }
    PyType_Modified(type);
    return before;
}

PyMethodDef rl_release_methods[] = {
    {"set_in_type", set_in_type, METH_VARARGS,
     "set_in_type(type, name, value): replace what a native type's dictionary holds."},
    {"time_release", time_release, METH_VARARGS,
     "time_release(type, id, level): whether its objects' release is timed from here on; not that "
     "of a class written in Python, which calls its native base's, nor of a type related to one "
     "that is timed."},
    {"restore_release", restore_release, METH_O, "Leave the release of a type's objects alone."},
    {NULL, NULL, 0, NULL},
};
