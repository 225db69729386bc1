/* The extension module redline.profile._sampler: what the program is doing, looked at now and then.
 *
 * Independent of the recorder: it knows neither marks nor the native boundary. A thread of its own
 * wakes at random intervals, takes the first Python thread that does not sleep, interrupts it, and
 * unwinds its native stack up to the interpreter. The shared objects on that piece of stack say
 * whether the ML back end, a simulator or Python itself was at work. A thread that sleeps is not
 * interrupted: it waits.
 *
 * Code made at run time (oneDNN's matrix kernels are) cannot be unwound. There the words on the
 * stack are looked through for addresses of known shared objects, up to the first one after them
 * inside the interpreter's evaluation loop. In a thread that ran Python before, what cannot be
 * unwound is unattributed; a thread that never does is not looked at any more.
 *
 * The signal is SIGURG: by default it is ignored, so that one that arrives late, in a program that
 * has replaced itself meanwhile, does no harm.
 *
 * Rows go to an Arrow stream of the shards' schema: ns since the row before, and a level; row 0
 * counts from the base. RL_GAP rows carry time that does not fit.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __linux__
#include "arrow_stream.h"
#include "own_file.h"
#include "waiting.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

enum { MAX_FRAMES = 128, MAX_RANGES = 8192, MAX_TASKS = 512, MAX_PACKAGES = 128 };
enum { MOST_WORDS = 16384, MOST_WORDS_BEYOND = 2048, LARGEST_STACK = 1 << 28 };
enum { BATCH_ROWS = 512, ANSWER_MS = 300, REFRESH_NS = 250000000, WRITE_NS = 1000000000 };
enum { PYTHON = 0, COMPILED = 2, WAITING = 5, UNATTRIBUTED = 6, FOREIGN = 255, RL_GAP = 0xffff };
enum { IDLE = 0, REQUESTED = 1, WRITING = 2, DONE = 3 };
enum { MAX_INTERVAL_NS = 200000000 };
enum { MOST_MISSES = 3 }; /* looks in a row that found no Python, after which a thread runs none */

static _Atomic int request = IDLE;
static sem_t answered;
static uintptr_t frames[MAX_FRAMES];
static int frame_count, reached_python;
static int64_t looked_ns; /* when the stack was as it was found */
static uintptr_t eval_begin, eval_end, main_stack_end;

typedef struct {
    uintptr_t begin, end;
    uint8_t level;
} Range;

static Range ranges[MAX_RANGES];
static int range_count;
static unsigned long long ranges_seen;
static struct {
    char name[48];
    uint8_t level;
} packages[MAX_PACKAGES];
static int package_count;

static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;
static int is_open, running, stopping, write_error, main_stat = -1;
static pid_t owner; /* the process that opened it; a forked child is another */
static RlOwnFile file = {.number = -1};
static pid_t main_tid, own_tid;
static int main_is_deaf; /* it blocks the signal, as a program does whose other thread waits for them */
static int64_t interval_ns, last_ns, spent_ns, cost_part; /* at most 1 / cost_part of one core */
static uint64_t sample_count, lost_count, random_state;
typedef struct {
    pid_t tid;
    uint8_t misses;    /* MOST_MISSES: it is not looked at any more */
    uint8_t is_python; /* it ran some once: what cannot be unwound is no other thread */
    uint8_t is_deaf;   /* it blocks the signal: for good, or since it has only been created */
} Task;

static Task tasks[MAX_TASKS];
static int task_count;
static struct {
    uint32_t delta_ns[BATCH_ROWS];
    uint16_t code[BATCH_ROWS];
    size_t rows;
} batch;

