/* A `__build_class__` that shows each class to a hook once it is made.
 *
 * In C, since metaclasses look into the frame from which they are called: one of Python's in between
 * would not be the one that defines the class.
 */
#include "recorder.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *build, *hook;
} BuilderObject;

static PyObject *builder_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf,
                                    PyObject *kwnames) {
    const BuilderObject *builder = (BuilderObject *)self;
    PyObject *made = PyObject_Vectorcall(builder->build, args, nargsf, kwnames);
    if (made != NULL) {
        PyObject *done = PyObject_CallOneArg(builder->hook, made);
        if (done == NULL) {
            rl_hook_failed(builder->hook);
        }
        Py_XDECREF(done);
    }
    return made;
}

static int builder_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((BuilderObject *)self)->build);
    Py_VISIT(((BuilderObject *)self)->hook);
    return 0;
}

static int builder_clear(PyObject *self) {
    Py_CLEAR(((BuilderObject *)self)->build);
    Py_CLEAR(((BuilderObject *)self)->hook);
    return 0;
}

static void builder_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    builder_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject BuilderType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "redline.profile.ClassBuilder",
    .tp_basicsize = sizeof(BuilderObject),
    .tp_dealloc = builder_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(BuilderObject, vectorcall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Builds classes, and shows each to a hook.",
    .tp_traverse = builder_traverse,
    .tp_clear = builder_clear,
};

/* class_builder(build, hook): a `__build_class__` that calls hook(class) after `build`. */
static PyObject *class_builder(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *build, *hook;
    if (!PyArg_ParseTuple(args, "OO:class_builder", &build, &hook)) {
        return NULL;
    }
    BuilderObject *builder = (BuilderObject *)BuilderType.tp_alloc(&BuilderType, 0);
    if (builder != NULL) {
        builder->vectorcall = builder_vectorcall;
        builder->build = Py_NewRef(build);
        builder->hook = Py_NewRef(hook);
    }
    return (PyObject *)builder;
}

static PyMethodDef class_methods[] = {
    {"class_builder", class_builder, METH_VARARGS,
     "class_builder(build, hook): a __build_class__ that shows each class to the hook."},
    {NULL, NULL, 0, NULL},
};

int rl_classes_ready(PyObject *module) {
    if (PyType_Ready(&BuilderType) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, class_methods);
}
