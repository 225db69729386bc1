/* The background writer: drains the rings into one Arrow stream per thread.
 *
 * A plain pthread that never takes the GIL, so that the profiled program does not
 * wait for it. A batch is self-contained: its first timed row is preceded by an
 * anchor with the absolute time, so a shard cut short loses its tail only.
 */
#include "arrow_stream.h"
#include "recorder.h"
#include "waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BATCH_ROWS = 1 << 15, BEAT_EVERY_NS = 500000000, FULL_EVERY_NS = 20000000 };
enum { TICK_EVERY_NS = 15000000 }; /* every time that the writer wakes up */

_Atomic int rl_writer_error = 0;
_Atomic uint64_t rl_events_written = 0;
_Atomic uint64_t rl_bytes_written = 0;

static pthread_t writer;
/* `turn` is held by whoever starts or ends the writer, `lock` by whoever looks at what is below. */
static int session_open = 0;
static pid_t owner = 0; /* the process that started the session; a forked child is another */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, flushed = PTHREAD_COND_INITIALIZER;
static int writer_running = 0, stopping = 0;
static uint64_t flush_wanted = 0, flush_done = 0;
static int64_t interval_ns = 20000000;
static char directory[PATH_MAX];

typedef struct {
    uint32_t delta_ns[BATCH_ROWS];
    uint16_t code[BATCH_ROWS];
    size_t rows;
    uint64_t last_ns;
    int anchored;
} Batch;

static Batch *batch = NULL;
static RlThread monitor; /* not a thread: the shard of samples and beats */
static RlThread scheduler; /* likewise: what the system's scheduler did with each thread */

/* Rows of the scheduler's shard, held back so that a batch's header is worth its length. */
enum { SCHEDULER_ROWS = 1 << 12, ROWS_PER_TICK = 2, ROWS_PER_THREAD = 5 };
enum { TICK_THREAD = 1, TICK_RAN = 2, TICK_READY = 3, TICK_FIRST = 4, TICK_AT = 5, TICK_OFF = 6 };
static struct {
    uint32_t number[SCHEDULER_ROWS];
    uint16_t code[SCHEDULER_ROWS];
    size_t rows;
} ticks;

static int write_all(int file, struct iovec *parts, int count) {
    while (count > 0) {
        ssize_t n = writev(file, parts, count);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return -1;
        }
        atomic_fetch_add(&rl_bytes_written, (uint64_t)n);
        while (count > 0 && (size_t)n >= parts->iov_len) {
            n -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + n;
            parts->iov_len -= (size_t)n;
        }
    }
    return 0;
}

/* Whether the shard's descriptor is still its own. A program that becomes a daemon closes all of
 * them, and opens its own files under the same numbers: these must not be written to. */
static int is_ours(const RlThread *t) {
    struct stat found;
    return t->file >= 0 && fstat(t->file, &found) == 0 && found.st_dev == t->device &&
           found.st_ino == t->inode;
}

static void close_shard(RlThread *t) {
    if (is_ours(t)) {
        close(t->file);
    }
    t->file = -1;
}

static int open_shard(RlThread *t) {
    char path[PATH_MAX + 32];
    if (t == &monitor) {
        snprintf(path, sizeof path, "%s/monitor.arrow", directory);
    } else if (t == &scheduler) {
        snprintf(path, sizeof path, "%s/scheduler.arrow", directory);
    } else {
        snprintf(path, sizeof path, "%s/thread-%05u.arrow", directory, t->index);
    }
    struct stat found;
    t->file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (t->opened ? O_APPEND : O_TRUNC), 0644);
    if (t->file < 0 || fstat(t->file, &found) != 0) {
        return -1;
    }
    t->device = found.st_dev;
    t->inode = found.st_ino;
    if (t->opened) {
        return 0;
    }
    struct iovec part = {(void *)RL_ARROW_SCHEMA, sizeof RL_ARROW_SCHEMA};
    if (write_all(t->file, &part, 1) != 0) {
        const int error = errno; /* behind a part of it no batch could be read: begin anew later */
        close_shard(t);
        errno = error;
        return -1;
    }
    t->opened = 1;
    return 0;
}

