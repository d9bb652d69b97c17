/* A file system that fails once, for programs that are started with this library in LD_PRELOAD.

   Calls on files below one folder are counted by kind; the n-th of one kind fails, or transfers less than it was asked to. With a
   log, each counted call adds a line "process kind path" to it. FAULTS_FOLDER, FAULTS_LOG, FAULTS_KIND, FAULTS_NUMBER,
   FAULTS_ERROR and FAULTS_RANK are read at the start of a program; faults_arm() does the same for one that runs. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define KINDS 64
#define SHORT (-1)

static char folder[PATH_MAX], kind_to_fail[32];
static size_t folder_length;
static int log_descriptor = -1, error_to_give;
static long number_to_fail;
static struct { char name[32]; long calls; } counted[KINDS];

void faults_arm(const char *below, const char *log, const char *kind, long number, int error)
{
    memset(counted, 0, sizeof counted);
    snprintf(folder, sizeof folder, "%s", below);
    folder_length = strlen(folder);
    snprintf(kind_to_fail, sizeof kind_to_fail, "%s", kind);
    number_to_fail = number;
    error_to_give = error;
    if (log_descriptor >= 0)
        syscall(SYS_close, log_descriptor);
    log_descriptor = -1;
    if (*log)
        log_descriptor = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static const char *told(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

__attribute__((constructor)) static void begin(void)
{
    const char *rank = told("FAULTS_RANK"), *mine = told("OMPI_COMM_WORLD_RANK");
    int is_meant = !*rank || strcmp(rank, mine) == 0;
    if (is_meant && *told("FAULTS_FOLDER"))
        faults_arm(told("FAULTS_FOLDER"), told("FAULTS_LOG"), told("FAULTS_KIND"), atol(told("FAULTS_NUMBER")),
                   atoi(told("FAULTS_ERROR")));
}

static int is_below(const char *path)
{
    return folder_length && strncmp(path, folder, folder_length) == 0 &&
           (path[folder_length] == '/' || path[folder_length] == 0);
}

/* Whether this call is the one to fail. */
static int counts(const char *kind, const char *path)
{
    int k = 0;
    while (k < KINDS - 1 && counted[k].name[0] && strcmp(counted[k].name, kind) != 0)
        k++;
    snprintf(counted[k].name, sizeof counted[k].name, "%s", kind);
    long number = __atomic_add_fetch(&counted[k].calls, 1, __ATOMIC_SEQ_CST);
    int fails = number == number_to_fail && strcmp(kind, kind_to_fail) == 0;
    if (log_descriptor >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%d\t%s\t%s\t%s\n", getpid(), kind, fails ? "failed" : "", path);
        syscall(SYS_write, log_descriptor, line, length);
    }
    return fails;
}

