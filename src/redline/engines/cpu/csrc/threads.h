/* The threads that the tensor library computes with, for C that takes its place.
 *
 * A file that includes this one has defined _GNU_SOURCE before anything else, and its module calls
 * `find_threads` when it is imported, after torch.
 */
#if defined(__linux__)
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#endif
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Where the part of this number begins if a total is shared out evenly. */
static inline int
begin_of(int part, int parts, int total)
{
    return (int)((int64_t)total * part / parts); /* an int does not hold a product of places */
}

/* The tensor library's threads: of GNU's OpenMP, as it has loaded it; NULL where it has another. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*thread_number)(void);
static int (*thread_count)(void);

#if defined(__linux__)
/* Keep the path if it is that library's; not opened in here, where the loader's lock is held. */
static int
keep_path(struct dl_phdr_info *info, size_t size, void *path)
{
    (void)size;
    const char *file = strrchr(info->dlpi_name, '/');
    if (file == NULL || strncmp(file, "/libgomp", 8) != 0 || strlen(info->dlpi_name) >= PATH_MAX)
        return 0;
    strcpy(path, info->dlpi_name);
    return 1;
}

static void
find_threads(void)
{
    char path[PATH_MAX];
    void *library = dl_iterate_phdr(keep_path, path) ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (library == NULL)
        return;
    *(void **)&parallel = dlsym(library, "GOMP_parallel");
    *(void **)&thread_number = dlsym(library, "omp_get_thread_num");
    *(void **)&thread_count = dlsym(library, "omp_get_num_threads");
    if (thread_number == NULL || thread_count == NULL)
        parallel = NULL;
}
#else
static void
find_threads(void)
{
}
#endif

/* Run a function with so many threads; with one where they cannot be used. */
static void
run_all(void (*function)(void *), void *work, int threads)
{
    if (threads > 1 && parallel != NULL)
        parallel(function, work, (unsigned)threads, 0);
    else
        function(work);
}

/* What of a total falls to the thread that this runs in, of so many asked for; its number. */
static int
own_part(int threads, int total, int *first, int *stop)
{
    int number = 0, count = 1;
    if (threads > 1 && parallel != NULL) {
        count = thread_count(); /* there may be fewer than were asked for */
        number = thread_number();
    }
    *first = begin_of(number, count, total);
    *stop = begin_of(number + 1, count, total);
    return number;
}
