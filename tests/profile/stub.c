/* A native module that spends known times: built under several names by the tests.
 *
 * spin(ns) returns how long it took by its own clock.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (long long)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static PyObject *spin(PyObject *module, PyObject *arg) {
    (void)module;
    const long long ns = PyLong_AsLongLong(arg), start = now();
    if (ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    long long spent = 0;
    while (spent < ns) {
        spent = now() - start;
    }
    return PyLong_FromLongLong(spent);
}

/* call(f): call back into Python. */
static PyObject *call(PyObject *module, PyObject *function) {
    (void)module;
    return PyObject_CallNoArgs(function);
}

static void *let_go(void *object) {
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)object);
    PyGILState_Release(state);
    for (;;) {
        pause();
    }
    return NULL;
}

/* release_elsewhere(object): drop it in a native thread that goes on without running Python. */
static PyObject *release_elsewhere(PyObject *module, PyObject *object) {
    (void)module;
    pthread_t thread;
    Py_INCREF(object);
    if (pthread_create(&thread, NULL, let_go, object) != 0) {
        Py_DECREF(object);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pthread_detach(thread);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"spin", spin, METH_O, NULL},
    {"call", call, METH_O, NULL},
    {"release_elsewhere", release_elsewhere, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define INIT2(x) PyInit_##x
#define INIT(x) INIT2(x)

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, TEXT(NAME), NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC INIT(NAME)(void) { return PyModule_Create(&definition); }
