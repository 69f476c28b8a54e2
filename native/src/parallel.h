// Loops shared among the threads of a pool. Included once by each isa_*.cpp.

// body(i) for i in [0, count), in pieces of `grain`; by this thread alone if that is all there is.
template <class Body>
static void parallel(Pool &pool, int count, int grain, const Body &body) {
    struct Job {
        const Body *body;
        int count, grain;
    } job{&body, count, grain};
    auto piece = [](const void *what, int number) {
        const Job &j = *static_cast<const Job *>(what);
        const int end = (number + 1) * j.grain < j.count ? (number + 1) * j.grain : j.count;
        for (int i = number * j.grain; i < end; i++) (*j.body)(i);
    };
    pool.run((count + grain - 1) / grain, piece, &job);
}

// Pieces small enough that the last one does not keep the others waiting for long.
static int grain_for(const Pool &pool, int count) {
    const int grain = count / (pool.threads() * 8);
    return grain < 1 ? 1 : grain;
}

// Rows that a thread takes at a time where a row is little work.
constexpr int kRowsAtOnce = 4;