/* What a link of /proc/self names, in path (PATH_MAX); errno stays as it is. */
static int follow(const char *link, char *path)
{
    int before = errno;
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    errno = before;
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

static int fails_descriptor(const char *kind, int descriptor)
{
    char link[64], path[PATH_MAX];
    if (!folder_length)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    return follow(link, path) && is_below(path) && counts(kind, path);
}

static int fails_path(const char *kind, int at, const char *path)
{
    char whole[2 * PATH_MAX], base[PATH_MAX];
    if (!folder_length || !path)
        return 0;
    if (*path == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        char link[64] = "/proc/self/cwd";
        if (at != AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        if (!follow(link, base))
            return 0;
        snprintf(whole, sizeof whole, "%s/%s", base, path);
    }
    return is_below(whole) && counts(kind, whole);
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) \
        *(void **)&real = dlsym(RTLD_NEXT, name)

/* A call that transfers `count` bytes and may transfer half of them. */
#define TRANSFER(kind, name, parameters, types, descriptor, call, less) \
    ssize_t name parameters \
    { \
        struct iovec half = {0}; /* lives until the call is made */ \
        (void)half; \
        REAL(ssize_t, #name, types); \
        if (fails_descriptor(kind, descriptor)) { \
            if (error_to_give == SHORT) { \
                less; \
            } else { \
                errno = error_to_give; \
                return -1; \
            } \
        } \
        return call; \
    }
#define TYPES(...) __VA_ARGS__
#define HALF_OF_COUNT if (count > 1) count /= 2
/* Of the first piece that has any bytes; what is behind it is left out. */
#define HALF_OF_PIECES \
    int k = 0; \
    while (k < pieces - 1 && all[k].iov_len == 0) \
        k++; \
    if (pieces > 0) { \
        half = all[k]; \
        half.iov_len = half.iov_len > 1 ? half.iov_len / 2 : half.iov_len; \
        all = &half; \
        pieces = 1; \
    }

TRANSFER("write", write, (int fd, const void *data, size_t count), TYPES(int, const void *, size_t), fd,
         real(fd, data, count), HALF_OF_COUNT)
TRANSFER("read", read, (int fd, void *data, size_t count), TYPES(int, void *, size_t), fd, real(fd, data, count),
         HALF_OF_COUNT)
TRANSFER("pwrite", pwrite, (int fd, const void *data, size_t count, off_t at), TYPES(int, const void *, size_t, off_t), fd,
         real(fd, data, count, at), HALF_OF_COUNT)
TRANSFER("pwrite", pwrite64, (int fd, const void *data, size_t count, off64_t at), TYPES(int, const void *, size_t, off64_t),
         fd, real(fd, data, count, at), HALF_OF_COUNT)
TRANSFER("pread", pread, (int fd, void *data, size_t count, off_t at), TYPES(int, void *, size_t, off_t), fd,
         real(fd, data, count, at), HALF_OF_COUNT)
TRANSFER("pread", pread64, (int fd, void *data, size_t count, off64_t at), TYPES(int, void *, size_t, off64_t), fd,
         real(fd, data, count, at), HALF_OF_COUNT)
TRANSFER("writev", writev, (int fd, const struct iovec *all, int pieces), TYPES(int, const struct iovec *, int), fd,
         real(fd, all, pieces), HALF_OF_PIECES)
TRANSFER("readv", readv, (int fd, const struct iovec *all, int pieces), TYPES(int, const struct iovec *, int), fd,
         real(fd, all, pieces), HALF_OF_PIECES)
TRANSFER("pwritev", pwritev, (int fd, const struct iovec *all, int pieces, off_t at),
         TYPES(int, const struct iovec *, int, off_t), fd, real(fd, all, pieces, at), HALF_OF_PIECES)
TRANSFER("pwritev", pwritev64, (int fd, const struct iovec *all, int pieces, off64_t at),
         TYPES(int, const struct iovec *, int, off64_t), fd, real(fd, all, pieces, at), HALF_OF_PIECES)
TRANSFER("preadv", preadv, (int fd, const struct iovec *all, int pieces, off_t at),
         TYPES(int, const struct iovec *, int, off_t), fd, real(fd, all, pieces, at), HALF_OF_PIECES)
TRANSFER("preadv", preadv64, (int fd, const struct iovec *all, int pieces, off64_t at),
         TYPES(int, const struct iovec *, int, off64_t), fd, real(fd, all, pieces, at), HALF_OF_PIECES)
TRANSFER("preadv", preadv2, (int fd, const struct iovec *all, int pieces, off_t at, int flags),
         TYPES(int, const struct iovec *, int, off_t, int), fd, real(fd, all, pieces, at, flags), HALF_OF_PIECES)
TRANSFER("preadv", preadv64v2, (int fd, const struct iovec *all, int pieces, off64_t at, int flags),
         TYPES(int, const struct iovec *, int, off64_t, int), fd, real(fd, all, pieces, at, flags), HALF_OF_PIECES)
TRANSFER("pwritev", pwritev2, (int fd, const struct iovec *all, int pieces, off_t at, int flags),
         TYPES(int, const struct iovec *, int, off_t, int), fd, real(fd, all, pieces, at, flags), HALF_OF_PIECES)
TRANSFER("pwritev", pwritev64v2, (int fd, const struct iovec *all, int pieces, off64_t at, int flags),
         TYPES(int, const struct iovec *, int, off64_t, int), fd, real(fd, all, pieces, at, flags), HALF_OF_PIECES)
TRANSFER("sendfile", sendfile, (int out, int in, off_t *at, size_t count), TYPES(int, int, off_t *, size_t), out,
         real(out, in, at, count), HALF_OF_COUNT)
TRANSFER("sendfile", sendfile64, (int out, int in, off64_t *at, size_t count), TYPES(int, int, off64_t *, size_t), out,
         real(out, in, at, count), HALF_OF_COUNT)
TRANSFER("copy_file_range", copy_file_range, (int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags),
         TYPES(int, off64_t *, int, off64_t *, size_t, unsigned), out, real(in, from, out, to, count, flags), HALF_OF_COUNT)

/* A call that does something or not. */
#define DOES(kind, name, parameters, types, fails, call) \
    int name parameters \
    { \
        REAL(int, #name, types); \
        if (fails) { \
            errno = error_to_give; \
            return -1; \
        } \
        return call; \
    }

DOES("fsync", fsync, (int fd), int, fails_descriptor("fsync", fd), real(fd))
DOES("fdatasync", fdatasync, (int fd), int, fails_descriptor("fdatasync", fd), real(fd))
DOES("ftruncate", ftruncate, (int fd, off_t size), TYPES(int, off_t), fails_descriptor("ftruncate", fd), real(fd, size))
DOES("ftruncate", ftruncate64, (int fd, off64_t size), TYPES(int, off64_t), fails_descriptor("ftruncate", fd), real(fd, size))
DOES("fallocate", fallocate, (int fd, int mode, off_t at, off_t size), TYPES(int, int, off_t, off_t),
     fails_descriptor("fallocate", fd), real(fd, mode, at, size))
DOES("fallocate", fallocate64, (int fd, int mode, off64_t at, off64_t size), TYPES(int, int, off64_t, off64_t),
     fails_descriptor("fallocate", fd), real(fd, mode, at, size))
DOES("rename", rename, (const char *from, const char *to), TYPES(const char *, const char *), fails_path("rename", AT_FDCWD, to),
     real(from, to))
DOES("rename", renameat, (int at, const char *from, int there, const char *to), TYPES(int, const char *, int, const char *),
     fails_path("rename", there, to), real(at, from, there, to))
DOES("rename", renameat2, (int at, const char *from, int there, const char *to, unsigned flags),
     TYPES(int, const char *, int, const char *, unsigned), fails_path("rename", there, to), real(at, from, there, to, flags))
DOES("mkdir", mkdir, (const char *path, mode_t mode), TYPES(const char *, mode_t), fails_path("mkdir", AT_FDCWD, path),
     real(path, mode))
DOES("mkdir", mkdirat, (int at, const char *path, mode_t mode), TYPES(int, const char *, mode_t),
     fails_path("mkdir", at, path), real(at, path, mode))
DOES("unlink", unlink, (const char *path), const char *, fails_path("unlink", AT_FDCWD, path), real(path))
DOES("unlink", unlinkat, (int at, const char *path, int flags), TYPES(int, const char *, int), fails_path("unlink", at, path),
     real(at, path, flags))
DOES("rmdir", rmdir, (const char *path), const char *, fails_path("rmdir", AT_FDCWD, path), real(path))

/* These return the error. */
int posix_fallocate(int fd, off_t at, off_t size)
{
    REAL(int, "posix_fallocate", int, off_t, off_t);
    return fails_descriptor("fallocate", fd) ? error_to_give : real(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size)
{
    REAL(int, "posix_fallocate64", int, off64_t, off64_t);
    return fails_descriptor("fallocate", fd) ? error_to_give : real(fd, at, size);
}

/* A descriptor is given back also where closing it fails. */
int close(int fd)
{
    REAL(int, "close", int);
    int fails = fails_descriptor("close", fd), result = real(fd);
    if (fails) {
        errno = error_to_give;
        return -1;
    }
    return result;
}

#define NEEDS_MODE(flags) (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE)
#define OPENS(flags) (NEEDS_MODE(flags) ? "create" : "open")
#define MODE(mode) \
    mode_t mode = 0; \
    if (NEEDS_MODE(flags)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }
#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(int, #name, const char *, int, ...); \
        MODE(mode) \
        if (fails_path(OPENS(flags), AT_FDCWD, path)) { \
            errno = error_to_give; \
            return -1; \
        } \
        return real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        REAL(int, #name, int, const char *, int, ...); \
        MODE(mode) \
        if (fails_path(OPENS(flags), at, path)) { \
            errno = error_to_give; \
            return -1; \
        } \
        return real(at, path, flags, mode); \
    }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) \
    { \
        REAL(FILE *, #name, const char *, const char *); \
        if (fails_path(*mode == 'r' ? "open" : "create", AT_FDCWD, path)) { \
            errno = error_to_give; \
            return NULL; \
        } \
        return real(path, mode); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
