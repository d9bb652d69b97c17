/* Counts what a rank asks MPI for and gives back, for LD_PRELOAD: MPI's profiling interface lets these stand before the library's own.
 *
 * A line is added to SOAK_COUNTS.PID every SOAK_EVERY all-reduces, and one at MPI_Finalize:
 * all-reduces started, requests made, requests complete, communicators, datatypes, windows and groups that are there, bytes that malloc has
 * given out.
 */
#include <malloc.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long reductions, made, complete, communicators, types, windows, groups;

static void tell(void) {
    const char *path = getenv("SOAK_COUNTS");
    char name[4096];
    if (!path) return;
    snprintf(name, sizeof name, "%s.%d", path, (int)getpid());
    FILE *file = fopen(name, "a");
    if (!file) return;
    struct mallinfo2 heap = mallinfo2();
    fprintf(file, "%ld %ld %ld %ld %ld %ld %ld %zu\n", reductions, made, complete, communicators, types, windows, groups,
            heap.uordblks + heap.hblkhd);
    fclose(file);
}

static int counted(long *what, int result) {
    if (result == MPI_SUCCESS) ++*what;
    return result;
}

#define REQUEST(NAME, DECLARED, GIVEN) \
    int MPI_##NAME DECLARED { return counted(&made, PMPI_##NAME GIVEN); }
#define SENDING const void *mine, int count, MPI_Datatype type
#define GETTING void *result, int result_count, MPI_Datatype result_type

REQUEST(Isend, (SENDING, int to, int tag, MPI_Comm comm, MPI_Request *r), (mine, count, type, to, tag, comm, r))
REQUEST(Issend, (SENDING, int to, int tag, MPI_Comm comm, MPI_Request *r), (mine, count, type, to, tag, comm, r))
REQUEST(Irecv, (void *b, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *r), (b, n, type, from, tag, comm, r))
REQUEST(Ibcast, (void *b, int n, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *r), (b, n, type, root, comm, r))
REQUEST(Ibarrier, (MPI_Comm comm, MPI_Request *r), (comm, r))
REQUEST(Iexscan, (const void *mine, void *result, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *r),
        (mine, result, n, type, op, comm, r))
REQUEST(Iallgather, (SENDING, GETTING, MPI_Comm comm, MPI_Request *r), (mine, count, type, result, result_count, result_type, comm, r))
REQUEST(Ialltoall, (SENDING, GETTING, MPI_Comm comm, MPI_Request *r), (mine, count, type, result, result_count, result_type, comm, r))
REQUEST(Iallgatherv, (SENDING, void *result, const int *n, const int *at, MPI_Datatype result_type, MPI_Comm comm, MPI_Request *r),
        (mine, count, type, result, n, at, result_type, comm, r))
#define VECTORS const void *mine, const int *n, const int *at, MPI_Datatype type, void *result, const int *m, const int *to, \
                MPI_Datatype result_type, MPI_Comm comm, MPI_Request *r
REQUEST(Ialltoallv, (VECTORS), (mine, n, at, type, result, m, to, result_type, comm, r))
REQUEST(Ineighbor_alltoallv, (VECTORS), (mine, n, at, type, result, m, to, result_type, comm, r))

int MPI_Iallreduce(const void *mine, void *result, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *r) {
    const char *every = getenv("SOAK_EVERY");
    if (++reductions % (every ? atol(every) : 100) == 0) tell();
    return counted(&made, PMPI_Iallreduce(mine, result, n, type, op, comm, r));
}

/* Requests that are none any more are complete. */
static long there(int n, const MPI_Request *r) {
    long found = 0;
    for (int i = 0; i < n; ++i) found += r[i] != MPI_REQUEST_NULL;
    return found;
}
#define WAITING(NAME, DECLARED, GIVEN, N, R) \
    int MPI_##NAME DECLARED { \
        long before = there(N, R); \
        int result = PMPI_##NAME GIVEN; \
        complete += before - there(N, R); \
        return result; \
    }
WAITING(Test, (MPI_Request *r, int *flag, MPI_Status *s), (r, flag, s), 1, r)
WAITING(Wait, (MPI_Request *r, MPI_Status *s), (r, s), 1, r)
WAITING(Testall, (int n, MPI_Request r[], int *flag, MPI_Status s[]), (n, r, flag, s), n, r)
WAITING(Waitall, (int n, MPI_Request r[], MPI_Status s[]), (n, r, s), n, r)
WAITING(Testany, (int n, MPI_Request r[], int *i, int *flag, MPI_Status *s), (n, r, i, flag, s), n, r)
WAITING(Waitany, (int n, MPI_Request r[], int *i, MPI_Status *s), (n, r, i, s), n, r)
WAITING(Testsome, (int n, MPI_Request r[], int *m, int i[], MPI_Status s[]), (n, r, m, i, s), n, r)
WAITING(Waitsome, (int n, MPI_Request r[], int *m, int i[], MPI_Status s[]), (n, r, m, i, s), n, r)
WAITING(Request_free, (MPI_Request *r), (r), 1, r)

#define MAKING(NAME, WHAT, DECLARED, GIVEN) \
    int MPI_##NAME DECLARED { return counted(&WHAT, PMPI_##NAME GIVEN); }
MAKING(Comm_dup, communicators, (MPI_Comm comm, MPI_Comm *new), (comm, new))
MAKING(Comm_dup_with_info, communicators, (MPI_Comm comm, MPI_Info info, MPI_Comm *new), (comm, info, new))
MAKING(Comm_split, communicators, (MPI_Comm comm, int color, int key, MPI_Comm *new), (comm, color, key, new))
MAKING(Comm_split_type, communicators, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new), (comm, type, key, info, new))
MAKING(Comm_create, communicators, (MPI_Comm comm, MPI_Group group, MPI_Comm *new), (comm, group, new))
MAKING(Dist_graph_create_adjacent, communicators,
       (MPI_Comm comm, int in, const int *from, const int *inw, int out, const int *to, const int *outw, MPI_Info info, int order, MPI_Comm *new),
       (comm, in, from, inw, out, to, outw, info, order, new))
MAKING(Type_contiguous, types, (int n, MPI_Datatype type, MPI_Datatype *new), (n, type, new))
MAKING(Type_vector, types, (int n, int m, int by, MPI_Datatype type, MPI_Datatype *new), (n, m, by, type, new))
MAKING(Type_create_struct, types, (int n, const int *m, const MPI_Aint *at, const MPI_Datatype *t, MPI_Datatype *new), (n, m, at, t, new))
MAKING(Win_allocate_shared, windows, (MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win),
       (size, unit, info, comm, base, win))
MAKING(Comm_group, groups, (MPI_Comm comm, MPI_Group *group), (comm, group))

#define FREEING(NAME, WHAT, TYPE) \
    int MPI_##NAME(TYPE *handle) { \
        int result = PMPI_##NAME(handle); \
        if (result == MPI_SUCCESS) --WHAT; \
        return result; \
    }
FREEING(Comm_free, communicators, MPI_Comm)
FREEING(Type_free, types, MPI_Datatype)
FREEING(Win_free, windows, MPI_Win)
FREEING(Group_free, groups, MPI_Group)

int MPI_Finalize(void) {
    tell();
    return PMPI_Finalize();
}
