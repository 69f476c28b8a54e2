// A few threads that share the pieces of one job after the other.
//
// Whoever is running takes the next piece, so a thread that the operating system has put aside holds
// nobody up unless it holds a piece: a step gets slower in proportion when other programs want the
// cores, and no more. Threads look for work for a moment after each job, then sleep, so that an idle
// engine costs nothing.
#pragma once

namespace octavo {

class Pool {
  public:
    using Body = void (*)(const void *job, int piece);

    // The calling thread of run() counts as one of `threads`.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int threads() const { return threads_; }

    // body(job, 0) ... body(job, count - 1) in any order on any thread; returns when all are done.
    // One call at a time.
    void run(int count, Body body, const void *job);

  private:
    struct State;
    State *state_;
    int threads_;
};

} // namespace octavo
