/* Threads, their rings, and the stack that says what each is doing. */
#include "recorder.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int rl_active = 0;
uint32_t rl_windows = 0;
int64_t rl_next_block_ns = INT64_MAX;
PyObject *rl_block_hook = NULL;
uint16_t rl_block_anchor = 0;
int64_t rl_block_patience_ns = 0;
_Atomic(RlThread *) rl_threads = NULL;
uint32_t rl_session = 0;
_Atomic uint64_t rl_lost_events = 0;
_Atomic uint64_t rl_too_deep = 0; /* of the events dropped, those that were nested too deeply */

static int64_t base_ns = 0;
static int64_t fake_ns = -1;
static uint64_t ring_words = 1u << 18;
static int64_t budget_bytes = 0;
static _Atomic int64_t used_bytes = 0;
static uint32_t next_index = 0;

enum { MIN_PART_BYTES = 1 << 13 };
/* After so long without an event a thread's CPU time is read, for who may have taken its core; and
 * every so often, so that what is too short to be told does not add up. */
enum { OFF_GAP_NS = 250000, OFF_EVERY_NS = 2000000, OFF_LEAST_NS = 200000 };

/* Read at every event: the model that costs one load, also in a shared library. */
#define FAST_TLS static __thread __attribute__((tls_model("initial-exec")))
FAST_TLS RlThread *tls_thread = NULL;
FAST_TLS uint32_t tls_session = 0;
static _Thread_local RlPhases tls_phases;
static pthread_key_t exit_key;
static int exit_key_made = 0;
static RlThread *free_structs = NULL;

int64_t rl_now(void) {
    if (fake_ns >= 0) {
        return fake_ns;
    }
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

uint64_t rl_rel(int64_t now_ns) {
    const int64_t rel = now_ns - base_ns;
    return rel < 0 ? 0 : (uint64_t)rel;
}

void rl_set_clock(int64_t ns) { fake_ns = ns; }

/* Runs as the thread ends, without the GIL: touches only the atomics. */
static void on_thread_exit(void *arg) {
    RlThread *t = arg;
    if (t->session == rl_session && pthread_equal(t->owner, pthread_self())) {
        atomic_store(&t->exited_ns, rl_now());
    }
}

void rl_release_ring(RlThread *t) {
    if (t->words != NULL) {
        /* A child forked in between must not give it back once more. */
        uint64_t *words = t->words;
        t->words = NULL;
        munmap(words, t->capacity * 8);
        atomic_fetch_sub(&used_bytes, (int64_t)t->capacity * 8);
        t->capacity = 0;
    }
}

/* A part of what the budget still allows, so that some is left for hundreds of threads; none
 * when that is under one page. */
static void allocate_ring(RlThread *t) {
    const int64_t left = budget_bytes - atomic_load(&used_bytes);
    const int64_t part = left / 16 > MIN_PART_BYTES ? left / 16 : MIN_PART_BYTES;
    const int64_t most = part < left ? part : left;
    uint64_t words = ring_words;
    while (words >= 512 && (int64_t)words * 8 > most) {
        words /= 2;
    }
    if (words < 512) {
        return;
    }
    void *memory =
        mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
        t->words = memory;
        t->capacity = words;
        atomic_fetch_add(&used_bytes, (int64_t)words * 8);
    }
}

/* A struct for this thread: one whose thread has ended and is fully written, one of
 * an earlier session, or a new one. Structs are never freed, as the writer and the
 * exit handlers of other threads may still look at them. */
static RlThread *take_struct(int *listed) {
    *listed = 1;
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        if (atomic_load(&t->drained)) {
            return t;
        }
    }
    *listed = 0;
    RlThread *t = free_structs;
    if (t != NULL) {
        free_structs = t->next;
        return t;
    }
    return calloc(1, sizeof *t);
}

static pid_t own_tid(void) {
#ifdef SYS_gettid
    return (pid_t)syscall(SYS_gettid);
#else
    return 0; /* nothing tells of its scheduling */
#endif
}