static void write_batch(RlThread *t) {
    static const unsigned char zeros[8] = {0};
    unsigned char header[sizeof RL_ARROW_BATCH];
    const size_t rows = batch->rows;
    batch->rows = 0;
    batch->anchored = 0;
    if (rows == 0) {
        return;
    }
    if (!is_ours(t) && open_shard(t) != 0) {
        atomic_store(&rl_writer_error, errno);
        atomic_fetch_add(&rl_lost_events, rows);
        return;
    }
    rl_arrow_batch_header(header, rows);
    struct iovec parts[5] = {
        {header, sizeof header},
        {batch->delta_ns, 4 * rows},
        {(void *)zeros, rl_pad8(4 * rows) - 4 * rows},
        {batch->code, 2 * rows},
        {(void *)zeros, rl_pad8(2 * rows) - 2 * rows},
    };
    const off_t before = lseek(t->file, 0, SEEK_END);
    if (write_all(t->file, parts, 5) != 0) {
        atomic_store(&rl_writer_error, errno);
        atomic_fetch_add(&rl_lost_events, rows);
        /* A part of a batch would swallow the beginning of the next one, and all behind it. */
        if (before >= 0 && ftruncate(t->file, before) == 0) {
            lseek(t->file, before, SEEK_SET);
        }
    } else {
        atomic_fetch_add(&rl_events_written, rows);
    }
}

static inline void row(uint32_t delta, uint16_t code) {
    batch->delta_ns[batch->rows] = delta;
    batch->code[batch->rows++] = code;
}

static uint64_t present_ns; /* nothing that is being written is later */

/* A time of which 48 bits are known: the last one that ends in these. */
static uint64_t whole_time(uint64_t number) {
    const uint64_t behind = (present_ns - number) & 0xffffffffffffu;
    return behind <= present_ns ? present_ns - behind : number;
}

static void add_word(RlThread *t, uint64_t word) {
    const uint16_t code = (uint16_t)(word & 0xffff);
    uint64_t number = word >> 16;
    if (batch->rows + 4 > BATCH_ROWS) {
        write_batch(t);
    }
    if (code == RL_CODE_CPU || code == RL_CODE_CALLBACKS || code == RL_CODE_DROPPED ||
        code == RL_CODE_RSS || code == RL_CODE_PROCESS_CPU) {
        row((uint32_t)(number >> 32), RL_CODE_HIGH);
        row((uint32_t)number, code);
        return;
    }
    number = whole_time(number);
    if (!batch->anchored || number - batch->last_ns > UINT32_MAX) {
        row((uint32_t)(number >> 32), RL_CODE_HIGH);
        row((uint32_t)number, RL_CODE_ANCHOR);
        batch->last_ns = number;
        batch->anchored = 1;
    }
    row((uint32_t)(number - batch->last_ns), code);
    batch->last_ns = number;
}

static void tick_row(uint32_t number, uint16_t code) {
    ticks.number[ticks.rows] = number;
    ticks.code[ticks.rows++] = code;
}

/* Between two windows of a recording more than the 4 s of a row may have passed. */
static void tick_number(int64_t ns, uint16_t code) {
    ns = ns > 0 ? ns : 0;
    if (ns >> 32 > 0) {
        tick_row((uint32_t)(ns >> 32), RL_CODE_HIGH);
    }
    tick_row((uint32_t)ns, code);
}

static void write_ticks(void) {
    for (size_t i = 0; i < ticks.rows; i++) {
        row(ticks.number[i], ticks.code[i]);
    }
    ticks.rows = 0;
    write_batch(&scheduler);
}

