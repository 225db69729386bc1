/* The boundary between Python and native code.
 *
 * Python 3.12 and later: sys.monitoring with C callbacks; call sites and functions
 * that turn out uninteresting are disabled. Python 3.11: a C profile function in
 * every thread. Both feed the same stack: a native call of an interesting callable
 * pushes its level, Python code that runs below a native call pushes `python` again,
 * and chosen Python functions push an operation or a sealed (compiled) region.
 */
#include "recorder.h"

#include <structmember.h>

#if PY_VERSION_HEX < 0x030c0000
#define CODE_GET_EXTRA _PyCode_GetExtra
#define CODE_SET_EXTRA _PyCode_SetExtra
#define REQUEST_EXTRA_INDEX _PyEval_RequestCodeExtraIndex
#else
#define CODE_GET_EXTRA PyUnstable_Code_GetExtra
#define CODE_SET_EXTRA PyUnstable_Code_SetExtra
#define REQUEST_EXTRA_INDEX PyUnstable_Eval_RequestCodeExtraIndex
#endif

/* What is known of a callable: id 0 means that it belongs to its caller's level. */
typedef struct {
    const void *key;
    uint16_t id;
    uint8_t level;
} Known;

/* What is known of a Python function worth observing. */
typedef struct {
    uint16_t id;
    uint16_t otherwise; /* the operation where the rule does not apply, 0 for none */
    uint8_t level;
    uint8_t kind; /* RL_AUTO: an operation; RL_CALL: a region of this level */
    PyObject *unless; /* a callable that returns true when the rule does not apply */
} CodeRule;

static CodeRule plain_code; /* stands for: inspected, nothing to observe */

static Known *table = NULL;
static size_t table_size = 0, table_used = 0;
static PyObject *kept_alive = NULL; /* callables whose address is a key */
static PyObject *classify_call = NULL, *classify_type = NULL, *classify_code = NULL;
static Py_ssize_t extra_index = -1;
static uint16_t frame_id = 0;
#if PY_VERSION_HEX >= 0x030c0000
static PyObject *disable = NULL; /* sys.monitoring.DISABLE */
#endif