/* CPU time of the calling thread. */
static int64_t own_cpu_ns(void) {
    struct timespec ts;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts) == 0
               ? (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec
               : 0;
}

static void begin_phases(RlThread *t, int64_t now_ns) {
    for (uint32_t i = 0; i < t->phases.count; i++) {
        rl_push(t, now_ns, t->phases.ids[i], RL_PYTHON, RL_PHASE, NULL);
    }
}

static RlThread *new_thread(void) {
    int listed;
    RlThread *t = take_struct(&listed);
    if (t == NULL) {
        return NULL;
    }
    t->words = NULL;
    t->capacity = 0;
    allocate_ring(t);
    atomic_store(&t->head, 0);
    atomic_store(&t->tail, 0);
    atomic_store(&t->dropped, 0);
    atomic_store(&t->exited_ns, 0);
    atomic_store(&t->closing, 0);
    t->index = next_index++;
    t->session = rl_session;
    t->owner = pthread_self();
    t->tid = own_tid();
    t->ran_ns = t->ready_ns = t->off_at = -1;
    t->event_ns = t->clocked_ns = rl_now();
    t->clocked_cpu_ns = own_cpu_ns();
    t->windows = rl_windows;
    t->waited_ns = 0;
    t->tail_seen = 0;
    t->depth = t->open = t->callbacks = 0;
    t->op = 0;
    t->level = RL_PYTHON;
    t->sealed = 0;
    free(t->tallies);
    t->tallies = NULL;
    rl_counters_begin(t);
    t->file = -1;
    t->opened = 0;
    t->reported_drops = 0;
    atomic_store(&t->drained, 0);
    if (!listed) {
        t->next = rl_first_thread();
        atomic_store(&rl_threads, t);
    }
    tls_thread = t;
    tls_session = rl_session;
    if (exit_key_made) {
        pthread_setspecific(exit_key, t);
    }
    t->phases = tls_phases;
    if (rl_active & RL_ACTIVE_MARKS) {
        begin_phases(t, t->event_ns);
    }
    return t;
}

RlThread *rl_thread(void) {
    if (tls_thread != NULL && tls_session == rl_session) {
        return tls_thread;
    }
    return new_thread();
}

/* Only a thread that has been observed before: NULL for one that never ran Python code. */
RlThread *rl_known_thread(void) { return tls_session == rl_session ? tls_thread : NULL; }

RlThread *rl_first_thread(void) { return atomic_load(&rl_threads); }

/* Begin a recording session: fresh threads, a clock base, a memory bound. */
int rl_session_begin(uint64_t words, int64_t budget) {
    if (!exit_key_made) {
        exit_key_made = pthread_key_create(&exit_key, on_thread_exit) == 0;
    }
    rl_session++;
    rl_counters_reset();
    next_index = 0;
    base_ns = rl_now();
    ring_words = words;
    budget_bytes = budget;
    atomic_store(&rl_lost_events, 0);
    atomic_store(&rl_too_deep, 0);
    return 0;
}

int64_t rl_base_ns(void) { return base_ns; }

/* End it. The structs are kept for reuse, as other threads still point to them. */
void rl_session_end(void) {
    RlThread *t = atomic_exchange(&rl_threads, NULL);
    rl_session++;
    while (t != NULL) {
        RlThread *next = t->next;
        rl_release_ring(t);
        rl_counters_end(t);
        t->next = free_structs;
        free_structs = t;
        t = next;
    }
}

static inline int has_room(RlThread *t, uint64_t need) {
    const uint64_t head = atomic_load_explicit(&t->head, memory_order_relaxed);
    /* Of a ring that was given back the capacity is 0: the difference would be a huge number. */
    if (t->capacity >= need && t->capacity - (head - t->tail_seen) >= need) {
        return 1;
    }
    t->tail_seen = atomic_load_explicit(&t->tail, memory_order_acquire);
    return t->capacity >= need && t->capacity - (head - t->tail_seen) >= need;
}

