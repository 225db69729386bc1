/* The extension module redline.profile._stacks: which Python lines the main thread is at.
 *
 * A thread wakes at random intervals and asks the interpreter to call back (Py_AddPendingCall). It
 * does so in the main thread, holding the GIL, once the bytecode under way is done: after a call of
 * native code that is the line of the call, also where that code calls Python. A sample stands for
 * the time since the one before. So one that is answered late, as the thread waited or was in a long
 * call, weighs as much as that.
 *
 * What is written is lines of JSON, appended twenty times a second:
 *
 *   ["code", number, qualified name, file, first line]
 *   ["node", number, node of the caller or -1, code, line]
 *   ["at", ns since the base, node or -1, ns that it stands for]
 *
 * Code objects that were seen are kept, so that their addresses stay theirs. Rows wait while the disk
 * is full; where they no longer fit, samples are left out, and never codes or nodes: their numbers
 * count on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030d0000
/* Before 3.13 the interpreter, asked by another thread, looks up only when it next happens to. */
#define Py_BUILD_CORE 1
#undef _PyGC_FINALIZED /* which both headers define */
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#undef Py_BUILD_CORE
#define ASKS_ITSELF 1
#else
#define ASKS_ITSELF 0
#endif

#include "own_file.h"
#include "waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FRAMES = 256, MAX_NODES = 1 << 17, MAX_TEXT = 400, BUFFER = 1 << 17 };
enum { TABLE = 2 * MAX_NODES, WRITE_NS = 50000000, NOBODY = -1 };
enum { MOST_OF_LINE = 2 * 6 * MAX_TEXT + 100 };

typedef struct {
    const void *code; /* NULL: a free place */
    int32_t parent, line, number;
} Place;

static Place *places; /* [TABLE] nodes, and codes with parent NOBODY - 1 */
static int32_t node_count, code_count;
static PyObject *kept_codes;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the buffer */
static pthread_mutex_t wake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;
static int is_open, running, stopping, write_error;
static int64_t own_cpu_ns; /* of its thread; read once that has ended */
static int64_t answers_ns; /* that the main thread took to answer */
static pid_t owner; /* the process that opened it; a forked child is another */
static RlOwnFile file = {.number = -1};
static int problem; /* of the last attempt to write; what waits may still be written */
static char buffer[BUFFER];
static size_t used;
static int64_t base_ns, interval_ns, last_ns;
static uint64_t random_state, sample_count, lost_count;
static _Atomic int asked;           /* a call is pending */
static _Atomic int64_t asked_ns;    /* when the first unanswered look was */
static _Atomic int64_t owed_ns;     /* time that the next answer stands for */

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* CPU time of the calling thread. */
static int64_t own_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ------------------------------------------------------------------ the file */

/* What cannot be written waits for the next time. */
static void write_out(void) {
    int is_torn;
    if (used == 0) {
        return;
    }
    problem = rl_file_is_ours(&file) ? 0 : rl_open_file_again(&file);
    if (problem != 0) {
        return;
    }
    problem = rl_append(&file, buffer, used, &is_torn);
    if (problem != 0 && !is_torn) {
        return;
    }
    write_error = problem != 0 ? problem : write_error;
    used = 0;
}

static void drop_samples(void) {
    size_t kept = 0;
    for (size_t at = 0; at < used;) {
        const char *end = memchr(buffer + at, '\n', used - at);
        const size_t length = end != NULL ? (size_t)(end - buffer) + 1 - at : used - at;
        if (strncmp(buffer + at, "[\"at\"", 5) == 0) {
            lost_count++;
            write_error = problem;
        } else {
            memmove(buffer + kept, buffer + at, length);
            kept += length;
        }
        at += length;
    }
    used = kept;
}

/* Whether one more line fits. */
static int has_room(void) {
    if (used + MOST_OF_LINE > BUFFER) {
        write_out();
    }
    if (used + MOST_OF_LINE > BUFFER) {
        drop_samples();
    }
    return used + MOST_OF_LINE <= BUFFER;
}