static int64_t clock_ns(clockid_t clock) {
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ------------------------------------------------------------------ in the interrupted thread */

static _Unwind_Reason_Code on_frame(struct _Unwind_Context *context, void *unused) {
    (void)unused;
    const uintptr_t at = _Unwind_GetIP(context);
    if (at >= eval_begin && at < eval_end) {
        reached_python = 1;
        return _URC_NORMAL_STOP;
    }
    if (frame_count >= MAX_FRAMES) {
        return _URC_NORMAL_STOP;
    }
    frames[frame_count++] = at;
    return _URC_NO_REASON;
}

static const Range *range_of(uintptr_t at) {
    for (int i = 0; i < range_count; i++) {
        if (at >= ranges[i].begin && at < ranges[i].end) {
            return &ranges[i];
        }
    }
    return NULL;
}

/* Where a thread was interrupted: 0 on processors that were not thought of. */
static void registers_of(const ucontext_t *context, uintptr_t *at, uintptr_t *stack) {
#if defined(__x86_64__)
    *at = (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
    *stack = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    *at = (uintptr_t)context->uc_mcontext.pc;
    *stack = (uintptr_t)context->uc_mcontext.sp;
#else
    (void)context;
    *at = *stack = 0;
#endif
}

/* In code made at run time on the main thread: keep what may be return addresses. */
static void scan_stack(const ucontext_t *context) {
    uintptr_t at, stack;
    registers_of(context, &at, &stack);
    if (stack == 0 || stack >= main_stack_end || main_stack_end - stack > LARGEST_STACK ||
        range_of(at) != NULL) {
        return;
    }
    int called_by_library = 0, most = MOST_WORDS;
    frame_count = 0;
    const uintptr_t *word = (const uintptr_t *)(stack & ~(sizeof(uintptr_t) - 1));
    for (int i = 0; i < most && (uintptr_t)(word + i) < main_stack_end; i++) {
        if (word[i] >= eval_begin && word[i] < eval_end) {
            if (called_by_library) {
                reached_python = 1;
                return;
            }
            /* Left over from an earlier call, in a buffer that was not yet written to; or code that
             * Python itself called, so that is not looked for far. The two look alike: such code in
             * a function that a library called counts to that library. */
            most = i + MOST_WORDS_BEYOND < most ? i + MOST_WORDS_BEYOND : most;
            continue;
        }
        const Range *range = range_of(word[i]);
        if (range != NULL && range->level != PYTHON) {
            called_by_library = 1;
            /* The nearest to the interpreter counts, so the last ones are kept. */
            if (frame_count == MAX_FRAMES - 1) {
                frame_count = 0;
            }
            frames[frame_count++] = word[i];
        }
    }
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    int expected = REQUESTED;
    if (!atomic_compare_exchange_strong(&request, &expected, WRITING)) {
        return;
    }
    const int saved = errno;
    frame_count = reached_python = 0;
    looked_ns = clock_ns(CLOCK_MONOTONIC);
    _Unwind_Backtrace(on_frame, NULL);
    if (!reached_python && frame_count < MAX_FRAMES) {
        scan_stack(context);
    }
    atomic_store(&request, DONE);
    sem_post(&answered);
    errno = saved;
}

/* ------------------------------------------------------------------ levels of shared objects */

static uint8_t level_of_path(const char *path) {
    char name[48];
    if (strstr(path, "torchinductor") != NULL) {
        return COMPILED;
    }
    const char *at = strstr(path, "site-packages/");
    if (at == NULL) {
        at = strstr(path, "dist-packages/");
    }
    if (at != NULL) {
        at += strlen("site-packages/");
    } else {
        at = strrchr(path, '/');
        at = at == NULL ? path : at + 1;
    }
    const size_t length = strcspn(at, "./");
    if (length >= sizeof name) {
        return PYTHON;
    }
    memcpy(name, at, length);
    name[length] = 0;
    for (int i = 0; i < package_count; i++) {
        if (strcmp(packages[i].name, name) == 0) {
            return packages[i].level;
        }
    }
    return PYTHON;
}

static int on_object(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    const uint8_t level = level_of_path(info->dlpi_name);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && (header->p_flags & PF_X) && range_count < MAX_RANGES) {
            const uintptr_t begin = info->dlpi_addr + header->p_vaddr;
            ranges[range_count++] = (Range){begin, begin + header->p_memsz, level};
        }
    }
    return 0;
}

