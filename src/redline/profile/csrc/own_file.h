/* A file that is appended to for as long as a program runs, whatever that does to its files.
 *
 * A program that closes all files, as a daemon does, uses their numbers again: the file is told by
 * its inode, opened again, and its old number left to the program.
 */
#ifndef RL_OWN_FILE_H
#define RL_OWN_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    int number; /* -1: none */
    struct stat is;
    char path[PATH_MAX];
} RlOwnFile;

static inline int rl_is_file(const RlOwnFile *file, int number) {
    struct stat found;
    return fstat(number, &found) == 0 && found.st_dev == file->is.st_dev &&
           found.st_ino == file->is.st_ino;
}

static inline int rl_file_is_ours(const RlOwnFile *file) {
    return file->number >= 0 && rl_is_file(file, file->number);
}

/* Make it anew; 0, or -1 with errno. */
static inline int rl_create_file(RlOwnFile *file, const char *path) {
    snprintf(file->path, sizeof file->path, "%s", path);
    file->number = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return file->number >= 0 ? fstat(file->number, &file->is) : -1;
}

/* 0, or why not. */
static inline int rl_open_file_again(RlOwnFile *file) {
    const int number = open(file->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (number < 0) {
        return errno;
    }
    if (!rl_is_file(file, number)) {
        close(number);
        return EBADF;
    }
    file->number = number;
    return 0;
}

/* All of it or nothing: 0, or why not. A part would join with what is appended next. If even the part
 * cannot be taken back, `is_torn` is set. */
static inline int rl_append(RlOwnFile *file, const void *from, size_t size, int *is_torn) {
    const off_t before = lseek(file->number, 0, SEEK_END);
    *is_torn = 0;
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(file->number, (const char *)from + done, size - done);
        if (n < 0 && errno != EINTR) {
            const int problem = errno;
            if (before >= 0 && ftruncate(file->number, before) == 0) {
                lseek(file->number, before, SEEK_SET);
            } else {
                *is_torn = 1;
            }
            return problem;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

#endif
