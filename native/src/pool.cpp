#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

namespace {

constexpr auto kLookFor = std::chrono::microseconds(200);
constexpr int kLooksPerGlance = 256; // at the clock
constexpr uint32_t kClosed = UINT32_MAX;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace

// `ticket` is the number of the job (upper half) and the next piece of it (lower half). The job's
// fields change only while the lower half is kClosed, so a thread that reads them and then moves the
// ticket on knows that they belong together.
struct Pool::State {
    std::atomic<uint64_t> ticket{kClosed};
    std::atomic<uint32_t> count{0};
    std::atomic<Body> body{nullptr};
    std::atomic<const void *> job{nullptr};
    alignas(64) std::atomic<uint32_t> done{0};
    alignas(64) std::atomic<int> sleepers{0};
    std::atomic<bool> leaving{false};
    std::mutex mutex;
    std::condition_variable wake;
    std::vector<std::thread> workers;

    static uint32_t piece_of(uint64_t ticket) { return uint32_t(ticket); }
    static uint32_t job_of(uint64_t ticket) { return uint32_t(ticket >> 32); }

    // Takes pieces until none is left.
    void help() {
        uint64_t now = ticket.load(std::memory_order_acquire);
        for (;;) {
            const uint32_t total = count.load(std::memory_order_relaxed);
            const Body run = body.load(std::memory_order_relaxed);
            const void *what = job.load(std::memory_order_relaxed);
            if (piece_of(now) >= total) return; // kClosed too
            if (!ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
            run(what, int(piece_of(now)));
            done.fetch_add(1, std::memory_order_release);
            now = ticket.load(std::memory_order_acquire);
        }
    }

    // Waits for a job other than `seen`; false if the pool is being taken down.
    bool wait_for_job(uint32_t seen) {
        auto is_news = [&] { return job_of(ticket.load()) != seen || leaving.load(); };
        const auto until = std::chrono::steady_clock::now() + kLookFor;
        do {
            for (int i = 0; i < kLooksPerGlance; i++) {
                if (is_news()) return !leaving.load();
                pause();
            }
        } while (std::chrono::steady_clock::now() < until);
        std::unique_lock<std::mutex> lock(mutex);
        sleepers++;
        wake.wait(lock, is_news);
        sleepers--;
        return !leaving.load();
    }

    void work() {
        uint32_t seen = 0;
        while (wait_for_job(seen)) {
            seen = job_of(ticket.load());
            help();
        }
    }
};

Pool::Pool(int threads) : state_(new State), threads_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < threads_; i++)
        state_->workers.emplace_back([state = state_] { state->work(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(state_->mutex);
        state_->leaving = true;
    }
    state_->wake.notify_all();
    for (std::thread &worker : state_->workers) worker.join();
    delete state_;
}

void Pool::run(int count, Body body, const void *job) {
    if (count <= 1 || threads_ == 1) {
        for (int piece = 0; piece < count; piece++) body(job, piece);
        return;
    }
    State &s = *state_;
    const uint64_t number = uint64_t(State::job_of(s.ticket.load()) + 1) << 32;
    s.ticket.store(number | kClosed);
    s.count.store(uint32_t(count), std::memory_order_relaxed);
    s.body.store(body, std::memory_order_relaxed);
    s.job.store(job, std::memory_order_relaxed);
    s.done.store(0, std::memory_order_relaxed);
    s.ticket.store(number + (uint64_t(1) << 32)); // piece 0 of the next number
    if (s.sleepers.load() > 0) {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.wake.notify_all();
    }
    s.help();
    for (int looks = 1; s.done.load(std::memory_order_acquire) < uint32_t(count); looks++) {
        if (looks % kLooksPerGlance == 0) std::this_thread::yield(); // its holder may want this core
        pause();
    }
    s.ticket.store((number + (uint64_t(1) << 32)) | kClosed);
}

} // namespace octavo