/* A JSON string; what is no text, or too long, is shown as far as it goes. */
static char *put_text(char *to, PyObject *text) {
    Py_ssize_t length = 0;
    const char *from = PyUnicode_AsUTF8AndSize(text, &length);
    if (from == NULL) {
        PyErr_Clear();
        from = "?";
        length = 1;
    }
    if (length > MAX_TEXT) {
        length = MAX_TEXT;
        while (length > 0 && ((unsigned char)from[length] & 0xC0) == 0x80) {
            length--;
        }
    }
    *to++ = '"';
    for (Py_ssize_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)from[i];
        if (c < 0x20 || c == '"' || c == '\\') {
            to += sprintf(to, "\\u%04x", c);
        } else {
            *to++ = (char)c;
        }
    }
    *to++ = '"';
    return to;
}

/* ------------------------------------------------------------------ nodes */

static Place *place_of(const void *code, int32_t parent, int32_t line) {
    uint64_t hash = ((uint64_t)(uintptr_t)code >> 4) * 0x9e3779b97f4a7c15u;
    hash ^= ((uint64_t)(uint32_t)parent << 32 | (uint32_t)line) * 0xc2b2ae3d27d4eb4fu;
    for (size_t i = (hash >> 20) % TABLE;; i = (i + 1) % TABLE) {
        if (places[i].code == NULL || (places[i].code == code && places[i].parent == parent &&
                                       places[i].line == line)) {
            return &places[i];
        }
    }
}

static int32_t code_number(PyCodeObject *code) {
    Place *place = place_of(code, NOBODY - 1, 0);
    if (place->code != NULL) {
        return place->number;
    }
    if (node_count + code_count >= MAX_NODES || !has_room() ||
        PyList_Append(kept_codes, (PyObject *)code) < 0) {
        PyErr_Clear();
        return NOBODY;
    }
    *place = (Place){code, NOBODY - 1, 0, code_count++};
    char *at = buffer + used;
    at += sprintf(at, "[\"code\",%d,", place->number);
    at = put_text(at, code->co_qualname);
    *at++ = ',';
    at = put_text(at, code->co_filename);
    at += sprintf(at, ",%d]\n", code->co_firstlineno);
    used = (size_t)(at - buffer);
    return place->number;
}

/* The node of a line called from another node; that other where there is no room left. */
static int32_t node_number(int32_t parent, PyCodeObject *code, int32_t line) {
    Place *place = place_of(code, parent, line);
    if (place->code != NULL) {
        return place->number;
    }
    const int32_t number = code_number(code);
    if (number < 0 || node_count + code_count >= MAX_NODES || !has_room()) {
        return parent;
    }
    place = place_of(code, parent, line);
    *place = (Place){code, parent, line, node_count++};
    used += (size_t)sprintf(buffer + used, "[\"node\",%d,%d,%d,%d]\n", place->number, parent, number,
                            line);
    return place->number;
}

typedef struct {
    PyCodeObject *codes[MAX_FRAMES];
    int32_t lines[MAX_FRAMES];
    int count;
} Stack;

/* Whether a function was entered, and nothing of it has run: before its RESUME come a bytecode for
 * each cell, and two or three that make a generator or copy what a closure holds. */
static int is_only_entered(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    const int first = (int)sizeof(uint16_t) * (code->co_ncellvars + 3);
    Py_DECREF(code);
    return PyFrame_GetLasti(frame) <= first;
}

/* The innermost frame first; of deeper stacks the outermost frames are left out.
 *
 * Of a function that was only entered the caller counts: native code that calls Python (exec, an
 * import) took the time until the interpreter looked up, there.
 */