/* Of the number 48 bits are kept. */
static inline void put(RlThread *t, uint64_t number, uint16_t code) {
    const uint64_t head = atomic_load_explicit(&t->head, memory_order_relaxed);
    t->words[head & (t->capacity - 1)] = (number << 16) | code;
    atomic_store_explicit(&t->head, head + 1, memory_order_release);
}

static inline void count_drop(RlThread *t, uint64_t events) {
    atomic_fetch_add_explicit(&t->dropped, events, memory_order_relaxed);
}

void rl_instant(RlThread *t, int64_t now_ns, uint16_t code) {
    if (has_room(t, t->open + 1)) {
        put(t, rl_rel(now_ns < t->event_ns ? t->event_ns : now_ns), code);
    } else {
        count_drop(t, 1);
    }
}

void rl_payload(RlThread *t, uint64_t value, uint16_t code) {
    if (has_room(t, t->open + 1)) {
        put(t, value & 0xffffffffffffu, code);
    } else {
        count_drop(t, 1);
    }
}

void rl_report_callbacks(RlThread *t) {
    if (t->callbacks != 0 && has_room(t, t->open + RL_RESERVE)) {
        put(t, t->callbacks, RL_CODE_CALLBACKS);
        t->callbacks = 0;
    }
}

/* The stack is full: a begin folds into the entry that its end will be taken for, if there is
 * one. Marks end the innermost of their name, calls and frames only what lies on top. */
static void fold(RlThread *t, uint16_t id, uint8_t kind, const void *key) {
    for (uint32_t i = t->depth; i-- > 0;) {
        RlEntry *e = &t->stack[i];
        if (e->kind == kind && e->id == id && (key == NULL || e->key == key)) {
            e->repeat += e->repeat < UINT16_MAX;
            return;
        }
        if (key != NULL) {
            return;
        }
    }
}

/* Whether an end belongs to a begin that was folded into this entry. */
int rl_unfold(RlEntry *e) {
    if (e->repeat == 0) {
        return 0;
    }
    e->repeat--;
    return 1;
}

/* Whether nothing more can be pushed, in which case a begin and its end are lost. */
int rl_is_full(RlThread *t) {
    if (t->depth < RL_MAX_DEPTH) {
        return 0;
    }
    count_drop(t, 2);
    atomic_fetch_add_explicit(&rl_too_deep, 2, memory_order_relaxed);
    return 1;
}

/* At an event: how long the thread had no core, or slept unnoticed, since the one before, if that is
 * long ago. The writer's looks say how much that was in all; this says where.
 *
 * Nothing is asked where the system tells the writer nothing.
 *
 * The system likes to give the core away as this call of it ends. That time is not what begins: so
 * the begin of something is told after it (the returned time), the end of something before. */
static int64_t note_off(RlThread *t, int64_t now_ns, int begins) {
    const int64_t began_ns = t->event_ns;
    now_ns = now_ns < began_ns ? began_ns : now_ns; /* the clock may have been read before */
    const int is_due = now_ns - began_ns >= OFF_GAP_NS || now_ns - t->clocked_ns >= OFF_EVERY_NS;
    /* Another thread may close what is open in this one. */
    const int is_read = is_due && t == tls_thread && fake_ns < 0 && t->ready_ns >= 0;
    const int64_t cpu_ns = is_read ? own_cpu_ns() : 0;
    if (is_read && begins) {
        now_ns = rl_now();
    }
    const int64_t gap_ns = now_ns - began_ns;
    t->event_ns = now_ns;
    if (t->level == RL_WAITING) {
        t->waited_ns += gap_ns;
    }
    if (!is_read) {
        return now_ns;
    }
    const int64_t spent_ns = t->waited_ns + cpu_ns - t->clocked_cpu_ns;
    const int64_t off_ns = now_ns - t->clocked_ns - spent_ns;
    const int goes_on = t->windows == rl_windows; /* between two windows nothing is told */
    t->windows = rl_windows;
    t->clocked_ns = now_ns;
    t->clocked_cpu_ns = cpu_ns;
    t->waited_ns = 0;
    if (goes_on && gap_ns >= OFF_GAP_NS && off_ns >= OFF_LEAST_NS && t->level != RL_WAITING &&
        has_room(t, t->open + RL_RESERVE + 2)) {
        put(t, rl_rel(began_ns), RL_CODE_OFF);
        put(t, (uint64_t)(off_ns < gap_ns ? off_ns : gap_ns), RL_CODE_OFF);
    }
    return now_ns;
}

