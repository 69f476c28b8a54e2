// Attention through block tables, for rows of any number of new tokens in one call.
//
// The unit of work is a tile: up to kTileRows (query token, query head) pairs of one row that read
// the same KV head, so that each K and V is loaded once for all of them. The context is read in
// segments of kSegment tokens counted from position 0; each segment has a softmax of its own,
// merged into the running one in order. A query's bits therefore depend on its own context only:
// tokens that a tile-mate sees and it does not have weight exactly 0, which changes no sum.

constexpr int kTileRows = 6;
constexpr int kMaxHeadDim = 256;
constexpr float kMasked = -INFINITY;

struct Tile {
    int row;
    int kv_head;
    int first_token; // packed index of the first query token
    int num_tokens;
    int first_head;  // within the group
    int num_heads;
    int segments;    // of its context

    int rows() const { return num_tokens * num_heads; }
};

// Softmax over one segment, or over all segments so far, for the rows of a tile.
struct Partial {
    float peak[kTileRows];
    float total[kTileRows];
    float *out; // [kTileRows, head_dim]
};

struct Query {
    const float *q;   // head_dim floats
    int64_t position; // sees tokens (position - window, position]
};

// scale * q . k of R queries with the W tokens of one key tile, [head_dim][W]; the scale is that of
// each token.
template <int R, class T>
static inline void scores_of_tile(const Query *queries, const T *key, int d, F scale, float *out) {
    F acc[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) acc[r] = zero();
    for (int i = 0; i < d; i++) {
        F k = load(key + size_t(i) * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) acc[r] = fma(splat(queries[r].q[i]), k, acc[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) store(out + r * kSegment, mul(acc[r], scale));
}

// out[r][column ...] += sum over tokens of weight * value, for V vectors of columns.
template <int R, int V, class T>
static inline void add_values(const float *weights, const T *value, int count, int d, int column,
                              float *out) {
    F acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) acc[r][v] = load(out + r * d + column + v * W);
    for (int t = 0; t < count; t++) {
        F x[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) x[v] = load(value + size_t(t) * d + column + v * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            F w = splat(weights[r * kSegment + t]);
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) acc[r][v] = fma(w, x[v], acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) store(out + r * d + column + v * W, acc[r][v]);
}

static inline void soft_cap_scores(float *scores, int count, float cap) {
    // cap * tanh(x / cap) = cap * (1 - 2 / (e^(2 x / cap) + 1))
    for (int t = 0; t < count; t += W) {
        F e = exp(mul(load(scores + t), splat(2.0f / cap)));
        F y = sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f))));
        store(scores + t, mul(y, splat(cap)));
    }
}

// Masks, caps and exponentiates the scores of one query; returns peak and sum.
static inline void segment_softmax(const AttentionShape &s, int64_t position, int64_t begin,
                                   int count, float *scores, float &peak, float &total) {
    int padded = (count + W - 1) / W * W;
    if (s.soft_cap > 0) soft_cap_scores(scores, padded, s.soft_cap);
    int64_t last = position - begin; // offsets above it are in the future
    for (int64_t t = last < 0 ? 0 : last + 1; t < padded; t++) scores[t] = kMasked;
    int64_t first = s.window > 0 ? position - s.window + 1 - begin : 0;
    for (int64_t t = 0; t < first && t < padded; t++) scores[t] = kMasked;
    F m = splat(kMasked);
    for (int t = 0; t < padded; t += W) m = max(m, load(scores + t));
    peak = largest(m);
    F base = splat(peak == kMasked ? 0.0f : peak), sums = zero();
    for (int t = 0; t < padded; t += W) {
        F e = exp(sub(load(scores + t), base));
        store(scores + t, e);
        sums = add(sums, e);
    }
    total = sum(sums);
}