static int on_first_object(struct dl_phdr_info *info, size_t size, void *changes) {
    (void)size;
    *(unsigned long long *)changes = info->dlpi_adds + info->dlpi_subs;
    return 1;
}

static void refresh_ranges(void) {
    unsigned long long changes = 0;
    dl_iterate_phdr(on_first_object, &changes);
    if (changes != ranges_seen) {
        ranges_seen = changes;
        range_count = 0;
        dl_iterate_phdr(on_object, NULL);
    }
}

static uint8_t level_of_address(uintptr_t at) {
    const Range *range = range_of(at);
    return range == NULL ? PYTHON : range->level;
}

/* The known object nearest to the interpreter is what Python called. */
static uint8_t level_of_stack(int is_main) {
    if (!reached_python && frame_count < MAX_FRAMES && !is_main) {
        return FOREIGN;
    }
    for (int i = frame_count; i-- > 0;) {
        const uint8_t level = level_of_address(frames[i]);
        if (level != PYTHON) {
            return level;
        }
    }
    return PYTHON;
}

/* ------------------------------------------------------------------ threads */

static int open_stat(pid_t tid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* The one-letter state of a thread, 0 when it is gone. */
static char state_of(pid_t tid) {
    char text[160];
    const int kept = tid == main_tid;
    const int stat = kept ? main_stat : open_stat(tid);
    if (stat < 0) {
        return 0;
    }
    const ssize_t n = pread(stat, text, sizeof text - 1, 0);
    if (!kept) {
        close(stat);
    }
    if (n <= 0) {
        return 0;
    }
    text[n] = 0;
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

/* Whether a thread would never answer, as the profiler's own and many of libraries; -1: unknown. */
static int blocks_signal(pid_t tid) {
    char path[64], text[16384]; /* a line of it names the groups, of which there may be hundreds */
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)tid);
    const int status = open(path, O_RDONLY | O_CLOEXEC);
    if (status < 0) {
        return -1;
    }
    size_t used = 0;
    for (ssize_t n; (n = read(status, text + used, sizeof text - 1 - used)) > 0;) {
        used += (size_t)n;
    }
    close(status);
    text[used] = 0;
    const char *mask = strstr(text, "SigBlk:");
    return mask == NULL ? -1 : (int)(strtoull(mask + 7, NULL, 16) >> (SIGURG - 1) & 1);
}

static int by_tid(const void *a, const void *b) {
    return ((const Task *)a)->tid < ((const Task *)b)->tid ? -1 : 1;
}

static void refresh_tasks(void) {
    Task found[MAX_TASKS];
    int count = 0;
    DIR *directory = opendir("/proc/self/task");
    if (directory == NULL) {
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL && count < MAX_TASKS;) {
        const pid_t tid = (pid_t)atoi(entry->d_name);
        if (tid > 0 && tid != main_tid && tid != own_tid) {
            found[count++] = (Task){.tid = tid};
        }
    }
    closedir(directory);
    main_is_deaf = blocks_signal(main_tid) == 1;
    qsort(found, (size_t)count, sizeof *found, by_tid);
    for (int i = 0; i < count; i++) {
        int known = 0;
        for (int j = 0; j < task_count && !known; j++) {
            known = tasks[j].tid == found[i].tid;
            found[i] = known ? tasks[j] : found[i];
        }
        if (!known || found[i].is_deaf) {
            found[i].is_deaf = blocks_signal(found[i].tid) != 0;
        }
    }
    task_count = count;
    memcpy(tasks, found, (size_t)count * sizeof *found);
}

/* Whether the program has taken the signal since: its handler would be called for nothing. */
static int is_taken(void) {
    struct sigaction present;
    return sigaction(SIGURG, NULL, &present) != 0 || !(present.sa_flags & SA_SIGINFO) ||
           present.sa_sigaction != on_signal;
}