static void read_stack(Stack *stack) {
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    stack->count = 0;
    if (frame != NULL && is_only_entered(frame)) {
        PyFrameObject *caller = PyFrame_GetBack(frame);
        if (caller != NULL) {
            Py_DECREF(frame);
            frame = caller;
        }
    }
    while (frame != NULL && stack->count < MAX_FRAMES) {
        stack->codes[stack->count] = PyFrame_GetCode(frame);
        stack->lines[stack->count++] = PyFrame_GetLineNumber(frame);
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    PyErr_Clear();
}

static void write_sample(const Stack *stack, int64_t at, int64_t weight) {
    int32_t node = NOBODY;
    for (int i = stack->count; i-- > 0;) {
        node = node_number(node, stack->codes[i], stack->lines[i]);
    }
    if (!has_room()) {
        lost_count++;
        write_error = problem;
        return;
    }
    used += (size_t)sprintf(buffer + used, "[\"at\",%lld,%d,%lld]\n", (long long)(at - base_ns), node,
                            (long long)weight);
    sample_count++;
}

/* Called by the interpreter, in the main thread. */
static int answer(void *unused) {
    (void)unused;
    static Stack stack; /* there is one main thread, and pending calls do not nest */
    if (!is_open || !atomic_load(&asked)) {
        return 0;
    }
    const int64_t began = own_ns(), at = atomic_load(&asked_ns);
    atomic_store(&asked, 0);
    const int64_t weight = atomic_exchange(&owed_ns, 0);
    /* Frames are made: a collection may run Python code, which must not be asked meanwhile. */
    const int collects = PyGC_Disable();
    read_stack(&stack);
    if (collects) {
        PyGC_Enable();
    }
    if (is_open) {
        pthread_mutex_lock(&lock);
        write_sample(&stack, at, weight);
        pthread_mutex_unlock(&lock);
    }
    while (stack.count > 0) {
        Py_DECREF(stack.codes[--stack.count]);
    }
    answers_ns += own_ns() - began;
    return 0;
}

/* ------------------------------------------------------------------ the thread */

/* From half to one and a half intervals, so that no period of the program is met in step. */
static int64_t next_wait(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return interval_ns / 2 + (int64_t)(random_state % (uint64_t)interval_ns);
}

#if ASKS_ITSELF
enum { LOOKS_BEFORE_REST = 10 };

static PyInterpreterState *interpreter;
static PyThreadState *main_state;

static void find_main_thread(void) {
    interpreter = PyInterpreterState_Get();
    main_state = PyInterpreterState_ThreadHead(interpreter);
    while (main_state != NULL && main_state->thread_id != _PyRuntime.main_thread) {
        main_state = PyThreadState_Next(main_state);
    }
}

static int main_has_gil(void) {
#if PY_VERSION_HEX < 0x030c0000
    struct _gil_runtime_state *gil = &_PyRuntime.ceval.gil;
#else
    struct _gil_runtime_state *gil = interpreter->ceval.gil;
#endif
    return (PyThreadState *)_Py_atomic_load(&gil->last_holder) == main_state;
}

/* What another thread than the main one is to look up for. */
static void leave_in_peace(void) {
    struct _ceval_state *state = &interpreter->ceval;
    int wanted = _Py_atomic_load(&state->gil_drop_request) || state->pending.async_exc;
#if PY_VERSION_HEX >= 0x030c0000
    wanted = wanted || _Py_atomic_load(&state->gc_scheduled);
#endif
    _Py_atomic_store(&state->eval_breaker, wanted);
}

/* Make the main thread look up soon. Only while it runs: the flag is that of all threads, others
 * cannot answer, and under a profile function of 3.11 a thread that enters a function while the
 * flag is up checks it again and again until it is down. Whoever takes the GIL later sets the flag
 * for itself, once it is the holder; so one who took it since is seen to hold it.
 */
static void make_look_up(int unanswered) {
    /* In another pending call that runs Python, the main thread cannot answer either. */
    if (unanswered % LOOKS_BEFORE_REST == LOOKS_BEFORE_REST - 1) {
        leave_in_peace();
        return;
    }
    if (main_has_gil()) {
        _Py_atomic_store(&interpreter->ceval.eval_breaker, 1);
        if (!main_has_gil()) {
            leave_in_peace();
        }
    }
}
#else
static void find_main_thread(void) {}
static void make_look_up(int unanswered) { (void)unanswered; }
#endif

static void look(int64_t now) {
    static int unanswered;
    atomic_fetch_add(&owed_ns, now - last_ns);
    last_ns = now;
    if (atomic_load(&asked)) {
        unanswered++; /* the answer will stand for this look, too */
    } else {
        unanswered = 0;
        atomic_store(&asked_ns, now);
        atomic_store(&asked, 1);
        if (Py_AddPendingCall(answer, NULL) != 0) {
            atomic_store(&asked, 0);
            lost_count++;
            return;
        }
    }
    make_look_up(unanswered);
}

static void *run(void *unused) {
    (void)unused;
#ifdef __linux__
    /* Where it may: being late when cores are short would look away from the busiest times. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -10);
#endif
    int64_t next_write = now_ns() + WRITE_NS;
    pthread_mutex_lock(&wake_lock);
    while (!stopping) {
        rl_wait(&wake, &wake_lock, next_wait());
        if (stopping) {
            break;
        }
        const int64_t now = now_ns();
        look(now);
        if (now >= next_write) {
            pthread_mutex_lock(&lock);
            write_out();
            pthread_mutex_unlock(&lock);
            next_write = now + WRITE_NS;
        }
    }
    pthread_mutex_unlock(&wake_lock);
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    own_cpu_ns += (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
    return NULL;
}

static int start_thread(void) {
    rl_make_condition(&wake);
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&wake_lock, NULL);
    stopping = 0;
    last_ns = now_ns();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    running = failed == 0;
    return failed;
}

static void stop_thread(void) {
    pthread_mutex_lock(&wake_lock);
    stopping = 1;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&wake_lock);
    pthread_join(thread, NULL);
    running = 0;
    /* Time without this thread stands for nothing. */
    atomic_store(&asked, 0);
    atomic_store(&owed_ns, 0);
}

static void stop_if_running(void) {
    if (running) {
        Py_BEGIN_ALLOW_THREADS;
        stop_thread();
        Py_END_ALLOW_THREADS;
    }
}

/* ------------------------------------------------------------------ Python */

static void clear(void) {
    free(places);
    places = NULL;
    Py_CLEAR(kept_codes);
    if (rl_file_is_ours(&file)) {
        close(file.number);
    }
    file.number = -1;
    is_open = 0;
}

/* In a forked child: the file is the parent's, and so is what was not yet written. */
static void leave(void) {
    running = 0;
    used = 0;
    atomic_store(&asked, 0);
    atomic_store(&owed_ns, 0);
    if (is_open) {
        clear();
    }
}

/* A process forked while another thread was ending it all is not told to leave it. */
static void leave_if_inherited(void) {
    if (is_open && owner != getpid()) {
        leave();
    }
}

static PyObject *start_at(const char *path, long long base, long long interval) {
    leave_if_inherited();
    if (is_open || interval <= 0) {
        return PyErr_Format(PyExc_ValueError, "already sampling, or interval_ns=%lld", interval);
    }
    kept_codes = PyList_New(0);
    places = calloc(TABLE, sizeof *places);
    if (kept_codes == NULL || places == NULL) {
        clear();
        return PyErr_NoMemory();
    }
    if (rl_create_file(&file, path) != 0) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
        clear();
        return NULL;
    }
    find_main_thread();
    base_ns = base;
    interval_ns = interval;
    random_state = 88172645463325252u ^ (uint64_t)base;
    node_count = code_count = 0;
    sample_count = lost_count = used = 0;
    write_error = problem = 0;
    own_cpu_ns = answers_ns = 0;
    atomic_store(&asked, 0);
    atomic_store(&owed_ns, 0);
    is_open = 1;
    owner = getpid();
    Py_RETURN_NONE;
}