/* The second of two is a row of the scheduler's shard. */
static void add_off(RlThread *t, int64_t number) {
    if (t->off_at < 0) {
        t->off_at = (int64_t)whole_time((uint64_t)number);
        return;
    }
    if (ticks.rows + ROWS_PER_THREAD > SCHEDULER_ROWS) {
        write_batch(t);
        write_ticks();
    }
    tick_row(t->index, TICK_THREAD);
    tick_number(t->off_at, TICK_AT);
    tick_number(number, TICK_OFF);
    t->off_at = -1;
}

static void drain(RlThread *t) {
    if (atomic_load(&t->drained)) {
        return;
    }
    /* In this order: see `hold_thread`. */
    int64_t exited_ns = atomic_load(&t->exited_ns);
    if (exited_ns != 0 && atomic_load(&t->closing)) {
        exited_ns = 0; /* later */
    }
    const uint64_t head = atomic_load_explicit(&t->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&t->tail, memory_order_relaxed);
    present_ns = rl_rel(rl_now());
    while (tail != head) {
        const uint64_t stop = head - tail > 4096 ? tail + 4096 : head;
        for (; tail != stop; tail++) {
            const uint64_t word = t->words[tail & (t->capacity - 1)];
            if ((word & 0xffff) == RL_CODE_OFF) {
                add_off(t, (int64_t)(word >> 16));
            } else {
                add_word(t, word);
            }
        }
        atomic_store_explicit(&t->tail, tail, memory_order_release);
    }
    const uint64_t dropped = atomic_load(&t->dropped);
    if (dropped != t->reported_drops) {
        t->reported_drops = dropped;
        add_word(t, (dropped << 16) | RL_CODE_DROPPED);
    }
    if (exited_ns != 0) {
        add_word(t, (rl_rel(exited_ns) << 16) | RL_CODE_THREAD_END);
    }
    write_batch(t);
    if (exited_ns != 0) {
        close_shard(t);
        atomic_fetch_add(&rl_lost_events, atomic_exchange(&t->dropped, 0)); /* it may be reused */
        rl_release_ring(t);
        atomic_store(&t->drained, 1);
    }
}

static uint64_t resident_kib(void) {
    char text[128];
    long long pages = 0, resident = 0;
    const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    const ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    if (n <= 0) {
        return 0;
    }
    text[n] = 0;
    sscanf(text, "%lld %lld", &pages, &resident);
    return (uint64_t)resident * (uint64_t)(sysconf(_SC_PAGESIZE) / 1024);
}