/* Interrupt a running thread; the level it was at, FOREIGN when it runs no Python. */
static uint8_t look_at(pid_t tid) {
    const int is_main = tid == main_tid;
    if (is_taken()) {
        lost_count++;
        return UNATTRIBUTED;
    }
    atomic_store(&request, REQUESTED);
    if (syscall(SYS_tgkill, getpid(), tid, SIGURG) != 0) {
        atomic_store(&request, IDLE);
        return FOREIGN;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)ANSWER_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int late;
    do {
        late = sem_timedwait(&answered, &until);
    } while (late != 0 && errno == EINTR);
    if (late != 0) {
        int expected = REQUESTED;
        if (atomic_compare_exchange_strong(&request, &expected, IDLE)) {
            lost_count++;
            return is_main ? UNATTRIBUTED : FOREIGN;
        }
        while (sem_wait(&answered) != 0) {
        }
    }
    /* Now, not before: a library may just have been loaded, and while one is being loaded this
     * waits, which must not keep from looking. */
    refresh_ranges();
    const uint8_t level = level_of_stack(is_main);
    atomic_store(&request, IDLE);
    return level;
}

static uint8_t look(void) {
    const char state = state_of(main_tid);
    if (state == 0) { /* the program has closed the file that tells it, as it closes all */
        lost_count++;
        return UNATTRIBUTED;
    }
    if (state == 'R') {
        if (main_is_deaf) {
            lost_count++;
            return UNATTRIBUTED;
        }
        return look_at(main_tid);
    }
    for (int i = 0; i < task_count; i++) {
        Task *task = &tasks[i];
        if (task->is_deaf || task->misses >= MOST_MISSES || state_of(task->tid) != 'R') {
            continue;
        }
        const uint8_t level = look_at(task->tid);
        if (level != FOREIGN) {
            task->misses = 0;
            task->is_python |= level != UNATTRIBUTED;
            return level;
        }
        if (task->is_python) {
            return UNATTRIBUTED;
        }
        task->misses++;
    }
    return WAITING;
}

/* ------------------------------------------------------------------ rows */

/* Both files, which a program that closes all has closed; 0, or why not. */
static int open_again(void) {
    const int problem = rl_open_file_again(&file);
    if (problem == 0) {
        main_stat = open_stat(main_tid);
    }
    return problem;
}

/* What could not be written is left out, and its time counted to what follows. */
static void lose(size_t rows, int problem) {
    write_error = problem;
    for (size_t i = 0; i < rows; i++) {
        last_ns -= batch.delta_ns[i];
    }
}

static void write_rows(void) {
    static const unsigned char zeros[8] = {0};
    unsigned char text[sizeof RL_ARROW_BATCH + 6 * BATCH_ROWS + 16], *at = text;
    const size_t rows = batch.rows;
    if (rows == 0) {
        return;
    }
    batch.rows = 0;
    int is_torn, problem = rl_file_is_ours(&file) ? 0 : open_again();
    if (problem != 0) {
        lose(rows, problem);
        return;
    }
    rl_arrow_batch_header(at, rows);
    at += sizeof RL_ARROW_BATCH;
    const void *columns[2] = {batch.delta_ns, batch.code};
    const size_t sizes[2] = {4 * rows, 2 * rows};
    for (int i = 0; i < 2; i++) {
        memcpy(at, columns[i], sizes[i]);
        at += sizes[i];
        memcpy(at, zeros, rl_pad8(sizes[i]) - sizes[i]);
        at += rl_pad8(sizes[i]) - sizes[i];
    }
    /* A part of a batch would swallow the beginning of the next one, and all behind it. */
    problem = rl_append(&file, text, (size_t)(at - text), &is_torn);
    if (problem != 0) {
        lose(rows, problem);
    }
}

static void put(uint32_t delta_ns, uint16_t code) {
    if (batch.rows == BATCH_ROWS) {
        write_rows();
    }
    batch.delta_ns[batch.rows] = delta_ns;
    batch.code[batch.rows++] = code;
}

static void add_sample(int64_t now, uint8_t level) {
    int64_t delta = now > last_ns ? now - last_ns : 0;
    last_ns = now;
    for (; delta > UINT32_MAX; delta -= UINT32_MAX) {
        put(UINT32_MAX, RL_GAP);
    }
    put((uint32_t)delta, level);
    sample_count++;
}