static PyObject *start(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *path = NULL; /* bytes: a name need not be UTF-8 */
    long long base, interval;
    if (!PyArg_ParseTuple(args, "O&LL:start", PyUnicode_FSConverter, &path, &base, &interval)) {
        return NULL;
    }
    PyObject *result = start_at(PyBytes_AS_STRING(path), base, interval);
    Py_DECREF(path);
    return result;
}

static PyObject *resume(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    const int failed = is_open && !running ? start_thread() : 0;
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *pause_looking(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    stop_if_running();
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    if (!is_open) {
        Py_RETURN_NONE;
    }
    stop_if_running();
    write_out();
    if (used > 0) {
        write_error = problem;
    }
    clear();
    return Py_BuildValue("{s:K,s:K,s:i,s:i,s:L,s:L}", "samples", (unsigned long long)sample_count, "lost",
                         (unsigned long long)lost_count, "nodes", (int)node_count, "write_errno",
                         write_error, "cpu_ns", (long long)own_cpu_ns, "answers_ns",
                         (long long)answers_ns);
}

/* What a forked child calls first. */
static PyObject *abandon(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, "start(path, base_ns, interval_ns): paused at first."},
    {"resume", resume, METH_NOARGS, "Look at the main thread from here on."},
    {"pause", pause_looking, METH_NOARGS, "No thread from here on."},
    {"stop", stop, METH_NOARGS, "End; what was done, or None."},
    {"abandon", abandon, METH_NOARGS, "Forget it, in a forked child."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_stacks", "Samples of the Python stack for redline.profile.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__stacks(void) { return PyModule_Create(&definition); }