static inline size_t slot_of(const void *key, size_t size) {
    return (size_t)(((uint64_t)(uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 20) & (size - 1);
}

static inline Known *find(const void *key) {
    if (table == NULL) {
        return NULL;
    }
    for (size_t i = slot_of(key, table_size);; i = (i + 1) & (table_size - 1)) {
        if (table[i].key == key) {
            return &table[i];
        }
        if (table[i].key == NULL) {
            return NULL;
        }
    }
}

static Known *insert(const void *key, uint16_t id, uint8_t level) {
    if (table == NULL || 2 * (table_used + 1) > table_size) {
        const size_t size = table == NULL ? 4096 : 2 * table_size;
        Known *bigger = calloc(size, sizeof *bigger);
        if (bigger == NULL) {
            return NULL;
        }
        for (size_t i = 0; i < table_size; i++) {
            if (table[i].key != NULL) {
                size_t j = slot_of(table[i].key, size);
                while (bigger[j].key != NULL) {
                    j = (j + 1) & (size - 1);
                }
                bigger[j] = table[i];
            }
        }
        free(table);
        table = bigger;
        table_size = size;
    }
    size_t i = slot_of(key, table_size);
    while (table[i].key != NULL) {
        i = (i + 1) & (table_size - 1);
    }
    table[i] = (Known){key, id, level};
    table_used++;
    return &table[i];
}

/* Ask Python what a callable is: None, or (id, level). */
static int ask(PyObject *classifier, PyObject *subject, uint16_t *id, uint8_t *level) {
    PyObject *type, *value, *traceback;
    *id = 0;
    *level = RL_PYTHON;
    if (classifier == NULL) {
        return 0;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *answer = PyObject_CallOneArg(classifier, subject);
    int number = 0, depth = 0;
    if (answer == NULL || (answer != Py_None && !PyArg_ParseTuple(answer, "ii", &number, &depth))) {
        rl_hook_failed(classifier);
    }
    Py_XDECREF(answer);
    PyErr_Restore(type, value, traceback);
    *id = (uint16_t)number;
    *level = (uint8_t)depth;
    return number != 0;
}

enum { TYPE_IGNORED = 0, TYPE_PER_OBJECT = 1 };

/* Callables that are neither builtin functions nor method descriptors: whether to look
 * at each is decided once per type. */
static const Known *known_object(PyObject *callable) {
    PyTypeObject *type = Py_TYPE(callable);
    const Known *policy = find(type);
    uint16_t id;
    uint8_t level;
    if (policy == NULL) {
        ask(classify_type, (PyObject *)type, &id, &level);
        policy = insert(type, id, level);
        if (policy == NULL || PyList_Append(kept_alive, (PyObject *)type) < 0) {
            PyErr_Clear();
            return NULL;
        }
    }
    if (policy->id == TYPE_IGNORED) {
        return NULL;
    }
    const Known *known = find(callable);
    if (known == NULL) {
        ask(classify_call, callable, &id, &level);
        known = insert(callable, id, level);
        if (known == NULL || PyList_Append(kept_alive, callable) < 0) {
            PyErr_Clear();
            return NULL;
        }
    }
    return known->id != 0 ? known : NULL;
}

/* The record of an interesting native callable, or NULL. Bound builtins are made anew
 * for each call: their method definition is what identifies them. */
static inline const Known *known_callable(PyObject *callable) {
    const void *key;
    if (PyFunction_Check(callable) || Py_TYPE(callable) == &RlWrapperType) {
        return NULL;
    }
    if (PyMethod_Check(callable)) {
        callable = PyMethod_GET_FUNCTION(callable);
        if (!PyCFunction_Check(callable)) {
            return NULL;
        }
    }
    if (PyCFunction_Check(callable)) {
        key = ((PyCFunctionObject *)callable)->m_ml;
    } else if (Py_IS_TYPE(callable, &PyMethodDescr_Type) ||
               Py_IS_TYPE(callable, &PyClassMethodDescr_Type)) {
        key = ((PyMethodDescrObject *)callable)->d_method;
    } else if (Py_IS_TYPE(callable, &PyWrapperDescr_Type)) {
        /* Not d_base, which all types share: `object.__init__` would decide for every `__init__`. */
        key = ((PyWrapperDescrObject *)callable)->d_wrapped;
    } else {
        return known_object(callable);
    }
    const Known *known = find(key);
    if (known == NULL) {
        uint16_t id;
        uint8_t level;
        ask(classify_call, callable, &id, &level);
        known = insert(key, id, level);
    }
    return known != NULL && known->id != 0 ? known : NULL;
}

/* The rule of a code object, kept in the code object itself so that it lives as long. */
static inline CodeRule *rule_of(PyObject *code) {
    void *extra = NULL;
    if (extra_index < 0 || CODE_GET_EXTRA(code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return &plain_code;
    }
    if (extra != NULL) {
        return extra;
    }
    CodeRule *rule = &plain_code;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *answer = classify_code ? PyObject_CallOneArg(classify_code, code) : NULL;
    if (answer != NULL && answer != Py_None) {
        int id, level, operation, otherwise = 0;
        PyObject *unless;
        if (PyArg_ParseTuple(answer, "iiiO|i", &id, &level, &operation, &unless, &otherwise)) {
            CodeRule *made = calloc(1, sizeof *made);
            if (made != NULL) {
                made->id = (uint16_t)id;
                made->otherwise = (uint16_t)otherwise;
                made->level = (uint8_t)level;
                made->kind = operation ? RL_AUTO : RL_CALL;
                made->unless = unless == Py_None ? NULL : Py_NewRef(unless);
                rule = made;
            }
        }
    }
    if (PyErr_Occurred()) {
        rl_hook_failed(classify_code);
    }
    Py_XDECREF(answer);
    if (classify_code != NULL && CODE_SET_EXTRA(code, extra_index, rule) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, value, traceback);
    return rule;
}

/* The id to begin, 0 for none. */
static uint16_t id_of(const CodeRule *rule) {
    if (rule->unless == NULL) {
        return rule->id;
    }
    PyObject *answer = PyObject_CallNoArgs(rule->unless);
    const int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (truth < 0) {
        rl_hook_failed(rule->unless);
    }
    return truth < 0 ? 0 : truth ? rule->otherwise : rule->id;
}

static inline int top_is(const RlThread *t, const void *key) {
    return t->depth > 0 && t->stack[t->depth - 1].key == key;
}

static inline void native_begin(RlThread *t, const Known *known) {
    if (!t->sealed) {
        rl_push(t, rl_now(), known->id, known->level, RL_CALL, known->key);
    }
}

static inline void native_end(RlThread *t, const Known *known) {
    if (top_is(t, known->key) && t->stack[t->depth - 1].kind == RL_CALL &&
        !rl_unfold(&t->stack[t->depth - 1])) {
        rl_pop_top(t, rl_now());
    }
}

static inline void push_rule(RlThread *t, uint16_t id, const CodeRule *rule, const void *key) {
    const uint32_t depth = t->depth;
    rl_push(t, rl_now(), id, rule->level, rule->kind, key);
    if (t->depth > depth) {
        t->stack[depth].is_probed = rule->kind == RL_AUTO;
    }
}

/* A Python function begins. Returns whether its begin and end are worth seeing again. */
static inline int python_begin(RlThread *t, PyObject *code, const void *key) {
    RlEntry *top = t->depth > 0 ? &t->stack[t->depth - 1] : NULL;
    CodeRule *rule = rule_of(code);
    if (top != NULL && top->key == key) {
        top->repeat++;
        return 1;
    }
    if (rule != &plain_code) {
        const int nested = rule->kind == RL_AUTO
                               ? t->op == rule->id || (rule->otherwise && t->op == rule->otherwise)
                               : t->sealed;
        const uint16_t id = nested ? 0 : id_of(rule);
        if (id != 0) {
            if (rule->kind == RL_AUTO) {
                rl_report_callbacks(t);
            }
            push_rule(t, id, rule, key);
        }
        return 1;
    }
    if (t->level != RL_PYTHON && !t->sealed) {
        rl_push(t, rl_now(), frame_id, RL_PYTHON, RL_FRAME, key);
        return 1;
    }
    return 0;
}

static inline int python_end(RlThread *t, const void *key) {
    if (!top_is(t, key)) {
        return 0;
    }
    RlEntry *top = &t->stack[t->depth - 1];
    if (!rl_unfold(top)) {
        if (top->kind == RL_AUTO) {
            rl_report_callbacks(t);
        }
        rl_pop_top(t, rl_now());
    }
    return 1;
}

/* Whether this frame may have begun an entry; addresses of frames are used again. */
static int has_begun(const RlEntry *e, PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    const void *key = PY_VERSION_HEX < 0x030c0000 ? (void *)frame : (void *)code;
    void *extra = NULL;
    int has = 0;
    if (key == e->key && CODE_GET_EXTRA((PyObject *)code, extra_index, &extra) == 0 &&
        extra != NULL) {
        const CodeRule *rule = extra;
        has = rule->id == e->id || rule->otherwise == e->id;
    }
    Py_DECREF(code);
    return has;
}

/* How many of a thread's present frames may have begun an entry. */
uint32_t rl_running_frames(const RlThread *t, const RlEntry *e) {
    uint32_t found = 0;
    /* Frame objects are made in here: no collection, as it may let threads end meanwhile. */
    const int collects = PyGC_Disable();
    PyThreadState *state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    for (; state != NULL; state = PyThreadState_Next(state)) {
        const int is_own = state->thread_id == (unsigned long)t->owner;
        PyFrameObject *frame = is_own ? PyThreadState_GetFrame(state) : NULL;
        while (frame != NULL) {
            found += has_begun(e, frame);
            PyFrameObject *outer = PyFrame_GetBack(frame);
            Py_DECREF(frame);
            frame = outer;
        }
    }
    if (collects) {
        PyGC_Enable();
    }
    return found;
}

#if PY_VERSION_HEX < 0x030c0000
/* ------------------------------------------------------------------ Python 3.11 */

static int profile_function(PyObject *self, PyFrameObject *frame, int what, PyObject *arg) {
    (void)self;
    if (!(rl_active & RL_ACTIVE_CALLS)) {
        return 0;
    }
    RlThread *t = rl_thread();
    if (t == NULL) {
        return 0;
    }
    t->callbacks++;
    if (what == PyTrace_C_CALL) {
        const Known *known = known_callable(arg);
        if (known != NULL) {
            native_begin(t, known);
        }
    } else if (what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
        if (t->depth > 0 && t->stack[t->depth - 1].kind == RL_CALL) {
            const Known *known = known_callable(arg);
            if (known != NULL) {
                native_end(t, known);
            }
        }
    } else if (what == PyTrace_CALL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        python_begin(t, (PyObject *)code, frame);
        Py_DECREF(code);
    } else if (what == PyTrace_RETURN) {
        python_end(t, frame);
    }
    return 0;
}

/* Observe all threads of the interpreter that have no profile function, or none. */
static PyObject *hook_threads(PyObject *module, PyObject *on) {
    (void)module;
    const int wanted = PyObject_IsTrue(on);
    PyThreadState *own = PyThreadState_Get();
    PyThreadState *state = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(own));
    int hooked = 0;
    for (; state != NULL; state = PyThreadState_Next(state)) {
        if (wanted && state->c_profilefunc == NULL) {
            if (_PyEval_SetProfile(state, profile_function, NULL) < 0) {
                return NULL;
            }
            hooked++;
        } else if (!wanted && state->c_profilefunc == profile_function) {
            if (_PyEval_SetProfile(state, NULL, NULL) < 0) {
                return NULL;
            }
            hooked++;
        }
    }
    return PyLong_FromLong(hooked);
}

/* The thread that calls this is observed from here on (for new threads). */
static PyObject *hook_this_thread(PyObject *module, PyObject *args) {
    (void)module;
    (void)args;
    if (rl_active & RL_ACTIVE_CALLS) {
        PyEval_SetProfile(profile_function, NULL);
    } else {
        PyEval_SetProfile(NULL, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *profile_holder(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyThreadState *state = PyThreadState_Get();
    if (state->c_profilefunc == NULL || state->c_profilefunc == profile_function) {
        Py_RETURN_NONE;
    }
    return state->c_profileobj ? PyObject_Repr(state->c_profileobj)
                               : PyUnicode_FromString("a C profile function");
}

PyMethodDef rl_boundary_methods[] = {
    {"hook_threads", hook_threads, METH_O, "Set (or clear) the profile function everywhere."},
    {"hook_this_thread", hook_this_thread, METH_VARARGS, "Profile function for new threads."},
    {"profile_holder", profile_holder, METH_NOARGS, "Who else holds the profile hook, or None."},
    {NULL, NULL, 0, NULL},
};

#else
/* ------------------------------------------------------------------ Python 3.12 and later */

static inline RlThread *observed_thread(void) {
    RlThread *t = (rl_active & RL_ACTIVE_CALLS) ? rl_thread() : NULL;
    if (t != NULL) {
        t->callbacks++;
    }
    return t;
}

/* CALL: (code, offset, callable, first argument) */
static PyObject *on_call(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    const Known *known = known_callable(args[2]);
    if (known == NULL) {
        return Py_NewRef(disable);
    }
    RlThread *t = observed_thread();
    if (t != NULL) {
        native_begin(t, known);
    }
    Py_RETURN_NONE;
}

/* C_RETURN and C_RAISE: the same arguments. */
static PyObject *on_c_return(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    RlThread *t = observed_thread();
    if (t != NULL && t->depth > 0 && t->stack[t->depth - 1].kind == RL_CALL) {
        const Known *known = known_callable(args[2]);
        if (known != NULL) {
            native_end(t, known);
        }
    }
    Py_RETURN_NONE;
}

/* PY_START: (code, offset). A generator would stay open while suspended, so its body
 * belongs to the level that resumes it. */
static PyObject *on_py_start(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    const int flags = ((PyCodeObject *)args[0])->co_flags;
    if (flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) {
        return Py_NewRef(disable);
    }
    RlThread *t = observed_thread();
    if (t != NULL && python_begin(t, args[0], args[0])) {
        Py_RETURN_NONE;
    }
    return Py_NewRef(t == NULL ? Py_None : disable);
}

/* PY_RETURN: (code, offset, value) */
static PyObject *on_py_return(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    RlThread *t = observed_thread();
    if (t == NULL || python_end(t, args[0]) || rule_of(args[0]) != &plain_code) {
        Py_RETURN_NONE;
    }
    return Py_NewRef(disable);
}

/* PY_UNWIND: (code, offset, exception) */
static PyObject *on_py_unwind(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    (void)nargs;
    RlThread *t = observed_thread();
    if (t != NULL) {
        python_end(t, args[0]);
    }
    Py_RETURN_NONE;
}

#define CALLBACK(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL
PyMethodDef rl_boundary_methods[] = {
    {"on_call", CALLBACK(on_call), "sys.monitoring CALL."},
    {"on_c_return", CALLBACK(on_c_return), "sys.monitoring C_RETURN and C_RAISE."},
    {"on_py_start", CALLBACK(on_py_start), "sys.monitoring PY_START."},
    {"on_py_return", CALLBACK(on_py_return), "sys.monitoring PY_RETURN."},
    {"on_py_unwind", CALLBACK(on_py_unwind), "sys.monitoring PY_UNWIND."},
    {NULL, NULL, 0, NULL},
};
#endif

static PyObject *set_classifiers(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *call, *type, *code;
    if (!PyArg_ParseTuple(args, "OOO:set_classifiers", &call, &type, &code)) {
        return NULL;
    }
    Py_XSETREF(classify_call, Py_NewRef(call));
    Py_XSETREF(classify_type, Py_NewRef(type));
    Py_XSETREF(classify_code, Py_NewRef(code));
    Py_RETURN_NONE;
}

/* Forget what callables were found to be (a `watch` list changed). */
static PyObject *forget_callables(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    free(table);
    table = NULL;
    table_size = table_used = 0;
    return PyLong_FromLong(PyList_SetSlice(kept_alive, 0, PyList_GET_SIZE(kept_alive), NULL));
}

static PyMethodDef shared_methods[] = {
    {"set_classifiers", set_classifiers, METH_VARARGS,
     "set_classifiers(call, type, code): who decides what is interesting."},
    {"forget_callables", forget_callables, METH_NOARGS, "Classify all callables anew."},
    {NULL, NULL, 0, NULL},
};

int rl_boundary_ready(PyObject *module) {
    kept_alive = PyList_New(0);
    extra_index = REQUEST_EXTRA_INDEX(NULL);
    PyObject *kind = PyUnicode_FromString("call"), *name = PyUnicode_FromString("(python)");
    const int id = kind && name ? rl_intern(kind, name, RL_PYTHON, Py_None, 0) : -1;
    Py_XDECREF(kind);
    Py_XDECREF(name);
    if (kept_alive == NULL || id < 0) {
        return -1;
    }
    frame_id = (uint16_t)id;
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *monitoring = PySys_GetObject("monitoring"); /* borrowed */
    disable = monitoring ? PyObject_GetAttrString(monitoring, "DISABLE") : NULL;
    if (disable == NULL) {
        return -1;
    }
#endif
    return PyModule_AddFunctions(module, shared_methods);
}
