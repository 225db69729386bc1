/* Per-thread event rings and the stack of what each thread is doing.
 *
 * An event is one 64-bit word: 48 bits of nanoseconds since the recorder's start
 * or a payload, and a 16-bit code. Codes 16 and up are 2 * id + is_end for the
 * interned name `id`; lower ones are the RL_CODE_* below. 48 bits are 78 hours: of
 * later times the writer knows the rest.
 *
 * Everything but the writer thread runs with the GIL held, so the stacks and the
 * name table need no locks. The writer is a plain pthread that never takes the
 * GIL; it shares with the others only the atomics of each ring.
 */
#ifndef REDLINE_RECORDER_H
#define REDLINE_RECORDER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum {
    RL_CODE_NONE = 0,
    RL_CODE_STEP = 1,       /* timed: profile.step() */
    RL_CODE_PROBE_ON = 2,   /* timed: the native boundary starts to be observed */
    RL_CODE_PROBE_OFF = 3,  /* timed: it stops, for a calibration block */
    RL_CODE_WINDOW_ON = 4,  /* timed: recording starts */
    RL_CODE_WINDOW_OFF = 5, /* timed: recording pauses, all open events were closed */
    RL_CODE_THREAD_END = 6, /* timed */
    RL_CODE_ANCHOR = 7,     /* on disk only: absolute low 32 bits, high bits before it */
    RL_CODE_HIGH = 8,       /* on disk only: bits 32 and up of the next row's number */
    RL_CODE_CPU = 9,        /* payload: CPU time of this thread, ns */
    RL_CODE_CALLBACKS = 10, /* payload: probe callbacks since the last such row */
    RL_CODE_DROPPED = 11,   /* payload: events dropped in this thread so far */
    RL_CODE_RSS = 12,       /* payload: resident memory, bytes / 1024 */
    RL_CODE_PROCESS_CPU = 13, /* payload: CPU time of the process, us */
    RL_CODE_BEAT = 14,      /* timed: the writer is alive */
    RL_CODE_OFF = 15,       /* in memory only, two in turn: since when, and ns without a core, or asleep */
    RL_FIRST_ID = 8,
    RL_MAX_ID = 32767,
};

enum { RL_MARK = 0, RL_AUTO = 1, RL_PHASE = 2, RL_CALL = 3, RL_FRAME = 4 };

enum {
    RL_PYTHON = 0,
    RL_BACKEND,
    RL_COMPILED,
    RL_SIMULATOR,
    RL_CUDA_API,
    RL_WAITING,
    RL_NUM_LEVELS
};

/* What is being recorded, as bits of rl_active. */
enum { RL_ACTIVE_MARKS = 1, RL_ACTIVE_CALLS = 2 };

/* Of the high bits of a time on disk; what is larger is damage. 52 days. */
enum { RL_LARGEST_HIGH = 1 << 20 };

enum { RL_MAX_DEPTH = 2048, RL_RESERVE = 8, RL_MAX_COUNTERS = 8, RL_MAX_PHASES = 32 };

typedef struct {
    const void *key;   /* identity of the callable, frame or code that will end this */
    uint16_t id;
    uint16_t repeat;   /* deeper begins of the same, folded into this entry */
    uint16_t op;       /* operation outside this entry */
    uint8_t level;     /* level outside this entry */
    uint8_t own_level; /* level inside it */
    uint8_t kind;
    uint8_t recorded;
    uint8_t sealed;    /* whether everything below was sealed outside this entry */
    uint8_t is_probed; /* an operation that only the probe sees the end of */
    uint8_t is_over;   /* it ended while the probe was off */
} RlEntry;

/* Running totals of a thread's operations, for who wants them during the run. */
typedef struct {
    int64_t time_ns; /* while this id was the innermost operation; at 0: while none was */
    uint64_t ends;   /* marks of this id that ended */
} RlTally;

/* The phases that a thread is in, recorded or not, the outermost first; deeper ones are left out. */
typedef struct {
    uint32_t count;
    uint16_t ids[RL_MAX_PHASES];
} RlPhases;

typedef struct RlCounters RlCounters;

typedef struct RlThread {
    /* Shared with the writer. */
    _Atomic uint64_t head;
    _Atomic uint64_t tail;
    _Atomic int64_t exited_ns; /* when the thread ended, 0 while it lives */
    _Atomic int closing;       /* another thread ends what it has open: its ring must stay */
    _Atomic int drained;       /* ended and fully written: may be reused */
    uint64_t *words;
    uint64_t capacity;
    struct RlThread *next;
    uint32_t index;
    uint32_t session;
    pid_t tid;
    pthread_t owner;
    /* The owner's. */
    uint64_t tail_seen;
    uint32_t depth;
    uint32_t open;       /* entries whose end has space reserved in the ring */
    uint32_t callbacks;  /* since the last RL_CODE_CALLBACKS */
    int64_t event_ns;    /* of the last event */
    int64_t clocked_ns;  /* when its CPU time was read */
    int64_t clocked_cpu_ns;
    int64_t waited_ns;   /* since then, by its events */
    uint32_t windows;    /* when that was */
    uint16_t op;
    uint8_t level;
    uint8_t sealed;      /* inside a region whose inner levels are not told apart */
    RlTally *tallies;    /* [RL_MAX_ID + 1], NULL while nobody asked */
    int64_t tallied_ns;  /* up to when they go */
    RlCounters *counters; /* of the processor, NULL while nothing counts */
    RlPhases phases;
    _Atomic uint64_t dropped;
    /* The writer's. */
    int file;
    int opened;          /* the shard was begun; the file may have been closed since */
    dev_t device;        /* which file it is */
    ino_t inode;
    uint64_t last_ns;
    uint64_t events;
    uint64_t reported_drops;
    int64_t ran_ns;   /* CPU time at the writer's last look */
    int64_t ready_ns; /* and time on the run queue; both -1 before the first look */
    int64_t off_at;   /* the first of two RL_CODE_OFF; -1 before it */
    RlEntry stack[RL_MAX_DEPTH];
} RlThread;

