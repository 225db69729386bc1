/* Waits of the profiler's own threads, which a wall clock that is set back does not prolong. */
#ifndef RL_WAITING_H
#define RL_WAITING_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#ifdef __linux__
enum { RL_WAIT_CLOCK = CLOCK_MONOTONIC };
#else
enum { RL_WAIT_CLOCK = CLOCK_REALTIME }; /* a condition counts by no other everywhere */
#endif

/* A condition that counts by that clock; before anybody waits. */
static inline void rl_make_condition(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifdef __linux__
    pthread_condattr_setclock(&attributes, RL_WAIT_CLOCK);
#endif
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Until it is signalled, or so many ns have passed; `lock` is held. */
static inline void rl_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t wait_ns) {
    struct timespec until;
    clock_gettime(RL_WAIT_CLOCK, &until);
    const int64_t ns = until.tv_nsec + wait_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(condition, lock, &until);
}

#endif