template <int R, class T>
static void segment(const AttentionShape &s, const Query *queries, const int32_t *table, int kv_head,
                    const Cache &cache, int64_t begin, int count, Partial &out) {
    const int d = s.head_dim;
    alignas(64) float scores[R * kSegment];
    auto head = [&](void *base, int64_t position) {
        return head_of<T>(s, base, table[position / s.block_size], kv_head);
    };
    for (int t = 0; t < count; t += W) {
        const int64_t position = begin + t;
        const int offset = int(position % s.block_size);
        T *key = head(cache.key, position);
        F scale = splat(s.scale);
        if constexpr (sizeof(T) == 1) scale = mul(load(scales_of(s, key) + offset), scale);
        scores_of_tile<R>(queries, key + size_t(offset) * d, d, scale, scores + t);
    }
    for (int r = 0; r < R; r++)
        segment_softmax(s, queries[r].position, begin, count, scores + r * kSegment, out.peak[r],
                        out.total[r]);
    for (int i = 0; i < R * d; i++) out.out[i] = 0.0f;
    for (int t = 0; t < count; t += s.block_size) {
        int n = count - t < s.block_size ? count - t : s.block_size;
        T *value = head(cache.value, begin + t);
        if constexpr (sizeof(T) == 1) {
            const uint16_t *scales = scales_of(s, value);
            for (int r = 0; r < R; r++)
                for (int i = 0; i < n; i += W) {
                    float *weights = scores + r * kSegment + t + i;
                    store(weights, mul(load(weights), load(scales + i)));
                }
        }
        int column = 0;
        for (; column + 2 * W <= d; column += 2 * W)
            add_values<R, 2>(scores + t, value, n, d, column, out.out);
        if (column < d) add_values<R, 1>(scores + t, value, n, d, column, out.out);
    }
}

static inline float exp1(float x) {
    float v[W];
    store(v, exp(splat(x)));
    return v[0];
}

static inline void merge(const Partial &part, int rows, int d, Partial &all) {
    for (int r = 0; r < rows; r++) {
        if (part.peak[r] == kMasked) continue;
        float peak = all.peak[r] > part.peak[r] ? all.peak[r] : part.peak[r];
        float a = exp1(all.peak[r] - peak), b = exp1(part.peak[r] - peak);
        all.peak[r] = peak;
        all.total[r] = all.total[r] * a + part.total[r] * b;
        float *to = all.out + r * d;
        const float *from = part.out + r * d;
        for (int i = 0; i < d; i += W)
            store(to + i, fma(load(from + i), splat(b), mul(load(to + i), splat(a))));
    }
}

template <class T>
static void run_segment(const AttentionShape &s, int rows, const Query *queries,
                        const int32_t *table, int kv_head, const Cache &cache, int64_t begin,
                        int count, Partial &out) {
    switch (rows) {
#define OCTAVO_ROWS(R)                                                                             \
    case R:                                                                                        \
        segment<R, T>(s, queries, table, kv_head, cache, begin, count, out);                       \
        break;
        OCTAVO_ROWS(1) OCTAVO_ROWS(2) OCTAVO_ROWS(3) OCTAVO_ROWS(4) OCTAVO_ROWS(5) OCTAVO_ROWS(6)
#undef OCTAVO_ROWS
    }
}

static std::vector<Tile> make_tiles(const AttentionShape &s, const Batch &batch) {
    std::vector<Tile> tiles;
    const int group = s.group();
    const int heads = group < kTileRows ? group : kTileRows;
    const int tokens = kTileRows / heads;
    for (int row = 0; row < batch.num_rows; row++) {
        int begin = int(batch.query_starts[row]), end = int(batch.query_starts[row + 1]);
        for (int token = begin; token < end; token += tokens)
            for (int kv = 0; kv < s.num_kv_heads; kv++)
                for (int first = 0; first < group; first += heads)
                    tiles.push_back({row, kv, token, end - token < tokens ? end - token : tokens,
                                     first, group - first < heads ? group - first : heads, 0});
    }
    return tiles;
}

struct Segments {
    int64_t first; // position where the first segment that anyone sees begins
    int64_t end;   // one past the last token that anyone sees
    int count() const { return int((end - first + kSegment - 1) / kSegment); }
};

// Fills `queries` and returns the segments that the tile has to read.
static Segments tile_queries(const AttentionShape &s, const Batch &batch, const float *qkv,
                             const Tile &tile, Query *queries) {
    const int d = s.head_dim;
    const size_t width = size_t(s.num_heads + 2 * s.num_kv_heads) * d;
    const int64_t start = batch.context_lens[tile.row] - batch.query_starts[tile.row + 1];
    int r = 0;
    for (int t = 0; t < tile.num_tokens; t++) {
        int token = tile.first_token + t;
        for (int h = 0; h < tile.num_heads; h++) {
            int head = tile.kv_head * s.group() + tile.first_head + h;
            queries[r++] = {qkv + token * width + size_t(head) * d, start + token};
        }
    }
    int64_t oldest = s.window > 0 ? queries[0].position - s.window + 1 : 0;
    return {oldest <= 0 ? 0 : oldest / kSegment * kSegment, queries[r - 1].position + 1};
}