static void beat(void) {
    struct timespec ts = {0, 0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    const uint64_t cpu_us = (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
    present_ns = rl_rel(rl_now());
    add_word(&monitor, (present_ns << 16) | RL_CODE_BEAT);
    add_word(&monitor, (resident_kib() << 16) | RL_CODE_RSS);
    add_word(&monitor, (cpu_us << 16) | RL_CODE_PROCESS_CPU);
    write_batch(&monitor);
}

#ifdef __linux__
/* The clock of a thread's CPU time, by its number (the kernel's encoding, see clock_getres(2)). */
static int64_t ran_ns_of(pid_t tid) {
    struct timespec ts;
    const clockid_t clock = (clockid_t)((~(unsigned)tid << 3) | 6u);
    return clock_gettime(clock, &ts) == 0 ? (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec : -1;
}

/* How long a thread could have run and did not, for want of a core. */
static int64_t ready_ns_of(pid_t tid) {
    char path[64], text[96];
    long long ran, ready = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)tid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    const ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%lld %lld", &ran, &ready) == 2 ? ready : -1;
}
#else
static int64_t ran_ns_of(pid_t tid) { return (void)tid, -1; }
static int64_t ready_ns_of(pid_t tid) { return (void)tid, -1; }
#endif

/* One look at a thread; the first has nothing to compare with, and says from when it is looked at. */
static void look_at_thread(RlThread *t) {
    const int64_t ran = ran_ns_of(t->tid), ready = ready_ns_of(t->tid);
    if (ran < 0 || ready < 0) {
        return;
    }
    const int64_t ran_since = ran - t->ran_ns, ready_since = ready - t->ready_ns;
    const int first = t->ran_ns < 0;
    t->ran_ns = ran;
    t->ready_ns = ready;
    if (first) {
        tick_row(t->index, TICK_FIRST);
    } else if (ran_since > 0 || ready_since > 0) {
        tick_row(t->index, TICK_THREAD);
        tick_number(ran_since, TICK_RAN);
        tick_number(ready_since, TICK_READY);
    }
}

/* What the scheduler did with every thread since the last tick; a thread that slept all along has
 * no rows in it. */
static void tick(void) {
    const uint64_t now = rl_rel(rl_now());
    if (!(rl_active & RL_ACTIVE_MARKS)) {
        return;
    }
    if (ticks.rows + ROWS_PER_TICK > SCHEDULER_ROWS) {
        write_ticks();
    }
    tick_row((uint32_t)(now >> 32), RL_CODE_HIGH);
    tick_row((uint32_t)now, RL_CODE_ANCHOR);
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        if (atomic_load(&t->drained) || atomic_load(&t->exited_ns) || t->tid == 0) {
            continue;
        }
        if (ticks.rows + ROWS_PER_THREAD > SCHEDULER_ROWS) {
            write_ticks();
        }
        look_at_thread(t);
    }
}

/* All rings, or those filling up or done with: few large batches, yet no ring runs over, and
 * threads that come and go take their memory from one another. */
static void drain_all(int everything) {
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        const uint64_t pending = atomic_load(&t->head) - atomic_load(&t->tail);
        if (everything || pending > t->capacity / 8 || atomic_load(&t->exited_ns)) {
            drain(t);
        }
    }
}

