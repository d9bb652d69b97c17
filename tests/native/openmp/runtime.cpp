// The functions of OpenMP that the kernels need, implemented by threads, mutexes and condition variables of C++.
//
// ThreadSanitizer sees every synchronisation here. It sees none of libgomp's, which consists of system calls, and would
// report each barrier as a race. The test program exports these functions, so that a library that it loads uses them
// instead of libgomp's. They are not fast.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace {

// A loop whose iterations are taken by free threads. A team may be in several loops, because of `nowait`.
struct Loop {
    long next, end, step, chunk;
    int left = 0;  // threads that have left it
};

struct Team {
    explicit Team(const int threads) : size(threads) {}

    const int size;
    std::mutex mutex;
    std::condition_variable changed;
    int waiting = 0;
    long meetings = 0;
    std::atomic<int> unseen_waiting{0};
    std::atomic<long> unseen_meetings{0};
    std::map<long, Loop> loops;    // by their place among the team's loops
    std::map<long, bool> singles;  // whether a thread has taken it
};

// The position of a thread: the numbers of loops and singles that it has entered.
struct Place {
    Team* team;
    int number;
    long loops = 0, singles = 0;
};

Team alone(1);
thread_local Place place{&alone, 0};

const bool kWithoutBarriers = std::getenv("WITHOUT_BARRIERS") != nullptr;  // which makes races, for a test

// Threads wait for each other, but relaxed operations order no memory: ThreadSanitizer sees races as if there were no
// barrier, and kernels nevertheless find what others have written, so that none of them ends in a crash before a race
// is reported.
void meet_unseen(Team& team) {
    const long meeting = team.unseen_meetings.load(std::memory_order_relaxed);
    if (team.unseen_waiting.fetch_add(1, std::memory_order_relaxed) + 1 == team.size) {
        team.unseen_waiting.store(0, std::memory_order_relaxed);
        team.unseen_meetings.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    while (team.unseen_meetings.load(std::memory_order_relaxed) == meeting) std::this_thread::yield();
}

void meet() {
    Team& team = *place.team;
    if (kWithoutBarriers) return meet_unseen(team);
    std::unique_lock<std::mutex> lock(team.mutex);
    const long meeting = team.meetings;
    if (++team.waiting == team.size) {
        team.waiting = 0;
        ++team.meetings;
        return team.changed.notify_all();
    }
    team.changed.wait(lock, [&] { return team.meetings != meeting; });
}

bool take(Loop& loop, long* first, long* last) {
    if (loop.step > 0 ? loop.next >= loop.end : loop.next <= loop.end) return false;
    *first = loop.next;
    loop.next += loop.chunk * loop.step;
    *last = loop.step > 0 ? std::min(loop.next, loop.end) : std::max(loop.next, loop.end);
    return true;
}

}  // namespace

extern "C" {

int omp_get_num_threads() {
    return place.team->size;
}
int omp_get_thread_num() {
    return place.number;
}
void GOMP_barrier() {
    meet();
}

void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned) {
    Team team(threads == 0 ? 1 : static_cast<int>(threads));
    const Place before = place;
    const auto work = [&](const int number) {
        place = Place{&team, number};
        function(data);
        meet();
    };
    std::vector<std::thread> others;
    for (int number = 1; number < team.size; ++number) others.emplace_back(work, number);
    work(0);
    for (std::thread& other : others) other.join();
    place = before;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long step, long chunk, long* first, long* last) {
    const std::lock_guard<std::mutex> lock(place.team->mutex);
    return take(place.team->loops.try_emplace(place.loops, Loop{start, end, step, chunk}).first->second, first, last);
}
bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) {
    const std::lock_guard<std::mutex> lock(place.team->mutex);
    return take(place.team->loops.at(place.loops), first, last);
}

bool GOMP_loop_dynamic_start(long start, long end, long step, long chunk, long* first, long* last) {
    return GOMP_loop_nonmonotonic_dynamic_start(start, end, step, chunk, first, last);
}
bool GOMP_loop_dynamic_next(long* first, long* last) {
    return GOMP_loop_nonmonotonic_dynamic_next(first, last);
}

void GOMP_loop_end_nowait() {
    const std::lock_guard<std::mutex> lock(place.team->mutex);
    const auto loop = place.team->loops.find(place.loops++);
    if (++loop->second.left == place.team->size) place.team->loops.erase(loop);
}
void GOMP_loop_end() {
    GOMP_loop_end_nowait();
    meet();
}

bool GOMP_single_start() {
    const std::lock_guard<std::mutex> lock(place.team->mutex);
    return place.team->singles.try_emplace(place.singles++, true).second;
}
}