static void write_out(const AttentionShape &s, const Tile &tile, const Partial &all, float *out) {
    const int d = s.head_dim;
    int r = 0;
    for (int t = 0; t < tile.num_tokens; t++)
        for (int h = 0; h < tile.num_heads; h++, r++) {
            int head = tile.kv_head * s.group() + tile.first_head + h;
            float *to = out + (size_t(tile.first_token + t) * s.num_heads + head) * d;
            for (int i = 0; i < d; i++) to[i] = all.out[r * d + i] / all.total[r];
        }
}

static inline void clear(int rows, int d, Partial &all) {
    for (int r = 0; r < rows; r++) all.peak[r] = kMasked, all.total[r] = 0.0f;
    for (int i = 0; i < rows * d; i++) all.out[i] = 0.0f;
}

// One segment of a tile's context: its number s, counted from the first that anyone sees.
static void tile_segment(const AttentionShape &s, const Batch &batch, const float *qkv,
                         const Cache &cache, const Tile &tile, int number, Partial &out) {
    Query queries[kTileRows];
    Segments segments = tile_queries(s, batch, qkv, tile, queries);
    const int32_t *table = batch.block_tables + size_t(tile.row) * batch.max_blocks;
    int64_t begin = segments.first + int64_t(number) * kSegment, left = segments.end - begin;
    int count = int(left < kSegment ? left : kSegment);
    if (cache.type == CacheType::f32)
        run_segment<float>(s, tile.rows(), queries, table, tile.kv_head, cache, begin, count, out);
    else if (cache.type == CacheType::bf16)
        run_segment<uint16_t>(s, tile.rows(), queries, table, tile.kv_head, cache, begin, count,
                              out);
    else
        run_segment<int8_t>(s, tile.rows(), queries, table, tile.kv_head, cache, begin, count, out);
}

static void attend_tile(const AttentionShape &s, const Batch &batch, const float *qkv,
                        const Cache &cache, const Tile &tile, float *out) {
    alignas(64) float all_out[kTileRows * kMaxHeadDim], part_out[kTileRows * kMaxHeadDim];
    Partial all{{}, {}, all_out}, part{{}, {}, part_out};
    clear(tile.rows(), s.head_dim, all);
    for (int number = 0; number < tile.segments; number++) {
        tile_segment(s, batch, qkv, cache, tile, number, part);
        merge(part, tile.rows(), s.head_dim, all);
    }
    write_out(s, tile, all, out);
}

struct Item {
    int tile;
    int segment;
};

// Few tiles with long contexts: threads share the segments of a tile, and merge them afterwards in
// the same order as one thread would.
static void attend_split(Pool &pool, const AttentionShape &s, const Batch &batch, const float *qkv,
                         const Cache &cache, const std::vector<Tile> &tiles,
                         const std::vector<Item> &items, float *out) {
    const int d = s.head_dim, count = int(items.size());
    std::vector<Partial> parts(items.size());
    float *memory = static_cast<float *>(std::malloc(items.size() * kTileRows * size_t(d) * 4));
    for (int i = 0; i < count; i++) parts[i].out = memory + size_t(i) * kTileRows * d;
    parallel(pool, count, 1, [&](int i) {
        tile_segment(s, batch, qkv, cache, tiles[items[i].tile], items[i].segment, parts[i]);
    });
    alignas(64) float all_out[kTileRows * kMaxHeadDim];
    Partial all{{}, {}, all_out};
    for (int i = 0; i < count; i++) {
        const Tile &tile = tiles[items[i].tile];
        if (items[i].segment == 0) clear(tile.rows(), d, all);
        merge(parts[i], tile.rows(), d, all);
        if (i + 1 == count || items[i + 1].segment == 0) write_out(s, tile, all, out);
    }
    std::free(memory);
}

static void attention(Pool &pool, const AttentionShape &s, const Batch &batch, const float *qkv,
                      const Cache &cache, float *out) {
    std::vector<Tile> tiles = make_tiles(s, batch);
    const int count = int(tiles.size());
    int most = 0;
    for (Tile &tile : tiles) {
        Query queries[kTileRows];
        tile.segments = tile_queries(s, batch, qkv, tile, queries).count();
        most = tile.segments > most ? tile.segments : most;
    }
    if (most > 1 && count < 4 * pool.threads()) {
        std::vector<Item> items;
        for (int i = 0; i < count; i++)
            for (int number = 0; number < tiles[i].segments; number++) items.push_back({i, number});
        attend_split(pool, s, batch, qkv, cache, tiles, items, out);
        return;
    }
    parallel(pool, count, 1, [&](int i) { attend_tile(s, batch, qkv, cache, tiles[i], out); });
}