/* A begin is only recorded when there is also room for its end and for every end
 * already owed, so that a full ring loses whole pairs and never half of one. */
void rl_push(RlThread *t, int64_t now_ns, uint16_t id, uint8_t level, uint8_t kind,
             const void *key) {
    if (rl_is_full(t)) {
        fold(t, id, kind, key);
        return;
    }
    now_ns = note_off(t, now_ns, 1);
    RlEntry *e = &t->stack[t->depth++];
    e->key = key;
    e->id = id;
    e->repeat = 0;
    e->op = t->op;
    e->level = t->level;
    e->own_level = kind >= RL_CALL ? level : t->level;
    e->kind = kind;
    e->sealed = t->sealed;
    e->is_probed = e->is_over = 0;
    e->recorded = (uint8_t)has_room(t, (uint64_t)t->open + RL_RESERVE + 2);
    if (e->recorded) {
        put(t, rl_rel(now_ns), (uint16_t)(id << 1));
        t->open++;
    } else {
        count_drop(t, 2);
    }
    if (kind <= RL_AUTO) {
        rl_tally_time(t, now_ns);
        t->op = id;
    } else if (kind >= RL_CALL) {
        t->level = level;
        t->sealed |= (uint8_t)rl_is_sealing(id);
    }
}

static void end_event(RlThread *t, int64_t now_ns, const RlEntry *e) {
    now_ns = note_off(t, now_ns, 0);
    if (e->recorded) {
        put(t, rl_rel(now_ns), (uint16_t)((e->id << 1) | 1));
        t->open--;
    }
}

void rl_pop_top(RlThread *t, int64_t now_ns) {
    const RlEntry *e = &t->stack[--t->depth];
    end_event(t, now_ns, e);
    if (t->op != e->op) {
        rl_tally_time(t, now_ns);
    }
    t->op = e->op;
    t->level = e->level;
    t->sealed = e->sealed;
}

/* Recompute what follows from the stack after an entry was taken from its middle. */
static void recompute(RlThread *t) {
    t->op = 0;
    t->level = RL_PYTHON;
    t->sealed = 0;
    for (uint32_t i = 0; i < t->depth; i++) {
        RlEntry *e = &t->stack[i];
        e->op = t->op;
        e->level = t->level;
        e->sealed = t->sealed;
        if (e->kind <= RL_AUTO) {
            t->op = e->id;
        } else if (e->kind >= RL_CALL) {
            t->level = e->own_level;
            t->sealed |= (uint8_t)rl_is_sealing(e->id);
        }
    }
}

/* End the innermost open entry of this kind and id; 0 when there is none.
 *
 * Calls, frames and automatic operations above it cannot outlive it and are
 * closed too. Marks above it can (two interleaved coroutines), and stay open. */
int rl_pop_operation(RlThread *t, int64_t now_ns, uint16_t id, uint8_t kind) {
    uint32_t i = t->depth;
    while (i > 0 && !(t->stack[i - 1].id == id && t->stack[i - 1].kind == kind)) {
        i--;
    }
    if (i == 0) {
        return 0;
    }
    if (rl_unfold(&t->stack[i - 1])) {
        return 1;
    }
    if (i == t->depth) {
        rl_pop_top(t, now_ns);
        return 1;
    }
    uint32_t kept = i - 1;
    rl_tally_time(t, now_ns);
    for (uint32_t j = t->depth; j-- > i;) {
        const RlEntry *e = &t->stack[j];
        if (e->kind != RL_MARK && e->kind != RL_PHASE) {
            end_event(t, now_ns, e);
        }
    }
    end_event(t, now_ns, &t->stack[i - 1]);
    for (uint32_t j = i; j < t->depth; j++) {
        if (t->stack[j].kind == RL_MARK || t->stack[j].kind == RL_PHASE) {
            t->stack[kept++] = t->stack[j];
        }
    }
    t->depth = kept;
    recompute(t);
    return 1;
}