/* From half to one and a half intervals, so that no period of the program is met in step. */
static int64_t next_wait(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return interval_ns / 2 + (int64_t)(random_state % (uint64_t)interval_ns);
}

static void *run(void *unused) {
    (void)unused;
    own_tid = (pid_t)syscall(SYS_gettid);
    /* Where it may: being late when cores are short would look away from the busiest times. */
    (void)setpriority(PRIO_PROCESS, (id_t)own_tid, -10);
    const int64_t began = clock_ns(CLOCK_MONOTONIC), spent_before = spent_ns;
    int64_t next_refresh = 0, next_write = began + WRITE_NS, then = began, spent_then = spent_before;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        rl_wait(&wake, &lock, next_wait());
        if (stopping) {
            break;
        }
        pthread_mutex_unlock(&lock);
        const int64_t now = clock_ns(CLOCK_MONOTONIC);
        if (now >= next_refresh) {
            refresh_tasks();
            next_refresh = now + REFRESH_NS;
        }
        looked_ns = clock_ns(CLOCK_MONOTONIC);
        const uint8_t level = look();
        add_sample(looked_ns, level);
        spent_ns = spent_before + clock_ns(CLOCK_THREAD_CPUTIME_ID);
        if (now >= next_write) {
            write_rows();
            next_write = now + WRITE_NS;
            /* Of this second: the whole run's share would still be high after it was mended. */
            if ((spent_ns - spent_then) * cost_part > now - then && interval_ns < MAX_INTERVAL_NS) {
                interval_ns += interval_ns / 4;
            }
            spent_then = spent_ns;
            then = now;
        }
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    write_rows();
    return NULL;
}

static int start_thread(void) {
    rl_make_condition(&wake);
    pthread_mutex_init(&lock, NULL);
    stopping = 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    running = failed == 0;
    return failed;
}

static void stop_thread(void) {
    pthread_mutex_lock(&lock);
    stopping = 1;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = 0;
}

/* ------------------------------------------------------------------ Python */

static int find_interpreter(void) {
    Dl_info info;
    ElfW(Sym) *symbol = NULL;
    void *eval = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
    if (eval == NULL || !dladdr1(eval, &info, (void **)&symbol, RTLD_DL_SYMENT) ||
        symbol == NULL || symbol->st_size == 0) {
        return -1;
    }
    eval_begin = (uintptr_t)eval;
    eval_end = eval_begin + symbol->st_size;
    return 0;
}

/* The end of the calling thread's stack if it is the main thread's, else nothing is scanned. */
static void find_main_stack(void) {
    pthread_attr_t attributes;
    void *low;
    size_t size;
    main_stack_end = 0;
    if (getpid() == (pid_t)syscall(SYS_gettid) &&
        pthread_getattr_np(pthread_self(), &attributes) == 0) {
        if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
            main_stack_end = (uintptr_t)low + size;
        }
        pthread_attr_destroy(&attributes);
    }
}

static int take_packages(PyObject *list) {
    package_count = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(list) && package_count < MAX_PACKAGES; i++) {
        const char *name;
        int level;
        if (!PyArg_ParseTuple(PyList_GetItem(list, i), "si", &name, &level)) {
            return -1;
        }
        snprintf(packages[package_count].name, sizeof packages[0].name, "%s", name);
        packages[package_count++].level = (uint8_t)level;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int take_signal(void) {
    struct sigaction before, action = {0};
    sigaction(SIGURG, NULL, &before);
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN &&
        before.sa_sigaction != on_signal) {
        PyErr_SetString(PyExc_BlockingIOError, "SIGURG already has a handler");
        return -1;
    }
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGURG, &action, NULL);
}

static void close_files(void) {
    if (rl_file_is_ours(&file)) {
        close(file.number);
        if (main_stat >= 0) {
            close(main_stat);
        }
    }
    file.number = main_stat = -1;
    is_open = 0;
}

/* In a forked child: the file is the parent's. */
static void leave(void) {
    running = 0;
    if (is_open) {
        close_files();
    }
}