/* The writer's own pace, also when tests inject a clock. */
static int64_t monotonic(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* CPU time of the threads that wrote, of this session: the program's would be less without them. */
static _Atomic int64_t own_cpu_ns;     /* of those that have ended */
static _Atomic int64_t present_cpu_ns; /* of the one that writes now, as it last looked */

static int64_t thread_cpu_ns(void) {
    struct timespec spent = {0, 0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
}

static void *run(void *unused) {
    (void)unused;
    int64_t next_beat = 0, next_full = 0, next_tick = 0;
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        const int last = stopping;
        const uint64_t wanted = flush_wanted;
        pthread_mutex_unlock(&lock);
        const int64_t now = monotonic();
        rl_wake_block_hook();
        const int everything = last || now >= next_full || wanted != seen;
        drain_all(everything);
        seen = wanted;
        if (everything) {
            next_full = now + FULL_EVERY_NS;
        }
        if (now >= next_tick || last) {
            tick();
            next_tick = now + TICK_EVERY_NS;
        }
        if (now >= next_beat || last) {
            beat();
            write_ticks();
            next_beat = now + BEAT_EVERY_NS;
        }
        atomic_store(&present_cpu_ns, thread_cpu_ns());
        pthread_mutex_lock(&lock);
        flush_done = wanted;
        pthread_cond_broadcast(&flushed);
        if (last && flush_wanted == wanted) {
            writer_running = 0; /* nobody is left waiting, and nobody waits from here on */
            break;
        }
        if (!stopping && flush_wanted == wanted) {
            rl_wait(&wake, &lock, interval_ns);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *write_until_told(void *unused) {
    run(unused);
    atomic_store(&present_cpu_ns, 0);
    atomic_fetch_add(&own_cpu_ns, thread_cpu_ns());
    return NULL;
}

int64_t rl_writer_cpu_ns(void) {
    return atomic_load(&own_cpu_ns) + atomic_load(&present_cpu_ns);
}

static void close_shards(void) {
    for (RlThread *t = rl_first_thread(); t != NULL; t = t->next) {
        close_shard(t);
    }
    close_shard(&monitor);
    close_shard(&scheduler);
}

/* `turn` is held. */
static int start_thread(void) {
    pthread_mutex_lock(&lock);
    rl_make_condition(&wake);
    stopping = 0;
    writer_running = 1;
    pthread_mutex_unlock(&lock);
    /* Signals stay with the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&writer, NULL, write_until_told, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        pthread_mutex_lock(&lock);
        writer_running = 0;
        flush_done = flush_wanted;
        pthread_cond_broadcast(&flushed);
        pthread_mutex_unlock(&lock);
    }
    return failed;
}

/* `turn` is held. Whether there was a writer to end. */
static int stop_thread(void) {
    pthread_mutex_lock(&lock);
    const int was_running = writer_running;
    stopping = 1;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    if (was_running) {
        pthread_join(writer, NULL);
    }
    return was_running;
}

int rl_writer_start(const char *path, int64_t interval) {
    if (batch == NULL) {
        batch = calloc(1, sizeof *batch);
        if (batch == NULL) {
            return ENOMEM;
        }
    }
    batch->rows = 0;
    batch->anchored = 0;
    memset(&monitor, 0, offsetof(RlThread, stack));
    monitor.file = -1;
    memset(&scheduler, 0, offsetof(RlThread, stack));
    scheduler.file = -1;
    ticks.rows = 0;
    snprintf(directory, sizeof directory, "%s", path);
    interval_ns = interval;
    atomic_store(&rl_writer_error, 0);
    atomic_store(&rl_events_written, 0);
    atomic_store(&rl_bytes_written, 0);
    atomic_store(&own_cpu_ns, 0);
    atomic_store(&present_cpu_ns, 0);
    pthread_mutex_lock(&turn);
    session_open = 1;
    owner = getpid();
    const int failed = start_thread();
    pthread_mutex_unlock(&turn);
    return failed;
}

/* Around a fork: Python warns of forking with threads about, and no lock of ours may be
 * held in the child. What is recorded meanwhile waits in the rings. */
void rl_writer_pause(void) {
    pthread_mutex_lock(&turn);
    stop_thread();
    pthread_mutex_unlock(&turn);
}

int rl_writer_resume(void) {
    pthread_mutex_lock(&turn);
    pthread_mutex_lock(&lock);
    const int is_missing = session_open && !writer_running;
    pthread_mutex_unlock(&lock);
    const int failed = is_missing ? start_thread() : 0;
    pthread_mutex_unlock(&turn);
    return failed;
}

/* A writer that is told to end first does what it was asked for, so this never waits for nobody. */
void rl_writer_flush(void) {
    pthread_mutex_lock(&lock);
    if (writer_running) {
        const uint64_t mine = ++flush_wanted;
        pthread_cond_signal(&wake);
        while (flush_done < mine) {
            pthread_cond_wait(&flushed, &lock);
        }
    }
    pthread_mutex_unlock(&lock);
}

void rl_writer_stop(void) {
    pthread_mutex_lock(&turn);
    if (session_open) {
        if (!stop_thread()) {
            run(NULL); /* without a writer, what is left is written here */
        }
        session_open = 0;
        close_shards();
    }
    pthread_mutex_unlock(&turn);
}

/* Whether this process was forked from the one whose session this is. */
int rl_writer_is_inherited(void) { return owner != 0 && owner != getpid(); }

/* In a forked child: the shards are the parent's. */
void rl_writer_abandon(void) {
    /* Another thread, which this process has not, may have held one of them. */
    pthread_mutex_init(&turn, NULL);
    pthread_mutex_init(&lock, NULL);
    rl_make_condition(&wake);
    pthread_cond_init(&flushed, NULL);
    flush_done = flush_wanted;
    writer_running = 0;
    owner = 0;
    if (session_open) {
        session_open = 0;
        close_shards();
    }
}