static int is_call(const RlEntry *e) { return e->kind >= RL_CALL; }

static int is_over(const RlEntry *e) { return e->is_over; }

/* End the chosen entries; what lies above one stays open. */
static void end_chosen(RlThread *t, int64_t now_ns, int (*is_chosen)(const RlEntry *)) {
    uint32_t kept = 0;
    for (uint32_t j = t->depth; j-- > 0;) {
        if (is_chosen(&t->stack[j])) {
            end_event(t, now_ns, &t->stack[j]);
        }
    }
    for (uint32_t j = 0; j < t->depth; j++) {
        if (!is_chosen(&t->stack[j])) {
            t->stack[kept++] = t->stack[j];
        }
    }
    t->depth = kept;
    recompute(t);
}

/* Whether a thread lives. Until it is let go of again its ring stays, even if it ends meanwhile: the
 * writer either sees this, or has seen that it ended, and then so does this. */
static int hold_thread(RlThread *t) {
    atomic_store(&t->closing, 1);
    if (atomic_load(&t->exited_ns) == 0) {
        return 1;
    }
    atomic_store(&t->closing, 0);
    return 0;
}

/* Close what every thread has open at the native boundary (the probe goes off). */
void rl_close_calls(int64_t now_ns) {
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        if (hold_thread(t)) {
            end_chosen(t, now_ns, is_call);
            atomic_store(&t->closing, 0);
        }
    }
}

/* Find the operations of the probe whose functions have returned; how many. */
static int find_over(RlThread *t) {
    int found = 0;
    for (uint32_t i = 0; i < t->depth; i++) {
        RlEntry *e = &t->stack[i];
        if (e->is_probed) {
            const uint32_t frames = rl_running_frames(t, e);
            e->is_over = frames == 0;
            if (frames > 0 && frames <= e->repeat) {
                e->repeat = (uint16_t)(frames - 1);
            }
            found += e->is_over;
        }
    }
    return found;
}

/* The probe goes on again. What returned meanwhile told nobody; what still runs, as a worker's loop
 * does, or the compilation of a network, goes on. */
void rl_end_returned(int64_t now_ns) {
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        if (hold_thread(t)) {
            if (find_over(t)) {
                rl_tally_time(t, now_ns);
                end_chosen(t, now_ns, is_over);
            }
            atomic_store(&t->closing, 0);
        }
    }
}

/* Close everything every thread has open (the window ends). */
void rl_close_all(int64_t now_ns) {
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        if (hold_thread(t)) {
            rl_report_callbacks(t);
            while (t->depth > 0) {
                rl_pop_top(t, now_ns);
            }
            atomic_store(&t->closing, 0);
        }
    }
}

/* A window begins: it is in the phases that began before it. */
void rl_begin_phases(int64_t now_ns) {
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        if (hold_thread(t)) {
            begin_phases(t, now_ns);
            atomic_store(&t->closing, 0);
        }
    }
}

static void tell_phases(void) {
    RlThread *t = rl_known_thread();
    if (t != NULL) {
        t->phases = tls_phases;
    }
}

void rl_enter_phase(uint16_t id) {
    if (tls_phases.count < RL_MAX_PHASES) {
        tls_phases.ids[tls_phases.count++] = id;
        tell_phases();
    }
}

/* The innermost of this id. */
void rl_leave_phase(uint16_t id) {
    for (uint32_t i = tls_phases.count; i-- > 0;) {
        if (tls_phases.ids[i] == id) {
            tls_phases.count--;
            memmove(&tls_phases.ids[i], &tls_phases.ids[i + 1],
                    (tls_phases.count - i) * sizeof tls_phases.ids[0]);
            tell_phases();
            return;
        }
    }
}

/* In a forked child: they are stretches of the parent. */
void rl_forget_phases(void) { tls_phases.count = 0; }

/* What a hook raised that is no `Exception` comes from a signal's handler (an interrupt, or
 * `sys.exit`), which happened to run in it: the main thread gets it as soon as it is back. */