extern int rl_active;             /* read under the GIL */
extern uint32_t rl_windows;       /* that have begun */
extern int64_t rl_next_block_ns;  /* when the calibrator wants to be called */
extern PyObject *rl_block_hook;
extern uint16_t rl_asked_within; /* the operation within which it is being asked; 0: at an end */
extern uint16_t rl_block_anchor;  /* at the ends of which mark; 0: of any */
extern int64_t rl_block_patience_ns; /* how late it may be called for that */

int64_t rl_now(void);
uint64_t rl_rel(int64_t now_ns);
RlThread *rl_thread(void);
RlThread *rl_known_thread(void);
RlThread *rl_first_thread(void);

void rl_push(RlThread *t, int64_t now_ns, uint16_t id, uint8_t level, uint8_t kind, const void *key);
void rl_pop_top(RlThread *t, int64_t now_ns);
int rl_unfold(RlEntry *e);
int rl_is_full(RlThread *t);
int rl_pop_operation(RlThread *t, int64_t now_ns, uint16_t id, uint8_t kind);
void rl_instant(RlThread *t, int64_t now_ns, uint16_t code);
void rl_payload(RlThread *t, uint64_t value, uint16_t code);
void rl_report_callbacks(RlThread *t);
void rl_close_calls(int64_t now_ns);
void rl_end_returned(int64_t now_ns);
uint32_t rl_running_frames(const RlThread *t, const RlEntry *e);
void rl_close_all(int64_t now_ns);
void rl_enter_phase(uint16_t id);
void rl_leave_phase(uint16_t id);
void rl_forget_phases(void);
void rl_begin_phases(int64_t now_ns);
int rl_run_block_hook(int64_t now_ns);
void rl_ask_at_end(int64_t now_ns);
void rl_wake_block_hook_at(int64_t at_ns);
void rl_wake_block_hook(void);
void rl_forget_block_hook(void);
void rl_hook_failed(PyObject *hook);

/* Counters. */
extern int rl_num_counters;
void rl_counters_begin(RlThread *t);
void rl_counters_end(RlThread *t);
void rl_counters_reset(void);
void rl_count(RlThread *t, int counts);

static inline void rl_count_if_counting(RlThread *t) {
    if (t->counters != NULL) {
        rl_count(t, 1);
    }
}

/* What the thread did since the last time belongs to its present operation. */
static inline void rl_tally_time(RlThread *t, int64_t now_ns) {
    rl_count_if_counting(t);
    if (t->tallies != NULL) {
        t->tallies[t->op].time_ns += now_ns - t->tallied_ns;
        t->tallied_ns = now_ns;
    }
}

static inline void rl_tally_end(const RlThread *t, uint16_t id) {
    if (t->tallies != NULL) {
        t->tallies[id].ends++;
    }
}

/* A mark ended: count it, and let the calibrator know if it waits for this. */
static inline void rl_mark_ended(const RlThread *t, int64_t now_ns, uint16_t id) {
    rl_tally_end(t, id);
    if (now_ns >= rl_next_block_ns && (rl_block_anchor == 0 || rl_block_anchor == id ||
                                       now_ns - rl_next_block_ns >= rl_block_patience_ns)) {
        rl_run_block_hook(now_ns);
    }
}

/* Marks of what is suspended. */
uint32_t rl_open_marks(const RlThread *t);
PyObject *rl_end_marks(RlThread *t, uint32_t above);
int rl_begin_marks(PyObject *ids);
#if PY_VERSION_HEX >= 0x030c0000
extern int rl_watches_generators;
void rl_mark_in_generator(void);
#endif

/* Names. */
int rl_intern(PyObject *kind, PyObject *name, int level, PyObject *module, int sealed);
int rl_is_sealing(uint16_t id);

/* The writer's side of the module: start, stop, flush, fork. */
extern PyMethodDef rl_writer_methods[];
extern PyMethodDef rl_mark_methods[];
extern PyMethodDef rl_boundary_methods[];
extern PyMethodDef rl_release_methods[];
extern PyMethodDef rl_counter_methods[];
int rl_marks_ready(PyObject *module);
int rl_wrapper_ready(PyObject *module);
int rl_boundary_ready(PyObject *module);
int rl_generators_ready(PyObject *module);
int rl_classes_ready(PyObject *module);
extern PyTypeObject RlWrapperType;

void rl_set_clock(int64_t ns);
int64_t rl_base_ns(void);
int rl_session_begin(uint64_t words, int64_t budget);
void rl_session_end(void);
int rl_writer_start(const char *directory, int64_t interval_ns);
void rl_writer_pause(void);
int rl_writer_resume(void);
void rl_writer_stop(void);
void rl_writer_flush(void);
void rl_writer_abandon(void);
int rl_writer_is_inherited(void);
int64_t rl_writer_cpu_ns(void);
extern _Atomic(RlThread *) rl_threads;
extern uint32_t rl_session;
extern _Atomic int rl_writer_error;
extern _Atomic uint64_t rl_events_written;
extern _Atomic uint64_t rl_bytes_written;
extern _Atomic uint64_t rl_lost_events;
extern _Atomic uint64_t rl_too_deep;
void rl_release_ring(RlThread *t);

#endif
