/* Which of several kinds of instructions a file's kernels run with.
 *
 * The file that includes this one has defined `Kernels`, a struct with a `name`; `all_kernels`, an
 * array of NUM_KERNELS of them, the quickest first and "plain" last; and `kernels`, a pointer to those
 * in use. Its module gets the method of USE_METHOD and the list that `instructions` makes.
 */

/* Whether this processor can run them. */
static int
is_served(const Kernels *these)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    int wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(these->name, "avx512") == 0)
        return wide && __builtin_cpu_supports("avx512f");
    if (strcmp(these->name, "avx2") == 0)
        return wide;
#endif
    return strcmp(these->name, "plain") == 0;
}

static PyObject *
use(PyObject *module, PyObject *name)
{
    (void)module;
    for (int i = 0; i < NUM_KERNELS; i++) {
        const Kernels *these = &all_kernels[i];
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, these->name) == 0 &&
            is_served(these)) {
            kernels = these;
            return Py_NewRef(Py_None);
        }
    }
    PyErr_Format(PyExc_ValueError, "this processor has no instructions %R", name);
    return NULL;
}

#define USE_METHOD                                                                              \
    {"use", use, METH_O, "use(name): compute with these instructions, one of `instructions`."}

/* The names of what this processor can run, the quickest first; that one is used. */
static PyObject *
instructions(void)
{
    PyObject *names = PyList_New(0);
    for (int i = NUM_KERNELS - 1; names != NULL && i >= 0; i--) {
        if (!is_served(&all_kernels[i]))
            continue;
        kernels = &all_kernels[i];
        PyObject *name = PyUnicode_FromString(kernels->name);
        if (name == NULL || PyList_Insert(names, 0, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}