static PyObject *postponed = NULL;
static _Atomic int is_unasked; /* too many calls were pending to ask for it */

static int raise_postponed(void *unused) {
    (void)unused;
    PyObject *error = postponed;
    if (error == NULL) {
        return 0;
    }
    postponed = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return -1;
}

void rl_hook_failed(PyObject *hook) {
    PyObject *type, *value, *traceback;
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_WriteUnraisable(hook);
        return;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    Py_XSETREF(postponed, value);
    atomic_store(&is_unasked, Py_AddPendingCall(raise_postponed, NULL) != 0);
}

static unsigned long asking; /* the thread that is in the hook, 0: none */
static int is_asked_again;   /* something long ended meanwhile, in another thread */

/* When the main thread asks though nothing ends, as it computes without marks; INT64_MAX: never. */
static _Atomic int64_t wake_ns = INT64_MAX;
static _Atomic int is_wake_pending;

static int ask_late(void *unused) {
    (void)unused;
    rl_ask_at_end(rl_now());
    return 0;
}

/* Let the calibrator decide on the next block; it returns when to be called again. */
int rl_run_block_hook(int64_t now_ns) {
    rl_next_block_ns = INT64_MAX; /* not again from within itself */
    if (rl_block_hook == NULL) {
        return 0;
    }
    asking = PyThread_get_thread_ident();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallFunction(rl_block_hook, "L", (long long)now_ns);
    if (result == NULL) {
        /* After a signal it goes on where it was. */
        rl_next_block_ns = PyErr_ExceptionMatches(PyExc_Exception) ? INT64_MAX : now_ns;
        rl_hook_failed(rl_block_hook);
    } else {
        rl_next_block_ns = PyLong_AsLongLong(result);
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(rl_block_hook);
            rl_next_block_ns = INT64_MAX;
        }
        Py_DECREF(result);
    }
    asking = 0;
    if (is_asked_again) {
        /* Where too many calls are pending, whoever comes next tries again. */
        is_asked_again = Py_AddPendingCall(ask_late, NULL) != 0;
    }
    PyErr_Restore(type, value, traceback);
    return 0;
}

/* Where something long ended, which may be what the calibrator rests for. If another thread is in
 * the hook, the main thread asks once that one has left it. */
void rl_ask_at_end(int64_t now_ns) {
    if (asking == 0) {
        if (rl_next_block_ns != INT64_MAX) {
            rl_run_block_hook(now_ns);
        }
    } else if (asking != PyThread_get_thread_ident()) {
        is_asked_again = 1;
    }
}

void rl_wake_block_hook_at(int64_t at_ns) { atomic_store(&wake_ns, at_ns); }

static int ask_woken(void *unused) {
    (void)unused;
    atomic_store(&is_wake_pending, 0);
    const int64_t now = rl_now();
    if (now >= atomic_load(&wake_ns)) { /* else it has been asked since */
        rl_ask_at_end(now);
    }
    return 0;
}

/* By the writer, without the GIL, at each of its turns until the calibrator takes the time back. */
void rl_wake_block_hook(void) {
    if (atomic_exchange(&is_unasked, 0)) {
        atomic_store(&is_unasked, Py_AddPendingCall(raise_postponed, NULL) != 0);
    }
    const int is_real = fake_ns < 0; /* a clock that is set stands still for the writer */
    if (is_real && rl_now() >= atomic_load(&wake_ns) && !atomic_exchange(&is_wake_pending, 1) &&
        Py_AddPendingCall(ask_woken, NULL) != 0) {
        atomic_store(&is_wake_pending, 0); /* too many are */
    }
}

/* In a forked child: it is the parent's. */
void rl_forget_block_hook(void) {
    Py_CLEAR(rl_block_hook);
    rl_next_block_ns = INT64_MAX;
    rl_block_anchor = 0;
    rl_asked_within = 0;
    asking = 0;
    is_asked_again = 0;
    rl_wake_block_hook_at(INT64_MAX);
    atomic_store(&is_wake_pending, 0);
}