/* A process forked while another thread was ending it all is not told to leave it. */
static void leave_if_inherited(void) {
    if (is_open && owner != getpid()) {
        leave();
    }
}

static PyObject *start_at(const char *path, long long base, long long interval, long long part,
                          PyObject *list) {
    leave_if_inherited();
    if (is_open || interval <= 0 || part <= 0) {
        return PyErr_Format(PyExc_ValueError, "already sampling, or interval_ns=%lld, cost_part=%lld",
                            interval, part);
    }
    if (find_interpreter() != 0) {
        PyErr_SetString(PyExc_NotImplementedError, "this interpreter hides its evaluation loop");
        return NULL;
    }
    if (take_packages(list) != 0 || take_signal() != 0) {
        return NULL;
    }
    if (rl_create_file(&file, path) != 0 ||
        write(file.number, RL_ARROW_SCHEMA, sizeof RL_ARROW_SCHEMA) < 0) {
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    }
    main_tid = getpid();
    find_main_stack();
    main_stat = open_stat(main_tid);
    interval_ns = interval;
    cost_part = part;
    last_ns = base;
    random_state = 88172645463325252u ^ (uint64_t)base;
    sample_count = lost_count = ranges_seen = 0;
    spent_ns = 0;
    write_error = task_count = 0;
    batch.rows = 0;
    sem_init(&answered, 0, 0);
    atomic_store(&request, IDLE);
    frame_count = 0;
    _Unwind_Backtrace(on_frame, NULL); /* what it loads when first used must not load in a handler */
    is_open = 1;
    owner = getpid();
    const int failed = start_thread();
    if (failed) {
        is_open = 0;
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *start(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *path = NULL; /* bytes: a name need not be UTF-8 */
    long long base, interval, part;
    PyObject *list;
    if (!PyArg_ParseTuple(args, "O&LLLO!:start", PyUnicode_FSConverter, &path, &base, &interval,
                          &part, &PyList_Type, &list)) {
        return NULL;
    }
    PyObject *result = start_at(PyBytes_AS_STRING(path), base, interval, part, list);
    Py_DECREF(path);
    return result;
}

/* The handler stays: a signal may still be on its way. */
static PyObject *stop(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    if (!is_open) {
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS;
    if (running) {
        stop_thread();
    }
    Py_END_ALLOW_THREADS;
    close_files();
    return Py_BuildValue("{s:K,s:K,s:L,s:L,s:i}", "samples", (unsigned long long)sample_count,
                         "unanswered", (unsigned long long)lost_count, "cpu_ns",
                         (long long)spent_ns, "interval_ns", (long long)interval_ns,
                         "write_errno", write_error);
}

/* Around a fork in the parent, and for windows. */
static PyObject *pause_sampling(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    if (running) {
        Py_BEGIN_ALLOW_THREADS;
        stop_thread();
        Py_END_ALLOW_THREADS;
    }
    Py_RETURN_NONE;
}

static PyObject *resume_sampling(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave_if_inherited();
    if (is_open && !running) {
        start_thread();
    }
    Py_RETURN_NONE;
}

/* What a forked child calls first. */
static PyObject *abandon(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    leave();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, "start(path, base_ns, interval_ns, cost_part, [(package, level)])."},
    {"stop", stop, METH_NOARGS, "End; what was done, or None."},
    {"pause", pause_sampling, METH_NOARGS, "No thread from here on."},
    {"resume", resume_sampling, METH_NOARGS, "Sample again."},
    {"abandon", abandon, METH_NOARGS, "Forget it, in a forked child."},
    {NULL, NULL, 0, NULL},
};
#else
static PyMethodDef methods[] = {{NULL, NULL, 0, NULL}};
#endif

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_sampler", "The sampling thread of redline.profile.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sampler(void) {
    PyObject *module = PyModule_Create(&definition);
#ifdef __linux__
    const int supported = 1;
#else
    const int supported = 0;
#endif
    if (module != NULL && PyModule_AddIntConstant(module, "supported", supported) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
